"""Checks of embedding responses: shapes, finite values, unit length, and equal answers to equal inputs.

Responses of bytes, JSON and protobuf are read into arrays first.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from proto import embed_pb2

Floats = NDArray[np.float32]
UNIT_TOLERANCE = 1e-4
ENCODER_TOLERANCE = 1e-5  # the batch may change an encoder's answer by this; an input layer's not at all


class WrongAnswer(Exception):
    """A response has a success status and wrong content."""


def from_bytes(body: bytes, headers: Mapping[str, str]) -> Floats:
    """Return the rows of a raw float32 response, in the shape that its inlay-shape header states."""
    stated = headers.get("inlay-shape") or ""
    shape = [int(number) for number in re.findall(r"\d+", stated)]
    if len(shape) != 2 or shape[0] * shape[1] * 4 != len(body):
        raise WrongAnswer(f"inlay-shape {stated!r} does not fit {len(body)} bytes")
    return np.frombuffer(body, np.float32).reshape(shape)


def from_json(body: bytes, output: str | None = None) -> Floats:
    """Return the rows of a JSON response: TEI's bare list of vectors, or all rows of one named output."""
    document: Any = orjson.loads(body)
    rows = document if output is None else [row for one in document["outputs"][output] for row in one]
    return np.array(rows, np.float32)


def from_message(answer: embed_pb2.EmbedResponse) -> Floats:
    """Return the rows of the first output of a gRPC response."""
    tensor = answer.outputs[0].tensor
    return np.frombuffer(tensor.data, np.float32).reshape(tuple(tensor.shape))


def expect_rows(rows: Floats, count: int) -> Floats:
    """Return `rows` if they are `count` and finite; otherwise raise WrongAnswer."""
    if rows.ndim != 2 or len(rows) != count:
        raise WrongAnswer(f"shape {rows.shape} where {count} rows were expected")
    if not np.isfinite(rows).all():
        raise WrongAnswer("a value is not finite")
    return rows


def expect_units(rows: Floats, count: int) -> Floats:
    """Return `rows` if they are `count`, finite and of length one; otherwise raise WrongAnswer."""
    lengths = np.linalg.norm(expect_rows(rows, count), axis=1)
    if np.abs(lengths - 1).max() > UNIT_TOLERANCE:
        raise WrongAnswer(f"vectors of lengths {lengths.min():.6f} to {lengths.max():.6f}, not 1")
    return rows


def expect_ranking(ranked: list[tuple[int, float]], count: int) -> Floats:
    """Return the scores in the order of `count` documents, [1, count], if each is ranked once and the best is first."""
    scores = [score for _, score in ranked]
    if sorted(index for index, _ in ranked) != list(range(count)):
        raise WrongAnswer(f"{len(ranked)} documents ranked where {count} were sent")
    if scores != sorted(scores, reverse=True):
        raise WrongAnswer("the scores do not fall")
    by_document = np.array([[score for _, score in sorted(ranked)]], np.float32)
    return expect_rows(by_document, 1)


class FirstAnswers:
    """The first answer to each input; every later one, in any protocol, must equal it."""

    def __init__(self) -> None:
        self.first: dict[str, Floats] = {}

    def expect_same(self, key: str, rows: Floats, tolerance: float = 0) -> None:
        """Compare with the first answer under `key`; tolerance 0 means bit for bit."""
        first = self.first.setdefault(key, rows.copy())
        if first.shape != rows.shape:
            raise WrongAnswer(f"{key}: shape {rows.shape}, before {first.shape}")
        largest = float(np.abs(first - rows).max())
        if largest > tolerance:
            raise WrongAnswer(f"{key}: differs from the first answer by {largest:.2g}, allowed {tolerance:.2g}")
