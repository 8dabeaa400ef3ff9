"""Late-interaction checkpoints: what an export says of each library's files, and what is refused."""

import json
import string
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models.artifacts import card as cards
from models.artifacts import export as exporting
from models.artifacts.card import Card
from models.artifacts.description import describe
from models.artifacts.export import export
from models.checkpoints.sentence_transformers import read_pooling
from models.errors import BadCheckpoint
from models.families import opening
from models.recipes.heads import Expansion, Side
from tests.golden_cases import write_json
from tests.hub_server import serving
from tests.late_interaction import (
    BERT,
    DIMENSIONS,
    MASK,
    VOCABULARY,
    write_bert,
    write_bge,
    write_native,
    write_pylate,
    write_stanford,
    write_tokenizer,
)
from tests.whole_models import write_whole

OUTPUT = "multi_vector_embedding"
PUNCTUATION = tuple(sorted(VOCABULARY.index(word) for word in VOCABULARY if word in string.punctuation))
SOME = tuple(sorted(VOCABULARY.index(word) for word in ".,"))
FIXED = {"strategy": "fixed", "attend": True, "length": 12}


def exported(folder: Path) -> Card:
    """The card of an export as a service reads it."""
    export(folder, folder.parent / "store/tiny")
    return cards.read(folder.parent / "store/tiny")


def ids_of(card: Card, folder: Path, text: str) -> list[int]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder.parent / "store/tiny/tokenizer.json"))
    ids: list[int] = tokenizer.encode(text).ids
    return ids


def test_sentence_transformers_files_are_read(tmp_path: Path) -> None:
    folder = write_bert(tmp_path / "x")
    write_native(folder, mask={"skiplist_words": [".", ",", "§"]}, document_length=20, query_expansion=FIXED)
    card = exported(folder)
    own = card.multi_vector
    assert own
    assert own.query == Side("query", 12, ())
    assert own.document == Side("document", 20, SOME)  # § is no token
    assert own.expansion == Expansion(12, MASK, True)
    assert (own.modules.width, own.first, own.mean) == (DIMENSIONS, 0, False)
    assert (card.default_output, card.answer_width, card.pooling) == (OUTPUT, DIMENSIONS, None)
    assert card.prompts == {"query": "query: ", "document": ""}
    assert card.largest_difference[OUTPUT] < 1e-5


def test_skiplist_may_be_of_queries(tmp_path: Path) -> None:
    own = exported(write_native(write_bert(tmp_path / "x"), mask={"skiplist_words": ["."], "skiplist_tasks": "query"}))
    assert own.multi_vector
    assert (own.multi_vector.query.skipped, own.multi_vector.document.skipped) == ((VOCABULARY.index("."),), ())


def test_pylate_files_are_read(tmp_path: Path) -> None:
    folder = write_pylate(write_bert(tmp_path / "x"))
    card = exported(folder)
    own = card.multi_vector
    assert own
    assert own.query == Side("query", 12, ())
    assert own.document == Side("document", 24, PUNCTUATION)
    assert own.expansion == Expansion(12, MASK, False)
    assert card.prompts == {"query": "[unused0]", "document": "[unused1]"}
    assert card.max_tokens == 24  # the documents' length, above max_seq_length
    read = [VOCABULARY[id_] for id_ in ids_of(card, folder, "[unused0]hello")]
    assert read == ["[CLS]", "[unused0]", "hello", "[SEP]"]


def test_pylate_may_leave_queries_as_they_are(tmp_path: Path) -> None:
    own = exported(write_pylate(write_bert(tmp_path / "x"), do_query_expansion=False, skiplist_words=[]))
    assert own.multi_vector
    assert (own.multi_vector.expansion, own.multi_vector.query.max_tokens) == (None, 12)
    assert own.multi_vector.document.skipped == ()


def test_stanford_files_are_read(tmp_path: Path) -> None:
    metadata = {"query_maxlen": 16, "doc_maxlen": 30, "attend_to_mask_tokens": True, "mask_punctuation": False}
    card = exported(write_stanford(write_bert(tmp_path / "x"), metadata))
    own = card.multi_vector
    assert own
    assert own.query == Side("query", 16, ())
    assert own.document == Side("document", 30, ())
    assert own.expansion == Expansion(16, MASK, True)
    assert card.prompts == {"query": "[unused0] ", "document": "[unused1] "}
    assert card.head is None


def test_stanford_defaults_apply_without_metadata(tmp_path: Path) -> None:
    own = exported(write_stanford(write_bert(tmp_path / "x"))).multi_vector
    assert own
    assert own.query == Side("query", 32, ())
    assert own.document == Side("document", None, PUNCTUATION)
    assert own.expansion == Expansion(32, MASK, False)


def test_other_markers_are_the_files(tmp_path: Path) -> None:
    """jina-colbert-v2 names its own."""
    card = exported(write_stanford(write_bert(tmp_path / "x"), {"query_token_id": "query", "doc_token_id": "world"}))
    assert card.prompts == {"query": "query ", "document": "world "}


@pytest.mark.parametrize("pickled", [True, False])
def test_bge_m3_files_are_read(pickled: bool, tmp_path: Path) -> None:
    folder = write_bert(tmp_path / "x")
    weight, bias = write_bge(folder, pickled=pickled)
    card = exported(folder)
    own = card.multi_vector
    assert own
    assert (own.query, own.document, own.expansion, own.first, own.mean) == (Side(), Side(), None, 1, True)
    assert card.outputs[-2:] == ("sentence_embedding", OUTPUT)
    assert card.default_output == "sentence_embedding"
    stored = load_file(tmp_path / "store/tiny/weights.safetensors")
    assert np.array_equal(stored["colbert_linear.weight"], weight)
    assert np.array_equal(stored["colbert_linear.bias"], bias)


def test_a_description_says_what_the_vectors_are(tmp_path: Path) -> None:
    exported(write_pylate(write_bert(tmp_path / "x")))
    assert "multi-vector   16 columns a token, queries filled up to 12 tokens" in describe(str(tmp_path / "store/tiny"))


def test_export_without_blocks_has_no_vectors(tmp_path: Path) -> None:
    folder = write_pylate(write_bert(tmp_path / "x"))
    assert export(folder, tmp_path / "store/tiny", encoder=False).multi_vector is None


def changed(folder: Path, path: str, **changes: Any) -> None:
    write_json(folder / path, json.loads((folder / path).read_text()) | changes)


def keep_images(folder: Path) -> None:
    changed(write_native(folder), "2_MultiVectorMask/config.json", keep_only_token_ids=[3])


def without_mask(folder: Path) -> None:
    write_native(folder)
    chain = json.loads((folder / "modules.json").read_text())
    write_json(folder / "modules.json", [entry for entry in chain if "Mask" not in entry["type"]])


def with_pooling(folder: Path) -> None:
    write_native(folder)
    chain = json.loads((folder / "modules.json").read_text())
    write_json(folder / "modules.json", [*chain, {"type": "x.HierarchicalTokenPooling", "path": "4_Pooling"}])
    write_json(folder / "4_Pooling/config.json", {"pool_factor": 2})


def of_sentences(folder: Path) -> None:
    changed(write_native(folder), "1_Dense/config.json", module_input_name="sentence_embedding")


def no_tokenizer(folder: Path) -> None:
    (write_pylate(folder) / "tokenizer.json").unlink()


def strange_expansion(folder: Path) -> None:
    write_native(folder, query_expansion={"strategy": "all", "length": 3})


def no_length(folder: Path) -> None:
    write_pylate(folder, document_length="many")


def no_projection(folder: Path) -> None:
    write_stanford(folder)
    weights = load_file(folder / "model.safetensors")
    del weights["linear.weight"]
    save_file(weights, folder / "model.safetensors")


def narrow_bge(folder: Path) -> None:
    write_bge(folder, 16)


def long_queries(folder: Path) -> None:
    write_pylate(folder, query_length=41)


def strange_token(folder: Path) -> None:
    write_native(folder, query_expansion=FIXED | {"token": "[BLANK]"})


REFUSED = {
    keep_images: "keep_only_token_ids is of documents that are images",
    without_mask: "has no MultiVectorMask",
    with_pooling: "clustered",
    of_sentences: "'token_embeddings' alone is computed",
    no_tokenizer: "has no tokenizer.json",
    strange_expansion: "its strategy must be fixed or min",
    no_length: "document_length is 'many'",
    no_projection: "holds no 'linear.weight' of shape",
    narrow_bge: "it must be weight [any, 32] and bias",
    strange_token: "the tokenizer has no [BLANK]",
    long_queries: "fills queries up to 41 tokens, and at most 40 are read",
}


@pytest.mark.parametrize("write", REFUSED, ids=lambda write: write.__name__)
def test_what_is_not_computed_is_refused(write: Any, tmp_path: Path) -> None:
    write(write_bert(tmp_path / "x"))
    with pytest.raises(BadCheckpoint) as error:
        export(tmp_path / "x", tmp_path / "store/tiny")
    assert REFUSED[write] in str(error.value)


def test_a_decoder_is_exported_whole(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    write_whole(folder, "qwen3", vocab_size=len(VOCABULARY))
    write_tokenizer(folder, VOCABULARY, *BERT)
    card = exported(write_pylate(folder, 16))
    assert (card.default_output, bool(card.encoder)) == (OUTPUT, True)


def test_adopted_graphs_have_no_projection(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="Dense is not computed in place 1"):
        read_pooling(write_pylate(write_bert(tmp_path / "x")), None)


def test_added_tokens_must_see_a_token(tmp_path: Path) -> None:
    """Of rows that see none, transformers' forms of attention give different numbers."""
    folder = tmp_path / "x"
    write_whole(folder, "modernbert", vocab_size=len(VOCABULARY), local_attention=16, num_key_value_heads=4)
    write_tokenizer(folder, VOCABULARY, *BERT)
    write_pylate(folder, 16, query_length=24)
    with pytest.raises(BadCheckpoint) as error:
        export(folder, tmp_path / "store/tiny")
    assert "the last would see none" in str(error.value)
    write_pylate(folder, 16, query_length=8)
    export(folder, tmp_path / "store/tiny")


@pytest.mark.parametrize("layout", ["sentence-transformers", "PyLate", "Stanford", "BGE-M3"])
def test_a_hub_repository_is_exported_as_its_folder(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roberta = {"model_type": "xlm-roberta", "type_vocab_size": 2, "pad_token_id": 0}
    folder = write_bert(tmp_path / "x", **(roberta if layout == "BGE-M3" else {}))
    writers = {"sentence-transformers": write_native, "PyLate": write_pylate, "BGE-M3": write_bge}
    writers[layout](folder) if layout in writers else write_stanford(folder, {"query_maxlen": 9})
    local = exported(folder)
    with serving(folder) as hub:
        monkeypatch.setattr(exporting, "located", partial(opening.located, endpoint=hub.endpoint))
        remote = exporting.export("org/name", tmp_path / "store/remote")
    assert remote.multi_vector == local.multi_vector
    assert remote.prompts == local.prompts
    assert remote.files["weights.safetensors"] == local.files["weights.safetensors"]
