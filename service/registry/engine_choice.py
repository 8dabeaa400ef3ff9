"""Chooses the engine that runs a model: ONNX Runtime, OpenVINO for its encoder, or the reference.

`auto` decides by what does not change between starts: the processor, the installed package, the model, and how close
the vectors come to float32. A measured time would let workers of one service choose differently.
"""

import importlib.util
from collections.abc import Callable, Set
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import MODULES, Card
from service import machine
from service.embedding.pooling import end_row, normalize, pool
from service.embedding.requests import Cut, Ids, Text
from service.embedding.tokenize import validation
from service.embedding.tokenize.packing import feeds, pack
from service.embedding.tokenize.tokenizer import Tokenizer
from service.errors import StartError
from service.runtime.engine import Choice, Closeness, Engine, Precision
from service.settings import Settings

FASTER = "amx_bf16"  # of the processor's flags: OpenVINO was measured 2 to 3 times as fast there, elsewhere not
BFLOAT16 = {FASTER, "avx512_bf16"}
CLOSE_ENOUGH = 0.9999  # least cosine with which `auto` takes OpenVINO
TOO_FAR = 0.99  # least cosine with which it is served at all
RANDOM_LENGTHS = (3, 16, 17, 40)
MOST_TEXTS = 16  # texts that a loaded model is measured with, from those that int8 encoders are judged by

DTYPES: tuple[Precision, ...] = ("float16", "bfloat16", "float32")  # of encoders on GPUs, the fastest first

Load = Callable[..., Engine]  # of a card, and of the device where it is not that of the settings


def choose(
    folder: Path, card: Card, tokenizer: Tokenizer | None, settings: Settings, threads: int, load_onnx: Load
) -> tuple[Engine, Choice]:
    """Return the engine of a model and the reason for the choice.

    Args:
        folder: folder of the exported model.
        load_onnx: returns the ONNX Runtime engine for the graphs of a card, on a device if one is named.

    Raises:
        StartError: the engine that the settings name cannot run here, or gives other vectors; one line.
    """
    if settings.engine == "reference":
        from service.runtime import reference

        return reference.load(folder, card), Choice("reference", "float64")
    if settings.device != "cpu" and (found := _on_gpus(folder, card, tokenizer, settings, load_onnx)):
        return found
    flags = machine.processor_flags()
    reason = _fault(card, settings, flags)
    if reason is not None:
        named = settings.engine != "onnx" and reason
        return load_onnx(card), Choice(reason=f"not OpenVINO: {reason}" if named else "")
    from service.runtime import openvino

    precision: Precision = "bfloat16" if flags & BFLOAT16 else "float32"
    whole = load_onnx(card)
    if whole.device != "cpu":
        return whole, Choice(reason="not OpenVINO: there is CUDA")
    rows = load_onnx(_without_encoder(card))
    engine = openvino.load(folder, card, rows, precision, threads, twice=whole.alone is not None)
    closeness = measure(card, tokenizer, whole, engine)
    if settings.engine == "auto" and not closeness.least >= CLOSE_ENOUGH:
        return whole, Choice(reason=f"not OpenVINO: its vectors have cosines of {closeness.least:.5f} to float32")
    if not closeness.least >= TOO_FAR:
        raise StartError(
            f"{card.name}: OpenVINO's vectors have cosines of {closeness.least:.5f} to those of ONNX Runtime, below "
            f"{TOO_FAR}; use --engine onnx"
        )
    why = "as set" if settings.engine == "openvino" else "the processor has AMX"
    return engine, Choice("openvino", precision, f"OpenVINO {openvino.VERSION}, {precision}: {why}", closeness)


def _without_encoder(card: Card) -> Card:
    graphs = {name: graph for name, graph in card.graphs.items() if not graph.attends or graph.layout == "image"}
    return replace(card, graphs=graphs, row_graphs=None)


def _on_gpus(
    folder: Path, card: Card, tokenizer: Tokenizer | None, settings: Settings, load_onnx: Load
) -> tuple[Engine, Choice] | None:
    """Return the engine of an encoder's graph for GPUs; None if there is no GPU, or the model has no such form.

    Its vectors are compared with those of float32 on the CPU: a float16 that overflows, or a kernel that is wrong, is
    found before it is served.
    """
    from service.runtime import gpu, onnx

    if not onnx.has_cuda() or gpu.fault(card) is not None:
        return None
    rows = load_onnx(_without_encoder(card))
    if rows.device != "cuda":
        return None
    numbers = () if settings.gpus == ("all",) else tuple(map(int, settings.gpus))
    named = settings.gpu_dtype != "auto"
    expected = load_onnx(replace(card, row_graphs=None), "cpu")
    faults: list[str] = []
    for dtype in (settings.gpu_dtype,) if settings.gpu_dtype != "auto" else DTYPES:
        try:
            engine = gpu.load(folder, card, rows, dtype, numbers, settings.gpu_memory_bytes)
        except StartError as error:
            faults.append(f"{dtype}: {error}")
            continue
        closeness = measure(card, tokenizer, expected, engine)
        if closeness.least >= (TOO_FAR if named or dtype == "float32" else CLOSE_ENOUGH):
            why = (
                "as set"
                if named
                else "; not ".join([f"the {'next' if faults else 'first'} that is close enough", *faults])
            )
            reason = f"{dtype} on {engine.runs} GPU{'s' * (engine.runs > 1)}: {why}"
            return engine, Choice("onnx", dtype, reason, closeness, gpu.pooling(card) or "")
        faults.append(f"{dtype}: cosines of {closeness.least:.5f} to float32 on the CPU")
    raise StartError(f"{card.name} cannot be served on the GPU, " + "; ".join(faults) + "; use --device cpu")


def _fault(card: Card, settings: Settings, flags: Set[str]) -> str | None:
    """Return why OpenVINO cannot run the encoder; None if it can.

    Raises:
        StartError: OpenVINO is asked for and not installed.
    """
    if settings.engine == "onnx":
        return "as set"
    if importlib.util.find_spec("openvino") is None:
        if settings.engine == "openvino":
            raise StartError(
                "engine openvino was asked for, but OpenVINO is not installed: pip install 'inlay[openvino]', or "
                "use --engine auto"
            )
        return "it is not installed"
    if settings.engine == "auto" and FASTER not in flags:
        return "the processor has no AMX"
    from service.runtime import openvino

    return openvino.fault(card)


def measure(card: Card, tokenizer: Tokenizer | None, expected: Engine, engine: Engine) -> Closeness:
    """Return how close the vectors of one engine come to those of another, over MOST_TEXTS texts.

    Of a model without a tokenizer over random ids.
    """
    sequences = _sequences(card, tokenizer)
    (one, other) = (np.stack([_vector(card, each, ids) for ids in sequences]) for each in (expected, engine))
    cosines = np.einsum("nd,nd->n", normalize(one).astype(np.float64), normalize(other).astype(np.float64))
    return Closeness(float(cosines.min()), float(cosines.mean()))


def _sequences(card: Card, tokenizer: Tokenizer | None) -> list[Ids]:
    if tokenizer is not None:
        from models.artifacts.int8_encoder import EVALUATION, read_texts

        texts = read_texts(EVALUATION)
        chosen = texts[:: -(-len(texts) // MOST_TEXTS)]
        encoded = tokenizer.encode({index: Text(text) for index, text in enumerate(chosen)}, Cut(most=card.max_tokens))
        return [validation.check(card, index, ids, True, "right") for index, ids in encoded.items()]
    random = np.random.default_rng(0)
    drawn = [Ids(random.integers(0, card.vocab_size, length)) for length in RANDOM_LENGTHS]
    return [validation.check(card, index, ids, True, "right") for index, ids in enumerate(drawn)]


def _vector(card: Card, engine: Engine, ids: Ids) -> NDArray[np.float32]:
    name, graph = next((name, graph) for name, graph in card.graphs.items() if graph.attends)
    (rows,) = engine.run(name, feeds(pack(card, [ids]), graph.inputs), graph.outputs)
    end = end_row(ids.ids, card.pooling.end_id if card.pooling else None)
    vector = pool(card.pooling.mode if card.pooling else "mean", rows, ids.mask, end=end)
    if MODULES not in card.every_graph:
        return vector
    (vectors,) = engine.run(MODULES, {"pooled": vector[None]}, ("vectors",))
    return np.asarray(vectors[0])
