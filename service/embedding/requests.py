"""The one request and one result that every protocol decodes to and encodes from. Knows no protocol and no model.

Named tuples, because some are made for every request: a frozen dataclass takes four times as long to make.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.observability.stage_times import StageTimes

Int64s = NDArray[np.int64]
Direction = Literal["right", "left"]
DTYPES = ("float32", "float16", "bfloat16")


class Text(NamedTuple):
    """A text, or a pair of texts, still to be tokenised."""

    text: str
    pair: str | None = None


class Ids(NamedTuple):
    """One sequence of token ids, int64 [n]; None: filled by the family's own rule (mask: all ones).

    extras   further inputs of a few families, by their names in transformers: [n], bbox [n, 4]
    """

    ids: Int64s
    mask: Int64s | None = None
    types: Int64s | None = None
    positions: Int64s | None = None
    extras: Mapping[str, Int64s] | None = None


Input = Text | Ids


class EmbedRequest(NamedTuple):
    """What a caller asks for. None leaves the choice to the model or the server's settings.

    outputs        names of the model's outputs; empty: its default output
    truncate       cut inputs that are too long instead of refusing them
    normalize      scale the pooled vector to unit length
    dimensions     keep this many leading values of the pooled vector, then normalise
    pooling        one of pooling.POOLINGS, instead of the model's own
    dtype          one of DTYPES
    max_tokens     cut every input to so many tokens, special ones included, whatever `truncate` says
    special_tokens a text gets the model's own; False: its bare pieces
    """

    inputs: Sequence[Input]
    model: str | None = None
    outputs: tuple[str, ...] = ()
    truncate: bool | None = None
    truncation_direction: Direction = "right"
    normalize: bool | None = None
    dimensions: int | None = None
    pooling: str | None = None
    dtype: str = "float32"
    prompt_name: str | None = None
    max_tokens: int | None = None
    special_tokens: bool = True


class Output(NamedTuple):
    """One named output: the rows of all inputs, one below the other.

    rows       [sum(lengths), width], C-contiguous, in the dtype asked for (bfloat16 is ml_dtypes.bfloat16)
    lengths    rows of each input; all 1 where pooled
    pooled     one vector an input instead of one a token
    """

    name: str
    rows: NDArray[Any]
    lengths: tuple[int, ...]
    pooled: bool


class EmbedResult(NamedTuple):
    """The outputs in the order asked for, the model that gave them, and the number of tokens read.

    picked      the caller named the outputs; False: the single default output
    lengths     tokens read of each input
    characters  of the texts, prompts not counted
    """

    model: str
    outputs: tuple[Output, ...]
    tokens: int
    picked: bool
    lengths: tuple[int, ...] = ()
    characters: int = 0
    times: StageTimes = StageTimes(0.0, 0.0, 0.0)
