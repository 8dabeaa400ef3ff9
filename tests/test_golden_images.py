"""Golden images through the whole road: checkpoint → export → ONNX → service → every format of tensors."""

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load

from models.artifacts.export import export
from models.vision.families import FAMILIES
from tests.golden_cases import Case, case, write_folder
from tests.served import Served, serving
from tests.sweeps import sampled
from tests.vision_cases import export_seen, feed_of, seen

CASES = seen()
each_case = pytest.mark.parametrize("golden", CASES, ids=repr)
some_cases = pytest.mark.parametrize("golden", sampled(CASES, 3), ids=repr)


@pytest.fixture(scope="module", params=["onnx", "reference"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("images")
    for golden in CASES:
        export_seen(golden, folder / "checkpoints" / golden.name, folder / "store" / golden.name)
    with serving(folder / "store", engine=request.param) as running:
        yield running


def tensor(array: NDArray[Any]) -> dict[str, Any]:
    return {"dtype": "float32", "shape": array.shape, "data": base64.b64encode(array.tobytes()).decode()}


def fed(golden: Case) -> list[NDArray[Any]]:
    """The case's batch, an image each; flattened patches are one image."""
    array = golden.arrays[str(feed_of(golden.arrays))]
    return [array] if array.ndim == 2 else list(array)


def check(golden: Case, got: Any) -> None:
    expected = golden.arrays["hidden_states"]
    got = np.asarray(got, np.float32).reshape(expected.shape)
    np.testing.assert_allclose(got, expected, **golden.tolerance["hidden_states"])


def post(served: Served, golden: Case, inputs: Any, accept: str = "application/json", **fields: Any) -> Any:
    url = f"/models/{golden.name}/images"
    return served.http.post(url, json={"inputs": inputs, **fields}, headers={"accept": accept}).raise_for_status()


def test_every_golden_image_is_among_the_cases() -> None:
    assert len([golden for golden in CASES if golden.name.startswith("vision_")]) == 11
    assert {golden.params["model_type"] for golden in CASES} <= set(FAMILIES)


@each_case
def test_json_gives_the_golden_rows(served: Served, golden: Case) -> None:
    feed = str(feed_of(golden.arrays))
    answer = post(served, golden, [{feed: tensor(each)} for each in fed(golden)], outputs=["input_embeddings"]).json()
    assert answer["model"] == golden.name
    check(golden, answer["outputs"]["input_embeddings"])


@some_cases
def test_nested_lists_give_the_golden_rows(served: Served, golden: Case) -> None:
    feed = str(feed_of(golden.arrays))
    check(golden, post(served, golden, {feed: golden.arrays[feed].tolist()}).json())


@some_cases
def test_octets_give_the_golden_rows(served: Served, golden: Case) -> None:
    feed = str(feed_of(golden.arrays))
    answer = post(served, golden, [{feed: tensor(each)} for each in fed(golden)], "application/octet-stream")
    assert answer.headers["inlay-dtype"] == "float32"
    check(golden, np.frombuffer(answer.content, np.float32))


@some_cases
def test_safetensors_give_the_golden_rows(served: Served, golden: Case) -> None:
    feed = str(feed_of(golden.arrays))
    images, outputs = [{feed: tensor(each)} for each in fed(golden)], ["input_embeddings"]
    answer = post(served, golden, images, "application/vnd.safetensors", outputs=outputs)
    tensors = load(answer.content)
    check(golden, np.concatenate([tensors[f"{index}/input_embeddings"] for index in range(len(fed(golden)))]))


@some_cases
def test_an_image_gives_the_same_bits_alone_and_in_a_batch(served: Served, golden: Case) -> None:
    feed = str(feed_of(golden.arrays))
    one = {feed: tensor(fed(golden)[0])}
    other = {feed: tensor(fed(golden)[0] + np.float32(1))}
    alone = post(served, golden, one, "application/octet-stream").content
    between = post(served, golden, [other, one, other], "application/octet-stream").content
    assert between[len(alone) : -len(alone)] == alone


@some_cases
def test_patches_and_positions_come_besides(served: Served, golden: Case) -> None:
    feed = str(feed_of(golden.arrays))
    outputs = [name for name in ("patch_embeddings", "position_embeddings") if name in names(served, golden)]
    answer = post(served, golden, {feed: tensor(fed(golden)[0])}, outputs=outputs).json()["outputs"]
    assert set(answer) == set(outputs)
    if golden.name in ("vision_siglip", "vision_siglip_interp"):  # no rows between, no norm: the sum is all there is
        check(golden, np.array(answer["patch_embeddings"]) + np.array(answer["position_embeddings"]))


def names(served: Served, golden: Case) -> list[str]:
    graphs = served.http.get(f"/models/{golden.name}").raise_for_status().json()["graphs"]
    return [name for graph in graphs.values() for name in graph["outputs"]]


@pytest.mark.parametrize("name", ["clip_similarity", "siglip_similarity"])
def test_similarity_is_the_golden_one(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    golden, kind = case(name), name.split("_")[0]
    tower = case(f"vision_{kind}")
    weights = {"vision_model." + key: value for key, value in tower.weights.items()}
    weights |= {key: golden.arrays[key] for key in ("logit_scale", "logit_bias") if key in golden.arrays}
    config = {"model_type": kind, "vision_config": tower.params["config"]}
    folder = tmp_path_factory.mktemp(kind)
    export(write_folder(folder / "checkpoint", config, weights), folder / "store/dual", side="vision")
    body = {key: tensor(golden.arrays[key]) for key in ("text_embeds", "image_embeds")}
    with serving(folder / "store") as served:
        answer = served.http.post("/models/dual/similarity", json=body).raise_for_status().json()
    for output in ("logits_per_text", "logits_per_image"):
        np.testing.assert_allclose(answer[output], golden.arrays[output], **golden.tolerance["logits_per_text"])
    total = np.array(answer["probabilities"]).sum(axis=1)
    assert np.allclose(total, 1) == (kind == "clip")
