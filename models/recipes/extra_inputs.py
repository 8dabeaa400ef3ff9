"""Extra inputs: values that some families read for each token besides id, position and segment.

Most are sent by the caller, under their names in transformers; ESM's two are counts over the token's sequence,
`task_ids` is the number of the task that a request names, and two place the images of a model that reads them among
its tokens: `places` int64 [N, 4], the position of a token by time, row and column and 1 for a token that an image
gives, and `image_rows` float32 [M, columns], what the image tower makes of each of the M tokens of images.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MASKED, ATTENDED = "masked_tokens", "attended_tokens"
TASKS = "task_ids"
PLACES, IMAGE_ROWS = "places", "image_rows"
SENT = ("task_type_ids", "langs", "bbox")
WIDTHS = {"bbox": 4, PLACES: 4}  # x0, y0, x1, y1; time, row, column, whether an image gives it

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Extra:
    """One extra input of one model: an int64 input of its graphs, but `image_rows` is float32.

    Attributes:
        name: one of SENT, task_ids, masked_tokens, attended_tokens, places or image_rows.
        rows: values are 0 to rows - 1.
        missing: value of every token where the caller sends none; -1: nothing is added.
        token: for masked_tokens, the id that is counted.
        width: for image_rows, the columns.
    """

    name: str
    rows: int
    missing: int = 0
    token: int | None = None
    width: int = 0

    @property
    def columns(self) -> int:
        """Values per token; 1: the input is [N], else [N, columns]."""
        return self.width or WIDTHS.get(self.name, 1)

    @property
    def sent(self) -> bool:
        """Whether callers may send it for each token."""
        return self.name in SENT

    @property
    def counted(self) -> bool:
        """Whether it follows from the sequence."""
        return self.name in (MASKED, ATTENDED)


def extra_values(
    extra: Extra,
    ids: Int64s,
    mask: Int64s | None,
    sent: Mapping[str, NDArray[Any]] | None,
    positions: Int64s | None = None,
) -> NDArray[Any]:
    """Return the values of one sequence.

    Args:
        extra: the input.
        ids: int64 [n].
        mask: int64 [n]; None: all ones.
        sent: what the caller sent, by name; the task of its request, and the places and rows of its images, too.
        positions: int64 [n]; None: 0 to n - 1.

    Returns:
        int64 [n], or [n, columns]; rows of no image float32 [0, columns].

    Source: transformers 5.23 EsmEmbeddings (the counts of <mask> and of attended tokens).
    """
    if extra.name == MASKED:
        return np.full(len(ids), np.count_nonzero(ids == extra.token))
    if extra.name == ATTENDED:
        return np.full(len(ids), len(ids) if mask is None else int(mask.sum()))
    if sent is not None and extra.name in sent:
        return sent[extra.name]
    if extra.name == PLACES:
        numbers = np.arange(len(ids)) if positions is None else positions
        return np.stack([numbers, numbers, numbers, np.zeros_like(numbers)], axis=1)
    if extra.name == IMAGE_ROWS:
        return np.empty((0, extra.columns), np.float32)
    return np.full((len(ids), extra.columns) if extra.columns > 1 else len(ids), extra.missing)
