"""Versions of one model for loadtest.swap: the same architecture with other weights, and broken exports."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from itertools import count
from pathlib import Path

from loadtest.processes import ROOT, inlay

WORDS = "embeddings.word_embeddings.weight"
WEIGHTS = "model.safetensors"
NUMBER = count()


def reversed_layers(checkpoint: Path, out: Path) -> None:
    """Copy a BERT checkpoint with its layers in the opposite order and its word rows shifted by one.

    Table and layers both differ, so that an answer that mixes the two versions fits neither.
    """
    shutil.copytree(checkpoint, out)
    data = (checkpoint / WEIGHTS).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, values = json.loads(data[8 : 8 + size]), data[8 + size :]
    layers = 1 + max(int(match[1]) for name in header if (match := re.search(r"layer\.(\d+)\.", name)))

    def renamed(name: str) -> str:
        return re.sub(r"layer\.(\d+)\.", lambda match: f"layer.{layers - 1 - int(match[1])}.", name)

    [words] = [name for name in header if name.endswith(WORDS)]
    begin, end = header[words]["data_offsets"]
    row = (end - begin) // header[words]["shape"][0]
    values = values[:begin] + values[end - row : end] + values[begin : end - row] + values[end:]
    new_header = json.dumps({renamed(name): value for name, value in header.items()}).encode()
    new_header += b" " * (-len(new_header) % 8)
    (out / WEIGHTS).write_bytes(len(new_header).to_bytes(8, "little") + new_header + values)


def export(checkpoint: Path, out: Path) -> None:
    """Export a checkpoint with the project's own command; raises CalledProcessError."""
    command = inlay("export", str(checkpoint), str(out))
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)


def place(version: Path, target: Path, damage: Callable[[Path], None] | None = None) -> None:
    """Replace `target` by a copy of an exported folder, by rename, so that it is always complete.

    Args:
        version: the exported folder.
        target: the folder in the store.
        damage: a change to the copy before it is placed.
    """
    number = next(NUMBER)
    fresh, old = target.with_name(f".new-{number}"), target.with_name(f".old-{number}")
    shutil.copytree(version, fresh)
    if damage:
        damage(fresh)
    target.rename(old)
    fresh.rename(target)
    shutil.rmtree(old)


def _halve(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def _fill(file: Path, begin: int, byte: bytes) -> None:
    with file.open("r+b") as opened:
        size = file.stat().st_size - begin
        opened.seek(begin)
        opened.write(byte * size)


def _not_numbers(folder: Path) -> None:
    """Make every float32 a NaN."""
    file = folder / "weights.safetensors"
    with file.open("rb") as opened:
        begin = 8 + int.from_bytes(opened.read(8), "little")
    _fill(file, begin, b"\xff")


def _other_width(folder: Path) -> None:
    """Write another width into the card than the weights have."""
    card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    card["hidden_size"] *= 2
    (folder / "card.json").write_text(json.dumps(card), encoding="utf-8")


BROKEN: dict[str, Callable[[Path], None]] = {
    "card cut short": lambda folder: _halve(folder / "card.json"),
    "card of another width": _other_width,
    "weights cut short": lambda folder: _halve(folder / "weights.safetensors"),
    "weights that are NaN": _not_numbers,
    "a graph of nonsense": lambda folder: _fill(folder / "encoder.onnx", 0, b"\x5a"),
    "no tokenizer": lambda folder: (folder / "tokenizer.json").unlink(),
}
"""Faults by name; the load of such a folder must fail while the old version serves on."""
