"""Tables served in place from the checkpoint's own file, and tables that must not be."""

import errno
import json
import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts import card as cards
from models.artifacts import links, weights
from models.artifacts.card import Card
from models.artifacts.description import describe
from models.artifacts.export import export
from models.artifacts.verification import verify
from models.checkpoints.checkpoint import open_checkpoint
from models.checkpoints.located import LocatedCheckpoint
from models.checkpoints.safetensors import DTYPES, Tensor
from models.errors import BadCard, BadCheckpoint, ModelError
from tests.golden_cases import case, tiny_bert, tiny_config, write_checkpoint, write_folder
from tests.served import serving

GOLDEN = case("input_bert")
FILE = "linked-model.safetensors"
WORDS = "bert.embeddings.word_embeddings.weight"


@pytest.fixture
def original(tmp_path: Path) -> Path:
    return write_checkpoint(GOLDEN, tmp_path / "checkpoint") / "model.safetensors"


def linked(original: Path, out: Path) -> Card:
    return export(original.parent, out, link=True)


def words_at(original: Path) -> int:
    """Return the offset of the word table in the file."""
    length = int.from_bytes(original.read_bytes()[:8], "little")
    header = json.loads(original.read_bytes()[8 : 8 + length])
    return 8 + length + int(header[WORDS]["data_offsets"][0])


def poke(path: Path, offset: int) -> None:
    """Change one byte within a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


def test_linked_tables_are_bytes_of_checkpoint(original: Path, tmp_path: Path) -> None:
    card = linked(original, tmp_path / "out")
    assert (tmp_path / "out" / FILE).samefile(original)
    held = weights.tensors(tmp_path / "out", card)
    assert card.tables is not None
    for name in card.tables:
        np.testing.assert_array_equal(held[name], GOLDEN.weights[name])
        assert name.encode() not in (tmp_path / "out/weights.safetensors").read_bytes()
    assert card.bytes == sum(array.nbytes for name, array in GOLDEN.weights.items() if name in held)
    assert FILE not in card.files
    assert max(verify(tmp_path / "out").values()) < card.tolerance
    assert f"{WORDS}: float32, {GOLDEN.weights[WORDS].nbytes:,} bytes in {FILE}" in describe(str(tmp_path / "out"))


@pytest.mark.parametrize("engine", ["onnx", "reference"])
def test_linked_model_serves_golden_rows(original: Path, tmp_path: Path, engine: str) -> None:
    linked(original, tmp_path / "store/out")
    fed = [
        {name: GOLDEN.arrays[name][row].tolist() for name in ("input_ids", "attention_mask", "token_type_ids")}
        for row in range(len(GOLDEN.arrays["input_ids"]))
    ]
    with serving(tmp_path / "store", engine=engine) as service:
        rows = service.post({"inputs": fed}).raise_for_status().json()
        table = service.http.get("/models/out/learned", params={"length": 3}).raise_for_status()
    np.testing.assert_allclose(rows, GOLDEN.arrays["hidden_states"], **GOLDEN.tolerance["hidden_states"])
    assert table.status_code == 200


def test_encoder_links_only_its_tables(tmp_path: Path) -> None:
    tensors = tiny_bert()
    folder = write_folder(tmp_path / "x", tiny_config(tensors), tensors)
    card = export(folder, tmp_path / "out", link=True)
    assert card.linked is not None
    assert sorted(card.linked[FILE].tensors) == sorted(name for name in tensors if "_embeddings." in name)
    assert card.largest_difference["last_hidden_state"] < card.tolerance


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_tables_are_linked(dtype: str, tmp_path: Path) -> None:
    export(write_checkpoint(GOLDEN, tmp_path / "x"), tmp_path / "wide")
    narrow = {name: DTYPES[weights.ELEMENTS[dtype]].type for name in GOLDEN.weights}
    tensors: dict[str, NDArray[Any]] = {name: array.astype(narrow[name]) for name, array in GOLDEN.weights.items()}
    card = export(write_folder(tmp_path / "y", GOLDEN.config, tensors), tmp_path / "out", link=True)
    assert card.dtype == dtype
    np.testing.assert_array_equal(weights.tensors(tmp_path / "out", card)[WORDS], tensors[WORDS])


def test_link_follows_symlinked_checkpoint(original: Path, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "cache/snapshots/1", tmp_path / "cache/blobs"
    snapshot.mkdir(parents=True)
    original = original.parent.rename(blobs) / original.name
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(file)
    export(snapshot, tmp_path / "out", link=True)
    assert (tmp_path / "out" / FILE).samefile(original)
    assert not (tmp_path / "out" / FILE).is_symlink()


def test_replaced_original_leaves_export_unchanged(original: Path, tmp_path: Path) -> None:
    card = linked(original, tmp_path / "out")
    new = original.with_name("new")
    new.write_bytes(b"something else")
    new.replace(original)
    assert cards.read(tmp_path / "out") == card
    verify(tmp_path / "out")


def test_load_and_verify_reject_modified_original(original: Path, tmp_path: Path) -> None:
    linked(original, tmp_path / "out")
    before = original.stat().st_mtime_ns
    poke(original, words_at(original))
    os.utime(original, ns=(before + 1, before + 1))
    message = rf"{FILE} serves .*model.safetensors in place, which was written to since the export .*: export the model"
    for check in (cards.read, verify):
        with pytest.raises(BadCard, match=message):
            check(tmp_path / "out")


def test_verify_detects_change_with_same_size_and_time(original: Path, tmp_path: Path) -> None:
    linked(original, tmp_path / "out")
    before = original.stat().st_mtime_ns
    poke(original, words_at(original))
    os.utime(original, ns=(before, before))
    cards.read(tmp_path / "out")
    with pytest.raises(BadCard, match=rf"'{WORDS}' in .*{FILE} is not the tensor its card was written for"):
        verify(tmp_path / "out")


def test_error_names_missing_link(original: Path, tmp_path: Path) -> None:
    linked(original, tmp_path / "out")
    (tmp_path / "out" / FILE).unlink()
    with pytest.raises(BadCard, match=rf"{FILE} is missing: it was a hard link to .*; export the model again"):
        cards.read(tmp_path / "out")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.EXDEV, "is on another filesystem than the export, so it cannot be served in place: export to"),
        (errno.EPERM, "may not be hard-linked by this user, or its filesystem has no hard links"),
        (errno.EMLINK, "has as many hard links as its filesystem allows"),
    ],
)
def test_error_says_why_file_cannot_be_linked(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, message: str
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(BadCheckpoint, match=message):
        linked(original, tmp_path / "store/out")
    assert not list((tmp_path / "store").iterdir())


def test_rejects_link_with_other_dtype(original: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="--link serves the checkpoint's own bytes, so it goes with --dtype keep"):
        export(original.parent, tmp_path / "out", link=True, dtype="int8")


@pytest.mark.parametrize(
    ("dtype", "stored", "offset", "message"),
    [
        ("F64", "", 8, "is F64, and ONNX Runtime maps F32, F16, BF16 as they are: export without --link"),
        ("F32", "Q8_0", 8, "is Q8_0, and ONNX Runtime maps"),
        ("F32", "", 10, "begins at byte 10, within an element of F32"),
    ],
)
def test_rejects_link_of_unmappable_tensor(dtype: str, stored: str, offset: int, message: str, tmp_path: Path) -> None:
    tensor = Tensor("table", dtype, (2, 2), tmp_path / "file", offset, 16, stored)
    with pytest.raises(BadCheckpoint, match=message):
        links.link(tmp_path, [tensor])


def test_rejects_link_of_partially_fetched_checkpoint(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = replace(open_checkpoint(original.parent), source="org/name@1", fetch=lambda _: None)
    place = LocatedCheckpoint(original.parent, "org/name@1", True, lambda: opened)
    monkeypatch.setattr("models.artifacts.export.located", lambda *_, **__: nullcontext(place))
    with pytest.raises(BadCheckpoint, match=r"org/name@1 was fetched in parts: .*, leave out --link"):
        export(original.parent, tmp_path / "out", link=True)
