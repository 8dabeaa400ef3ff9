"""Where commands may write a folder: at a free name, over an empty folder, over an exported model."""

import os
from pathlib import Path

import pytest

from models.artifacts.export import export
from models.artifacts.folder import atomic_folder
from models.artifacts.random_checkpoint import create
from models.errors import ModelError
from service.cli.main import main
from service.errors import NotFound
from service.registry.store import check_name
from tests.golden_cases import write_tiny_bert


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_tiny_bert(tmp_path / "checkpoint", pooling="mean")


def contents(place: Path) -> dict[str, bytes]:
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def refused(checkpoint: Path, out: Path | str, message: str) -> None:
    """Assert that every command that writes folders rejects `out` and changes nothing."""
    before = contents(checkpoint.parent)
    with pytest.raises(ModelError, match=message):
        export(checkpoint, Path(out))
    with pytest.raises(ModelError), atomic_folder(Path(out)):
        pytest.fail("the work began")
    assert contents(checkpoint.parent) == before


@pytest.mark.parametrize("marked", [False, True])
def test_rejects_target_that_is_a_store(checkpoint: Path, tmp_path: Path, marked: bool) -> None:
    """Also where an export was written into the store itself by mistake."""
    store = tmp_path / "store"
    for name in "abcd":
        export(checkpoint, store / name)
    if marked:
        (store / "card.json").write_bytes((store / "a/card.json").read_bytes())
    unmarked = r"holds a, b, c and 1 more and no card.json of an export: name a folder inside it, .*store/NAME"
    refused(checkpoint, store, r"holds a/\.checked|holds a/card" if marked else unmarked)
    export(checkpoint, store / "a")


@pytest.mark.parametrize("out", [".", "..", "../elsewhere", "inner/.."])
def test_rejects_working_directory_that_holds_files(
    out: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere/inner").mkdir(parents=True)
    (tmp_path / "elsewhere/notes.txt").write_text("dear")
    monkeypatch.chdir(tmp_path / "elsewhere")
    refused(checkpoint, out, "holds")
    assert (tmp_path / "elsewhere/notes.txt").read_text() == "dear"


OTHERS: dict[str, dict[str, str]] = {
    "letters": {"letters.txt": "dear"},
    "a checkpoint": {"config.json": "{}", "model.safetensors": "x"},
    "an ONNX model that is no export": {"model.onnx": "x", "tokenizer.json": "{}"},
    "a card of something else": {"card.json": '{"name": "ace of spades"}', "back.png": "x"},
    "a spoiled card beside something else": {"card.json": "{", "config.json": "{}", "model.safetensors": "x"},
    "a project": {"src/program.py": "x", ".git/config": "x"},
}


@pytest.mark.parametrize("name", OTHERS)
def test_rejects_folder_that_is_no_export(name: str, checkpoint: Path, tmp_path: Path) -> None:
    for file, text in OTHERS[name].items():
        (tmp_path / "out" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / file).write_text(text)
    first = sorted({Path(file).parts[0] for file in OTHERS[name]})[0]
    refused(checkpoint, tmp_path / "out", rf"out holds {first}.*choose another; .*delete it yourself first")


@pytest.mark.parametrize("spoiled", ["{", "{}", "[]", '{"format": 1}', '{"format": 2, "files": 5}'])
def test_replaces_export_with_damaged_card(spoiled: str, checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    card = export(checkpoint, out)
    (out / "card.json").write_text(spoiled)
    assert export(checkpoint, out) == card


def test_other_files_in_an_export_are_named_and_kept(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(checkpoint, out)
    (out / "thesis").mkdir()
    (out / "thesis/chapter.txt").write_text("long")
    (out / "readme").symlink_to(checkpoint / "config.json")
    before = contents(tmp_path)
    with pytest.raises(ModelError, match=r"holds readme, thesis/chapter\.txt beside an exported model.*: move it"):
        export(checkpoint, out)
    assert contents(tmp_path) == before
    (out / "thesis/chapter.txt").unlink()
    (out / "readme").unlink()
    export(checkpoint, out)  # its own files alone: an older export


def test_rejects_target_that_is_a_symlink(checkpoint: Path, tmp_path: Path) -> None:
    export(checkpoint, tmp_path / "model")
    (tmp_path / "empty").mkdir()
    for name in ("model", "empty", "nowhere"):
        (tmp_path / f"to-{name}").symlink_to(tmp_path / name)
        refused(checkpoint, tmp_path / f"to-{name}", rf"is a link to .*/{name}; name the folder itself")
        with pytest.raises(ModelError):
            create(tmp_path / f"to-{name}", model_type="bert", vocab_size=9, hidden_size=4)
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "store").symlink_to(tmp_path / "empty")  # the folder above may be one: a volume, say
    export(checkpoint, tmp_path / "store/tiny")


def test_rejects_files_that_appeared_during_export(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def write() -> None:
        with atomic_folder(out):
            out.mkdir()
            (out / "letters").write_text("dear")

    with pytest.raises(ModelError, match="holds letters"):
        write()
    assert contents(tmp_path) == {"out/letters": b"dear"}
    assert os.listdir(tmp_path) == ["out"]  # noqa: PTH208  # hidden ones too


@pytest.mark.parametrize("name", ["a/b", "..", ".a", "a\\b", "", "a\0b"])
@pytest.mark.parametrize("command", ["export", "adopt"])
def test_rejects_invalid_model_name(
    command: str, name: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NotFound):
        check_name(name)
    assert main([command, str(checkpoint), str(tmp_path / "out"), "--name", name]) == 1
    assert f"--name {name!r} names no model" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
