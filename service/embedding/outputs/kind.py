"""The interface of a kind of output, the plan of a request's outputs, and the job that their methods work on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import CLASS_LOGITS, Card
from models.positions.learned import PositionRule
from service.embedding.quantization import quantized
from service.embedding.requests import Chunks, Cut, EmbedOptions, EmbedRequest, Ids, Output, OwnTokens
from service.embedding.tokenize.packing import Rows, split
from service.errors import BadRequest, EngineFailure
from service.runtime.engine import Engine
from service.settings import Settings

POOLED = "sentence_embedding"
HIDDEN = "last_hidden_state"
ROW_OF_EACH = (POOLED, CLASS_LOGITS)  # outputs with a row for each input
NARROW_DTYPES: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}

Ranges = NDArray[np.float32]
"""The least and the largest value of each dimension, [2, width]."""
Graphs = dict[str, tuple[str, ...]]
"""The outputs to compute of each graph, by its name."""


class Planning(NamedTuple):
    """The inputs of a plan.

    Args:
        weights: the model's tensors by name.
        outputs: the names of all outputs of the request, each once.
        spans: the field of the request that asks for spans; empty: none does.
    """

    card: Card
    engine: Engine
    weights: Mapping[str, Any]
    options: EmbedOptions
    outputs: tuple[str, ...]
    spans: str = ""

    def width(self, output: str) -> int:
        """Return the number of values in a row of an output."""
        return self.engine.widths.get(output, self.card.hidden_size)


class HeadGraph(NamedTuple):
    """A graph that reads rows of hidden states, or of pooled vectors, after the encoder's graphs.

    Args:
        name: its name among the card's graphs.
        output: the one output of it that is computed.
        inner: values of a row that it reads.
        width: values of a row that it returns, by the card.
        about: what an error calls a row.
    """

    name: str
    output: str
    inner: int
    width: int
    about: str


@dataclass(slots=True, eq=False)
class Job:
    """One request while it is computed: the inputs that its kinds of output read, and the arrays that they return.

    Attributes:
        ids: ids of each input as it is read; a text has none before it is tokenized, and zeros if its vector is kept.
        texts: the numbers of the inputs that are still to be tokenized.
        images: the numbers of the inputs that are images.
        characters: characters of the texts.
        tokenizing: seconds that it took.
        keys: keys of the inputs in the vector cache; empty: the cache keeps none of them.
        kept: the pooled vector, float32 [1, width], of each input that the vector cache holds, by its number.
        prompts: the number of leading tokens of an input that pooling leaves out, by the input's number.
        located: where the tokens of a text lie, by its number; only for a plan that `locates`.
        chunks: the spans of each input; empty: the request has none.
        lengths: the tokens of each input.
        vectors: number of vectors of the request, if an output has one for each input or span.
        rows: the arrays of every part that is run: one part for each input, or one for all of them.
        quantized: the sentence vectors in the request's `precisions`.
    """

    request: EmbedRequest
    plan: "Plan"
    settings: Settings
    ids: list[Ids]
    texts: list[int]
    images: Sequence[int] = ()
    characters: int = 0
    tokenizing: float = 0.0
    keys: Sequence[bytes] = ()
    kept: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    prompts: Mapping[int, int] = field(default_factory=dict)
    located: Mapping[int, OwnTokens] = field(default_factory=dict)
    chunks: tuple[Chunks, ...] = ()
    lengths: tuple[int, ...] = ()
    vectors: int = 0
    rows: list[Rows] = field(default_factory=list)
    quantized: Mapping[str, NDArray[Any]] = field(default_factory=dict)


class OutputKind:
    """One output of a plan: its cost, and how it is made of the graphs' arrays.

    A plan keeps it for all requests with the same options, so that what belongs to one request lies in its Job. The
    stages run in the order check, prepare, reduce, complete, finish; a kind says which of them it has. Those that may
    take long run in a thread.

    Args:
        planning: the model and the options.
        name: name of the output.
        source: the output of a graph that it is made of; None: no graph is run.

    Attributes:
        fields: the options that apply to this kind alone.
        head: the graph that completes reduced rows; None: there is none.
        row_pooling: the pooling that it reads one row of hidden states by; None: it reads others too.
        width: values in a row of the output.
        pooled: whether the output has one row for each input.
        sparse: whether rows are values whose columns lie beside them.
        token_bytes: bytes of memory for each token of a request, in float32.
        input_bytes: bytes of memory for each vector of a request.
        checks, prepares, completes: the stages that it has beside `reduce` and `finish`.
        reduces_in_thread, finishes_in_thread: whether these stages are too long for the event loop.
        locates: whether the kind needs to know where the tokens of each text lie.
        held_rows: parts are completed as soon as their arrays have so many rows; 0: when all have come.
        cache_form: what determines the arrays besides the inputs; None: the vector cache does not keep them.
        longest: the most tokens that it reads of an input; None: as many as the model.
        ending: ids behind each text.
        ranges: the ranges of each precision of its vectors; empty: they are not quantized.
    """

    fields: tuple[str, ...] = ()
    head: HeadGraph | None = None
    checks: bool = False
    prepares: bool = False
    completes: bool = False
    reduces_in_thread: bool = False
    finishes_in_thread: bool = False
    locates: bool = False
    held_rows: int = 0
    pooled: bool = False
    sparse: bool = False
    row_pooling: str | None = None
    token_bytes = 0
    input_bytes = 0
    cache_form: tuple[object, ...] | None = None
    longest: int | None = None
    ranges: Mapping[str, Ranges | None] = {}

    def __init__(self, planning: Planning, name: str, source: str | None = None) -> None:
        self.card, self.engine, self.name, self.source = planning.card, planning.engine, name, source
        self.dtype, self.width = planning.options.dtype, planning.width(name)
        self.ending = self.card.text_ending

    @classmethod
    def makes(cls, planning: Planning, name: str) -> bool:
        """Return whether this kind is the output of that name; by default of each output of the model's graphs."""
        return name in planning.card.outputs

    def as_read(self, options: EmbedOptions) -> EmbedOptions:
        """Return the options with which inputs are read for this output."""
        return options

    def check(self, job: Job) -> None:
        """Raise an InlayError for a request that is wrong whatever its tokens are."""

    def prepare(self, job: Job) -> None:
        """Change or mark the ids of a request, once they are known."""

    def reduce(self, job: Job, index: int, rows: Rows) -> Rows:
        """Return the values to keep of a part's arrays, which may come with those of other requests."""
        return {self.name: rows[self.source or self.name]}

    def complete(self, job: Job, indices: Sequence[int]) -> None:
        """Replace the reduced values of the parts by values that are computed of several parts together."""
        reduced = [job.rows[index][self.name] for index in indices]
        for index, values in zip(indices, self.behind_head(reduced), strict=True):
            job.rows[index][self.name] = values

    def behind_head(self, parts: Sequence[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
        """Return the values that the head's graph computes of rows [n, d].

        ONNX Runtime runs it, since numpy's products give a row other bits alone than among others. Of 768 -> 3072 ->
        768 one text takes 0.69 ms (numpy 0.65) and 32 texts 2.1 ms (numpy 4.6, or row by row, with equal bits, 21): too
        long for the event loop.

        Raises:
            EngineFailure: a value is not finite.
        """
        assert self.head is not None
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if not len(rows):
            return [np.empty((0, self.head.width), np.float32) for _ in parts]
        (values,) = self.engine.run(self.head.name, {"pooled": rows}, (self.head.output,))
        if not np.isfinite(values).all():
            raise EngineFailure(f"{self.card.name} gave {self.head.about} not finite")
        return split(values, map(len, parts))

    def finish(self, job: Job) -> Output:
        """Return the output of all inputs; quantized vectors are put into the job too."""
        arrays = [part[self.name] for part in job.rows]
        rows = self.shaped(arrays[0] if len(arrays) == 1 else np.concatenate(arrays))
        if self.pooled:
            lengths = (1,) * len(job.lengths)
        else:
            lengths = tuple(map(len, arrays)) if len(arrays) == len(job.lengths) else job.lengths
        rows = np.ascontiguousarray(rows if self.dtype == "float32" else cast(rows, self.dtype))
        if self.ranges:
            job.quantized = {name: quantized(rows, name, ranges) for name, ranges in self.ranges.items()}
            rows = job.quantized.get(self.dtype, rows)
        return Output(self.name, rows, lengths, self.pooled)

    def shaped(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the rows of all inputs as the options want them, before they are cast."""
        return rows

    def probe(self) -> None:
        """Run the steps after the graphs on one row; raise EngineFailure if the result contradicts the card."""
        if self.head is not None:
            (values,) = self.behind_head([np.ones((1, self.head.inner), np.float32)])
            check_width(self.card, self.head.name, self.head.output, values, self.head.width)


class Lookup(NamedTuple):
    """A graph whose rows for plain token ids are the answer as they are.

    Args:
        graph: its name.
        types: whether it reads segments.
        positions: how the positions that it reads are counted; None: it reads none.
        longest: tokens of the longest input that has positions; None: any.
    """

    graph: str
    types: bool
    positions: PositionRule | None
    longest: int | None


class Plan(NamedTuple):
    """How one model computes requests with the same options.

    Args:
        kinds: one for each output, in the order of the request.
        names: the names of the outputs.
        options: the options with which the kinds have inputs read.
        plain: what is computed of sequences without segment ids.
        typed: the same of sequences with segment ids.
        whole: the request runs as one row of tokens; False: one item for each input, since an encoder mixes its rows.
        task: the number of the task whose adapters are used.
        prompt: before every text; None: the model has none of the name that the options give.
        cuts: how inputs are cut if the server does not cut by default, and if it does.
        token_bytes: bytes of memory for each token.
        input_bytes: bytes of memory for each vector.
        random: `inlay create` drew the weights, which responses say.
        lookup: how plain token ids are looked up; None: they are computed otherwise.
        preparing: the kinds that prepare its ids.
        completing: the kinds that complete reduced rows.
        reduces_in_thread: the `reduce` of a kind is too long for the event loop.
        ending: ids behind each text.
        locates: a kind reads where the tokens of each text lie.
        early: the kind whose parts are completed while others still run.
        cached: the kind whose arrays the vector cache keeps.
    """

    kinds: tuple[OutputKind, ...]
    names: tuple[str, ...]
    options: EmbedOptions
    plain: Graphs
    typed: Graphs
    whole: bool
    task: int
    prompt: str | None
    cuts: tuple[Cut, Cut]
    token_bytes: int
    input_bytes: int
    random: bool
    lookup: Lookup | None
    preparing: tuple[OutputKind, ...]
    completing: tuple[OutputKind, ...]
    reduces_in_thread: bool
    ending: tuple[int, ...]
    locates: bool
    early: OutputKind | None
    cached: OutputKind | None


Planner = Callable[[EmbedOptions, str], Plan]
"""Returns the plan of options; the second argument is the field that asks for spans, or empty."""


def not_finite(model: str, output: str, index: int) -> EngineFailure:
    """Return the error for an output of one input with a value that is NaN or infinite."""
    return EngineFailure(
        f"{model} gave {output} of inputs[{index}] that is not finite", index, remedy="leave this input out"
    )


def cast(rows: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return rows in a narrower dtype, if it is one; raise BadRequest for a value out of its range."""
    if dtype not in NARROW_DTYPES:
        return rows
    with np.errstate(over="ignore"):
        narrow: NDArray[Any] = rows.astype(NARROW_DTYPES[dtype])
    if dtype == "float16" and not np.isfinite(narrow).all():
        raise BadRequest("a value is too large for float16", remedy="ask for bfloat16 or float32")
    return narrow


def check_width(card: Card, graph: str, name: str, values: NDArray[Any], width: int) -> None:
    """Raise EngineFailure if an output is not as wide as the card says."""
    if values.shape[-1] != width:
        file = card.every_graph[graph].file
        raise EngineFailure(f"{file} gives {name} {values.shape[-1]} wide where its card promises {width}")
