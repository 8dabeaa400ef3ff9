"""Files of torch.save: what is read of them, and that nothing else is, whatever their pickle says."""

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from models.checkpoints import safetensors
from models.checkpoints.pickled import read_header
from models.errors import BadCheckpoint
from service.protocols.inlay.prompt_embeds import torch_file
from tests.torch_files import (
    ORDERED,
    STORAGES,
    dict_of,
    framed,
    grouped,
    name,
    number,
    storage,
    tensor,
    text,
    write_torch,
    write_zip,
)

VALUES = np.arange(6, dtype=np.float32)
DATA = {"0": VALUES.tobytes()}
FLOATS = storage("0", 6)
LINEAR = Path(__file__).parents[2] / "golden/torch/linear.pt"


def read_pickled(path: Path) -> Any:
    return safetensors.read(read_header(path).values())


def read_body(place: Path, body: bytes, **options: Any) -> Any:
    return read_pickled(write_zip(place / "x.pt", framed(body), DATA, **options))


def test_reads_what_torch_wrote() -> None:
    tensors = read_pickled(LINEAR)  # torch.save of a Linear's state_dict, see tests/golden/make_torch_file.py
    assert list(tensors) == ["weight", "bias"]
    np.testing.assert_array_equal(tensors["weight"], np.arange(6, dtype=np.float32).reshape(2, 3))
    np.testing.assert_array_equal(tensors["bias"], np.array([-1, 1], np.float32))


@pytest.mark.parametrize("ordered", [True, False], ids=["OrderedDict", "dict"])
@pytest.mark.parametrize("dtype", STORAGES, ids=str)
def test_reads_tensors_of_every_dtype_and_rank(dtype: Any, ordered: bool, tmp_path: Path) -> None:
    arrays = {
        "matrix": np.arange(12).reshape(3, 4).astype(dtype),
        "vector": np.arange(5).astype(dtype),
        "one": np.array(3).astype(dtype),
        "none": np.zeros((0, 4), dtype),
    }
    tensors = read_pickled(write_torch(tmp_path / "x.pt", dict(arrays), ordered))
    assert list(tensors) == list(arrays)
    for key, array in arrays.items():
        assert tensors[key].dtype == dtype
        np.testing.assert_array_equal(tensors[key], array)
        assert array.size == 0 or not tensors[key].flags.writeable


def test_reads_views_of_a_shared_storage(tmp_path: Path) -> None:
    views = {
        "transposed": tensor(FLOATS, (3, 2), (1, 3)),
        "row": tensor(FLOATS, (3,), (1,), 3),
        "repeated": tensor(FLOATS, (2, 3), (0, 1), 1),
    }
    tensors = read_body(tmp_path, dict_of(**views))
    np.testing.assert_array_equal(tensors["transposed"], VALUES.reshape(2, 3).T)
    np.testing.assert_array_equal(tensors["row"], VALUES[3:])
    np.testing.assert_array_equal(tensors["repeated"], [VALUES[1:4]] * 2)


def test_reads_files_without_byteorder(tmp_path: Path) -> None:
    tensors = read_body(tmp_path, dict_of(a=tensor(FLOATS)), order=b"", folder="sparse_linear")
    np.testing.assert_array_equal(tensors["a"], VALUES.reshape(2, 3))


class Runs:
    """What a hostile file holds: a call."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def test_pickle_that_calls_runs_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        hostile = pickle.dumps({"a": Runs(Path.touch, trace), "b": Runs(exec, f"open({str(trace)!r}, 'w')")}, protocol)
        with pytest.raises(BadCheckpoint):
            read_pickled(write_zip(tmp_path / "x.pt", hostile))
    assert not trace.exists()


GLOBALS = [
    ("os", "system"),
    ("posix", "system"),
    ("builtins", "eval"),
    ("torch.nn.modules.linear", "Linear"),
    ("torch._utils", "_rebuild_qtensor"),
    ("torch", "ComplexFloatStorage"),
    ("torch.storage", "_load_from_bytes"),
    ("collections", "deque"),
]


@pytest.mark.parametrize(("module", "attribute"), GLOBALS)
def test_rejects_every_other_global_by_name(module: str, attribute: str, tmp_path: Path) -> None:
    body = dict_of(a=name(module, attribute) + grouped(text("true")) + b"R")
    with pytest.raises(BadCheckpoint, match=rf"x\.pt names the global {module}\.{attribute}") as caught:
        read_body(tmp_path, body)
    assert "dicts of tensors name torch._utils._rebuild_tensor_v2" in str(caught.value)
    assert "torch.save(module.state_dict(), path)" in str(caught.value)


def doubled_tuples(levels: int) -> bytes:
    """Return a tuple that holds another twice, which does too, and so on."""
    return b")\x85" + b"".join(b"q\0h\0\x86" for _ in range(levels))


def state(value: bytes) -> bytes:
    """Return a dict whose value gets a state: for an array or a function, what replaces its content."""
    return dict_of(a=value + grouped(b"N", dict_of(values=tensor(FLOATS), name=text("os.system"))) + b"b")


def rebuilt(*arguments: bytes) -> bytes:
    return dict_of(a=name("torch._utils", "_rebuild_tensor_v2") + grouped(*arguments) + b"R")


DAMAGED, OUTSIDE = "is not a whole file of torch.save", "does not lie in its storage of 24 bytes"
HOSTILE: dict[str, tuple[bytes, str]] = {
    "a number": (dict_of(a=number(7)), "holds a value of type int by a key of type str; tensors by their names alone"),
    "a key that is no name": (b"}" + number(7) + tensor(FLOATS) + b"s", "a value of type tensor by a key of type int"),
    "a dict in a dict": (dict_of(a=dict_of(b=tensor(FLOATS))), "holds a value of type dict by a key"),
    "a dict in itself": (b"}q\0" + text("a") + b"h\0s", "holds a value of type dict by a key"),
    "a tensor alone": (tensor(FLOATS), "holds a value of type tensor; a dict of tensors is read"),
    "a global": (dict_of(a=ORDERED), "holds a value of type global"),
    "a storage": (dict_of(a=FLOATS), "holds a value of type storage"),
    "dicts without end": (b"}" * (1 << 22), "has a data.pkl of 4,194,307 bytes, and at most 2,097,152 are read"),
    "deep dicts": ((b"}" + text("a")) * 1000 + tensor(FLOATS) + b"s" * 1000, "holds a value of type dict"),
    "deep tuples": (b")" + b"\x85" * 8000, "more than 4 tuples in one another"),
    "deep tuples as a key": (b"})" + b"\x85" * (1 << 20) + b"Ns", "more than 4 tuples in one another"),
    "deep tuples of marks": (b"}" + b"(" * 99 + b"t" * 99 + b"Ns", "more than 4 tuples in one another"),
    "tuples around dicts": (b"})" + (ORDERED + b")R\x86") * 1000 + b"Ns", "more than 4 tuples in one another"),
    "tuples by the memo": (b"})\x85\x85q\0Nh\0Ns", "holds one tuple several times"),
    "tuples that double": (b"}" + doubled_tuples(1000) + b"Ns", "holds one tuple several times"),
    "tuples that double beside": (b"})\x85q\1" + b"h\1h\1\x86q\1" * 1000 + b"Ns", "holds one tuple several times"),
    "a huge memo": (b"}r\xff\xff\xff\x7f", "remembers a value as number 2147483647"),
    "a negative offset": (dict_of(a=tensor(FLOATS, (1,), (1,), -1)), "not whole numbers from 0"),
    "a negative stride": (dict_of(a=tensor(FLOATS, (2,), (-1,), 1)), "not whole numbers from 0"),
    "a negative size": (dict_of(a=tensor(FLOATS, (-1,), (1,))), "not whole numbers from 0"),
    "more strides than sizes": (dict_of(a=tensor(FLOATS, (2,), (1, 1))), OUTSIDE),
    "an offset outside": (dict_of(a=tensor(FLOATS, (1,), (1,), 6)), OUTSIDE),
    "a stride outside": (dict_of(a=tensor(FLOATS, (2,), (6,))), OUTSIDE),
    "a size outside": (dict_of(a=tensor(FLOATS, (7,), (1,))), OUTSIDE),
    "a huge size": (dict_of(a=tensor(FLOATS, (1 << 70,), (1,))), "not whole numbers from 0"),
    "one value a million times": (dict_of(a=tensor(FLOATS, (1 << 20,), (0,))), OUTSIDE),
    "sizes that overflow": (dict_of(a=tensor(FLOATS, ((1 << 31) - 1,) * 3, (0, 0, 0))), OUTSIDE),
    "too many dimensions": (dict_of(a=tensor(FLOATS, (1,) * 90, (1,) * 90)), OUTSIDE),
    "a true size": (rebuilt(FLOATS, b"\x88", b")", b")", b"\x89", b"N"), "not whole numbers"),
    "a size that is a text": (rebuilt(FLOATS, number(0), text("ab"), b")", b"\x89", b"N"), "makes a tensor of other"),
    "a tensor of no storage": (rebuilt(b"N", number(0), b")", b")", b"\x89", b"N"), "makes a tensor of other values"),
    "metadata of a tensor": (dict_of(a=tensor(FLOATS, (2, 3), (3, 1), 0, b"}")), DAMAGED),
    "a storage that is not there": (dict_of(a=tensor(storage("1", 6))), "KeyError: 'data/1'"),
    "a storage elsewhere": (dict_of(a=tensor(storage("../data.pkl", 6))), "KeyError: 'data/../data.pkl'"),
    "a storage of another type": (dict_of(a=tensor(storage("0", 6, "_utils._rebuild_tensor_v2"))), "KeyError"),
    "a storage by other values": (grouped(text("storage"), ORDERED) + b"Q", "names a storage by other values"),
    "a call of a dict": (ORDERED + grouped(b"}") + b"R", "calls collections.OrderedDict with 1 values"),
    "a parameter of no tensor": (name("torch._utils", "_rebuild_parameter") + b"(NNNtR", "_rebuild_parameter with 3"),
    "a call of a storage": (name("torch", "FloatStorage") + b")R", "calls torch.FloatStorage with 0 values"),
    "a call of no global": (b"})R", DAMAGED),
    "state of a tensor": (state(tensor(FLOATS)), DAMAGED),
    "state of a storage": (state(FLOATS), DAMAGED),
    "state of a global": (state(ORDERED), DAMAGED),
    "an unknown memo": (b"h\7", DAMAGED),
    "a tuple without begin": (b"t", DAMAGED),
    "nothing": (b"", DAMAGED),
    "an odd list of items": (b"}(" + text("a") + b"u", DAMAGED),
    "a text longer than the file": (b"X\xff\xff\xff\x7f", DAMAGED),
    "bytes of any length": (b"\x8e" + b"\xff" * 7 + b"\x7f", DAMAGED),
    "a list": (b"]", "the opcode EMPTY_LIST, which no dict of tensors needs"),
    "an instance": (b"(ios\nsystem\n", "the opcode INST"),
    "a new object": (name("collections", "OrderedDict") + b")\x81", "the opcode NEWOBJ"),
    "an extension": (b"\x82\1", "the opcode EXT1"),
    "a global by texts": (text("os") + text("system") + b"\x93", "the opcode STACK_GLOBAL"),
    "a number of many digits": (b"I" + b"9" * 5000 + b"\n", DAMAGED),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_rejects_hostile_pickle_in_one_line(case: str, tmp_path: Path) -> None:
    body, message = HOSTILE[case]
    with pytest.raises(BadCheckpoint, match=message) as caught:
        read_body(tmp_path, body)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def write_legacy(path: Path) -> None:
    path.write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + bytes(100))


def write_cut(path: Path) -> None:
    write_torch(path, {"a": VALUES})
    path.write_bytes(path.read_bytes()[:-30])


def write_deflated(path: Path) -> None:
    write_zip(path, framed(dict_of(a=tensor(storage("0", 1 << 20)))), {"0": bytes(1 << 22)}, compression=8)


def write_two_folders(path: Path) -> None:
    write_torch(path, {"a": VALUES})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other/data.pkl", b"")


def write_moved(path: Path) -> None:
    content = write_torch(path, {"a": VALUES}).read_bytes()
    at = content.index(b"PK\1\2") + 42
    path.write_bytes(content[:at] + (7).to_bytes(4, "little") + content[at + 4 :])


def write_beyond(path: Path) -> None:
    content = write_torch(path, {"a": VALUES}).read_bytes()
    at = content.index(b"PK\1\2") + 20
    size = (1 << 20).to_bytes(4, "little")
    path.write_bytes(content[:at] + size + size + content[at + 8 :])


def write_damaged(path: Path) -> None:
    content = write_torch(path, {"a": VALUES}).read_bytes()
    path.write_bytes(content.replace(VALUES.tobytes(), VALUES[::-1].tobytes()))


def write_claiming(path: Path) -> None:
    """Write storages that all claim nearly the whole of a large file."""
    keys = [str(at) for at in range(8)]
    body = dict_of(**{f"a{key}": tensor(storage(key, 1 << 25), (1,), (1,)) for key in keys})
    write_zip(path, framed(body), dict.fromkeys(keys, b""))
    content = bytearray(path.read_bytes())
    for key in keys:
        at = content.rindex(b"archive/data/" + key.encode()) - 46
        content[at + 20 : at + 28] = (1 << 30).to_bytes(4, "little") * 2
    path.write_bytes(content)


def write_elsewhere(path: Path) -> None:
    """Write a storage whose directory entry leads to the header of another file, which leads out of the file."""
    write_torch(path, {"a": VALUES})
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\3\4archive/data/0"[:4], content.index(b"archive/data.pkl") + 30)
    content[at + 28 : at + 30] = b"\xff\xff"
    path.write_bytes(content)


FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "of before torch 1.6": (write_legacy, "in the format of torch before 1.6; the zip format since then is read"),
    "of an entry elsewhere": (write_elsewhere, DAMAGED),
    "of tar": (lambda path: path.write_bytes(bytes(1024)), "begins with b'"),
    "empty": (lambda path: path.write_bytes(b""), "begins with b''"),
    "missing": (lambda path: None, "is missing"),
    "a folder": (lambda path: path.mkdir(), "is missing or no file"),
    "cut off": (write_cut, DAMAGED),
    "compressed": (write_deflated, "holds the compressed entry 'archive/data.pkl'"),
    "of two folders": (write_two_folders, "not one folder that holds data.pkl"),
    "of big-endian bytes": (lambda path: write_zip(path, framed(b"}"), order=b"big"), "their order is b'big'"),
    "of many entries": (
        lambda path: write_zip(path, framed(b"}"), {str(at): b"" for at in range(20_000)}),
        "and at most 1,048,576 are read",
    ),
    "of a moved entry": (write_moved, DAMAGED),
    "of an entry beyond its end": (write_beyond, "has entries of 1,048,[0-9]+ bytes and [0-9]+ itself"),
    "of damaged values": (write_damaged, "Bad CRC-32"),
    "of entries that claim more than the file": (write_claiming, "has entries of 8,589,"),
    "one tensor": (lambda path: path.write_bytes(torch_file(np.ones((2, 3), np.float32))), "a dict of tensors is read"),
}


@pytest.mark.parametrize("case", FILES)
def test_rejects_other_files_in_one_line(case: str, tmp_path: Path) -> None:
    write, message = FILES[case]
    write(tmp_path / "x.pt")
    with pytest.raises(BadCheckpoint, match=message) as caught:
        read_pickled(tmp_path / "x.pt")
    assert "\n" not in str(caught.value)


def test_rejects_zip_without_a_pickle(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("archive/version", b"3")
    with pytest.raises(BadCheckpoint, match=r"not one folder that holds data\.pkl"):
        read_pickled(tmp_path / "x.pt")


def test_every_cut_of_a_file_is_rejected(tmp_path: Path) -> None:
    content = write_torch(tmp_path / "x.pt", {"a": VALUES, "b": np.ones(2, ml_dtypes.bfloat16)}).read_bytes()
    for length in range(len(content)):
        (tmp_path / "x.pt").write_bytes(content[:length])
        with pytest.raises(BadCheckpoint):
            read_pickled(tmp_path / "x.pt")
