"""`inlay embed` from and to addresses of fsspec: its memory, and this disk as another file system."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from models.artifacts.export import export
from service.bulk import outputs
from tests.golden_cases import write_tiny_bert
from tests.service.cli.conftest import Run

TEXTS = ["a", "b", "c d", "e f a", "b b"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("remote")
    export(write_tiny_bert(folder / "tiny", pooling="mean"), folder / "store/tiny")
    return folder / "store"


@pytest.fixture(autouse=True)
def variables(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INLAY_STORE", str(store))
    monkeypatch.setenv("INLAY_THREADS", "1")


@pytest.fixture
def memory() -> Iterator[Any]:
    """fsspec's file system in memory, with a corpus of two files."""
    files = fsspec.filesystem("memory")
    rows = "".join(f"{number};{text}\n" for number, text in enumerate(TEXTS))
    files.pipe_file("/bucket/in/1.csv", f"id;text\n{rows}".encode())
    files.pipe_file("/bucket/in/2.jsonl", b'{"text": "f", "id": "9"}\n')
    files.pipe_file("/bucket/in/_readme.md", b"not a corpus")
    yield files
    files.rm("/bucket", recursive=True)


def local(tmp_path: Path, inlay: Run, output: str, *words: str) -> Path:
    """The same run from and to this disk."""
    folder = tmp_path / "in"
    folder.mkdir(exist_ok=True)
    rows = [{"text": text, "id": str(number)} for number, text in enumerate(TEXTS)] + [{"text": "f", "id": "9"}]
    (folder / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert inlay("embed", folder, tmp_path / output, "--model", "tiny", *words)[0] == 0
    return tmp_path / output


def test_a_folder_of_parts_is_written_to_an_address(memory: Any, inlay: Run, tmp_path: Path) -> None:
    words = ["--model", "tiny", "--keep", "id", "--part-rows", "2"]
    code, out, err = inlay("embed", "memory://bucket/in", "memory://bucket/out", *words)
    assert code == 0
    assert "memory://bucket/out: 6 vectors, 0 of them there already" in out
    assert err == "note: memory://bucket/in/1.csv: values are separated by ';'\n"
    memory.get("/bucket/out", str(tmp_path / "got"), recursive=True)
    assert sorted(path.name for path in (tmp_path / "got").glob("part*")) == [f"part-0000{n}.parquet" for n in range(4)]
    table, expected = pq.read_table(tmp_path / "got"), pq.read_table(local(tmp_path, inlay, "here", "--keep", "id"))
    assert table.to_pydict() == expected.to_pydict()
    report = json.loads(memory.cat_file("/bucket/out/_report.json"))
    assert (report["rows"], report["vectors"]) == (6, 6)
    assert "6 of them there already" in inlay("embed", "memory://bucket/in", "memory://bucket/out", *words)[1]


@pytest.mark.parametrize("output", ["one.npy", "one.parquet"])
def test_one_file_is_written_to_an_address(output: str, memory: Any, inlay: Run, tmp_path: Path) -> None:
    assert inlay("embed", "memory://bucket/in/*.*[vl]", f"memory://bucket/{output}", "--model", "tiny")[0] == 0
    memory.get_file(f"/bucket/{output}", str(tmp_path / "got"))
    read = np.load if output == "one.npy" else lambda path: np.array(pq.read_table(path).column(0).to_pylist())
    assert (read(tmp_path / "got") == read(local(tmp_path, inlay, output))).all()
    names = {name.rpartition("/")[2] for name in memory.ls("/bucket", detail=False)}
    assert names == {"in", output, f"{output}.report.json"}
    code, _, err = inlay("embed", "memory://bucket/in", f"memory://bucket/{output}", "--model", "tiny")
    assert code == 1
    assert "is there already" in err


KILLED = """
import os, signal, sys
from service.bulk import outputs
from service.cli.main import main

close, left = outputs.Parts.close, [2]

def counted(*values):
    close(*values)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)

outputs.Parts.close = counted
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("output", ["out", "one.npy"])
def test_a_killed_run_goes_on_from_what_its_address_has(output: str, inlay: Run, tmp_path: Path) -> None:
    expected = local(tmp_path, inlay, output, "--part-rows", "2")
    addresses = f"file://{tmp_path}/in", f"file://{tmp_path}/there/{output}"
    words = ["embed", *addresses, "--model", "tiny", "--part-rows", "2"]
    (tmp_path / "there").mkdir()
    killed = subprocess.run([sys.executable, "-c", KILLED, *words], check=False, capture_output=True)
    assert killed.returncode == -9
    code, out, _ = inlay(*words)
    assert (code, "6 vectors, 4 of them there already" in out) == (0, True)
    there = tmp_path / "there" / output
    for path in [expected] if expected.is_file() else sorted(expected.glob("part*")):
        assert (there if there.is_file() else there / path.name).read_bytes() == path.read_bytes()
    assert not outputs.folder(there).is_dir() or outputs.folder(there) == there
    code, _, err = inlay(*words[:-1], "3")
    assert code == 1
    assert ("differs in part_rows" if output == "out" else "is there already") in err
    assert f"inlay: {addresses[1]}" in err


def test_what_cannot_be_opened_is_told(memory: Any, inlay: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    for source, told in (
        ("s3://bucket/in.csv", "pip install s3fs"),
        ("gs://bucket/in.csv", "pip install gcsfs"),
        ("nowhere://bucket/in.csv", "nowhere://bucket/in.csv cannot be opened: Protocol not known: nowhere"),
        ("memory://bucket/nothing", "memory://bucket/nothing: no file to read"),
    ):
        code, _, err = inlay("embed", source, "memory://bucket/out", "--model", "tiny")
        assert code == 1
        assert told in err
        assert err.count("\n") == 1
    code, _, err = inlay("embed", "memory://bucket/in", "memory://bucket/out", "--model", "tiny", "--ray", "local")
    assert code == 1
    assert "ray" in err
