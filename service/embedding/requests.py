"""The request and the result of the embedding pipeline, which every protocol decodes to and encodes from.

They are named tuples, because some are made for every request: a frozen dataclass takes four times as long to make.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from service.errors import FieldPath
from service.request_context import RequestContext, StageTimes

Int64s = NDArray[np.int64]
Direction = Literal["right", "left"]
DIRECTIONS: dict[str | None, Direction | None] = {
    None: None,
    **{name: "right" for name in ("Right", "right")},
    **{name: "left" for name in ("Left", "left")},
}
"""Sides by the names that clients send; None: the model's own."""
InputType = Literal["query", "document", "classification", "clustering"]
SpanUnit = Literal["characters", "tokens"]
DTYPES = ("float32", "float16", "bfloat16")


class Text(NamedTuple):
    """A text, or a pair of texts, still to be tokenised.

    Args:
        ending: ids of its last tokens that are kept where it is cut at its end.
    """

    text: str
    pair: str | None = None
    ending: tuple[int, ...] = ()


class Ids(NamedTuple):
    """One sequence of token ids and its extra inputs, int64 [n] each; None: filled in by the model family's rule.

    Args:
        mask: 1 for each token to attend to; None: all ones.
        types: segment ids.
        extras: further inputs of a few families, by their names in transformers: [n], bbox [n, 4].
        cut: the input was longer.
        vectors: flags of the tokens that get a vector of their own, bool [n]; None: no output has such vectors.
    """

    ids: Int64s
    mask: Int64s | None = None
    types: Int64s | None = None
    positions: Int64s | None = None
    extras: Mapping[str, Int64s] | None = None
    cut: bool = False
    vectors: NDArray[np.bool_] | None = None

    @property
    def tokens(self) -> int:
        """The number of tokens, n."""
        return len(self.ids)

    @property
    def attended(self) -> NDArray[np.bool_]:
        """Which tokens are attended to, bool [n]."""
        return np.ones(len(self.ids), np.bool_) if self.mask is None else self.mask.astype(bool)


class Picture(NamedTuple):
    """The bytes of a JPEG, PNG or WebP file, or the address from which they are fetched.

    Args:
        url: empty: the bytes came with the request.
        field: where the address stands in the request, for errors.
    """

    data: bytes
    url: str = ""
    field: FieldPath = ()


Input = Text | Ids | Picture


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """The spans of each input, each pooled to a vector from hidden states of the whole input (late chunking).

    Args:
        bounds: of all inputs in their order, int64 [spans, 2]: where a span starts, and where it stops, which is not
            part of it.
        counts: the spans of each input.
        unit: what they count: code points of the text as the caller sent it, or tokens of it, without the prompt's and
            special ones; in token ids every id counts.
        joined: the spans are texts that were joined to one input: the first begins with the input's first token and
            the last ends with its last, special tokens and the prompt included; errors call them inputs.
    """

    bounds: Int64s
    counts: tuple[int, ...]
    unit: SpanUnit = "characters"
    joined: bool = False


class Chunking(NamedTuple):
    """Chunks of `size` tokens of each input; each begins with the last `overlap` tokens of the previous one."""

    size: int
    overlap: int = 0


class Chunks(NamedTuple):
    """The spans of one input that have vectors, int64 [spans, 2] each.

    Args:
        rows: places among the hidden states.
        tokens: places among the input's own tokens.
        characters: code points of the text that the tokens cover; None: it came as token ids.
    """

    rows: Int64s
    tokens: Int64s
    characters: Int64s | None


class OwnTokens(NamedTuple):
    """The tokens of an input without special tokens and its prompt.

    Args:
        rows: places of the tokens among the ids, ascending, int64 [n].
        starts: the first code point of each in the text as the caller sent it; None: the input came as token ids.
        stops: the code point after its last; neither falls.
        skipped: own tokens that were cut off before the first.
        total: own tokens before the input was cut; None: more than are read.
    """

    rows: Int64s
    starts: Int64s | None
    stops: Int64s | None
    skipped: int
    total: int | None


class EmbedOptions(NamedTuple):
    """What to compute of the inputs of a request, and how to read them.

    None leaves the choice to the model or the server's settings. Requests with equal options share a plan.

    Args:
        outputs: names of the model's outputs; empty: its default output.
        truncate: cut inputs that are too long instead of raising.
        truncation_direction: right keeps the beginning, left the end.
        normalize: scale the sentence vector to unit length.
        dimensions: keep this many leading values of the sentence vector, then normalise; None: as many as the model's
            files say, after its own scaling.
        pooling: one of pooling.POOLINGS; another than the model's own gives the plain pooled vector, without the
            model's modules.
        dtype: dtype of the result, one of DTYPES; of sentence vectors also one of quantization.PRECISIONS.
        prompt_name: one of the model's prompts; None: that of `task` or `input_type`, or its default prompt.
        task: one of the model's tasks, whose adapters are used; None: that `prompt_name` names, or its default task.
        max_tokens: cut every input to so many tokens, special ones included, whatever `truncate` says.
        special_tokens: add the model's own to texts.
        max_active_dims: keep so many of the largest values of a sparse vector; None: all.
        instruction: what the texts are queries for, put before them in the form of the model's own prompts.
        input_type: what the texts are for, where the model reads queries and documents in different ways; None: it is
            not said. It brings the prompt and the task of that use, unless the request names one.
        precisions: further dtypes of the sentence vectors, of quantization.PRECISIONS.
    """

    outputs: tuple[str, ...] = ()
    truncate: bool | None = None
    truncation_direction: Direction | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    pooling: str | None = None
    dtype: str = "float32"
    prompt_name: str | None = None
    task: str | None = None
    max_tokens: int | None = None
    special_tokens: bool = True
    input_type: InputType | None = None
    precisions: tuple[str, ...] = ()
    max_active_dims: int | None = None
    instruction: str | None = None


class Cut(NamedTuple):
    """How the texts of a request are cut; the fields are those of EmbedOptions.

    Args:
        most: tokens of a text that is cut, by the model, its kinds of output and the request; None: no limit.
    """

    truncate: bool = True
    direction: Direction = "right"
    max_tokens: int | None = None
    special_tokens: bool = True
    most: int | None = None


DEFAULTS = EmbedOptions()


class EmbedRequest(NamedTuple):
    """What to embed, and how.

    Args:
        inputs: texts and token ids, in the order of the result.
        model: name of the model; None: the default model.
        options: what is computed of every input.
        late_chunking: make the sentence vector of each of these spans instead of one of the whole input.
    """

    inputs: Sequence[Input]
    model: str | None = None
    options: EmbedOptions = DEFAULTS
    late_chunking: Spans | Chunking | None = None


class Output(NamedTuple):
    """One named output of all inputs.

    Args:
        rows: [sum(lengths), width], C-contiguous, in the request's dtype (bfloat16 is ml_dtypes.bfloat16;
            binary is int8 and ubinary uint8, an eighth as wide).
        lengths: rows of each input; all 1 where pooled.
        pooled: one vector per input instead of one per token.
        indices: of sparse vectors: int32 [sum(lengths)], the columns of the values in `rows`, which are 1 wide,
            ascending within an input; None: the vectors are dense.
    """

    name: str
    rows: NDArray[Any]
    lengths: tuple[int, ...]
    pooled: bool
    indices: NDArray[np.int32] | None = None


class EmbedResult(NamedTuple):
    """The outputs of a request, in the order of its options.

    Args:
        model: the name of the model that computed them.
        tokens: read in all.
        picked: the request names its outputs; False: this is the default output alone.
        lengths: tokens read of each input.
        characters: characters of the texts, without prompts.
        times: seconds of each stage.
        truncated: numbers of the inputs that were cut, in their order.
        chunks: chunks of each input if the request has spans; else empty.
        quantized: the sentence vectors in each of the request's `precisions`.
    """

    model: str
    outputs: tuple[Output, ...]
    tokens: int
    picked: bool
    lengths: tuple[int, ...] = ()
    characters: int = 0
    times: StageTimes = StageTimes(0.0, 0.0, 0.0)
    truncated: tuple[int, ...] = ()
    chunks: tuple[Chunks, ...] = ()
    quantized: Mapping[str, NDArray[Any]] = {}


class Embedder(Protocol):
    """Answers requests: the embedding pipeline."""

    async def embed(self, request: EmbedRequest, context: RequestContext) -> EmbedResult:
        """Return one request's outputs."""
        ...
