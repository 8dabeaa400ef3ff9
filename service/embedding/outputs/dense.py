"""From the rows that graphs give to vectors: checks, pooling, scaling, cutting, the dtype."""

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from models.checkpoints.sentence_transformers import EOS
from service.embedding.outputs.plan import Plan
from service.embedding.pooling import end_row, normalize, pool
from service.embedding.requests import Ids
from service.embedding.tokenize import validation
from service.errors import BadInput, BadRequest, EngineFailure

PromptTokens = Mapping[int, int]  # input → leading tokens that pooling leaves out
NUMPY_DTYPES: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def check_finite(model: str, rows: Sequence[Mapping[str, NDArray[Any]]]) -> None:
    """Raise EngineFailure for the first input with an output value that is NaN or infinite.

    Args:
        rows: the arrays of each input, by output name.
    """
    for index, outputs in enumerate(rows):
        check_finite_input(model, index, outputs)


def check_finite_input(model: str, index: int, outputs: Mapping[str, NDArray[Any]]) -> None:
    """Raise EngineFailure for an output of one input with a value that is NaN or infinite."""
    for name, array in outputs.items():
        if not np.isfinite(array).all():
            raise EngineFailure(
                f"{model} gave {name} of inputs[{index}] that is not finite", index, remedy="leave this input out"
            )


def check_prompts(encoded: Mapping[int, Ids], prompts: PromptTokens) -> None:
    """Raise BadInput for the first input that is cut to tokens which pooling does not count."""
    for index, sequence in encoded.items():
        if len(sequence.ids) <= prompts[index]:
            raise BadInput(
                f"is cut to {len(sequence.ids)} tokens, all of them its prompt's, which pooling does not count",
                field=("inputs", index),
                remedy="use a shorter prompt",
            )


def pooled_row(plan: Plan, hidden: NDArray[Any], sequence: Ids, prompt_tokens: int) -> NDArray[np.float32]:
    """Return the pooled vector of one sequence, [1, d]."""
    assert plan.mode is not None
    end = end_row(sequence.ids, plan.end_id) if plan.mode == EOS else 0
    return pool(plan.mode, hidden, validation.attended(sequence), prompt_tokens, end)[None]


def sentence_vectors(plan: Plan, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return pooled vectors [n, d] cut and scaled as the plan says."""
    if plan.dimensions is not None:
        vectors = np.ascontiguousarray(vectors[:, : plan.dimensions])
    vectors = normalize(vectors) if plan.normalize else vectors
    return vectors if plan.kept is None else np.ascontiguousarray(vectors[:, : plan.kept])


def cast(rows: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return rows in a dtype; raise BadRequest for a value that it does not hold."""
    if dtype == "float32":
        return rows
    with np.errstate(over="ignore"):
        narrow: NDArray[Any] = rows.astype(NUMPY_DTYPES[dtype])
    if dtype == "float16" and not np.isfinite(narrow).all():
        raise BadRequest("a value is too large for float16", remedy="ask for bfloat16 or float32")
    return narrow
