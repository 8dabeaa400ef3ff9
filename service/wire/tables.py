"""Which rows of a RoPE table are wanted, and the rows block by block, so that no whole table is ever in memory."""

import hashlib
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Any

import ml_dtypes
import numpy as np
import orjson
from numpy.typing import NDArray

from models.card import RopeTable
from service.catalog import Model
from service.encoder import Encoder
from service.errors import BadRequest, NotFound

NUMPY_DTYPES: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
MAX_LENGTH = 1048576
MAX_POSITION = 2**53  # the last that float64 angles tell apart
BLOCK_VALUES = 65536  # values of one array computed at a time: 256 KiB in float32


@dataclass(frozen=True, slots=True)
class Span:
    """Rows [start, start + length) of one model's table, in one dtype.

    dtype      one of messages.DTYPES
    """

    model: Model
    rope: RopeTable
    start: int
    length: int
    dtype: str

    @property
    def width(self) -> int:
        """Values in a row of cos, and of sin."""
        return self.rope.rotary_dim // 2

    def tag(self, media_type: str) -> str:
        """A strong ETag: equal for equal bytes, whatever the table is called."""
        facts = [asdict(self.rope), self.model.engine.device, self.start, self.length, self.dtype, media_type]
        name = self.model.card.name if media_type == "application/json" else ""  # only JSON repeats it
        return '"' + hashlib.sha256(orjson.dumps([*facts, name])).hexdigest()[:32] + '"'


def span(model: Model, start: int, length: int | None, dtype: str) -> Span:
    """The rows a caller asks for; `length` None: to the last trained position.

    raises   NotFound where the model does not rotate, BadRequest for rows no table has
    """
    card = model.card
    if card.rope is None:
        raise NotFound(f"{card.name} has no RoPE table: {card.family} models do not rotate")
    if not 0 <= start < MAX_POSITION:
        raise BadRequest(f"start is {start}; allowed: 0 to {MAX_POSITION - 1}")
    trained = card.rope.trained_positions
    if length is None:
        if start >= trained:
            raise BadRequest(f"start is {start} and {card.name} was trained on {trained} positions: send a length too")
        length = min(trained - start, MAX_LENGTH)
    if not 1 <= length <= MAX_LENGTH:
        raise BadRequest(f"length is {length}; allowed: 1 to {MAX_LENGTH} rows a request")
    if start + length > MAX_POSITION:
        raise BadRequest(f"start + length is {start + length}; allowed: up to {MAX_POSITION}")
    return Span(model, card.rope, start, length, dtype)


async def blocks(
    encoder: Encoder, wanted: Span, outputs: tuple[str, ...], max_rows: int | None = None
) -> AsyncIterator[tuple[int, list[NDArray[Any]]]]:
    """First position and rows [n, width] of each output, block after block, in the dtype of the span.

    max_rows   rows in a block; None: as many as make BLOCK_VALUES
    """
    rows = max_rows or max(1, BLOCK_VALUES // wanted.width)
    end = wanted.start + wanted.length
    for start in range(wanted.start, end, rows):
        arrays = await encoder.rope(wanted.model.card.name, start, min(rows, end - start), outputs)
        yield start, [array.astype(NUMPY_DTYPES[wanted.dtype], copy=False) for array in arrays]
