"""Files of torch.save against torch itself: tensors are read as it wrote them, and all else is refused.

Checkpoints of transformers are exported from pytorch_model.bin with the same bytes as from safetensors.
"""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.artifacts.export import export
from models.checkpoints import safetensors
from models.checkpoints.pickled import read_header
from models.errors import BadCheckpoint

pytestmark = pytest.mark.parity

import torch  # noqa: E402  # after the mark, as in the modules beside it
import transformers  # noqa: E402

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.int8, torch.bool)
BASE = torch.arange(24.0)


def read_pickled(path: Path) -> Any:
    return safetensors.read(read_header(path).values())


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


def test_parameters_and_tied_tensors_are_read(tmp_path: Path) -> None:
    shared = torch.nn.Parameter(BASE.reshape(4, 6))
    tensors = {"a": shared, "b": shared, "c": shared.detach()[1:3]}
    torch.save(tensors, tmp_path / "x.pt")
    assert_same(tmp_path / "x.pt", {name: tensor.detach() for name, tensor in tensors.items()})
    places = read_header(tmp_path / "x.pt")
    assert places["a"].offset == places["b"].offset == places["c"].offset - 24


MODELS: dict[str, dict[str, Any]] = {
    "bert": {"architectures": ["BertForMaskedLM"]},
    "roberta": {},
    "gpt2": {"n_embd": 32, "n_head": 4, "n_layer": 2},
    "albert": {"embedding_size": 16},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "t5": {"d_model": 32, "num_heads": 4, "d_kv": 8, "d_ff": 64, "num_layers": 2},
}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("model_type", MODELS)
def test_pickled_checkpoints_export_the_same_bytes(model_type: str, dtype: torch.dtype, tmp_path: Path) -> None:
    sizes = {"vocab_size": 50, "pad_token_id": 0} | SIZES | MODELS[model_type]
    config = transformers.CONFIG_MAPPING[model_type](**sizes)
    masked = model_type in ("bert", "roberta", "albert", "deberta-v2")
    torch.manual_seed(3)
    model = (transformers.AutoModelForMaskedLM if masked else transformers.AutoModel).from_config(config).to(dtype)
    model.save_pretrained(tmp_path / "safe")
    model.config.save_pretrained(tmp_path / "x")
    torch.save(model.state_dict(), tmp_path / "x/pytorch_model.bin")  # tied tensors share a storage, under both names
    cards = [export(tmp_path / name, tmp_path / f"out-{name}") for name in ("safe", "x")]
    held = [tmp_path / f"out-{name}/weights.safetensors" for name in ("safe", "x")]
    assert cards[0].outputs == cards[1].outputs
    one, other = (sorted(array.tobytes() for array in safetensors.tensors_of(path).values()) for path in held)
    assert one == other


REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "a module": (lambda: torch.nn.Linear(2, 2), {}, "the opcode NEWOBJ"),
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
