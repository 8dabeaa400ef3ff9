"""Compares an adopted model's vectors with those of the float32 weights that lie beside its ONNX file.

These are another ONNX file, or the safetensors of a model that Inlay exports whole. The texts are those by which int8
encoders are judged (int8_encoder.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from models.artifacts import weights
from models.artifacts.adopted_pooling import NO_MODULES, can_compute, described_modules
from models.artifacts.card import Card, Graph
from models.artifacts.closeness import VectorComparison
from models.artifacts.comparison import Session, widened
from models.artifacts.int8_encoder import (
    EVALUATION,
    Float32s,
    Ids,
    cosines,
    encoder_vectors,
    read_texts,
    tokenized,
    unit_vectors,
)
from models.artifacts.onnx_interface import graph_of
from models.artifacts.sentence_vectors import ToVector, to_vector
from models.checkpoints.checkpoint import FLOAT32_ONNX, WEIGHT_FILES, Checkpoint
from models.checkpoints.hub import Progress, no_progress
from models.checkpoints.located import renamed_in_errors
from models.checkpoints.onnx_files import FolderFiles, OnnxSource, config_folder, fetch_onnx, read_contents
from models.errors import BadCheckpoint, ModelError
from models.families.fitting import fit
from models.graphs.builder import GraphBuilder, save
from models.graphs.encoder import encoder
from models.positions.learned import positions
from models.recipes.graph_names import HIDDEN, POOLED

_GRAPH = "encoder.onnx"


@dataclass(frozen=True, slots=True)
class Compared:
    """An adopted graph and the texts on which it is compared.

    Attributes:
        source: the ONNX file that is adopted.
        card: card of the model, with its pooling.
        session: session of the model's graph.
        vector: makes a sentence vector of token vectors, modules included; None: the graph's own cannot be made so.
        texts: the texts as token ids.
    """

    source: OnnxSource
    card: Card
    session: Session
    vector: ToVector | None
    texts: Sequence[Ids]


def compare(
    source: OnnxSource, card: Card, session: Session, folder: Path, progress: Progress = no_progress
) -> VectorComparison:
    """Return how close the vectors of an adopted graph are to those of the float32 weights beside it.

    Args:
        source: the ONNX model that is adopted.
        card: card of the model, with its pooling.
        session: session of the model's graph.
        folder: folder it is adopted to; a temporary folder is made in it.
        progress: receives what is fetched and compared.

    Raises:
        ModelError: there are no float32 weights, or they cannot be compared.
    """
    if card.classifier:
        raise BadCheckpoint("it gives logits of labels, and vectors are compared")
    if card.tokenizer is None:
        raise BadCheckpoint("it has no tokenizer.json, and vectors are compared by texts")
    texts = tokenized(folder / card.tokenizer, read_texts(EVALUATION), card.max_tokens)
    graph = card.graphs["encoder"]
    in_graph = card.default_output == POOLED and (card.pooling is None or card.pooling.in_graph)
    compared = Compared(source, card, session, _to_vector(source, card, in_graph), texts)
    progress("comparing with float32", 0, 0)
    vectors = _vectors(compared, session, graph, POOLED if in_graph else HIDDEN)
    with TemporaryDirectory(prefix=".float32-", dir=folder) as name:
        reference, expected = _reference(compared, in_graph, Path(name), progress)
    if vectors.shape != expected.shape:
        raise BadCheckpoint(f"its vectors are {vectors.shape[1]} wide, and those of {reference} {expected.shape[1]}")
    least, mean = cosines(vectors, expected)
    if not np.isfinite(least):
        raise BadCheckpoint(f"a vector of it or of {reference} is zero or not finite")
    return VectorComparison(reference, least, mean, len(texts))


def _to_vector(source: OnnxSource, card: Card, in_graph: bool) -> ToVector | None:
    """Return the function from a text's token vectors to its served sentence vector; None if no file describes it.

    It is the mean where the model pools nothing.
    """
    place, pooling = source.place, card.pooling
    if not in_graph and card.modules is None:
        return to_vector(pooling, NO_MODULES)
    if pooling is None or (in_graph and not can_compute(place.folder, place.fetch_module)):
        return None
    return to_vector(pooling, described_modules(place.folder, pooling, card.hidden_size, place.fetch_module))


def _reference(compared: Compared, in_graph: bool, folder: Path, progress: Progress) -> tuple[str, Float32s]:
    """Return the name and the vectors of the float32 weights: another ONNX file's, else the safetensors'."""
    files = compared.source.files
    for path in FLOAT32_ONNX:
        if path == compared.source.path or not files.has(path):
            continue
        target = files.folder / path if isinstance(files, FolderFiles) else folder / "model.onnx"
        with renamed_in_errors((target,), partial(str, f"{files.label}/{path}")):
            contents = read_contents(target) if isinstance(files, FolderFiles) else fetch_onnx(files, path, target)
            if contents.is_float32:
                session = Session(target)
                graph = graph_of(session)
                return path, _vectors(compared, session, graph, _output(compared, graph, in_graph, path))
    inner = config_folder(compared.source.place.folder).relative_to(compared.source.place.folder)
    held = [name for name in WEIGHT_FILES if files.has((inner / name).as_posix())]
    if not held:
        raise BadCheckpoint("neither a float32 ONNX nor weights that are read are there")
    if (vector := compared.vector) is None:
        raise BadCheckpoint(f"its {POOLED} is not known to be its token vectors pooled, and no float32 ONNX is there")
    try:
        return held[0], _checkpoint_vectors(
            compared.source.place.checkpoint(), vector, compared.texts, folder, progress
        )
    except ModelError as error:
        raise BadCheckpoint(f"no float32 ONNX is there, and {error}") from error


def _output(compared: Compared, graph: Graph, in_graph: bool, path: str) -> str:
    """Return the output of a float32 graph to compare with; BadCheckpoint if none fits."""
    if in_graph and POOLED in graph.outputs:
        return POOLED
    if compared.vector is None or HIDDEN not in graph.outputs:
        raise BadCheckpoint(f"{path} gives {', '.join(graph.outputs)}, of which none is what is served of it")
    return HIDDEN


def _vectors(compared: Compared, session: Session, graph: Graph, output: str) -> Float32s:
    """Return the vectors of the texts, each alone, of unit length."""
    name = graph.rename.get(output, output)
    rows = [widened(session.run(_feeds(compared.card, graph, ids), [name]))[name][0] for ids in compared.texts]
    vector = None if output == POOLED else compared.vector
    return unit_vectors([vector(row.astype(np.float64)) if vector else row.astype(np.float64) for row in rows])


def _feeds(card: Card, graph: Graph, ids: Ids) -> dict[str, NDArray[np.int64]]:
    flat = {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "attention_mask": np.ones_like(ids)}
    if "position_ids" in graph.inputs:
        flat["position_ids"] = positions(card.position, ids)
    return {name: flat[name][None] for name in graph.inputs}


def _checkpoint_vectors(
    source: Checkpoint, vector: ToVector, texts: Sequence[Ids], folder: Path, progress: Progress
) -> Float32s:
    """Return the vectors of the texts by an encoder exported from the safetensors."""
    fitted = fit(source)
    if not fitted.encoder:
        raise BadCheckpoint(f"of model_type {fitted.model_type!r} only the input layer is exported")
    stored = weights.write(folder, fitted.read(source), fitted.tables, progress=progress)
    width, ropes = fitted.config.count("hidden_size"), fitted.encodings.ropes
    graph = encoder(GraphBuilder(stored.placed), fitted.usual_recipe, fitted.encoder, width, ropes=ropes)
    save(graph, folder / _GRAPH)
    return encoder_vectors(Session(folder / _GRAPH), fitted, vector, texts)
