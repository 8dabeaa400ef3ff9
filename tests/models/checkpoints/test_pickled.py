"""Files of torch.save: what is read of them, and that nothing else is, whatever their pickle says."""

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from models.checkpoints import pickled
from models.checkpoints.pickled import read_pickled
from models.errors import BadCheckpoint
from service.protocols.inlay.torch_file import torch_file
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


def test_names_of_inner_dicts_are_joined_by_dots(tmp_path: Path) -> None:
    ones = np.ones(2, np.float32)
    tensors = read_pickled(write_torch(tmp_path / "x.pt", {"a": {"b": ones, "c": {"d": ones}}, "e": ones}))
    assert set(tensors) == {"a.b", "a.c.d", "e"}


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
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_qtensor"),
    ("torch", "IntStorage"),
    ("torch.storage", "_load_from_bytes"),
    ("collections", "deque"),
    ("torch._utils _rebuild_tensor_v2", ""),
]


@pytest.mark.parametrize(("module", "attribute"), GLOBALS)
def test_rejects_every_other_global_by_name(module: str, attribute: str, tmp_path: Path) -> None:
    body = dict_of(a=name(module, attribute) + grouped(text("true")) + b"R")
    with pytest.raises(BadCheckpoint, match=rf"x\.pt names the global {module.split()[0]}\.{attribute}") as caught:
        read_body(tmp_path, body)
    assert "dicts of tensors name torch._utils._rebuild_tensor_v2" in str(caught.value)
    assert "torch.save(module.state_dict(), path)" in str(caught.value)


def nested(depth: int) -> bytes:
    return (b"}" + text("a")) * depth + tensor(FLOATS) + b"s" * depth


def multiplying(levels: int) -> bytes:
    """Return a dict that holds another six times, which does too, and so on: 6 ** levels tensors."""
    made = tensor(FLOATS)
    for level in range(levels):
        again = b"".join(text(key) + b"h" + bytes([level]) for key in "bcdef")
        made = b"}(" + text("a") + made + b"q" + bytes([level]) + again + b"u"
    return made


def doubled_tuples(levels: int) -> bytes:
    return b")" + b"".join(b"q\0h\0\x86" for _ in range(levels))


HOSTILE: dict[str, tuple[bytes, str]] = {
    "a value": (dict_of(a=number(7)), "holds 'a', a value of type int; tensors and dicts alone"),
    "a text": (dict_of(a=text("x")), "holds 'a', a value of type str"),
    "a tensor alone": (tensor(FLOATS), "holds a tensor; a dict of tensors is read"),
    "a global": (dict_of(a=ORDERED), "holds 'a', a global"),
    "a storage": (dict_of(a=FLOATS), "holds 'a', a storage"),
    "deep dicts": (nested(9), "dicts in more than 8 others"),
    "very deep dicts": (nested(4000), "dicts in more than 8 others"),
    "a stack without end": (b"}" * 20_000, "stacks more than 10000 values"),
    "a dict in itself": (b"}q\0" + text("a") + b"h\0s", "dicts in more than 8 others"),
    "dicts that multiply": (multiplying(8), "more than 4096 tensors and dicts"),
    "tuples that double": (doubled_tuples(5000), "holds a value of type tuple"),
    "tuples that double as a key": (b"}" + doubled_tuples(5000) + b"Ns", "a key that is a tuple"),
    "tuples that double as a size": (
        dict_of(a=name("torch._utils", "_rebuild_tensor_v2") + grouped(*[doubled_tuples(5000)] * 6) + b"R"),
        "makes a tensor of other values",
    ),
    "a key twice": (b"}(" + text("a") + tensor(FLOATS) + text("a") + tensor(FLOATS) + b"u", "there twice"),
    "a name twice": (
        b"}(" + text("a") + dict_of(b=tensor(FLOATS)) + text("a.b") + tensor(FLOATS) + b"u",
        "holds 'a.b' twice",
    ),
    "a long name": (b"}" + text("a" * 2000) + tensor(FLOATS) + b"s", "a name of 2000 characters"),
    "a negative offset": (dict_of(a=tensor(FLOATS, (1,), (1,), -1)), "not whole numbers from 0"),
    "a negative stride": (dict_of(a=tensor(FLOATS, (2,), (-1,), 1)), "not whole numbers from 0"),
    "a negative size": (dict_of(a=tensor(FLOATS, (-1,))), "2 strides"),
    "an offset outside": (dict_of(a=tensor(FLOATS, (1,), (1,), 6)), "does not lie in its storage of 6 elements"),
    "a stride outside": (dict_of(a=tensor(FLOATS, (2,), (6,))), "does not lie in its storage"),
    "a size outside": (dict_of(a=tensor(FLOATS, (7,), (1,))), "does not lie in its storage"),
    "a huge size": (dict_of(a=tensor(FLOATS, (1 << 70,), (1,))), "not whole numbers from 0"),
    "one value a million times": (dict_of(a=tensor(FLOATS, (1 << 20,), (0,))), "does not lie in its storage"),
    "a huge size beside 0": (dict_of(a=tensor(FLOATS, (0, 1 << 30, 1 << 30), (0, 0, 0))), "does not lie in"),
    "too many dimensions": (dict_of(a=tensor(FLOATS, (1,) * 40, (1,) * 40)), "40 sizes and 40 strides"),
    "a true size": (
        dict_of(a=name("torch._utils", "_rebuild_tensor_v2") + grouped(FLOATS, b"\x88", b")", b")", b"N", b"N") + b"R"),
        "not whole numbers",
    ),
    "more values than a tensor has": (
        dict_of(a=tensor(FLOATS, (2, 3), (3, 1), 0, b"}")),
        "a tensor of 7 values, and plain ones are made of 6",
    ),
    "a storage of another size": (dict_of(a=tensor(storage("0", 7))), "7 elements of F32 in the 24 bytes of data/0"),
    "a storage of no size": (dict_of(a=tensor(storage("0", -6))), "-6 elements of F32"),
    "a storage that is not there": (dict_of(a=tensor(storage("1", 6))), "holds no entry data/1"),
    "a storage elsewhere": (dict_of(a=tensor(storage("../data.pkl", 6))), "holds no entry data/../data.pkl"),
    "a storage by other values": (grouped(text("storage"), ORDERED) + b"Q", "names a storage by other values"),
    "a call of a dict": (ORDERED + grouped(b"}") + b"R", "calls collections.OrderedDict with 1 values"),
    "a call of a storage": (name("torch", "FloatStorage") + b")R", "calls torch.FloatStorage with 0 values"),
    "a call of no global": (b"})R", "gives no global"),
    "state of no dict": (b")}b", "gives no dict"),
    "an unknown memo": (b"h\7", "names a value it did not make"),
    "a tuple without begin": (b"t", "ends what it did not begin"),
    "an item without dict": (b"NNs", "gives no dict"),
    "nothing": (b"", "ends early or leaves values behind"),
    "two values": (b"}}", "ends early or leaves values behind"),
    "more behind the end": (b"}.}", "ends early or leaves values behind"),
    "an odd list of items": (b"}(" + text("a") + b"u", "is not a whole file of torch.save"),
    "a list": (b"]", "the opcode EMPTY_LIST, which no dict of tensors needs"),
    "an instance": (b"(ios\nsystem\n", "the opcode INST"),
    "a new object": (name("collections", "OrderedDict") + b")\x81", "the opcode NEWOBJ"),
    "an extension": (b"\x82\1", "the opcode EXT1"),
    "a number of many digits": (b"I" + b"9" * 5000 + b"\n", "is not a whole file of torch.save"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_rejects_hostile_pickle_in_one_line(case: str, tmp_path: Path) -> None:
    body, message = HOSTILE[case]
    with pytest.raises(BadCheckpoint, match=message) as caught:
        read_body(tmp_path, body)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("start", [b"\x80\x04", b"\x80\x03", b"", b"}"])
def test_rejects_other_protocols(start: bytes, tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="protocol 2 is read"):
        read_pickled(write_zip(tmp_path / "x.pt", start + b"}."))


def test_counts_tensors_wherever_they_are_named(tmp_path: Path) -> None:
    inner = dict_of(**{f"k{at}": tensor(FLOATS) for at in range(64)})
    outer = text("a") + inner + b"q\1" + b"".join(text(f"k{at}") + b"h\1" for at in range(80))
    with pytest.raises(BadCheckpoint, match="more than 4096 tensors and dicts"):
        read_body(tmp_path, b"}(" + outer + b"u")


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


FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "of before torch 1.6": (write_legacy, "in the format of torch before 1.6; the zip format since then is read"),
    "of tar": (lambda path: path.write_bytes(bytes(1024)), "begins with b'"),
    "empty": (lambda path: path.write_bytes(b""), "begins with b''"),
    "missing": (lambda path: None, "is missing"),
    "a folder": (lambda path: path.mkdir(), "is missing or no file"),
    "cut off": (write_cut, "is cut off or no zip"),
    "compressed": (write_deflated, "holds the compressed or encrypted entry 'archive/data.pkl'"),
    "of two folders": (write_two_folders, "not one folder that holds data.pkl"),
    "of big-endian bytes": (lambda path: write_zip(path, framed(b"}"), order=b"big"), "their order is b'big'"),
    "of a long pickle": (lambda path: write_zip(path, b"x" * (1 << 20) + b"x"), "has a data.pkl of 1,048,577 bytes"),
    "of many entries": (
        lambda path: write_zip(path, framed(b"}"), {str(at): b"" for at in range(10_001)}),
        "and at most 10000 are read",
    ),
    "of a moved entry": (write_moved, "holds no entry where its directory says"),
    "of an entry beyond its end": (write_beyond, "ends before its entry"),
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


def test_rejects_files_over_the_limit(tmp_path: Path) -> None:
    with write_torch(tmp_path / "x.pt", {"a": VALUES}).open("r+b") as file:
        file.truncate(pickled.MOST_BYTES + 1)
    with pytest.raises(BadCheckpoint, match="at most 1,073,741,824 are read"):
        read_pickled(tmp_path / "x.pt")


def test_every_cut_of_a_file_is_rejected(tmp_path: Path) -> None:
    content = write_torch(tmp_path / "x.pt", {"a": VALUES, "b": np.ones(2, ml_dtypes.bfloat16)}).read_bytes()
    for length in range(len(content)):
        (tmp_path / "x.pt").write_bytes(content[:length])
        with pytest.raises(BadCheckpoint):
            read_pickled(tmp_path / "x.pt")
