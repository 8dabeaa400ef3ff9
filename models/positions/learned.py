"""Which row of a position table each token reads when the caller does not say. Holds no table itself."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

_COUNT = np.arange(8192, dtype=np.int64)  # lent to every sequence that counts its tokens from the left
_COUNT.flags.writeable = False

Kind = Literal["arange", "cumsum_non_pad", "cumsum_mask"]


@dataclass(frozen=True, slots=True)
class PositionRule:
    """How a family numbers the tokens of one sequence (spec: transformers 5.23).

    kind       arange: i + offset (BERT, GPT-2, and every RoPE model); the mask is ignored
               cumsum_non_pad: cumsum(id != pad) * (id != pad) + offset, offset = pad (RoBERTa); pads sit on row `pad`
               cumsum_mask: cumsum(mask) * mask - 1 + offset (OPT)
    rows       rows of the position table: positions 0 .. rows-1 exist; None: any position (RoPE)
    """

    kind: Kind
    offset: int
    rows: int | None
    pad_id: int | None = None

    def longest(self) -> int | None:
        """Tokens of the longest sequence whose positions all exist; None: no limit."""
        if self.rows is None:
            return None
        return self.rows - self.offset - (1 if self.kind == "cumsum_non_pad" else 0)


def positions(rule: PositionRule, ids: NDArray[np.int64], mask: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """The position of each token of one sequence.

    ids        int64 [n]
    mask       int64 [n] of 0 and 1, read by cumsum_mask alone; None: all ones
    returns    int64 [n], rows of the position table; possibly a read-only view
    source     transformers 5.23: BertEmbeddings, RobertaEmbeddings, OPTLearnedPositionalEmbedding
    """
    if rule.kind == "arange":
        end = rule.offset + len(ids)
        return _COUNT[rule.offset : end] if end <= len(_COUNT) else np.arange(rule.offset, end, dtype=np.int64)
    if rule.kind == "cumsum_non_pad":
        counted = (ids != rule.pad_id).astype(np.int64)
        return np.asarray(np.cumsum(counted) * counted + rule.offset)
    counted = np.ones(len(ids), np.int64) if mask is None else mask
    return np.asarray(np.cumsum(counted) * counted - 1 + rule.offset)
