"""What a right answer must look like, whoever asked: shapes, finite values, unit length, equal answers to equal inputs.

Reads bytes, JSON and protobuf into arrays. Knows no load tool and sends nothing.
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
ENCODER_TOLERANCE = 1e-5  # what a batch may change in an encoder's answer; in an input layer's, nothing


class WrongAnswer(Exception):
    """An answer that came, with success, and is not right."""


def from_bytes(body: bytes, headers: Mapping[str, str]) -> Floats:
    """Rows of a raw float32 answer, in the shape its header states."""
    stated = headers.get("inlay-shape") or ""
    shape = [int(number) for number in re.findall(r"\d+", stated)]
    if len(shape) != 2 or shape[0] * shape[1] * 4 != len(body):
        raise WrongAnswer(f"inlay-shape {stated!r} does not fit {len(body)} bytes")
    return np.frombuffer(body, np.float32).reshape(shape)


def from_json(body: bytes, output: str | None = None) -> Floats:
    """Rows of a JSON answer: TEI's bare list of vectors, or the rows of all inputs of one named output."""
    document: Any = orjson.loads(body)
    rows = document if output is None else [row for one in document["outputs"][output] for row in one]
    return np.array(rows, np.float32)


def from_message(answer: embed_pb2.EmbedResponse) -> Floats:
    """Rows of the first output of a gRPC answer."""
    tensor = answer.outputs[0].tensor
    return np.frombuffer(tensor.data, np.float32).reshape(tuple(tensor.shape))


def expect_rows(rows: Floats, count: int) -> Floats:
    """The same rows, if they are `count` and finite."""
    if rows.ndim != 2 or len(rows) != count:
        raise WrongAnswer(f"shape {rows.shape} where {count} rows were due")
    if not np.isfinite(rows).all():
        raise WrongAnswer("a value that is not finite")
    return rows


def expect_units(rows: Floats, count: int) -> Floats:
    """The same rows, if they are `count`, finite and of length one."""
    lengths = np.linalg.norm(expect_rows(rows, count), axis=1)
    if np.abs(lengths - 1).max() > UNIT_TOLERANCE:
        raise WrongAnswer(f"vectors of lengths {lengths.min():.6f} to {lengths.max():.6f}, not 1")
    return rows


class Memory:
    """First answers by input; every later answer to the same input, in any protocol, must equal the first."""

    def __init__(self) -> None:
        self.first: dict[str, Floats] = {}

    def expect_same(self, key: str, rows: Floats, tolerance: float = 0) -> None:
        """Compare with the first answer under `key`; tolerance 0: bit for bit."""
        first = self.first.setdefault(key, rows.copy())
        if first.shape != rows.shape:
            raise WrongAnswer(f"{key}: shape {rows.shape}, before {first.shape}")
        largest = float(np.abs(first - rows).max())
        if largest > tolerance:
            raise WrongAnswer(f"{key}: differs from the first answer by {largest:.2g}, allowed {tolerance:.2g}")
