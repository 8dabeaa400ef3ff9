"""What is read of the files of sparse models, and what is refused and why."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from models.artifacts import card as cards
from models.artifacts.export import export
from models.artifacts.verification import verify
from models.checkpoints import sparse_modules
from models.checkpoints.sparse_modules import SparseFiles
from models.errors import BadCheckpoint, ModelError
from models.recipes.heads import Splade
from tests.golden_cases import WORDS, write_json, write_tiny_bert
from tests.sparse_models import (
    HIDDEN,
    UNUSED,
    weights_of_ids,
    write_lexical,
    write_masked_lm,
    write_modules,
    write_router,
    write_splade,
    write_static,
)
from tests.torch_files import write_torch


def test_files_say_how_vectors_are_made(tmp_path: Path) -> None:
    splade = write_splade(tmp_path / "splade", "sum", "log1p_relu")
    assert sparse_modules.find(splade) == SparseFiles(Splade("sum", "log1p_relu"), origin="1_SpladePooling/config.json")
    assert sparse_modules.find(write_static(tmp_path / "static")) == SparseFiles(table="")
    router = write_router(tmp_path / "router", default_route="query")
    assert sparse_modules.find(router) == SparseFiles(
        Splade(), "query_0_SparseStaticEmbedding", "query", "document_1_SpladePooling/config.json"
    )
    dense = write_tiny_bert(tmp_path / "dense", pooling="mean")
    assert sparse_modules.find(dense) is None
    assert sparse_modules.find(dense, "splade") == SparseFiles(Splade())
    assert sparse_modules.find(splade, "mean") is None


def test_a_card_keeps_all_of_it(tmp_path: Path) -> None:
    for name, write in (("splade", write_splade), ("router", write_router), ("lexical", write_lexical)):
        card = export(write(tmp_path / name), tmp_path / "store" / name)
        assert cards.read(tmp_path / "store" / name).sparse == card.sparse is not None
        assert "sparse_embedding" in card.outputs
        verify(tmp_path / "store" / name)
    assert card.default_output == "sentence_embedding"
    assert card.sparse.lexical.unused == UNUSED
    static = export(write_static(tmp_path / "static"), tmp_path / "store/static")
    assert (static.graphs, static.outputs, static.answer_width) == ({}, ("sparse_embedding",), len(WORDS))
    verify(tmp_path / "store/static")


def test_a_masked_language_model_is_splade_where_told(tmp_path: Path) -> None:
    place = write_masked_lm(tmp_path / "lm")
    assert export(place, tmp_path / "plain").sparse is None
    assert export(place, tmp_path / "told", pooling="splade").default_output == "sparse_embedding"


def changed(path: Path, **values: Any) -> None:
    write_json(path, json.loads(path.read_text()) | values)


def route(place: Path, **structure: list[str]) -> None:
    changed(place / "router_config.json", structure=structure)


QUERY, DOCUMENT = ["query_0_SparseStaticEmbedding"], ["document_0_Transformer", "document_1_SpladePooling"]
BROKEN: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Any], str]] = {
    "another pooling": (
        write_splade,
        lambda place: changed(place / "1_SpladePooling/config.json", pooling_strategy="mean"),
        "pooling_strategy 'mean'; what is computed: max, sum",
    ),
    "another activation": (
        write_splade,
        lambda place: changed(place / "1_SpladePooling/config.json", activation_function="elu"),
        "activation_function 'elu'",
    ),
    "a module behind": (
        write_splade,
        lambda place: write_modules(place, ("Transformer", ""), ("SpladePooling", "1_SpladePooling"), ("Dense", "2")),
        "chains Transformer, SpladePooling, Dense",
    ),
    "an autoencoder": (
        write_splade,
        lambda place: write_modules(place, ("Transformer", ""), ("Pooling", "1"), ("SparseAutoEncoder", "2")),
        r"SparseAutoEncoder \(CSR\) are not computed; export its dense vectors",
    ),
    "no head": (
        lambda place: write_splade(write_tiny_bert(place)),
        lambda place: write_tiny_bert(place),
        "gives no SPLADE vectors.*saved without its language model's head",
    ),
    "two encoders": (write_router, lambda place: route(place, query=DOCUMENT, document=DOCUMENT), "has the routes"),
    "routes by modality": (
        write_router,
        lambda place: changed(place / "router_config.json", parameters={"route_mappings": {"(None,)": "query"}}),
        "without route_mappings",
    ),
    "no routes": (write_router, lambda place: write_json(place / "router_config.json", [1]), "must be an object"),
    "routes of unknown modules": (write_router, lambda place: route(place, query=["x"]), "does not describe routes"),
    "a short table": (
        write_router,
        lambda place: save_file({"weight": weights_of_ids()[:5]}, place / QUERY[0] / "model.safetensors"),
        "weighs 5 ids of queries, and documents have",
    ),
    "another tokenizer": (
        write_router,
        lambda place: changed(place / QUERY[0] / "tokenizer.json", normalizer=None),
        "tokenizes queries",
    ),
    "a table that is not finite": (
        write_static,
        lambda place: save_file({"weight": np.full(len(WORDS), np.inf, np.float32)}, place / "model.safetensors"),
        "infinite or not a number",
    ),
    "a table of two dimensions": (
        write_static,
        lambda place: save_file({"weight": np.ones((2, 3), np.float32)}, place / "model.safetensors"),
        r"holds \{'weight': \[2, 3\]\}",
    ),
    "a table outside": (write_static, lambda place: write_modules(place, ("SparseStaticEmbedding", "../x")), "outside"),
    "a table of another file": (
        write_static, lambda place: write_json(place / "config.json", {"path": "idf.json"}), "from 'idf.json'"
    ),
    "no table": (write_static, lambda place: (place / "model.safetensors").unlink(), "holds neither model.safetensors"),
    "no tokenizer": (write_static, lambda place: (place / "tokenizer.json").unlink(), "holds no tokenizer.json"),
    "a linear layer of another width": (
        write_lexical,
        lambda place: write_torch(place / "sparse_linear.pt", {"weight": np.ones((1, 3), np.float32)}),
        rf"it holds a weight \(1, {HIDDEN}\) and a bias",
    ),
    "a pickle that calls": (
        write_lexical,
        lambda place: (place / "sparse_linear.pt").write_bytes(b"\x80\x02cos\nsystem\n"),
        "sparse_linear.pt",
    ),
    "no tokenizer for special tokens": (
        write_lexical, lambda place: (place / "tokenizer.json").unlink(), "holds no tokenizer.json"
    ),
    "a broken tokenizer": (
        write_lexical, lambda place: (place / "tokenizer.json").write_text("{"), "tokenizer.json is not JSON"
    ),
    "no tokenizer of documents": (
        write_router, lambda place: (place / DOCUMENT[0] / "tokenizer.json").unlink(), "tokenizer.json is missing"
    ),
    "no special tokens": (
        write_lexical, lambda place: write_json(place / "tokenizer_config.json", {}), "names none of cls_token"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_not_computed_is_refused(case: str, tmp_path: Path) -> None:
    write, damage, message = BROKEN[case]
    place = write(tmp_path / "checkpoint")
    damage(place)
    with pytest.raises(ModelError, match=message):
        export(place, tmp_path / "store/x")
    assert not (tmp_path / "store/x").exists()


def test_a_linear_layer_may_be_safetensors(tmp_path: Path) -> None:
    place = write_lexical(tmp_path / "checkpoint")
    weight, bias = sparse_modules.read_linear(place / "sparse_linear.pt", HIDDEN)
    save_file({"weight": weight, "bias": bias}, place / "sparse_linear.safetensors")
    (place / "sparse_linear.pt").unlink()
    own = sparse_modules.find_linear(place)
    assert own is not None
    np.testing.assert_array_equal(sparse_modules.read_linear(own, HIDDEN)[0], weight)


def test_special_tokens_may_be_objects_and_lie_beside(tmp_path: Path) -> None:
    place = write_lexical(tmp_path / "checkpoint")
    write_json(place / "tokenizer_config.json", {"cls_token": {"content": "[CLS]"}})
    write_json(place / "special_tokens_map.json", {"pad_token": "[PAD]", "unk_token": "not there"})
    assert sparse_modules.unused_ids(place) == (0, 2)
    with pytest.raises(BadCheckpoint):
        sparse_modules.read_linear(place / "sparse_linear.pt", HIDDEN + 1)
