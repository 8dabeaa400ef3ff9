"""Inputs for Triton's HTTP and gRPC clients, which have the same classes in different modules."""

from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.clients.judged import IDS, INPUTS

POOLED = "sentence_embedding"
ROWS = "last_hidden_state"


def padded(ids: list[list[int]] = IDS) -> dict[str, NDArray[np.int64]]:
    """`input_ids` and `attention_mask` [B, T], zeros behind the shorter ones."""
    longest = max(map(len, ids))
    return {
        "input_ids": np.array([row + [0] * (longest - len(row)) for row in ids], np.int64),
        "attention_mask": np.array([[1] * len(row) + [0] * (longest - len(row)) for row in ids], np.int64),
    }


def inputs(module: ModuleType, arrays: dict[str, NDArray[Any]], datatype: str = "INT64", **options: Any) -> list[Any]:
    """InferInputs of these arrays."""
    made = [module.InferInput(name, list(array.shape), datatype) for name, array in arrays.items()]
    for tensor, array in zip(made, arrays.values(), strict=True):
        tensor.set_data_from_numpy(array, **options)
    return made


def texts(module: ModuleType, **options: Any) -> list[Any]:
    """The golden texts as one BYTES tensor [B, 1]."""
    array = np.array([[text.encode()] for text in INPUTS], np.object_)
    return inputs(module, {"text": array}, "BYTES", **options)
