"""Tables written to files: what a stop and an error leave, and which formats hold which tables."""

import errno
from pathlib import Path

import pytest
from safetensors import safe_open

from models.artifacts.table_files import FORMATS, write
from models.checkpoints.hub import Progress
from models.errors import BadEncoding
from models.positions import alibi
from models.positions.rope.frequencies import Rope
from models.positions.rope.table import tabulate
from models.positions.table import Table


def test_a_stop_leaves_no_half_file(tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tabulate(Rope(10000.0, 64), range(100_000)), tmp_path / "table.npy", progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_an_error_names_the_file_that_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(table: Table, path: Path, dtype: str, progress: Progress) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setitem(FORMATS, ".npy", refuse)
    with pytest.raises(PermissionError) as refusal:
        write(tabulate(Rope(10000.0, 64), range(4)), tmp_path / "table.npy")
    assert refusal.value.filename == str(tmp_path / "table.npy")


def test_outputs_of_different_shapes_need_safetensors(tmp_path: Path) -> None:
    table = alibi.tabulate(4, query_length=3)
    with pytest.raises(BadEncoding, match="different shapes: slopes"):
        write(table, tmp_path / "bias.npy")
    write(table, tmp_path / "bias.safetensors", "float64")
    with safe_open(tmp_path / "bias.safetensors", "numpy") as file:
        assert file.get_tensor("slopes").tolist() == [0.25, 0.0625, 0.015625, 0.00390625]
