"""The request and the result of the embedding pipeline, which every protocol decodes to and encodes from.

They are named tuples, because some are made for every request: a frozen dataclass takes four times as long to make.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.request_context import StageTimes

Int64s = NDArray[np.int64]
Direction = Literal["right", "left"]
DTYPES = ("float32", "float16", "bfloat16")


class Text(NamedTuple):
    """A text, or a pair of texts, still to be tokenised."""

    text: str
    pair: str | None = None


class Ids(NamedTuple):
    """One sequence of token ids and what goes with them, int64 [n] each; None: filled by the model family's rule.

    Args:
        mask: 1 for each token to attend to; None: all ones.
        types: segment ids.
        extras: further inputs of a few families, by their names in transformers: [n], bbox [n, 4].
        cut: the input was longer.
    """

    ids: Int64s
    mask: Int64s | None = None
    types: Int64s | None = None
    positions: Int64s | None = None
    extras: Mapping[str, Int64s] | None = None
    cut: bool = False

    @property
    def tokens(self) -> int:
        """The number of tokens, n."""
        return len(self.ids)


Input = Text | Ids


class EmbedRequest(NamedTuple):
    """What to compute. None leaves the choice to the model or the server's settings.

    Args:
        model: its name; None: the default model.
        outputs: names of the model's outputs; empty: its default output.
        truncate: cut inputs that are too long instead of raising.
        truncation_direction: the side to keep.
        normalize: scale the sentence vector to unit length.
        dimensions: keep this many leading values of the sentence vector, then normalise; None: as many as the model's
            files say, after its own scaling.
        pooling: one of pooling.POOLINGS; another than the model's own gives the plain pooled vector, without the
            model's modules.
        dtype: of the result, one of DTYPES.
        prompt_name: one of the model's prompts; None: that of `task`, or its default prompt.
        task: one of the model's tasks, whose adapters are used; None: that `prompt_name` names, or its default task.
        max_tokens: cut every input to so many tokens, special ones included, whatever `truncate` says.
        special_tokens: add the model's own to texts.
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
    task: str | None = None
    max_tokens: int | None = None
    special_tokens: bool = True


class Output(NamedTuple):
    """One named output of all inputs.

    Args:
        rows: [sum(lengths), width], C-contiguous, in the request's dtype (bfloat16 is ml_dtypes.bfloat16).
        lengths: rows of each input; all 1 where pooled.
        pooled: one vector per input instead of one per token.
    """

    name: str
    rows: NDArray[Any]
    lengths: tuple[int, ...]
    pooled: bool


class EmbedResult(NamedTuple):
    """The outputs of a request, in the order in which it names them.

    Args:
        model: the name of the model that computed them.
        tokens: read in all.
        picked: the request names its outputs; False: this is the default output alone.
        lengths: tokens read of each input.
        characters: of the texts, prompts not counted.
        times: what each stage took.
        truncated: numbers of the inputs that were cut, in their order.
    """

    model: str
    outputs: tuple[Output, ...]
    tokens: int
    picked: bool
    lengths: tuple[int, ...] = ()
    characters: int = 0
    times: StageTimes = StageTimes(0.0, 0.0, 0.0)
    truncated: tuple[int, ...] = ()
