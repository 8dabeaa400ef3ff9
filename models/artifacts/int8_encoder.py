"""int8 encoders: calibrated by texts before they are written, and compared with the float32 encoder by other texts.

The texts in texts/ were written for this purpose; no text is in both files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import TextFilling
from models.artifacts.closeness import QuantizedEncoder
from models.artifacts.comparison import Session
from models.artifacts.sentence_vectors import ToVector
from models.artifacts.tokenizer import FILE_NAME as TOKENIZER
from models.checkpoints.safetensors import Tensor
from models.errors import BadCheckpoint, ModelError, ReferenceMismatch
from models.families.fitting import FittedModel
from models.graphs.builder import GraphBuilder, save
from models.graphs.encoder import encoder
from models.graphs.projections import Recorded
from models.positions.learned import positions
from models.recipes.extra_inputs import extra_values
from models.recipes.graph_names import HIDDEN

CALIBRATION = Path(__file__).parent / "texts/calibration.txt"
EVALUATION = Path(__file__).parent / "texts/evaluation.txt"
MOST_TEXTS = 1024
MOST_BYTES = 1 << 22
MIN_COSINE = 0.99
_GRAPH = "encoder.onnx"
Float32s = NDArray[np.float32]
Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Int8Options:
    """The caller's options of an int8 encoder.

    Attributes:
        calibration: file of texts like those the model will get, one a line; None: CALIBRATION.
        min_cosine: between a text's int8 and float32 vectors, of any evaluation text; below it the export is refused.

    Raises:
        ModelError: min_cosine is not from 0 to 1.
    """

    calibration: Path | None = None
    min_cosine: float = MIN_COSINE

    def __post_init__(self) -> None:
        if not 0 <= self.min_cosine <= 1:
            raise ModelError(f"--min-cosine {self.min_cosine:g} is not from 0 to 1, which is no difference at all")


@dataclass(frozen=True, slots=True)
class Calibration:
    """The results of the float32 encoder that int8 is calibrated and judged by.

    Attributes:
        largest: largest value of each smoothed product, as int8_matrices.quantized takes it.
        texts: the evaluation texts as token ids.
        vectors: float32 [texts, d], of these.
    """

    largest: Mapping[str, Float32s]
    texts: Sequence[Ids]
    vectors: Float32s


def read_texts(path: Path) -> list[str]:
    """Return the lines of a file that are not blank.

    Raises:
        ModelError: it cannot be read, or holds no text or too much.
    """
    try:
        size = path.stat().st_size
        content = path.read_text(encoding="utf-8") if size <= MOST_BYTES else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"--calibration {path} cannot be read as UTF-8 text: {error}") from error
    texts = [line for line in content.splitlines() if line.strip()]
    if size > MOST_BYTES or not 0 < len(texts) <= MOST_TEXTS:
        raise ModelError(
            f"--calibration {path} holds {len(texts) or 'no'} texts in {size:,} bytes; give 1 to {MOST_TEXTS} texts, "
            f"one a line, in at most {MOST_BYTES:,} bytes (some dozens are enough)"
        )
    return texts


def calibrate(
    folder: Path,
    placed: Mapping[str, Tensor],
    fitted: FittedModel,
    vector: ToVector,
    max_tokens: int | None,
    texts: Path,
    filling: TextFilling | None = None,
) -> Calibration:
    """Run the float32 encoder over the calibration and the evaluation texts.

    Args:
        folder: holds the float32 weights, and the tokenizer if the checkpoint has one; the graph is written there.
        placed: place of each tensor.
        fitted: the model.
        vector: makes the vector of a text, which is compared.
        max_tokens: limit that texts are cut to; None: no limit.
        texts: the file of calibration texts.
        filling: how texts are filled up; None: they are not.
    """
    recorded, width = Recorded(), fitted.config.count("hidden_size")
    ropes = fitted.encodings.ropes
    graph = encoder(
        GraphBuilder(placed), fitted.usual_recipe, fitted.encoder, width, recorded, ropes, fitted.token_width
    )
    save(graph, folder / _GRAPH)
    session = Session(folder / _GRAPH)
    largest: dict[str, Float32s] = {}
    for ids in tokenized(folder / TOKENIZER, read_texts(texts), max_tokens, filling):
        seen = session.run(_feeds(session, fitted, ids), list(recorded.largest))
        largest = {name: np.maximum(values, largest.get(name, values)) for name, values in seen.items()}
    evaluated = tokenized(folder / TOKENIZER, read_texts(EVALUATION), max_tokens, filling)
    return Calibration(largest, evaluated, encoder_vectors(session, fitted, vector, evaluated))


def measure(
    folder: Path, fitted: FittedModel, vector: ToVector, calibration: Calibration, min_cosine: float
) -> QuantizedEncoder:
    """Return how far the int8 encoder in a folder is from the float32 one.

    Raises:
        ReferenceMismatch: the cosine of a text is below `min_cosine`.
    """
    vectors = encoder_vectors(Session(folder / _GRAPH), fitted, vector, calibration.texts)
    least, mean = cosines(vectors, calibration.vectors)
    if not least >= min_cosine:
        raise ReferenceMismatch(
            f"the int8 encoder's vectors have a cosine of {least:.4f} (mean {mean:.4f}) to the float32 encoder's over "
            f"{len(vectors)} texts, below --min-cosine {min_cosine:g}: calibrate it with texts like those it will get "
            "(--calibration FILE), allow less, or export with --encoder float32"
        )
    return QuantizedEncoder("int8", least, mean, len(vectors))


def tokenized(
    path: Path, texts: Sequence[str], max_tokens: int | None, filling: TextFilling | None = None
) -> list[Ids]:
    """Return the token ids of texts, cut to `max_tokens` and filled up; texts without a token are left out.

    Raises:
        BadCheckpoint: there is no such tokenizer.
    """
    from tokenizers import Tokenizer

    if not path.is_file():
        raise BadCheckpoint(
            "the checkpoint has no tokenizer.json, and an int8 encoder is calibrated and compared by texts: add the "
            "tokenizer, or export with --encoder float32"
        )
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if max_tokens is not None:
        tokenizer.enable_truncation(max_tokens)
    if filling:
        tokenizer.enable_padding(length=filling.tokens, pad_id=filling.token_id)
    return [np.array(encoding.ids, np.int64) for encoding in tokenizer.encode_batch_fast(texts) if encoding.ids]


def _feeds(session: Session, fitted: FittedModel, ids: Ids) -> dict[str, NDArray[Any]]:
    feeds: dict[str, NDArray[Any]] = {
        "ids": ids,
        "positions": positions(fitted.position, ids),
        "types": np.zeros_like(ids),
        "mask": np.ones(len(ids), bool),
        "lengths": np.array([len(ids)], np.int64),
    }
    feeds |= {extra.name: extra_values(extra, ids, None, None) for extra in fitted.extras}
    return {name: feeds[name] for name in session.inputs}


def encoder_vectors(session: Session, fitted: FittedModel, vector: ToVector, texts: Sequence[Ids]) -> Float32s:
    """Return the vectors of texts by an exported encoder, of unit length."""
    rows = (session.run(_feeds(session, fitted, ids), [HIDDEN])[HIDDEN] for ids in texts)
    return unit_vectors([vector(text_rows.astype(np.float64)) for text_rows in rows])


def unit_vectors(vectors: Sequence[NDArray[np.float64]]) -> Float32s:
    """Return vectors scaled to unit length, float32 [texts, d]."""
    stacked = np.array(vectors)
    return np.asarray(stacked / np.linalg.norm(stacked, axis=1, keepdims=True), np.float32)


def cosines(one: Float32s, other: Float32s) -> tuple[float, float]:
    """Return the least and the mean cosine between the rows of two arrays of unit vectors."""
    products = (one * other).sum(axis=1, dtype=np.float64)
    return float(products.min()), float(products.mean())
