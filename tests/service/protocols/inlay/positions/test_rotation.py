"""Rotation of q and k and conversion of weights over HTTP, against transformers' golden tensors and laws."""

import base64
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load

from tests.golden_cases import Case, case, cases
from tests.served import Served

Array = NDArray[Any]
SKIPPED = {"half_skip_prefix": ("half", 2)}  # DINOv3: CLS and a register go first, unrotated


def parameters(golden: Case) -> dict[str, Any]:
    layout, skip = SKIPPED.get(golden.params["variant"], (golden.params["variant"], 0))
    return {
        "theta": golden.params["rope_theta"],
        "rotary_dim": golden.params["rotary_dim"],
        "head_dim": golden.params["head_dim"],
        "layout": layout,
        "skip": skip,
        "arithmetic": "parity",
        "positions": golden.arrays["positions"][skip:].tolist(),
    }


def tensors(golden: Case) -> dict[str, Any]:
    return {name: golden.arrays[name].tolist() for name in "qk"}


def rotate(served: Served, body: dict[str, Any], path: str = "/positions/rope/rotate") -> httpx.Response:
    return served.http.post(path, json=body)


def as_bytes(array: Array, dtype: str) -> dict[str, Any]:
    return {"dtype": dtype, "shape": array.shape, "data": base64.b64encode(array.tobytes()).decode()}


@pytest.mark.parametrize("golden", cases("rope_apply"), ids=repr)
def test_rotation_matches_transformers(served: Served, golden: Case) -> None:
    document = rotate(served, parameters(golden) | tensors(golden)).raise_for_status().json()
    assert (document["arithmetic"], document["layout"]) == ("parity", parameters(golden)["layout"])
    for name in "qk":
        turned = np.array(document[name], np.float32)
        np.testing.assert_allclose(turned, golden.arrays[f"{name}_out"], rtol=0, **golden.tolerance[f"{name}_out"])


@pytest.mark.parametrize("golden", cases("rope_apply"), ids=repr)
def test_inverse_undoes_a_rotation(served: Served, golden: Case) -> None:
    forth = rotate(served, parameters(golden) | tensors(golden) | {"arithmetic": "exact"}).raise_for_status().json()
    turned = {name: forth[name] for name in "qk"}
    back = rotate(served, parameters(golden) | turned | {"arithmetic": "exact", "inverse": True}).json()
    for name in "qk":
        np.testing.assert_allclose(back[name], golden.arrays[name], rtol=0, atol=1e-6)


def test_bfloat16_rotation_matches_transformers(served: Served) -> None:
    golden = case("apply_half_llama_bf16")
    body = {name: as_bytes(golden.arrays[name].astype(ml_dtypes.bfloat16), "bfloat16") for name in "qk"}
    answer = rotate(served, parameters(golden) | body | {"encoding_format": "base64"}).raise_for_status().json()
    for name in "qk":
        turned = np.frombuffer(base64.b64decode(answer[name]["data"]), ml_dtypes.bfloat16)
        assert answer[name]["dtype"] == "bfloat16"
        assert answer[name]["shape"] == list(golden.arrays[name].shape)
        np.testing.assert_array_equal(turned.astype(np.float32), golden.arrays[f"{name}_out"].ravel())


@pytest.mark.parametrize("golden", cases("rope_apply"), ids=repr)
def test_rotates_tensors_sent_as_bytes(served: Served, golden: Case) -> None:
    sent = {name: as_bytes(golden.arrays[name], golden.arrays[name].dtype.name) for name in "qk"}
    headers = {"accept": "application/vnd.safetensors"}
    body = parameters(golden) | sent
    answer = served.http.post("/positions/rope/rotate", json=body, headers=headers).raise_for_status()
    tensors = load(answer.content)
    for name in "qk":
        np.testing.assert_allclose(
            tensors[name], golden.arrays[f"{name}_out"], rtol=0, **golden.tolerance[f"{name}_out"]
        )


def test_rotation_of_a_model_matches_its_config(served: Served) -> None:
    q = np.random.default_rng(1).normal(size=(2, 5, 8)).tolist()
    config = case("input_llama").config
    own = rotate(served, {"q": q, "start": 3}, "/models/llama/rope/rotate").raise_for_status().json()
    same = rotate(served, {"q": q, "start": 3, "config": config, "arithmetic": "parity"}).raise_for_status().json()
    assert own["q"] == same["q"]
    assert (own["model"], own["arithmetic"]) == ("llama", "parity")


def test_scores_depend_on_the_distance_only(served: Served) -> None:
    one = np.random.default_rng(2).normal(size=(1, 16))
    body = {"q": np.repeat(one, 9, axis=0).tolist(), "head_dim": 16, "dtype": "float64", "start": 1_000_000}
    turned = np.array(rotate(served, body).raise_for_status().json()["q"])
    scores = turned @ turned.T
    for distance in range(1, 9):
        np.testing.assert_allclose(np.diagonal(scores, distance), scores[0, distance], rtol=0, atol=1e-13)


ROTATE: dict[str, Any] = {"head_dim": 4}
ONE = [[1.0, 2.0, 3.0, 4.0]]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "nothing to rotate: send q, k or both"),
    ({"q": [[1, 2], [3]]}, "q cannot be read: the lists are of different lengths"),
    ({"q": [[1, True, 3, 4]]}, "q cannot be read: only numbers can stand in the lists"),
    ({"q": [["a"]]}, "q cannot be read: only numbers"),
    ({"q": 5}, "q cannot be read: send nested lists of numbers or an object"),
    ({"q": []}, "q is [0]; it must be [..., tokens, head_dim]"),
    (
        {"q": {"dtype": "float32", "shape": [1, 4]}},
        "q cannot be read: send nested lists of numbers or an object of dtype, shape and data",
    ),
    ({"q": {"dtype": "int8", "shape": [1, 4], "data": ""}}, "q cannot be read: dtype is int8; it is one of float64"),
    (
        {"q": {"dtype": "float32", "shape": [1, 4], "data": "AAAA"}},
        "q cannot be read: data has 3 bytes; float32 of shape [1, 4] takes 16",
    ),
    (
        {"q": {"dtype": "float32", "shape": [-1], "data": "AAAA"}},
        "q cannot be read: shape is a list of integers, 0 or more",
    ),
    (
        {"q": {"dtype": "float32", "shape": [2**31 - 1] * 8000, "data": "AAAA"}},
        "q cannot be read: shape has 8000 dimensions; allowed: up to 32",
    ),
    ({"q": {"dtype": "float32", "shape": [1, 1], "data": "!"}}, "q cannot be read: data is not base64"),
    ({"q": {"dtype": "float32", "shape": [1, 1], "data": "AADAfw=="}}, "q cannot be read: every number must be finite"),
    ({"q": ONE, "length": 2}, "q has 1 tokens to rotate and there are 2 positions"),
    ({"q": ONE, "positions": [1, 2]}, "q has 1 tokens to rotate and there are 2 positions"),
    ({"q": ONE, "positions": [1], "start": 1}, "positions and start or length contradict each other"),
    ({"q": ONE, "layout": "quarter"}, 'layout is "quarter"; allowed: one of half'),
    ({"q": ONE, "rotary_dim": 8}, "channels"),
    ({"q": ONE, "skip": 2}, "q has 0 tokens to rotate"),
    ({"q": ONE, "keys": ONE}, "keys is not known here"),
]


@pytest.mark.parametrize(("more", "said"), REFUSED)
def test_rejects_impossible_rotations_with_the_reason(served: Served, more: dict[str, Any], said: str) -> None:
    answer = rotate(served, ROTATE | more)
    assert answer.status_code == 422, answer.text
    assert said in answer.json()["detail"]
