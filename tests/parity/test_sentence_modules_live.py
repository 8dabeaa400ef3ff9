"""Chains of modules against sentence-transformers: files loaded by both, texts embedded by both."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from models.artifacts.adoption import adopt
from models.artifacts.export import export
from models.checkpoints.sentence_transformers import MODES
from service.embedding.requests import Text
from tests.embed_requests import embed_request
from tests.parity.conftest import Ledger
from tests.sentence_chains import DROPOUT, HIDDEN, NORMALIZE, TORCH, add_layer_mean, dense, layer_norm, write_chain
from tests.service.registry.registry_service import Service

pytestmark = pytest.mark.parity

TOLERANCE = 1e-5
TEXTS = ["hello world", "a", "Hello WORLD abc de f", "b c d e f g h i j " * 6, "", "world, hello: a b"]
IDENTITY = "torch.nn.modules.linear.Identity"
ACTIVATIONS = ["Tanh", "ReLU", "LeakyReLU", "ELU", "GELU", "Sigmoid", "SiLU"]
PLAIN = dense(HIDDEN, 48)
CHAINS: dict[str, tuple[Any, ...]] = {
    **{mode: (mode,) for mode in MODES},
    **{f"{mode}, dense, normalize": (mode, PLAIN, NORMALIZE) for mode in MODES},
    "two modes": (["mean", "max"],),
    "every mode, dense": (list(reversed(MODES)), dense(6 * HIDDEN, 16), NORMALIZE),
    **{name: ("mean", dense(HIDDEN, 24, TORCH + name)) for name in ACTIVATIONS},
    **{f"{name}, no bias": ("mean", dense(HIDDEN, 24, TORCH + name, bias=False)) for name in ACTIVATIONS},
    "identity": ("mean", dense(HIDDEN, 8, IDENTITY)),
    "EmbeddingGemma": ("mean", dense(HIDDEN, 128, IDENTITY, False), dense(128, HIDDEN, IDENTITY, False), NORMALIZE),
    "LaBSE": ("cls", dense(HIDDEN, HIDDEN), NORMALIZE),
    "sentence-t5": ("mean", dense(HIDDEN, 24, IDENTITY, False), NORMALIZE),
    "residual": ("mean", dense(HIDDEN, HIDDEN, use_residual=True)),
    "projected residual": ("mean", dense(HIDDEN, 24, use_residual=True)),
    "layer norm": ("mean", layer_norm(HIDDEN)),
    "layer norm, normalize": ("mean", layer_norm(HIDDEN), NORMALIZE),
    "normalize first": ("mean", NORMALIZE, PLAIN),
    "normalize twice": ("mean", NORMALIZE, PLAIN, NORMALIZE, DROPOUT),
    "dropout": ("mean", DROPOUT, PLAIN, DROPOUT, layer_norm(48)),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "cut": {"truncate_dim": 8},
    "cut beyond the width": {"truncate_dim": 800},
    "dot": {"similarity_fn_name": "dot"},
    "short": {"sentence_bert": {"max_seq_length": 5}},
    "lower case": {"sentence_bert": {"do_lower_case": True}},
    "prompts": {"prompts": {"query": "hello: ", "none": ""}, "default_prompt_name": "query"},
    "prompts not pooled": {"prompts": {"query": "hello a b "}, "default_prompt_name": "query", "include_prompt": False},
}


def difference(place: Path, texts: list[str], **fields: Any) -> float:
    theirs = SentenceTransformer(str(place), device="cpu").encode(texts, batch_size=3, **renamed(fields))
    export(place, place.parent / "store/tiny")
    request = embed_request([Text(text) for text in texts], **{"truncate": True} | fields)
    (output,) = asyncio.run(Service(place.parent / "store").pipeline.embed(request)).outputs
    assert output.rows.shape == theirs.shape
    return float(np.abs(output.rows - theirs).max())


def renamed(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request as sentence-transformers calls them."""
    names = {"normalize": "normalize_embeddings", "dimensions": "truncate_dim"}
    return {names.get(key, key): value for key, value in fields.items()}


@pytest.mark.parametrize("name", CHAINS)
def test_vectors_are_sentence_transformers(name: str, tmp_path: Path, ledger: Ledger) -> None:
    place = write_chain(tmp_path / "x", *CHAINS[name])
    ledger.check("modules", name, difference(place, TEXTS), TOLERANCE)


@pytest.mark.parametrize("chain", ["mean", "mean, dense, normalize", "every mode, dense"])
@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_the_files_apply(name: str, chain: str, tmp_path: Path, ledger: Ledger) -> None:
    texts = [text for text in TEXTS if text] if name == "prompts not pooled" else TEXTS
    place = write_chain(tmp_path / "x", *CHAINS[chain], **OPTIONS[name])
    ledger.check("modules", name, difference(place, texts), TOLERANCE)


@pytest.mark.parametrize("chain", ["LaBSE", "identity"])
def test_cut_vectors_are_scaled_where_the_caller_says_so(chain: str, tmp_path: Path, ledger: Ledger) -> None:
    place = write_chain(tmp_path / "x", *CHAINS[chain], truncate_dim=6)
    ledger.check("modules", "cut, scaled", difference(place, TEXTS, normalize=True), TOLERANCE)
    further = difference(place, TEXTS, normalize=True, dimensions=8)
    ledger.check("modules", "cut by the caller, scaled", further, TOLERANCE)


LAYER_MEANS = {"all layers": (0, (0.5, 2.0, 1.0)), "two": (1, (1.0, 3.0)), "the last": (2, (7.0,))}


@pytest.mark.parametrize("chain", ["mean", "LaBSE"])
@pytest.mark.parametrize("name", LAYER_MEANS)
def test_means_of_layers_are_pooled(name: str, chain: str, tmp_path: Path, ledger: Ledger) -> None:
    place = add_layer_mean(write_chain(tmp_path / "x", *CHAINS[chain]), *LAYER_MEANS[name])
    ledger.check("modules", f"mean of layers, {name}", difference(place, TEXTS), TOLERANCE)


def test_a_mean_of_layers_needs_the_layers(tmp_path: Path, ledger: Ledger) -> None:
    """Without output_hidden_states sentence-transformers leaves the token vectors as they are."""
    place = add_layer_mean(write_chain(tmp_path / "x", "mean"), 0, (0.5, 2.0, 1.0))
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | {"output_hidden_states": False}))
    ledger.check("modules", "mean of no layers", difference(place, TEXTS), TOLERANCE)


def test_files_that_sentence_transformers_saved_are_read(tmp_path: Path, ledger: Ledger) -> None:
    place = write_chain(tmp_path / "x", *CHAINS["EmbeddingGemma"], truncate_dim=16, similarity_fn_name="dot")
    SentenceTransformer(str(place), device="cpu").save(str(tmp_path / "saved/x"))
    ledger.check("modules", "saved again", difference(tmp_path / "saved/x", TEXTS), TOLERANCE)


@pytest.mark.filterwarnings("ignore")  # those of the exporter that needs no further package
def test_modules_run_behind_an_adopted_graph(tmp_path: Path, ledger: Ledger) -> None:
    place = write_chain(tmp_path / "x", *CHAINS["LaBSE"])
    theirs = SentenceTransformer(str(place), device="cpu")
    write_onnx(theirs, place / "model.onnx")
    adopt(place, tmp_path / "store/tiny")
    request = embed_request([Text(text) for text in TEXTS], truncate=True)
    (output,) = asyncio.run(Service(tmp_path / "store").pipeline.embed(request)).outputs
    ledger.check("modules", "adopted", float(np.abs(output.rows - theirs.encode(TEXTS)).max()), TOLERANCE)


def write_onnx(model: Any, path: Path) -> None:
    """The transformer of a model as ONNX, by torch's exporter."""

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model[0].auto_model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.inner(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    ids = torch.ones((2, 5), dtype=torch.int64)
    axes = {0: "batch", 1: "length"}
    names = ["input_ids", "attention_mask"]
    torch.onnx.export(
        Hidden(), (ids, ids), str(path), input_names=names, output_names=["last_hidden_state"],
        dynamic_axes=dict.fromkeys([*names, "last_hidden_state"], axes), dynamo=False,
    )  # fmt: skip
