"""`inlay calibrate`: the ranges it finds, where it keeps them, and what it refuses."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from models.artifacts import card as cards
from models.artifacts.export import export
from models.artifacts.folder import replace_card
from models.errors import BadCard
from service.bulk import inputs
from service.embedding.quantization import quantized
from service.embedding.requests import Text
from service.registry.store import export_version
from service.registry.store_watcher import StoreWatcher
from tests.embed_requests import embed_request
from tests.golden_cases import case, write_checkpoint, write_json, write_tiny_bert
from tests.service.cli.conftest import Run
from tests.service.registry.registry_service import Service
from tests.static_golden import static_case, texts

WORDS = ["a", "b c", "hello world", "d e f g", "c c c d e f"]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    checkpoint = write_tiny_bert(tmp_path / "tiny", pooling="mean")
    write_json(checkpoint / "config_sentence_transformers.json", {"prompts": {"query": "hello "}})
    export(checkpoint, tmp_path / "store/tiny")
    monkeypatch.setenv("INLAY_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("INLAY_THREADS", "2")
    (tmp_path / "texts.txt").write_text("\n".join([*WORDS, "", "  "]) + "\n")
    return tmp_path / "store"


def vectors(inlay: Run, store: Path, *words: str) -> np.ndarray:
    out = store.parent / "floats.npy"
    out.unlink(missing_ok=True)
    (store.parent / "words.txt").write_text("\n".join(WORDS) + "\n")
    assert inlay("embed", store.parent / "words.txt", out, "--model", "tiny", *words)[0] == 0
    return np.load(out)


@pytest.mark.parametrize("words", [(), ("--input-type", "query"), ("--prompt-name", "query")])
@pytest.mark.parametrize("most", [2, 4096])
def test_ranges_are_those_of_the_texts_vectors(words, most, store, inlay, monkeypatch):
    monkeypatch.setattr(inputs, "WINDOW_ROWS", most)
    code, out, err = inlay("calibrate", "tiny", store.parent / "texts.txt", *words)
    assert (code, "ranges of 32 dimensions, of 5 texts" in out, "fewer than 100" in err) == (0, True, True)
    found, floats = cards.read(store / "tiny").calibration, vectors(inlay, store, *words)
    assert found is not None
    assert found.texts == 5
    np.testing.assert_array_equal(np.float32([found.least, found.largest]), [floats.min(axis=0), floats.max(axis=0)])


def test_the_folder_holds_nothing_else_and_verifies(store, inlay):
    before, kept = cards.read(store / "tiny"), {cards.CHECKED_FILES, *(path.name for path in store.rglob("*"))}
    assert inlay("calibrate", store / "tiny", store.parent / "texts.txt")[0] == 0
    assert {path.name for path in store.rglob("*")} == kept
    after = cards.read(store / "tiny")
    assert after.files == before.files
    assert inlay("verify", "tiny")[0] == 0
    assert "int8 ranges    of 5 texts" in inlay("describe", store / "tiny")[1]


def test_a_table_of_texts(store, inlay):
    pq.write_table(pa.table({"id": [1, 2, 3], "title": ["a b", None, "c"]}), store.parent / "in.parquet")
    assert "of 2 texts" in inlay("calibrate", "tiny", store.parent / "in.parquet", "--column", "title")[1]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_embed_uses_the_ranges_of_the_card(dtype, store, inlay):
    (store.parent / "few.txt").write_text("a\nb\n")
    embed = "embed", store.parent / "few.txt", store.parent / "out.npy", "--model", "tiny", "--dtype", dtype
    code, _, err = inlay(*embed)
    assert (code, "run `inlay calibrate tiny TEXTS`" in err) == (1, True)
    assert inlay("calibrate", "tiny", store.parent / "few.txt")[0] == 0
    found = cards.read(store / "tiny").calibration
    limits = np.float32([found.least, found.largest])
    floats = vectors(inlay, store)
    np.testing.assert_array_equal(vectors(inlay, store, "--dtype", dtype), quantized(floats, dtype, limits))


def test_a_model_stays_the_export_of_its_checkpoint(store, inlay):
    origin = store / ".tiny.checkpoint.json"
    kept = {"checkpoint": "/x", "files": [], "options": {}, "version": export_version(store / "tiny")}
    origin.write_text(json.dumps(kept))
    assert inlay("calibrate", "tiny", store.parent / "texts.txt")[0] == 0
    assert json.loads(origin.read_text()) == kept | {"version": export_version(store / "tiny")}


async def test_a_static_table_of_words(store, inlay):
    export(str(static_case("model2vec").folder), store / "static")
    (store.parent / "words.txt").write_text("".join(text.replace("\n", " ") + "\n" for text in texts() if text.strip()))
    assert inlay("calibrate", "static", store.parent / "words.txt")[0] == 0
    found = cards.read(store / "static").calibration
    service, inputs = Service(store, models=("static",)), [Text("hello world"), Text("a"), Text("king")]
    floats, codes = [
        (await service.pipeline.embed(embed_request(inputs, dtype=dtype))).outputs[0].rows
        for dtype in ("float32", "uint8")
    ]
    limits = np.float32([found.least, found.largest])
    np.testing.assert_array_equal(codes, quantized(floats, "uint8", limits))


async def test_a_running_registry_takes_the_ranges_up(store, inlay):
    service = Service(store)
    watcher = StoreWatcher(service.registry, store)
    for _ in range(2):
        await watcher.poll()
    loaded = service.registry.get("tiny")
    assert inlay("calibrate", "tiny", store.parent / "texts.txt")[0] == 0
    for _ in range(2):
        await watcher.poll()
    assert loaded.card.calibration is None
    assert service.registry.get("tiny").card.calibration.texts == 5


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (b"one\n", "holds 1 text: ranges are between"),
        (b"\n", "holds 0 texts"),
        (b"a\n\xff\n", "cannot be read: 'utf-8' codec"),
    ],
)
def test_unusable_texts_are_refused(texts, says, store, inlay):
    (store.parent / "bad.txt").write_bytes(texts)
    code, _, err = inlay("calibrate", "tiny", store.parent / "bad.txt")
    assert (code, says in err) == (1, True), err
    assert cards.read(store / "tiny").calibration is None


def test_unusable_models_are_refused(store, inlay):
    export(write_checkpoint(case("input_gpt2"), store.parent / "gpt2"), store / "gpt2")
    (store / "linked").symlink_to(store / "tiny")
    texts = store.parent / "texts.txt"
    for model, says in (("gpt2", "sentence_embedding"), ("linked", "is a link"), ("nobody", "holds no card.json")):
        code, _, err = inlay("calibrate", model, texts)
        assert (code, says in err) == (1, True), err
    code, _, err = inlay("calibrate", "tiny", store.parent / "missing.txt")
    assert (code, "missing.txt: no file to read" in err) == (1, True)


def test_a_folder_that_was_exported_again_keeps_its_card(store):
    card = cards.read(store / "tiny")
    export(write_tiny_bert(store.parent / "other", pooling="mean", seed=8), store / "tiny")
    again = (store / "tiny/card.json").read_bytes()
    with pytest.raises(BadCard, match="exported again"):
        replace_card(store / "tiny", card)
    assert (store / "tiny/card.json").read_bytes() == again
