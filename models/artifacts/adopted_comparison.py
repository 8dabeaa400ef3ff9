"""Compares an adopted model's vectors with those of the float32 ONNX file that lies beside its own.

The texts are those by which int8 encoders are judged (int8_encoder.py).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import Card, Graph
from models.artifacts.closeness import VectorComparison
from models.artifacts.comparison import Session, widened
from models.artifacts.int8_encoder import EVALUATION, Ids, cosines, read_texts, tokenized, unit_vectors
from models.artifacts.onnx_interface import graph_of
from models.artifacts.sentence_vectors import pool
from models.checkpoints import safetensors
from models.checkpoints.checkpoint import FLOAT32_ONNX
from models.checkpoints.hub import Progress, no_progress
from models.checkpoints.located import renamed_in_errors
from models.checkpoints.onnx_files import OnnxSource, fetch_onnx
from models.checkpoints.sentence_transformers import Pooling
from models.errors import BadCheckpoint
from models.positions.learned import positions
from models.recipes.graph_names import HIDDEN, POOLED
from models.reference import sentence_modules

Vector = NDArray[np.float64]


def compare(
    source: OnnxSource, card: Card, session: Session, folder: Path, progress: Progress = no_progress
) -> VectorComparison:
    """Return how close the vectors of an adopted graph are to those of the float32 file beside it.

    Args:
        source: the ONNX model that is adopted.
        card: card of the model, with its pooling.
        session: session of the model's graph.
        folder: folder it is adopted to, with the weights of its modules; a temporary folder is made in it.
        progress: receives what is fetched and compared.

    Raises:
        ModelError: there is no float32 file, or it cannot be compared.
    """
    if card.classifier:
        raise BadCheckpoint("it gives logits of labels, and vectors are compared")
    if card.tokenizer is None:
        raise BadCheckpoint("it has no tokenizer.json, and vectors are compared by texts")
    path = next((each for each in FLOAT32_ONNX if each != source.path and source.files.has(each)), None)
    if path is None:
        raise BadCheckpoint(f"no float32 ONNX lies beside it, as {' or '.join(FLOAT32_ONNX)}")
    texts = tokenized(folder / card.tokenizer, read_texts(EVALUATION), card.max_tokens)
    vector = _vector(card, folder)
    progress("comparing with float32", 0, 0)
    vectors = unit_vectors(_outputs(card, session, card.graphs["encoder"], vector, texts))
    with TemporaryDirectory(prefix=".float32-", dir=folder) as name:
        target = Path(name) / "model.onnx"
        with renamed_in_errors((target,), lambda: f"{source.files.label}/{path}"):
            if not fetch_onnx(source.files, path, target).is_float32:
                raise BadCheckpoint(f"{target} is not float32 either")
            reference = Session(target)
            expected = unit_vectors(_outputs(card, reference, graph_of(reference), vector, texts))
    if vectors.shape != expected.shape:
        raise BadCheckpoint(f"its vectors are {vectors.shape[1]} wide, and those of {path} {expected.shape[1]}")
    least, mean = cosines(vectors, expected)
    if not np.isfinite(least):
        raise BadCheckpoint(f"a vector of it or of {path} is zero or not finite")
    return VectorComparison(path, least, mean, len(texts))


def _vector(card: Card, folder: Path) -> Callable[[Vector], Vector] | None:
    """Return the function from token rows to the served vector, the mean if nothing is pooled; None: the graph's."""
    if card.default_output == POOLED and (card.pooling is None or card.pooling.in_graph):
        return None
    pooling = card.pooling or Pooling("mean", False)
    if (modules := card.modules) is None:
        return lambda rows: pool(pooling, rows)
    held = safetensors.tensors_of(folder / modules.file)
    return lambda rows: sentence_modules.vectors(modules, held, pool(pooling, rows)[None])[0]


def _outputs(
    card: Card, session: Session, graph: Graph, vector: Callable[[Vector], Vector] | None, texts: Sequence[Ids]
) -> list[Vector]:
    """Return the vectors of texts by a graph, each text alone; BadCheckpoint if it lacks the output for that."""
    output = HIDDEN if vector else POOLED
    if output not in graph.outputs:
        raise BadCheckpoint(f"{session.path} gives {', '.join(graph.outputs)}, not the {output} that is served")
    name = graph.rename.get(output, output)
    vectors = []
    for ids in texts:
        feeds = {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "attention_mask": np.ones_like(ids)}
        feeds["position_ids"] = positions(card.position, ids)
        rows = widened(session.run({each: feeds[each][None] for each in graph.inputs}, [name]))[name][0]
        vectors.append(vector(rows.astype(np.float64)) if vector else rows.astype(np.float64))
    return vectors
