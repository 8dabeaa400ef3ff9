"""`Checkpoint`: a model's config, the headers of its tensors, and access to tensors by name and by rows.

This module reads a Hugging Face folder of safetensors or of files that torch.save wrote; families/opening.py turns GGUF
files and hub ids into the same shape. A tensor is a view of a mapped file, or produces its rows when they are sliced;
none is read as a whole.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.checkpoints import gguf_blocks, pickled, safetensors
from models.checkpoints.json_files import line_of, read_object
from models.checkpoints.safetensors import Tensor
from models.errors import BadCheckpoint

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOAT32_ONNX = ("onnx/model.onnx", "model.onnx")  # where others write the whole model as ONNX
READABLE = ("F32", "F16", "BF16")
TORCH_WEIGHTS = ("pytorch_model.bin", "pytorch_model.pt", "model.pt")
TORCH_INDEX = "pytorch_model.bin.index.json"
WEIGHT_FILES = (WEIGHTS, INDEX, *TORCH_WEIGHTS, TORCH_INDEX)  # which one is read where a folder holds several
PICKLE_SUFFIXES = (".bin", ".h5", ".pt", ".pth", ".ckpt", ".pkl")  # pickles, or what may hold them
_EXPONENT_BITS = {"F16": 0x7C00, "BF16": 0x7F80}  # all set: infinite or not a number


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened checkpoint; `tensors` are places on disk, not arrays.

    Attributes:
        folder: holds config.json and what else comes with a model (tokenizer.json, the sentence-transformers files).
        config: the object in config.json.
        tensors: tensors by name.
        source: source named in cards: the file's name or org/name@commit; "": the folder's name.
        fetch: downloads the bytes of tensors before they are read; None: they are on disk.
        no_blocks_reason: why its blocks cannot be read; None: they can.
        separate: every tensor lies by itself, under the base class's name (GGUF).
    """

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    source: str = ""
    fetch: Callable[[list[Tensor]], None] | None = None
    no_blocks_reason: str | None = None
    separate: bool = False

    @property
    def name(self) -> str:
        """The name of the source in cards."""
        return self.source or self.folder.resolve().name

    @property
    def model_type(self) -> str:
        """The family's name in config.json."""
        return str(self.config["model_type"])


def read_config(folder: Path) -> dict[str, Any]:
    """Return the object of config.json, which must name a model_type; BadCheckpoint if it does not."""
    if not folder.is_dir():
        raise BadCheckpoint(
            f"{folder} is not a folder; give a Hugging Face checkpoint: config.json, {WEIGHTS}, tokenizer.json"
        )
    config = read_object(folder / "config.json")
    if not isinstance(config.get("model_type"), str):
        raise BadCheckpoint(
            f'{folder / "config.json"} names no model_type, so the family is not known: add it, such as "bert"'
        )
    return config


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read the config and the tensor headers of a checkpoint folder.

    Raises:
        BadCheckpoint: a file is missing, damaged or hostile.
    """
    config = read_config(folder)
    return Checkpoint(folder, config, headers(folder))


def file_headers(path: Path) -> dict[str, Tensor]:
    """Return the tensors of one file, safetensors or one that torch.save wrote; BadCheckpoint if it is neither."""
    return safetensors.read_header(path) if path.suffix == ".safetensors" else pickled.read_header(path)


def weights_in(names: Collection[str]) -> str | None:
    """Return the file among these that holds a folder's weights, or says which shards do; None: there is none."""
    return next((name for name in WEIGHT_FILES if name in names), None)


def headers(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of a folder, in one file or shards; BadCheckpoint as `open_checkpoint`."""
    paths = [path for pattern in ("*", "onnx/*") for path in folder.glob(pattern) if path.is_file()]
    names = [path.relative_to(folder).as_posix() for path in paths]
    if (weights := weights_in(names)) is None:
        raise no_weights(str(folder), names)
    return _sharded(folder / weights) if weights in (INDEX, TORCH_INDEX) else file_headers(folder / weights)


def no_weights(where: str, names: Collection[str]) -> BadCheckpoint:
    """Return the error of a checkpoint without readable weights; it says what can be done with the files that it has.

    Args:
        where: name of the checkpoint in messages.
        names: paths of its files.
    """
    onnx = next((path for path in FLOAT32_ONNX if path in names), None)
    hint = f"; it holds {onnx}, which `inlay adopt` takes" if onnx else ""
    pickles = [
        name for suffix in PICKLE_SUFFIXES for name in sorted(names) if name.endswith(suffix) and "/" not in name
    ]
    if pickles:
        return BadCheckpoint(
            f"{where} holds its weights as {pickles[0]}, which is not read; convert it once with transformers: "
            f"AutoModel.from_pretrained(folder).save_pretrained(new_folder, safe_serialization=True){hint}"
        )
    return BadCheckpoint(
        f"{where} holds neither {WEIGHTS} nor {TORCH_WEIGHTS[0]}, whole or in shards: download one{hint}"
    )


def _sharded(index: Path) -> dict[str, Tensor]:
    """Return the tensors of all shards, after checking them against the index."""
    shard_of = read_index(index)
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(shard_of.values())):
        if not (path := index.with_name(shard)).is_file():
            raise BadCheckpoint(f"{line_of(index, shard)} names {shard!r}, which is not in this folder: download it")
        tensors |= {name: tensor for name, tensor in file_headers(path).items() if shard_of.get(name) == shard}
    if missing := sorted(set(shard_of) - set(tensors)):
        raise BadCheckpoint(f"{index} promises {missing[0]!r} in {shard_of[missing[0]]}, which does not hold it")
    return tensors


def read_index(path: Path) -> dict[str, str]:
    """Return tensor name -> shard.

    Raises:
        BadCheckpoint: a shard is not a plain file name, or there is no such map.
    """
    shard_of = read_object(path).get("weight_map")
    if not isinstance(shard_of, dict) or not all(isinstance(shard, str) for shard in shard_of.values()):
        raise BadCheckpoint(f"{path} has no weight_map of tensor names to file names")
    for shard in shard_of.values():
        if Path(shard).name != shard or shard in ("", ".", "..") or "\0" in shard or "\\" in shard:
            raise BadCheckpoint(f"{path} names the shard {shard!r}, which is not a file of this folder")
    return shard_of


def read_tensors(checkpoint: Checkpoint, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Return the named tensors; each has shape, dtype, nbytes and slices by rows.

    Returns:
        Read-only views of the mapped files; of a quantized tensor, a gguf_blocks.QuantizedTensor, which makes float32
            rows.

    Raises:
        BadCheckpoint: the checkpoint does not hold a name, or its dtype is not one of READABLE.
    """
    selected = []
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
        selected.append(tensor)
    if checkpoint.fetch:
        checkpoint.fetch(selected)
    held = safetensors.read(selected)
    return {tensor.name: _used(tensor, held[tensor.name]) for tensor in selected}


def _used(tensor: Tensor, held: NDArray[Any]) -> Any:
    """Return the value that serves as the tensor's array; a quantized one makes its rows when they are sliced."""
    array: Any = gguf_blocks.QuantizedTensor(held, tensor.stored, tensor.shape) if tensor.stored else held
    return _Changed(tensor, array) if tensor.paired or tensor.shift else array


class _Changed:
    """A tensor whose rows have another order, or whose values are higher, in the file; converted when sliced."""

    def __init__(self, tensor: Tensor, array: Any) -> None:
        self.shape, self.dtype, self.nbytes, self.ndim = array.shape, array.dtype, array.nbytes, array.ndim
        self._array, self._shift = array, array.dtype.type(tensor.shift)
        rows = np.arange(len(array))
        self._order = rows.reshape(tensor.paired, -1, 2).swapaxes(1, 2).reshape(-1) if tensor.paired else rows

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        values: NDArray[Any] = self._array[self._order[rows]]
        return values - self._shift if self._shift else values


def check_finite(name: str, dtype: str, start: int, rows: NDArray[Any]) -> None:
    """Check that no weight is infinite or NaN.

    Args:
        name: name of the tensor, for the message.
        dtype: safetensors' name of its dtype.
        start: row of the tensor that the chunk begins with.
        rows: the chunk.

    Raises:
        BadCheckpoint: names the tensor and the first such row.
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
