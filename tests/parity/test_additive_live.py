"""Sinusoids, stretched tables and ALiBi against the modules of transformers and torch themselves, sizes at random."""

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from models.positions import alibi, sinusoidal
from models.positions.learned import tabulate
from models.positions.sinusoidal import frequencies
from tests.parity.conftest import Ledger

pytestmark = pytest.mark.parity
SEEDS = range(12)
PAD = 1


def module(family: str) -> Any:
    return importlib.import_module(f"transformers.models.{family}.modeling_{family}")


def created(family: str) -> Callable[[int, int], Any]:
    def table(count: int, dim: int) -> Any:
        out = torch.nn.Parameter(torch.empty(count, dim), requires_grad=False)
        module(family).create_sinusoidal_embeddings(count, dim, out)
        return out

    return table


def weight(family: str, name: str) -> Callable[[int, int], Any]:
    return lambda count, dim: getattr(module(family), name)(count, dim).create_weight()


def embedding(family: str, name: str, *padding: int) -> Callable[[int, int], Any]:
    return lambda count, dim: getattr(module(family), name).get_embedding(count, dim, *padding)


def xlnet(count: int, dim: int) -> Any:
    """Its rows run from the key length down to 0."""
    XLNet = module("xlnet").XLNetModel
    model = SimpleNamespace(d_model=dim, attn_type="uni", bi_data=False, clamp_len=-1)
    model.positional_embedding = XLNet.positional_embedding
    return XLNet.relative_positional_encoding(model, 1, count - 1)[:, 0].flip(0)


def pegasus_x(count: int, dim: int) -> Any:
    return module("pegasus_x").PegasusXSinusoidalPositionalEmbedding(dim)(torch.zeros(1, count, dim))[0]


# module -> kind, its zero row, the table it makes. Those of even dims alone are named below.
MADE: dict[str, tuple[str, int | None, Callable[[int, int], Any]]] = {
    "xlm": ("vaswani", None, created("xlm")),
    "flaubert": ("vaswani", None, created("flaubert")),
    "distilbert": ("vaswani", None, created("distilbert")),
    "marian": ("marian", None, weight("marian", "MarianSinusoidalPositionalEmbedding")),
    "pegasus": ("marian", None, weight("pegasus", "PegasusSinusoidalPositionalEmbedding")),
    "roformer": ("marian", None, weight("roformer", "RoFormerSinusoidalPositionalEmbedding")),
    "autoformer": ("marian", None, weight("autoformer", "AutoformerSinusoidalPositionalEmbedding")),
    "informer": ("marian", None, weight("informer", "InformerSinusoidalPositionalEmbedding")),
    "ctrl": ("ctrl", None, lambda count, dim: module("ctrl").positional_encoding(count, dim, torch.float32)),
    "xlnet": ("ctrl", None, xlnet),
    "m2m_100": ("tensor2tensor", PAD, embedding("m2m_100", "M2M100SinusoidalPositionalEmbedding", PAD)),
    "nllb_moe": ("tensor2tensor", PAD, embedding("nllb_moe", "NllbMoeSinusoidalPositionalEmbedding", PAD)),
    "fsmt": ("tensor2tensor", PAD, embedding("fsmt", "SinusoidalPositionalEmbedding", PAD)),
    "speech_to_text": (
        "tensor2tensor",
        PAD,
        embedding("speech_to_text", "Speech2TextSinusoidalPositionalEmbedding", PAD),
    ),
    "speecht5": ("tensor2tensor", PAD, embedding("speecht5", "SpeechT5SinusoidalPositionalEmbedding", PAD)),
    "trocr": ("tensor2tensor", PAD, embedding("trocr", "TrOCRSinusoidalPositionalEmbedding", PAD)),
    "kosmos2": ("tensor2tensor", PAD, embedding("kosmos2", "Kosmos2TextSinusoidalPositionalEmbedding", PAD)),
    "seamless_m4t": ("tensor2tensor", PAD, embedding("seamless_m4t", "SeamlessM4TSinusoidalPositionalEmbedding", PAD)),
    "xglm": ("tensor2tensor", PAD, embedding("xglm", "XGLMSinusoidalPositionalEmbedding", PAD)),
    "whisper": ("whisper", None, lambda count, dim: module("whisper").sinusoids(count, dim)),
    "pegasus_x": ("whisper", None, pegasus_x),
    "musicgen": ("musicgen", None, embedding("musicgen", "MusicgenSinusoidalPositionalEmbedding")),
    "musicgen_melody": ("musicgen", None, embedding("musicgen_melody", "MusicgenMelodySinusoidalPositionalEmbedding")),
}
EVEN_ONLY = ("whisper", "pegasus_x", "xlnet")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", MADE)
def test_sinusoid_matches_its_module(family: str, seed: int, ledger: Ledger) -> None:
    kind, zero_row, make = MADE[family]
    random = np.random.default_rng(seed)
    count, dim = int(random.integers(3, 400)), int(random.integers(4, 96))
    if seed == 0 and kind in ("ctrl", "tensor2tensor", "whisper", "musicgen"):
        count = 20_000  # made by torch, so a long one costs little
    dim += dim % 2 if family in EVEN_ONLY else 0
    expected = make(count, dim).detach().numpy()
    table = sinusoidal.tabulate(kind, dim, range(count), arithmetic="parity", zero_row=zero_row)
    got = table.outputs["table"].whole()
    assert got.dtype == expected.dtype == np.float32
    assert got.shape == expected.shape
    difference = np.abs(got - expected.astype(np.float64)).max(axis=1)
    if kind in ("vaswani", "marian"):
        ledger.check(family, "sinusoid", float(difference.max()), 0.0)
    else:
        tolerance = 3e-7 + 5e-7 * np.arange(count)
        ledger.check(family, "sinusoid, of tolerance", float((difference / tolerance).max()), 1.0)


@pytest.mark.parametrize("dim", [64, 128, 512, 1024, 1280])
def test_float32_frequencies_are_torchs_within_its_own_rounding(dim: int, ledger: Ledger) -> None:
    row = sinusoidal.SINUSOIDS["whisper"]
    step = np.log(10000) / (dim // 2 - 1)
    expected = torch.exp(-step * torch.arange(dim // 2)).numpy()
    got = frequencies(row, dim, 10000.0, "parity").inverse_frequency
    ledger.check("whisper", "frequencies, ulp", float((np.abs(got - expected) / np.spacing(expected)).max()), 1.0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", ["vit_mae", "rt_detr", "d_fine", "aimv2"])
def test_grid_matches_its_module(family: str, seed: int, ledger: Ledger) -> None:
    random = np.random.default_rng(seed)
    height, width, dim = (int(each) for each in random.integers(1, [24, 24, 40]))
    theta, cls = float(random.choice([100.0, 10000.0])), bool(random.integers(2))
    make = module(family).build_2d_sinusoidal_position_embedding
    expected = make(height, width, 4 * dim, theta, cls_token=cls).numpy()
    table = sinusoidal.tabulate_grid(4 * dim, (height, width), theta=theta, cls_rows=int(cls), arithmetic="parity")
    difference = np.abs(table.outputs["table"].whole() - expected.astype(np.float64)).max()
    ledger.check(family, "grid", float(difference), 6e-8)


def test_aimv2_adds_the_swapped_grid(ledger: Ledger) -> None:
    config = module("aimv2").Aimv2VisionConfig(hidden_size=24, image_size=28, patch_size=4, is_native=True)
    embeddings = module("aimv2").Aimv2VisionEmbeddings(config)
    torch.nn.init.zeros_(embeddings.patch_embed.bias)
    added = embeddings(torch.zeros(1, 3, 12, 20))[0].detach().numpy()
    table = sinusoidal.tabulate_grid(24, (3, 5), order="wh", arithmetic="parity").outputs["table"].whole()
    ledger.check("aimv2", "grid added", float(np.abs(table - added).max()), 6e-8)


@pytest.mark.parametrize("seed", SEEDS)
def test_stretched_table_matches_torch_interpolation(seed: int, ledger: Ledger) -> None:
    random = np.random.default_rng(seed)
    count, length, dim = (int(each) for each in random.integers(1, [64, 300, 9]))
    table = random.normal(size=(count, dim)).astype(np.float32)
    for real, arithmetic, tolerance in ((torch.float64, "exact", 1e-12), (torch.float32, "parity", 1e-6)):
        column = torch.tensor(table, dtype=real).T[None]  # [1, d, L]
        expected = torch.nn.functional.interpolate(column, size=length, mode="linear", align_corners=False)[0].T
        made: Any = {"beyond": "interpolate", "length": length, "arithmetic": arithmetic}
        got = tabulate(table, range(length), **made).outputs["table"].whole()
        difference = float(np.abs(got - expected.numpy().astype(np.float64)).max())
        ledger.check("torch", f"interpolate, {arithmetic}", difference, tolerance)


def relative(got: NDArray[Any], expected: NDArray[Any]) -> float:
    """The largest difference, each as a share of its expected value."""
    assert got.shape == expected.shape
    return float((np.abs(got - expected.astype(np.float64)) / np.maximum(np.abs(expected), 1e-30)).max())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("form", ["bloom", "falcon"])
def test_masked_bias_matches_its_module(form: str, seed: int, ledger: Ledger) -> None:
    random = np.random.default_rng(seed)
    heads, batch, keys = int(random.integers(1, 129)), int(random.integers(1, 4)), int(random.integers(1, 700))
    mask = random.integers(0, 2, (batch, keys))
    expected = module(form).build_alibi_tensor(torch.tensor(mask), heads, torch.float32).numpy()
    table = alibi.tabulate(heads, form=form, query_length=keys, attention_mask=mask, arithmetic="parity")
    got = table.outputs["bias"].whole().reshape(expected.shape)
    ledger.check(form, "ALiBi, relative", relative(got, expected), 1e-6 if form == "bloom" else 2.0**-8)


@pytest.mark.parametrize("seed", SEEDS)
def test_mpt_bias_matches_its_module(seed: int, ledger: Ledger) -> None:
    random = np.random.default_rng(seed)
    heads, keys, max_bias = int(random.integers(1, 129)), int(random.integers(1, 700)), int(random.integers(4, 24))
    expected = module("mpt").build_mpt_alibi_tensor(heads, keys, max_bias).numpy()
    table = alibi.tabulate(heads, form="mpt", query_length=keys, max_bias=max_bias, arithmetic="parity")
    ledger.check("mpt", "ALiBi, relative", relative(table.outputs["bias"].whole()[0], expected), 1e-6)
