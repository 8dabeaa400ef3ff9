"""Versions of one model for loadtest.swap: the same architecture with other weights, and exports that are broken.

Makes folders with the project's own command line and edits files; serves nothing and measures nothing.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from itertools import count
from pathlib import Path

from loadtest.processes import ROOT, python

WORDS = "embeddings.word_embeddings.weight"
WEIGHTS = "model.safetensors"
NUMBER = count()


def reversed_layers(checkpoint: Path, out: Path) -> None:
    """A BERT checkpoint's copy whose layers run in the opposite order and whose words have each other's rows.

    Tables and layers both differ, so that an answer made of some of each fits neither version.
    """
    shutil.copytree(checkpoint, out)
    data = (checkpoint / WEIGHTS).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, values = json.loads(data[8 : 8 + size]), data[8 + size :]
    layers = 1 + max(int(found[1]) for name in header if (found := re.search(r"layer\.(\d+)\.", name)))

    def other(name: str) -> str:
        return re.sub(r"layer\.(\d+)\.", lambda found: f"layer.{layers - 1 - int(found[1])}.", name)

    [words] = [name for name in header if name.endswith(WORDS)]
    begin, end = header[words]["data_offsets"]
    row = (end - begin) // header[words]["shape"][0]
    values = values[:begin] + values[end - row : end] + values[begin : end - row] + values[end:]
    renamed = json.dumps({other(name): value for name, value in header.items()}).encode()
    renamed += b" " * (-len(renamed) % 8)
    (out / WEIGHTS).write_bytes(len(renamed).to_bytes(8, "little") + renamed + values)


def export(checkpoint: Path, out: Path) -> None:
    """An exported folder, by the project's own command; raises CalledProcessError."""
    command = python("-m", "models", "export", str(checkpoint), str(out))
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)


def place(version: Path, target: Path, harm: Callable[[Path], None] | None = None) -> None:
    """A copy of an exported folder in the place of `target`: made beside it, then renamed, so that it is never half."""
    number = next(NUMBER)
    fresh, old = target.with_name(f".new-{number}"), target.with_name(f".old-{number}")
    shutil.copytree(version, fresh)
    if harm:
        harm(fresh)
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
    """Every float32 a NaN."""
    file = folder / "weights.safetensors"
    with file.open("rb") as opened:
        begin = 8 + int.from_bytes(opened.read(8), "little")
    _fill(file, begin, b"\xff")


def _other_width(folder: Path) -> None:
    """A card that promises another width than the weights have."""
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
"""What happens to a new version: each must be refused, and the old one go on."""
