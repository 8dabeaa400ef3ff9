"""A model's own encodings: what its card says, in the arithmetic it was trained with, and 404 for the others."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from models.artifacts.export import export
from tests.golden_cases import case, write_folder
from tests.served import Served, serving

RANDOM = np.random.default_rng(5)
REL_EMBEDDINGS = RANDOM.normal(size=(16, 32)).astype(np.float32)
NORM = {"weight": RANDOM.normal(1, 0.1, 32).astype(np.float32), "bias": RANDOM.normal(0, 0.1, 32).astype(np.float32)}
BIAS = case("t5_bias_encoder_bi")
EXTRA: dict[str, dict[str, Any]] = {  # what attention reads and the golden input layers do not hold
    "input_t5_encoder": {
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": BIAS.weights[
            "relative_attention_bias.weight"
        ]
    },
    "input_deberta_v2_rel_only": {"deberta.encoder.rel_embeddings.weight": REL_EMBEDDINGS}
    | {f"deberta.encoder.LayerNorm.{name}": array for name, array in NORM.items()},
}
MODELS = {
    name: f"input_{name}"
    for name in ("bert", "llama", "modernbert", "bloom", "mpt", "marian_encoder", "t5_encoder", "deberta_v2_rel_only")
}
LISTED = [REL_EMBEDDINGS.tolist(), *(NORM[name].tolist() for name in ("weight", "bias"))]
# model, scheme, what is asked of the model, what the same is without it
SAME: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("llama", "rope", {"start": 5, "length": 30}, {"config": case("input_llama").config, "start": 5, "length": 30}),
    ("llama", "rope", {"start": 5}, {"config": case("input_llama").config, "start": 5, "length": 35}),
    (
        "llama",
        "rope",
        {"length": 3, "layer": 0, "table": "duplicated"},
        {"head_dim": 8, "length": 3, "table": "duplicated"},
    ),
    (
        "modernbert",
        "rope",
        {"length": 9, "layer_type": "sliding_attention"},
        {"config": case("input_modernbert").config, "length": 9, "layer_type": "sliding_attention"},
    ),
    ("modernbert", "rope", {"length": 9, "layer": 0}, {"theta": 160000, "head_dim": 8, "length": 9}),
    ("modernbert", "rope", {"length": 9, "layer": 1}, {"theta": 10000, "head_dim": 8, "length": 9}),
    (
        "modernbert",
        "mask",
        {"query_length": 9, "layer_type": "sliding_attention"},
        {"query_length": 9, "causal": False, "window": 4},
    ),
    (
        "llama",
        "mask",
        {"query_length": 3, "past": 2, "dtype": "float16"},
        {"query_length": 3, "past": 2, "dtype": "float16"},
    ),
    (
        "bert",
        "mask",
        {"query_length": 2, "attention_mask": [[1, 0]]},
        {"query_length": 2, "causal": False, "attention_mask": [[1, 0]]},
    ),
    (
        "bloom",
        "alibi",
        {"query_length": 5, "output": "bias"},
        {"heads": 4, "form": "bloom", "query_length": 5, "output": "bias"},
    ),
    (
        "mpt",
        "alibi",
        {"query_length": 5, "output": "bias"},
        {"heads": 4, "form": "mpt", "query_length": 5, "output": "bias"},
    ),
    ("marian_encoder", "sinusoidal", {"length": 12}, {"kind": "marian", "dim": 32, "length": 12}),
    ("marian_encoder", "sinusoidal", {}, {"kind": "marian", "dim": 32, "length": 40}),
    ("t5_encoder", "t5", {"query_length": 6, "output": "bucket"}, {"query_length": 6, "output": "bucket"}),
    (
        "deberta_v2_rel_only",
        "deberta",
        {"query_length": 6, "output": "rel_embeddings"},
        {
            "query_length": 6,
            "output": "rel_embeddings",
            "position_buckets": 8,
            "max_position_embeddings": 40,
            **dict(zip(("weights", "norm_weight", "norm_bias"), LISTED, strict=True)),
        },
    ),
]
WITHOUT = [
    ("bert", "rope", "it is a bert; positional encodings it has: mask, learned"),
    ("llama", "alibi", "llama has no alibi"),
    ("bloom", "rope", "bloom has no rope"),
    ("bloom", "t5", "bloom has no t5"),
    ("t5_encoder", "deberta", "t5_encoder has no deberta"),
    ("llama", "learned", "llama has no learned"),
    ("bert", "sinusoidal", "bert has no sinusoidal"),
    ("bort", "rope", "no model 'bort' here"),
]


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Every kind of positional encoding a model can have."""
    folder = tmp_path_factory.mktemp("encodings")
    for name, golden in MODELS.items():
        weights = case(golden).weights | EXTRA.get(golden, {})
        write_folder(folder / "checkpoints" / name, case(golden).config, weights)
        export(folder / "checkpoints" / name, folder / "store" / name)
    with serving(folder / "store", default_model="llama") as service:
        yield service


def post(served: Served, path: str, body: dict[str, Any]) -> httpx.Response:
    return served.http.post(path, json={"format": "raw"} | body).raise_for_status()


@pytest.mark.parametrize(("model", "scheme", "own", "same"), SAME)
def test_model_route_equals_explicit_parameters(
    encoders: Served, model: str, scheme: str, own: dict[str, Any], same: dict[str, Any]
) -> None:
    mine = post(encoders, f"/models/{model}/{scheme}", own)
    pure = post(encoders, f"/positions/{scheme}", same | {"arithmetic": "parity"})
    assert mine.headers["inlay-arithmetic"] == "parity"
    assert mine.headers["inlay-shape"] == pure.headers["inlay-shape"]
    assert mine.content == pure.content


def test_bias_of_learned_buckets_matches_transformers(encoders: Served) -> None:
    answer = post(encoders, "/models/t5_encoder/t5", {"query_length": 20, "output": "bias"})
    np.testing.assert_array_equal(np.frombuffer(answer.content, np.float32), BIAS.arrays["bias"].ravel())


def test_learned_positions_are_the_rows_of_the_checkpoint(encoders: Served) -> None:
    table = case("input_bert").weights["bert.embeddings.position_embeddings.weight"]
    assert post(encoders, "/models/bert/learned", {}).content == table.tobytes()
    assert post(encoders, "/models/bert/learned", {"positions": [39, 0]}).content == table[[39, 0]].tobytes()
    clamped = post(encoders, "/models/bert/learned", {"start": 38, "length": 4, "beyond": "clamp"}).content
    assert clamped == table[[38, 39, 39, 39]].tobytes()
    refused = encoders.http.get("/models/bert/learned", params={"length": 41})
    assert (refused.status_code, refused.json()["code"]) == (422, "bad_parameters")


def test_missing_length_goes_to_the_last_trained_position(encoders: Served) -> None:
    trained = case("input_llama").config["max_position_embeddings"]
    assert post(encoders, "/models/llama/rope", {"start": 5}).headers["inlay-shape"].startswith(f"2,{trained - 5},")
    refused = encoders.http.get("/models/llama/rope", params={"start": trained})
    assert (refused.status_code, refused.json()["code"]) == (422, "bad_parameters")
    assert f"trained on {trained} positions: send length too" in refused.json()["detail"]


def test_requires_layer_type_where_layers_differ(encoders: Served) -> None:
    answer = encoders.http.get("/models/modernbert/rope", params={"length": 2})
    assert answer.status_code == 422
    assert "send layer_type, one of full_attention, sliding_attention" in answer.json()["detail"]


def test_model_tables_support_exact_arithmetic(encoders: Served) -> None:
    exact = encoders.http.get("/models/llama/rope", params={"length": 2, "arithmetic": "exact"}).json()
    pure = encoders.http.get("/positions/rope", params={"head_dim": 8, "length": 2}).json()
    assert (exact["arithmetic"], exact["cos"], exact["model"]) == ("exact", pure["cos"], "llama")


@pytest.mark.parametrize(("model", "scheme", "said"), WITHOUT)
def test_missing_encoding_is_404_and_lists_the_others(encoders: Served, model: str, scheme: str, said: str) -> None:
    answer = encoders.http.get(f"/models/{model}/{scheme}", params={"query_length": 2} if scheme != "rope" else {})
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_model" if model == "bort" else "not_found")
    assert said in answer.json()["detail"]


def test_rejects_parameters_that_the_card_decides(encoders: Served) -> None:
    answer = encoders.http.get("/models/llama/rope", params={"theta": 5, "length": 2})
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown_field")
    assert "theta is not known here" in answer.json()["detail"]


def test_draws_encodings_of_a_model(encoders: Served, tmp_path: Path) -> None:
    paths = {"llama/rope": {}, "bloom/alibi": {}, "t5_encoder/t5": {}, "bert/learned": {}, "llama/mask": {}}
    for path, query in paths.items():
        answer = encoders.http.get(f"/models/{path}.png", params=query).raise_for_status()
        assert answer.content.startswith(b"\x89PNG\r\n"), path
