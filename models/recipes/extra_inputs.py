"""Extra inputs: values that some families read for each token besides id, position and segment.

Most are sent by the caller, under their names in transformers; ESM's two are counts over the token's sequence, and
`task_ids` is the number of the task that a request names.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MASKED, ATTENDED = "masked_tokens", "attended_tokens"
TASKS = "task_ids"
SENT = ("task_type_ids", "langs", "bbox")
WIDTHS = {"bbox": 4}  # x0, y0, x1, y1

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Extra:
    """One extra input of one model: an int64 input of its graphs.

    Attributes:
        name: one of SENT, task_ids, masked_tokens or attended_tokens.
        rows: values are 0 to rows - 1.
        missing: value of every token where the caller sends none; -1: nothing is added.
        token: for masked_tokens, the id that is counted.
    """

    name: str
    rows: int
    missing: int = 0
    token: int | None = None

    @property
    def columns(self) -> int:
        """Values per token; 1: the input is [N], else [N, columns]."""
        return WIDTHS.get(self.name, 1)

    @property
    def sent(self) -> bool:
        """Whether callers may send it for each token."""
        return self.name in SENT

    @property
    def counted(self) -> bool:
        """Whether it follows from the sequence."""
        return self.name in (MASKED, ATTENDED)


def extra_values(extra: Extra, ids: Int64s, mask: Int64s | None, sent: Mapping[str, Int64s] | None) -> Int64s:
    """Return the values of one sequence.

    Args:
        extra: the input.
        ids: int64 [n].
        mask: int64 [n]; None: all ones.
        sent: what the caller sent, by name; the task of its request, too.

    Returns:
        int64 [n], or [n, columns].

    Source: transformers 5.23 EsmEmbeddings (the counts of <mask> and of attended tokens).
    """
    if extra.name == MASKED:
        return np.full(len(ids), np.count_nonzero(ids == extra.token))
    if extra.name == ATTENDED:
        return np.full(len(ids), len(ids) if mask is None else int(mask.sum()))
    if sent is not None and extra.name in sent:
        return sent[extra.name]
    return np.full((len(ids), extra.columns) if extra.columns > 1 else len(ids), extra.missing)
