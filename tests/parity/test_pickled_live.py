"""Files of torch.save against torch itself: tensors are read as it wrote them, and all else is refused."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.checkpoints.pickled import read_pickled
from models.errors import BadCheckpoint

pytestmark = pytest.mark.parity

import torch  # noqa: E402  # after the mark, as in the modules beside it

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64)
BASE = torch.arange(24.0)


def assert_same(path: Path, expected: dict[str, Any]) -> None:
    """Assert that the file holds these tensors, bit for bit and by the same dtype."""
    tensors = read_pickled(path)
    assert list(tensors) == list(expected)
    for name, own in expected.items():
        assert tensors[name].shape == tuple(own.shape)
        assert tensors[name].dtype.name == str(own.dtype).removeprefix("torch.")
        np.testing.assert_array_equal(tensors[name].astype(np.float64), own.to(torch.float64).numpy())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_state_dicts_are_read_as_saved(dtype: torch.dtype, tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(7, 3), torch.nn.LayerNorm(3), torch.nn.Linear(3, 1))
    state = OrderedDict((name, (own * 10).to(dtype)) for name, own in module.state_dict().items())
    torch.save(state, tmp_path / "x.pt")
    assert_same(tmp_path / "x.pt", state)
    torch.save(module.state_dict(), tmp_path / "x.pt")
    assert_same(tmp_path / "x.pt", module.state_dict())


VIEWS: dict[str, torch.Tensor] = {
    "transposed": BASE.reshape(4, 6).T,
    "part": BASE[3:17:2],
    "column": BASE.reshape(2, 3, 4)[:, 1],
    "one": torch.tensor(5.0),
    "empty": torch.zeros(0, 5),
    "nothing": torch.zeros(0),
}


def test_views_of_shared_storages_are_read(tmp_path: Path) -> None:
    torch.save(dict(VIEWS), tmp_path / "x.pt")
    assert_same(tmp_path / "x.pt", VIEWS)


REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "a module": (lambda: torch.nn.Linear(2, 2), {}, "the opcode NEWOBJ"),
    "parameters": (lambda: {"a": torch.nn.Parameter(BASE)}, {}, "torch._utils._rebuild_parameter"),
    "int32": (lambda: {"a": BASE.to(torch.int32)}, {}, "torch.IntStorage"),
    "complex": (lambda: {"a": BASE.to(torch.complex64)}, {}, "torch.ComplexFloatStorage"),
    "conjugates": (lambda: {"a": BASE.to(torch.complex64).conj()}, {}, "torch.ComplexFloatStorage"),
    "float8": (lambda: {"a": BASE.to(torch.float8_e4m3fn)}, {}, "names the global torch"),
    "quantized": (lambda: {"a": torch.quantize_per_tensor(BASE, 0.1, 0, torch.quint8)}, {}, "names the global torch"),
    "sparse": (lambda: {"a": BASE.to_sparse()}, {}, "torch._utils._rebuild_sparse_tensor"),
    "one value a million times": (lambda: {"a": BASE[:1].expand(1_000_000)}, {}, "does not lie in its storage of 96"),
    "a tensor": (lambda: BASE, {}, "holds a value of type tensor; a dict of tensors is read"),
    "a number beside": (lambda: {"a": BASE, "epoch": 3}, {}, "holds a value of type int by a key"),
    "the old format": (lambda: {"a": BASE}, {"_use_new_zipfile_serialization": False}, "format of torch before 1.6"),
    "an inner dict": (lambda: {"a": {"b": BASE}}, {}, "holds a value of type dict by a key"),
    "another protocol": (lambda: {"a": BASE}, {"pickle_protocol": 4}, "the opcode FRAME"),
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("case", REFUSED)
def test_all_else_that_torch_saves_is_refused(case: str, tmp_path: Path) -> None:
    make, options, message = REFUSED[case]
    torch.save(make(), tmp_path / "x.pt", **options)
    with pytest.raises(BadCheckpoint, match=message):
        read_pickled(tmp_path / "x.pt")
