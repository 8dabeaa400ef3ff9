"""Which engine runs a model is decided by the settings, the processor and the model, and said with its reason."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts import card as cards
from models.artifacts.export import export
from service import machine
from service.cli.announcement import introduce
from service.errors import StartError
from service.observability.metrics import Metrics
from service.registry import engine_choice, registry
from service.registry.engine_choice import measure
from service.runtime import onnx
from service.runtime.engine import Choice, Closeness, Engine
from service.settings import Settings
from tests.golden_cases import case, write_checkpoint
from tests.sentence_chains import HIDDEN, dense, write_chain
from tests.served import serving
from tests.service.registry.registry_service import Service, write

INSTALLED = importlib.util.find_spec("openvino") is not None
needs_openvino = pytest.mark.skipif(not INSTALLED, reason="OpenVINO is not installed: make openvino")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write(tmp_path / "store", "a")
    return tmp_path / "store"


@pytest.fixture
def amx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "processor_flags", lambda: frozenset({"avx512f", "avx512_bf16", "amx_bf16"}))


def choice(store: Path, engine: str, name: str = "a") -> Choice:
    settings = Settings(store=store, device="cpu", engine=engine)
    return registry.open_registry(settings, Metrics()).models[name].choice


def without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "openvino" else find(name, *rest)
    )


def test_onnx_runtime_runs_by_default(store: Path) -> None:
    assert Settings().engine == "onnx"
    assert choice(store, "onnx") == Choice("onnx", "float32", "", None)


def test_the_reference_is_float64(store: Path) -> None:
    assert choice(store, "reference")[:2] == ("reference", "float64")


def test_auto_without_the_package_says_so(store: Path, amx: None, monkeypatch: pytest.MonkeyPatch) -> None:
    without_package(monkeypatch)
    assert choice(store, "auto") == Choice(reason="not OpenVINO: it is not installed")


def test_openvino_without_the_package_is_refused(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_package(monkeypatch)
    with pytest.raises(StartError, match=r"inlay\[openvino\]', or use --engine auto"):
        choice(store, "openvino")


@needs_openvino
def test_auto_without_amx_takes_onnx_runtime(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "processor_flags", lambda: frozenset({"avx512f", "avx512_bf16"}))
    assert choice(store, "auto") == Choice(reason="not OpenVINO: the processor has no AMX")


@needs_openvino
def test_auto_with_amx_takes_openvino(store: Path, amx: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_choice, "measure", lambda *_: Closeness(0.99995, 0.99999))
    made = choice(store, "auto")
    assert made[:2] == ("openvino", "bfloat16")
    assert made.reason.endswith("bfloat16: the processor has AMX")


@needs_openvino
def test_openvino_without_bfloat16_runs_float32(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "processor_flags", lambda: frozenset({"avx2"}))
    made = choice(store, "openvino")
    assert made[:2] == ("openvino", "float32")
    assert made.closeness is not None
    assert made.closeness.least > 1 - 1e-6


@needs_openvino
@pytest.mark.parametrize("least", [0.5, float("nan")])
def test_vectors_too_far_are_not_served(store: Path, amx: None, least: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_choice, "measure", lambda *_: Closeness(least, least))
    with pytest.raises(StartError, match=r"cosines of .* below 0\.99; use --engine onnx"):
        choice(store, "openvino")
    assert choice(store, "auto")[:2] == ("onnx", "float32")


@needs_openvino
def test_models_without_encoder_stay_in_onnx_runtime(tmp_path: Path) -> None:
    export(write_checkpoint(case("input_llama"), tmp_path / "llama"), tmp_path / "store/llama")
    assert choice(tmp_path / "store", "openvino", "llama") == Choice(reason="not OpenVINO: it has no encoder")


class Distorted:
    """ONNX Runtime, with another number in one place."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def run(self, *arguments: Any) -> list[NDArray[Any]]:
        (rows,) = self._engine.run(*arguments)
        rows[:, 0] += arguments[0] == "encoder"
        return [rows]


def test_closeness_is_the_cosine_of_the_vectors(store: Path) -> None:
    card = cards.read(store / "a")
    engine = onnx.load(store / "a", card, "cpu", 1)
    same = measure(card, None, engine, engine)
    assert same == pytest.approx((1, 1), abs=1e-6)
    distorted: Any = Distorted(engine)
    far = measure(card, None, engine, distorted)
    assert far.least < far.mean < 0.999


def test_closeness_is_that_of_vectors_behind_all_modules(tmp_path: Path) -> None:
    constant = dense(HIDDEN, 4)
    constant.tensors["linear.weight"][:] = 0
    card = export(write_chain(tmp_path / "x", "mean", constant), tmp_path / "out")
    engine = onnx.load(tmp_path / "out", card, "cpu", 1)
    distorted: Any = Distorted(engine)
    assert measure(card, None, engine, distorted) == pytest.approx((1, 1), abs=1e-6)


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (Choice(), "a runs on cpu (as set)"),
        (Choice(reason="not OpenVINO: it has no encoder"), "a runs on cpu (as set); not OpenVINO: it has no encoder"),
        (
            Choice("openvino", "bfloat16", "OpenVINO 2026.4.1, bfloat16: as set", Closeness(0.99995, 0.99998)),
            "a runs on cpu (as set); its encoder in OpenVINO 2026.4.1, bfloat16: as set; "
            "cosines to float32: 0.99995 at least, 0.99998 mean",
        ),
    ],
)
def test_start_up_says_what_runs_and_why(
    made: Choice, line: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(store=store, device="cpu")
    model = replace(registry.open_registry(settings, Metrics()).models["a"], choice=made)
    introduce(settings, registry.ModelRegistry({"a": model}, (), store, lambda _: model, Metrics()))
    assert f"inlay: {line}\n" in capsys.readouterr().out


@needs_openvino
async def test_a_vector_is_the_same_alone_and_in_company(store: Path, amx: None) -> None:
    alone, company = Service(store, engine="openvino"), Service(store, engine="openvino")
    vector = await alone.vector()
    assert vector == await company.vector()
    whole = np.frombuffer(await Service(store).vector(), np.float32)
    assert 0.99 < float(whole @ np.frombuffer(vector, np.float32)) < 1


@needs_openvino
def test_descriptions_show_engine_and_closeness(store: Path, amx: None) -> None:
    with serving(store, engine="openvino") as served:
        shown = served.http.get("/models/a").json()
        assert (shown["engine"], shown["precision"]) == ("openvino", "bfloat16")
        assert 0.99 < shown["closeness"]["least"] <= shown["closeness"]["mean"] < 1
        assert served.http.get("/info").json()["model_dtype"] == "bfloat16"
        assert served.http.get("/models").json()["data"][0]["backend"] == "openvino"
