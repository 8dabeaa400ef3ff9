"""A Hugging Face checkpoint folder: config.json and the headers of its safetensors. Reads tensors by name only."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models import safetensors
from models.errors import BadCheckpoint
from models.safetensors import Tensor

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
READABLE = ("F32", "F16", "BF16")
_EXPONENT_BITS = {"F16": 0x7C00, "BF16": 0x7F80}  # all set: infinite or not a number


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a folder promises. `tensors` are places on disk, not arrays."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def model_type(self) -> str:
        """The family's name in config.json."""
        return str(self.config["model_type"])


def read_json(path: Path) -> Any:
    """A JSON file's value.

    raises   BadCheckpoint: no such file, not UTF-8, not JSON
    """
    if not path.is_file():
        raise BadCheckpoint(f"{path} is missing; give the folder that holds {path.name}")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{path} is not JSON: {error}") from error


def read_object(path: Path) -> dict[str, Any]:
    """A JSON file that must hold an object; errors as `read_json`."""
    data = read_json(path)
    if not isinstance(data, dict):
        raise BadCheckpoint(f"{path} holds a JSON {type(data).__name__}; it must be an object")
    return data


def read_config(folder: Path) -> dict[str, Any]:
    """config.json with a model_type; errors as `read_json`."""
    if not folder.is_dir():
        raise BadCheckpoint(
            f"{folder} is not a folder; give a Hugging Face checkpoint: config.json, {WEIGHTS}, tokenizer.json"
        )
    config = read_object(folder / "config.json")
    if not isinstance(config.get("model_type"), str):
        raise BadCheckpoint(f"{folder / 'config.json'} names no model_type, so the family is not known")
    return config


def open_checkpoint(folder: Path) -> Checkpoint:
    """Config and tensor headers of a checkpoint folder.

    raises   BadCheckpoint: a file missing, damaged or hostile
    """
    config = read_config(folder)
    return Checkpoint(folder, config, _headers(folder))


def _headers(folder: Path) -> dict[str, Tensor]:
    if (folder / WEIGHTS).is_file():
        return safetensors.read_header(folder / WEIGHTS)
    if (folder / INDEX).is_file():
        return _sharded(folder)
    if old := sorted(path.name for path in folder.glob("*.bin")) + sorted(path.name for path in folder.glob("*.h5")):
        raise BadCheckpoint(
            f"{folder} holds its weights as {old[0]}, which can run code when read; convert it once with transformers: "
            "AutoModel.from_pretrained(folder).save_pretrained(new_folder, safe_serialization=True)"
        )
    raise BadCheckpoint(f"{folder} holds neither {WEIGHTS} nor {INDEX}")


def _sharded(folder: Path) -> dict[str, Tensor]:
    """The headers of all shards, held against the index."""
    placed = read_object(folder / INDEX).get("weight_map")
    if not isinstance(placed, dict) or not all(isinstance(shard, str) for shard in placed.values()):
        raise BadCheckpoint(f"{folder / INDEX} has no weight_map of tensor names to file names")
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(placed.values())):
        if Path(shard).name != shard or not (folder / shard).is_file():
            raise BadCheckpoint(f"{folder / INDEX} names the shard {shard!r}, which is not a file of this folder")
        found = safetensors.read_header(folder / shard)
        tensors |= {name: tensor for name, tensor in found.items() if placed.get(name) == shard}
    if missing := sorted(set(placed) - set(tensors)):
        raise BadCheckpoint(f"{folder / INDEX} promises {missing[0]!r} in {placed[missing[0]]}, which does not hold it")
    return tensors


def read_tensors(checkpoint: Checkpoint, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """The named tensors as read-only views of the mapped files.

    raises   BadCheckpoint: a name the checkpoint does not hold, or a dtype that is no weight's (READABLE are)
    """
    wanted = []
    for name in names:
        if name not in checkpoint.tensors:
            raise BadCheckpoint(f"{checkpoint.folder} holds no tensor {name!r}")
        tensor = checkpoint.tensors[name]
        if tensor.dtype not in READABLE:
            raise BadCheckpoint(
                f"{tensor.path}: {name!r} is {tensor.dtype}; weights are read as {', '.join(READABLE)}: convert the "
                "checkpoint to one of these (quantised weights need their scales, and F64 would lose digits silently)"
            )
        wanted.append(tensor)
    return safetensors.read(wanted)


def check_finite(name: str, dtype: str, start: int, rows: NDArray[Any]) -> None:
    """Refuse infinite and NaN weights; `start` is the row the chunk begins with.

    raises   BadCheckpoint naming the tensor and its first such row
    """
    if dtype in _EXPONENT_BITS:
        bits = np.uint16(_EXPONENT_BITS[dtype])
        bad = (rows.view(np.uint16) & bits) == bits
    else:
        bad = ~np.isfinite(rows)
    if bad.any():
        row = start + int(np.argwhere(bad)[0][0])
        raise BadCheckpoint(
            f"{name!r} holds a value that is infinite or not a number in row {row}; the checkpoint is damaged"
        )
