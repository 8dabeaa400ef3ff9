"""A checkpoint: its config, the headers of its tensors, and the tensors that are asked for by name, by rows.

Reads a Hugging Face folder of safetensors. models/sources.py opens whatever else an operator may name, in this shape.
A tensor is a view of a mapped file, or makes its rows as they are asked for; none is read as a whole.
"""

import json
import mmap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.checkpoints import gguf_blocks, safetensors
from models.checkpoints.safetensors import Tensor
from models.errors import BadCheckpoint

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
READABLE = ("F32", "F16", "BF16")
REFUSED = (".bin", ".h5", ".pt", ".pth", ".ckpt", ".pkl")  # pickles, or what may hold them
_EXPONENT_BITS = {"F16": 0x7C00, "BF16": 0x7F80}  # all set: infinite or not a number


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint promises. `tensors` are places on disk, not arrays.

    Attributes:
        folder: holds config.json and what else comes with a model (tokenizer.json, the sentence-transformers files).
        fetch: brings the bytes of tensors to disk before they are read; None: they are there. Where it is set the files
            are partial ones and gone when models/sources.py closes its door: no export may point into them.

    Source: what to call it: the folder's name, the file's, or org/name@commit; "" is the folder's name.
    """

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    source: str = ""
    fetch: Callable[[list[Tensor]], None] | None = None

    @property
    def name(self) -> str:
        """What a card calls the source."""
        return self.source or self.folder.resolve().name

    @property
    def model_type(self) -> str:
        """The family's name in config.json."""
        return str(self.config["model_type"])


def read_json(path: Path) -> Any:
    """A JSON file's value.

    Raises:
        BadCheckpoint: no such file, not UTF-8, not JSON.
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

    Raises:
        BadCheckpoint: a file missing, damaged or hostile.
    """
    config = read_config(folder)
    return Checkpoint(folder, config, headers(folder))


def headers(folder: Path) -> dict[str, Tensor]:
    """The tensors of a folder's safetensors, one file or shards; errors as `open_checkpoint`."""
    if (folder / WEIGHTS).is_file():
        return safetensors.read_header(folder / WEIGHTS)
    if (folder / INDEX).is_file():
        return _sharded(folder)
    if old := [path.name for suffix in REFUSED for path in sorted(folder.glob(f"*{suffix}"))]:
        raise BadCheckpoint(
            f"{folder} holds its weights as {old[0]}, which can run code when read; convert it once with transformers: "
            "AutoModel.from_pretrained(folder).save_pretrained(new_folder, safe_serialization=True)"
        )
    raise BadCheckpoint(f"{folder} holds neither {WEIGHTS} nor {INDEX}")


def _sharded(folder: Path) -> dict[str, Tensor]:
    """The headers of all shards, held against the index."""
    placed = read_index(folder / INDEX)
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(placed.values())):
        if not (folder / shard).is_file():
            raise BadCheckpoint(f"{folder / INDEX} names the shard {shard!r}, which is not a file of this folder")
        found = safetensors.read_header(folder / shard)
        tensors |= {name: tensor for name, tensor in found.items() if placed.get(name) == shard}
    if missing := sorted(set(placed) - set(tensors)):
        raise BadCheckpoint(f"{folder / INDEX} promises {missing[0]!r} in {placed[missing[0]]}, which does not hold it")
    return tensors


def read_index(path: Path) -> dict[str, str]:
    """Tensor name -> shard, each a plain file name; raises BadCheckpoint for a map that leads out of the folder."""
    placed = read_object(path).get("weight_map")
    if not isinstance(placed, dict) or not all(isinstance(shard, str) for shard in placed.values()):
        raise BadCheckpoint(f"{path} has no weight_map of tensor names to file names")
    for shard in placed.values():
        if Path(shard).name != shard or shard in ("", ".", "..") or "\0" in shard or "\\" in shard:
            raise BadCheckpoint(f"{path} names the shard {shard!r}, which is not a file of this folder")
    return placed


def read_tensors(checkpoint: Checkpoint, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """The named tensors, each with shape, dtype, nbytes and slices by rows.

    Returns:
        read-only views of the mapped files; of a quantised tensor, gguf_blocks.QuantizedTensor, which makes float32 rows.

    Raises:
        BadCheckpoint: a name the checkpoint does not hold, or a dtype that is no weight's (READABLE are).
    """
    wanted = []
    for name in names:
        if name not in checkpoint.tensors:
            raise BadCheckpoint(f"{checkpoint.folder} holds no tensor {name!r}")
        tensor = checkpoint.tensors[name]
        if tensor.dtype not in READABLE:
            readable = (*READABLE, *gguf_blocks.QUANTIZED) if tensor.path.suffix == ".gguf" else READABLE
            raise BadCheckpoint(
                f"{tensor.path}: {name!r} is {tensor.dtype}; weights are read as {', '.join(readable)}: convert the "
                "checkpoint to one of these (quantised weights need their scales, and F64 would lose digits silently)"
            )
        wanted.append(tensor)
    if checkpoint.fetch:
        checkpoint.fetch(wanted)
    found = safetensors.read([tensor for tensor in wanted if not tensor.stored])
    return {tensor.name: found[tensor.name] if tensor.name in found else _rows(tensor) for tensor in wanted}


def _rows(tensor: Tensor) -> Any:
    """A quantised tensor: typed as the array it looks like."""
    with tensor.path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    data = np.frombuffer(mapped, np.uint8, tensor.bytes, tensor.offset)
    return gguf_blocks.QuantizedTensor(data, tensor.stored, tensor.shape)


def check_finite(name: str, dtype: str, start: int, rows: NDArray[Any]) -> None:
    """Refuse infinite and NaN weights; `start` is the row the chunk begins with.

    Raises:
        BadCheckpoint: naming the tensor and its first such row.
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
