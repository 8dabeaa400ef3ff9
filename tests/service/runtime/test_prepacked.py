"""Sessions from copies of their graphs that are packed on disk: the same bits, and the graph itself where none is."""

import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime as ort
import pytest

from models.artifacts import card as cards
from models.artifacts.card import PREPACKED
from models.artifacts.export import export
from models.artifacts.int8_encoder import Int8Options
from service.registry.store import file_stamps
from service.runtime import onnx, prepacked
from tests.golden_cases import write_tiny_bert
from tests.last_token import write_embedder
from tests.whole_models import write_whole

SIZES = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
ROOM = 1 << 30  # bytes


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepacked, "MIN_BYTES", 0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    export(write_tiny_bert(tmp_path / "bert", pooling="mean"), tmp_path / "store/bert")
    return tmp_path / "store/bert"


def rows(folder: Path, room: int) -> bytes:
    """Return the hidden states of three texts."""
    card = cards.read(folder)
    engine, lengths = onnx.load(folder, card, "cpu", 2, twice=True, prepacked_bytes=room), (3, 40, 1)
    tokens = sum(lengths)
    feeds = {
        "ids": np.random.default_rng(1).integers(0, card.vocab_size, tokens),
        "positions": np.concatenate([np.arange(length) for length in lengths]),
        "types": np.zeros(tokens, np.int64),
        "mask": np.ones(tokens, bool),
        "lengths": np.array(lengths, np.int64),
    }
    known = {name: feeds[name] for name in card.graphs["encoder"].inputs}
    (beside,) = engine.run("encoder", known, ("last_hidden_state",))
    if engine.alone:
        np.testing.assert_array_equal(engine.alone.run("encoder", known, ("last_hidden_state",))[0], beside)
    return beside.tobytes()


class Copy(NamedTuple):
    """The copy of the only encoder."""

    data: Path
    inode: int


def copy_of(folder: Path) -> Copy:
    (data,) = (folder / PREPACKED).glob("*/encoder.onnx/encoder.onnx.data")
    return Copy(data, data.stat().st_ino)


@pytest.mark.parametrize("most_packed", [None, 0])
@pytest.mark.parametrize("family", ["bert", "qwen3"])
def test_copy_gives_the_bits_of_the_graph(
    family: str, most_packed: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(write_whole(tmp_path / "x", family, **SIZES), tmp_path / "out", encoder=True)
    expected = rows(tmp_path / "out", 0)
    assert not (tmp_path / "out" / PREPACKED).exists()
    if most_packed is not None:
        monkeypatch.setattr(onnx, "MAX_PACKED", most_packed)
    assert rows(tmp_path / "out", ROOM) == expected
    made = copy_of(tmp_path / "out")
    assert rows(tmp_path / "out", ROOM) == expected
    assert copy_of(tmp_path / "out") == made


def test_copy_of_int8_gives_the_bits_of_the_graph(tmp_path: Path) -> None:
    export(write_embedder(tmp_path / "x"), tmp_path / "out", int8=Int8Options(min_cosine=0.9))
    expected = rows(tmp_path / "out", 0)
    assert [rows(tmp_path / "out", ROOM) for _ in range(2)] == [expected] * 2
    assert copy_of(tmp_path / "out")


def test_changed_copy_is_made_again(model: Path) -> None:
    expected = rows(model, ROOM)
    made = copy_of(model)
    made.data.write_bytes(bytes(made.data.stat().st_size))
    assert rows(model, ROOM) == expected
    assert copy_of(model) != made


def test_copy_of_another_onnx_runtime_goes(model: Path) -> None:
    (model / PREPACKED / "0.1-abc").mkdir(parents=True)
    rows(model, ROOM)
    (place,) = (model / PREPACKED).iterdir()
    assert place.name.startswith(ort.__version__)


def test_what_a_killed_process_left_is_replaced(model: Path) -> None:
    expected = rows(model, ROOM)
    place = copy_of(model).data.parent
    place.rename(place.with_name(f".{place.name}"))
    assert rows(model, ROOM) == expected
    assert [path.name for path in place.parent.iterdir()] == [place.name]


def test_no_room_no_copy(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rows(model, 0)
    usage = shutil.disk_usage(model)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1))
    assert rows(model, ROOM) == expected
    assert not list((model / PREPACKED).glob("*/*"))


def test_folder_that_cannot_be_written_is_served(model: Path) -> None:
    (model / PREPACKED).write_bytes(b"")  # no folder can be made there, not even by root
    assert rows(model, ROOM) == rows(model, 0)


def test_copies_are_no_part_of_the_model(model: Path, tmp_path: Path) -> None:
    before = file_stamps(model)
    rows(model, ROOM)
    assert file_stamps(model) == before
    export(tmp_path / "bert", model)  # replaces it, and the copies with it
    assert not (model / PREPACKED).exists()
