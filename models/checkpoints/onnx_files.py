"""Finds ONNX files in a folder or a hub repository, and copies one of them with its external weights."""

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

from models.checkpoints import sentence_transformers
from models.checkpoints.checkpoint import FLOAT32_ONNX
from models.checkpoints.hub import Progress, Repository, no_progress
from models.checkpoints.located import LocatedCheckpoint
from models.errors import BadCheckpoint

SUFFIX = ".onnx"
NAMES_SHOWN = 20  # of files, in a message
_DYNAMIC = "DynamicQuantize"  # DynamicQuantizeLinear, and ONNX Runtime's DynamicQuantizeMatMul and -LSTM
_DTYPES = {"FLOAT": "float32", "DOUBLE": "float64"}  # of onnx.TensorProto.DataType; others have numpy's names


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """The files of a folder on this machine, used as a hub's Repository is."""

    folder: Path
    progress: Progress = no_progress

    @property
    def label(self) -> str:
        """The folder as it was named."""
        return str(self.folder)

    def has(self, name: str) -> bool:
        """Return whether there is such a file."""
        return (self.folder / name).is_file()

    def copy(self, name: str, path: Path) -> bool:
        """Copy a file to `path`; return False if there is none."""
        if not self.has(name):
            return False
        self.progress("copying", 0, 0)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.folder / name, path)
        return True

    def files(self) -> list[str]:
        """Return the paths of all files, sorted."""
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.folder).as_posix() for path in paths)


Files = FolderFiles | Repository


@dataclass(frozen=True, slots=True)
class OnnxContents:
    """The contents of an ONNX file.

    Attributes:
        data_files: the files of its weights, relative to the file's folder.
        parameters: elements of its weights.
        dtype: dtype of the largest weight.
        dynamic: whether the graph quantizes activations as it runs, by the largest value of a whole batch.
    """

    data_files: tuple[str, ...]
    parameters: int
    dtype: str
    dynamic: bool

    @property
    def is_float32(self) -> bool:
        """Whether nothing in it is quantized."""
        return self.dtype == "float32" and not self.dynamic


@dataclass(frozen=True, slots=True)
class OnnxSource:
    """An ONNX file of a located folder or repository.

    Attributes:
        place: the folder of its small files, and how its safetensors are opened.
        files: all its files.
        path: path of the ONNX file among these.
    """

    place: LocatedCheckpoint
    files: Files
    path: str

    @property
    def label(self) -> str:
        """The ONNX file's name in messages."""
        return f"{self.files.label}/{self.path}"


def config_folder(folder: Path) -> Path:
    """Return the folder of config.json and tokenizer.json: the first module's if they lie there, else `folder`."""
    inner = sentence_transformers.weights_folder(folder)
    return inner if (inner / "config.json").is_file() else folder


def open_onnx(place: LocatedCheckpoint, chosen: str | None, progress: Progress = no_progress) -> OnnxSource:
    """Return an ONNX file of a located folder or repository, not yet fetched.

    Args:
        place: the place that `located` returned.
        chosen: path of the file there; None: the first of FLOAT32_ONNX that is there.
        progress: receives what is copied.

    Raises:
        BadCheckpoint: there is no such file; the message lists the ONNX files that are there.
    """
    files: Files = place.repository or FolderFiles(place.folder, progress)
    return OnnxSource(place, files, _choose(files, chosen))


def _choose(files: Files, chosen: str | None) -> str:
    if chosen is not None and not is_inside(chosen):
        raise BadCheckpoint(
            f"--file {chosen!r} leads out of {files.label}: give a path inside it, as {FLOAT32_ONNX[0]}"
        )
    for path in FLOAT32_ONNX if chosen is None else (chosen,):
        if files.has(path):
            return path
    what = f"neither {' nor '.join(FLOAT32_ONNX)}" if chosen is None else f"no file {chosen!r}"
    held = [path for path in files.files() if path.endswith(SUFFIX)]
    if not held:
        raise BadCheckpoint(
            f"{files.label} holds {what}, and no other ONNX: `inlay export` makes ONNX of a checkpoint's safetensors"
        )
    shown = ", ".join(held[:NAMES_SHOWN]) + (f" and {len(held) - NAMES_SHOWN} more" if len(held) > NAMES_SHOWN else "")
    raise BadCheckpoint(f"{files.label} holds {what}, but {shown}: choose one with --file")


def is_inside(name: str) -> bool:
    """Return whether a path stays in the folder that it begins in."""
    path = PurePosixPath(name)
    return bool(name) and "\0" not in name and not path.is_absolute() and ".." not in path.parts


def fetch_onnx(files: Files, path: str, target: Path, reserved: Iterable[str] = ()) -> OnnxContents:
    """Copy an ONNX file to `target`, with the files of its weights beside it, and return its contents.

    Args:
        files: the files to copy from.
        path: path of the ONNX file there.
        target: path to write.
        reserved: names beside `target` that no file of weights may take.

    Raises:
        BadCheckpoint: the file is not ONNX, or a file of its weights is missing, or lies or would be written elsewhere.
    """
    if not files.copy(path, target):
        raise BadCheckpoint(f"{files.label} holds no file {path!r}")
    contents = read_contents(target)
    for name in contents.data_files:
        if name in (target.name, *reserved):
            raise BadCheckpoint(f"{target} keeps weights in {name!r}, a name that is taken: save it under another")
        inner = (PurePosixPath(path).parent / name).as_posix()
        if not files.copy(inner, target.parent / name):
            raise BadCheckpoint(
                f"{target} keeps weights in {name!r}, which is not there: it belongs beside it, as {inner}"
            )
    return contents


def read_contents(path: Path) -> OnnxContents:
    """Return the contents of an ONNX file without loading its weights; BadCheckpoint if it is not one."""
    import onnx

    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's own, whose class depends on its build
        raise BadCheckpoint(f"{path} is not an ONNX file: {' '.join(str(error).split())}") from error
    graphs = list(_graphs(model.graph))
    tensors = [tensor for graph in graphs for tensor in _tensors(graph)]
    names = dict.fromkeys(
        entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"
    )
    for name in names:
        if not is_inside(name):
            raise BadCheckpoint(
                f"{path} keeps weights in {name!r}, which lies outside its folder: save it in one folder"
            )
    largest = max(tensors, key=lambda tensor: prod(tensor.dims), default=None)
    kinds = {number: name for name, number in onnx.TensorProto.DataType.items()}
    kind = kinds.get(largest.data_type, "unknown") if largest else "FLOAT"
    dynamic = any(node.op_type.startswith(_DYNAMIC) for graph in graphs for node in graph.node)
    parameters = sum(prod(tensor.dims) for tensor in tensors)
    return OnnxContents(tuple(names), parameters, _DTYPES.get(kind, kind.lower()), dynamic)


def _graphs(graph: Any) -> Iterator[Any]:
    """Yield a graph and every graph inside it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _tensors(graph: Any) -> Iterator[Any]:
    """Yield the stored tensors of a graph, those of its constants included."""
    yield from graph.initializer
    yield from (attribute.t for node in graph.node for attribute in node.attribute if attribute.HasField("t"))
