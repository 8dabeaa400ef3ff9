"""Encoders in their form for GPUs, with the CPU in a GPU's place: what is chosen, what is refused, what comes back."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from models.artifacts.export import export
from models.artifacts.int8_encoder import Int8Options
from service.embedding.outputs.kind import HIDDEN, POOLED
from service.embedding.requests import EmbedOptions, Ids
from service.errors import StartError, Unavailable
from service.registry import engine_choice
from service.runtime import onnx
from service.runtime.engine import Choice, Closeness
from service.runtime.gpu import GpuEngine
from service.settings import Settings
from tests.embed_requests import embed_request
from tests.golden_cases import write_tiny_bert
from tests.service.registry.registry_service import Service, write
from tests.whole_models import write_whole

pytestmark = pytest.mark.filterwarnings("ignore:Duplicate provider")  # the CPU, and the CPU behind it
MODELS: dict[str, dict[str, Any]] = {  # the model types of `make architectures`, and other kinds of attention
    "bert": {},
    "mpnet": {},
    "modernbert": {"num_hidden_layers": 3, "local_attention": 8},
    "gemma3_text": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8},
    "qwen3": {},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "gpt2": {"head_dim": 4, "n_inner": 16},  # two graphs, with and without segments
}


@pytest.fixture(autouse=True)
def the_cpu_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx, "CUDA", "CPUExecutionProvider")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write(tmp_path / "store", "a")
    return tmp_path / "store"


def overflowing(folder: Path) -> Path:
    """A store with a model whose values between two products are beyond float16."""
    bias = np.full(32, 1e5, np.float32)
    checkpoint = write_whole(folder / "x", "bert", extra={"bert.encoder.layer.1.intermediate.dense.bias": bias})
    export(checkpoint, folder / "store/a", pooling="mean")
    return folder / "store"


def choice(store: Path, **changes: Any) -> Choice:
    return Service(store, **{"device": "cuda", **changes}).registry.get("a").choice


def sequences() -> list[Ids]:
    draw = np.random.default_rng(7)
    masks = [np.array(mask) for mask in ([0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 0, 1, 0])]
    plain = [Ids(draw.integers(3, 40, length)) for length in (1, 2, 5, 17, 40, 300)]
    return plain + [Ids(draw.integers(3, 40, 5), mask=mask) for mask in masks]


async def rows(service: Service, output: str) -> list[NDArray[Any]]:
    return [each.rows for each in (await service.pipeline.embed(embed_request(sequences(), "a", (output,)))).outputs]


@pytest.mark.parametrize("model_type", MODELS)
async def test_models_give_what_they_give_on_a_cpu(model_type: str, tmp_path: Path) -> None:
    export(write_whole(tmp_path / "x", model_type, **MODELS[model_type]), tmp_path / "store/a", pooling="mean")
    gpu, cpu = (Service(tmp_path / "store", device=device, max_batch_tokens=2000) for device in ("cuda", "cpu"))
    assert isinstance(gpu.registry.get("a").engine, GpuEngine)
    for output in (HIDDEN, POOLED):
        for got, expected in zip(await rows(gpu, output), await rows(cpu, output), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-3, atol=2e-5)


def test_one_row_a_text_comes_back(store: Path) -> None:
    model = Service(store, device="cuda").registry.get("a")
    assert model.plan(EmbedOptions((POOLED,)), "").typed == {"encoder": ("pooled_hidden_state",)}
    assert model.plan(EmbedOptions((POOLED,), pooling="max"), "").typed == {"encoder": (HIDDEN,)}


def test_a_type_is_measured_before_it_is_served(store: Path) -> None:
    made = choice(store, gpu_dtype="float16")
    assert made[:3] == ("onnx", "float16", "float16 on 1 GPU: as set")
    assert made.closeness is not None
    assert 0.999 < made.closeness.least < 1


def test_a_type_that_overflows_is_refused_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="a cannot be served on the GPU, float16: cosines of nan"):
        choice(overflowing(tmp_path), gpu_dtype="float16")


def test_auto_passes_over_types_that_overflow_or_lack_kernels(tmp_path: Path) -> None:
    made = choice(overflowing(tmp_path), gpu_dtype="auto")  # a CPU has no products in bfloat16
    assert made.precision == "float32"
    assert "the next that is close enough; not float16: cosines of nan" in made.reason
    assert "not bfloat16:" in made.reason


def test_vectors_that_are_wrong_are_not_served(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_choice, "measure", lambda *_: Closeness(0.5, 0.9))
    with pytest.raises(StartError, match=r"float32: cosines of 0\.50000 to float32 on the CPU; use --device cpu"):
        choice(store)


async def test_several_gpus_answer_at_a_time(store: Path) -> None:
    one, two = Service(store, device="cuda"), Service(store, device="cuda", gpus=("0", "1"))
    assert two.registry.get("a").engine.runs == 2
    assert two.registry.get("a").choice.reason == "float32 on 2 GPUs: as set"
    vector = await one.vector()
    assert await asyncio.gather(*(two.vector() for _ in range(8))) == [vector] * 8


class Filling(ort.InferenceSession):  # type: ignore[misc]  # onnxruntime has no types
    """A session of a GPU, whose memory may be full."""

    is_full = False

    def run(self, *arguments: Any) -> Any:
        if self.is_full:
            raise RuntimeError("bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 402653184")
        return super().run(*arguments)


async def test_a_gpu_without_memory_gives_503_and_serves_on(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "InferenceSession", Filling)
    service = Service(store, device="cuda")
    vector = await service.vector()
    with monkeypatch.context() as patch:
        patch.setattr(Filling, "is_full", True)
        with pytest.raises(Unavailable, match="the GPU has no memory for this batch"):
            await service.vector()
    assert await service.vector() == vector


@pytest.mark.parametrize("gpus", ["", "0,x", "all,1", "-1"])
def test_numbers_of_gpus_are_checked(gpus: str) -> None:
    with pytest.raises(ValidationError, match="numbers of GPUs"):
        Settings(gpus=gpus)  # type: ignore[arg-type]


def test_int8_encoders_keep_their_graph(tmp_path: Path) -> None:
    export(write_tiny_bert(tmp_path / "x", pooling="mean"), tmp_path / "store/a", int8=Int8Options(min_cosine=0.5))
    assert not isinstance(Service(tmp_path / "store", device="cuda").registry.get("a").engine, GpuEngine)
