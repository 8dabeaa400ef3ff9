"""Answers of a model whose weights `inlay create` drew say so, in every protocol; those of others do not."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from models.artifacts.export import export
from models.artifacts.random_checkpoint import create
from proto import embed_pb2 as pb
from tests.served import Served, serving

MODELS = {"drawn": "random", "trained": None}
NAME = "inlay-weights"
IDS = {"name": "input_ids", "datatype": "INT64", "shape": [1, 3], "data": [5, 6, 7]}
INPUTS = [pb.Input(ids=pb.TokenIds(input_ids=[5, 6]))]
ROWS, ENCODED = {"outputs": ["input_embeddings"]}, {"outputs": ["last_hidden_state"]}
QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "rows, which are looked up": ("/embed", {"inputs": [[5, 6, 7]], **ROWS}),
    "rows of several texts": ("/embed", {"inputs": [[5], [6, 7]], **ROWS, "encoding_format": "base64"}),
    "an encoder": ("/embed", {"inputs": [[5, 6, 7]], **ENCODED}),
    "the Open Inference Protocol": ("/v2/models/{model}/infer", {"inputs": [IDS]}),
    "a computation on its word table": ("/models/{model}/similar", {"positive": [5]}),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A model that was created, and the same one as if it had been trained."""
    folder = tmp_path_factory.mktemp("random")
    create(folder / "drawn", model_type="bert", whole=True, vocab_size=64, hidden_size=12, config=sizes(folder))
    export(folder / "drawn", folder / "store/drawn")
    config = json.loads((folder / "drawn/config.json").read_text())
    assert config.pop("initialised")
    (folder / "drawn/config.json").write_text(json.dumps(config))
    export(folder / "drawn", folder / "store/trained")
    with serving(folder / "store") as running:
        yield running


def sizes(folder: Path) -> Path:
    path = folder / "sizes.json"
    tiny = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 32}
    path.write_text(json.dumps({"model_type": "bert", **tiny}))
    return path


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("question", QUESTIONS)
def test_header_names_random_weights(question: str, model: str, served: Served) -> None:
    path, body = QUESTIONS[question]
    named = body if "{model}" in path else body | {"model": model}
    answer = served.http.post(path.format(model=model), json=named)
    assert answer.raise_for_status().headers.get(NAME) == MODELS[model]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("outputs", [ROWS["outputs"], ENCODED["outputs"]])
def test_trailing_metadata_names_random_weights(outputs: list[str], model: str, served: Served) -> None:
    request = pb.EmbedRequest(model=model, inputs=INPUTS, outputs=outputs)
    _, call = served.stub.Embed.with_call(request)
    assert dict(call.trailing_metadata()).get(NAME) == MODELS[model]


def test_stream_is_marked_if_one_of_its_models_is_random(served: Served) -> None:
    for order in (("trained", "drawn"), ("drawn", "trained")):
        call = served.stub.EmbedStream(
            iter([pb.EmbedRequest(model=model, inputs=INPUTS, outputs=ENCODED["outputs"]) for model in order])
        )
        assert len(list(call)) == 2
        assert dict(call.trailing_metadata()).get(NAME) == "random"
