"""Recipes: a model as a tuple of steps from token ids to vectors, which name the tensors they use.

Two interpreters read a recipe: models/reference (numpy float64) and models/graphs (ONNX). Steps hold values only. Every
step maps the packed rows x [N, d] to new rows; only Attention mixes rows, and only within one sequence.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar

Activation = Literal[
    "identity",
    "tanh",
    "relu",
    "leaky_relu",
    "elu",
    "gelu",
    "gelu_tanh",
    "quick_gelu",
    "squared_relu",
    "sigmoid",
    "silu",
    "gelu_clipped",
    "hardswish",
    "laplace",
    "mish",
    "relu6",
    "sqrtsoftplus",
]
GELU_BOUND = 10.0  # of gelu_clipped
LAPLACE_MEAN, LAPLACE_WIDTH = 0.707107, 0.282095 * 2**0.5
LEAKY_SLOPE = 0.01  # of leaky_relu: torch.nn.LeakyReLU's
KEPT_IN_TRAINING = 1 - 0.15 * 0.8  # share of embeddings that ESM's masked language modelling keeps


@dataclass(frozen=True, slots=True)
class Adapter:
    """The LoRA adapters of one tensor, one for each task: what a token's task adds to the tensor's result.

    To a matrix' result they add scale * B_t (A_t x), to a table's row scale * B_t A_t[index], t the extra input
    `task_ids`; -1 adds nothing.

    Attributes:
        lora_a: the tensor of all tasks' A, one below the other: [tasks * rank, inputs]; a table's [tasks * rows, rank].
        lora_b: B of all tasks side by side, [outputs, tasks * rank].
    """

    lora_a: str
    lora_b: str
    tasks: int
    rank: int
    scale: float


@dataclass(frozen=True, slots=True)
class Embed:
    """x = table[ids], and what the adapter adds; named output `token_embeddings`."""

    table: str
    adapter: Adapter | None = None


@dataclass(frozen=True, slots=True)
class AddType:
    """x += table[types], and what the adapter adds; named output `token_type_embeddings`.

    GPT-2's table is its word table.
    """

    table: str
    adapter: Adapter | None = None


@dataclass(frozen=True, slots=True)
class AddPosition:
    """x += table[positions]; positions index rows directly; named output `position_embeddings`."""

    table: str


@dataclass(frozen=True, slots=True)
class AddSinusoid:
    """x += sinusoid(positions), computed; named output `position_embeddings`.

    Attributes:
        kind: kind of sinusoids in models/positions/sinusoidal.py.
        dim: width.
        zero_row: position whose row is all zero: padding_idx of M2M100, FSMT and Speech2Text; None: there is none.
    """

    kind: str
    dim: int
    zero_row: int | None = None


@dataclass(frozen=True, slots=True)
class AddIndexed:
    """x += table[extra input], such as ERNIE's tasks, XLM's languages or LayoutLM's boxes.

    Attributes:
        table: the tensor.
        index: name of the extra input, as in transformers; a value of -1 adds nothing.
        columns: of an extra with several values a token: the one that is read, or two whose difference is (LayoutLM's
            width and height); (): the extra has one value.
    """

    table: str
    index: str
    columns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenDropout:
    """x = 0 where the token is `mask_id`, else x * 0.88 / (1 - masked/attended), over the token's sequence (ESM).

    It reads the extra inputs masked_tokens and attended_tokens, which hold both counts for every token.
    """

    mask_id: int


@dataclass(frozen=True, slots=True)
class MaskRows:
    """x = 0 where the token is masked."""


@dataclass(frozen=True, slots=True)
class Scale:
    """x *= factor; if `outside`, the rows before it are a named output too, `unscaled_embeddings`."""

    factor: float
    outside: bool = False


@dataclass(frozen=True, slots=True)
class Round:
    """x = x rounded to a narrower type and widened again, where the checkpoint's dtype affects the numbers (Gemma)."""

    dtype: Literal["bfloat16", "float16"]


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """x = (x - mean) / sqrt(variance + eps) * (offset + weight) + bias; without a weight it is 1.

    Attributes:
        bias: None: none, as is the case without a weight.
        offset: 1 in Nemotron, whose files hold what is added to 1.
    """

    weight: str | None
    bias: str | None
    eps: float
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """x = x / sqrt(mean(x^2) + eps) * (offset + weight); without a weight it is 1.

    Attributes:
        offset: 1 in Gemma, whose files hold what is added to 1.
    """

    weight: str | None
    eps: float
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """LayerNorms of the channels of each head, without biases; their weights are one tensor each (StableLM)."""

    heads: tuple[LayerNorm, ...]


Norm = LayerNorm | RMSNorm


@dataclass(frozen=True, slots=True)
class Multiply:
    """x *= weight, a tensor of one number (layer_scalar of Gemma) or of one a channel (layer scale of DINOv2)."""

    weight: str


@dataclass(frozen=True, slots=True)
class Linear:
    """x @ weight.T + bias, weight [out, in] as PyTorch stores it; in blocks also what the adapter adds."""

    weight: str
    bias: str | None
    adapter: Adapter | None = None


@dataclass(frozen=True, slots=True)
class ScoreBias:
    """scores += table[bucket of the key's place less the query's], by head, with T5's buckets of both directions.

    Attributes:
        table: the tensor, [buckets, heads].
        buckets: number of buckets.
        reach: distances from here on share a bucket.
    """

    table: str
    buckets: int
    reach: int


@dataclass(frozen=True, slots=True)
class DistanceBias:
    """scores -= slope of the head * distance (ALiBi of both directions)."""

    slopes: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Disentangled:
    """scores += scale * (q . key(r) + k . query(r)), r the row of `relative` for the query's place less the key's.

    Attributes:
        relative: the tensor [2 * span, d] of rows for relative positions.
        norm: r = norm(row); None: the row itself.
        key, query: projections of r to the factors of q and k; None: that product is left out.
        buckets, reach: arguments of models/positions/buckets.deberta_bucket.
        unprojected: r itself, [2 * span - 1, w], is the factor of every head's q, or of q and k (BERT's relative_key
            and relative_key_query); "": it is not.
    """

    relative: str
    norm: LayerNorm | None
    key: Linear | None
    query: Linear | None
    buckets: int
    reach: int
    unprojected: Literal["", "q", "qk"] = ""

    @property
    def span(self) -> int:
        """Half the rows of `relative`."""
        return self.buckets if self.buckets > 0 else self.reach


@dataclass(frozen=True, slots=True)
class Attention:
    """x += closing(output(attention(query(y), key(y), value(y)))), softmax over rows of the same sequence.

    A row attends to unmasked rows from `left` rows before it to `right` rows behind it. If none of them is unmasked, it
    attends to each alike.

    Attributes:
        heads: number of heads of queries.
        norm: y = norm(x); None: y = x.
        bias: term added to the scores; None: nothing.
        key_heads: heads of keys and values, each for the same number of neighbouring heads of queries; 0: `heads`.
        head_width: channels of a head; 0: the model's width / heads.
        scale: the factor of the scores; None: 1 / sqrt(head_width).
        rotation: name of the RoPE table by which queries and keys are rotated; None: they are not.
        query_norm, key_norm, value_norm: None: none.
        norms_behind: whether the norms of queries and keys are behind the rotation, or before it.
        norm_of: whether these see the channels of a head, or of all heads.
        left, right: None: all rows on that side.
        cap: scores = cap * tanh(scores / cap); None: as they are.
        closing: None: none.
        factor: factor of the term added to x.
        mixed_norm: norm of what `output` reads (EVA-02); None: none.
        sum_norm: x += sum_norm(x + what is added), so that x counts twice (jina-embeddings-v2-base-code); None: none.
        windowed: a row attends only to those of the same window of its image (Qwen2.5-VL's tower).
        across: keys and values are those of the rows before the last Decode, without the norm.
    """

    heads: int
    query: Linear
    key: Linear
    value: Linear
    output: Linear
    norm: Norm | None = None
    bias: ScoreBias | DistanceBias | Disentangled | None = None
    key_heads: int = 0
    head_width: int = 0
    scale: float | None = None
    rotation: str | None = None
    query_norm: Norm | HeadNorms | None = None
    key_norm: Norm | HeadNorms | None = None
    value_norm: Norm | None = None
    norm_of: Literal["head", "heads"] = "head"
    left: int | None = None
    right: int | None = None
    cap: float | None = None
    closing: Norm | Multiply | None = None
    factor: float = 1.0
    sum_norm: Norm | None = None
    norms_behind: bool = False
    mixed_norm: Norm | None = None
    windowed: bool = False
    across: bool = False


@dataclass(frozen=True, slots=True)
class FeedForward:
    """x += closing(down(activation(up(y)))), or with a gate closing(down(activation(gate(y)) * up(y))).

    Attributes:
        norm: y = norm(x); None: y = x.
        inner_norm: norm of what `down` reads (EVA-02); None: none.
        gate, closing: None: none.
        factor: factor of the term added to x.
        inner: width between up and down; 0: intermediate_size of the config.
    """

    up: Linear
    down: Linear
    activation: Activation
    norm: Norm | None = None
    gate: Linear | None = None
    closing: Norm | Multiply | None = None
    factor: float = 1.0
    inner_norm: Norm | None = None
    inner: int = 0


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """x += output(attention(query(norm(x)), key(z), value(z))), z = latents_norm(latents), for every x (NV-Embed).

    Attributes:
        heads, head_width: number of heads, and channels of each.
        latents: the tensor of z before its norm, [count, d].
    """

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    norm: LayerNorm
    latents: str
    latents_norm: LayerNorm
    heads: int = 0
    head_width: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Experts:
    """x += closing(the sum of weight * expert(y) over a row's experts + shared(y)), a mixture of experts.

    Attributes:
        router: projection to one score for each expert.
        experts: feed-forward steps without norm, closing and factor, all of the same shape.
        chosen: number of experts of a row: those of its highest scores router(y).
        inner: width between up and down of an expert.
        weights: softmax over the scores of all experts, or of a row's own; sparsemixer: of each, softmax over the
            scores at most 2 * `jitter` relatively below its own, those of better experts left out.
        jitter: jitter of sparsemixer.
        bias: added to the sum; None: none.
        shared: an expert that computes every row; None: none.
        shared_inner: width of the shared expert between up and down.
        shared_gate: shared(y) is multiplied by sigmoid(shared_gate(y)), one number a row; None: by 1.
        norm: y = norm(x); None: y = x.
        closing: None: none.
        factor: factor of the term added to x.
    """

    router: Linear
    experts: tuple[FeedForward, ...]
    chosen: int
    inner: int
    weights: Literal["all", "own", "sparsemixer"] = "own"
    jitter: float = 0.0
    bias: str | None = None
    shared: FeedForward | None = None
    shared_inner: int = 0
    shared_gate: Linear | None = None
    norm: Norm | None = None
    closing: Norm | None = None
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class PerLayerInput:
    """x += closing(output(activation(gate(x)) * norm(scale * source(rows before the first block)))).

    Attributes:
        width: width of the results of gate and source.
    """

    gate: Linear
    source: Linear
    output: Linear
    activation: Activation
    norm: Norm
    closing: Norm
    width: int
    scale: float


@dataclass(frozen=True, slots=True)
class Convolution:
    """y[n] = bias + sum over k of x[n + k - left] @ weight[:, :, k].T, of rows of the same sequence.

    Attributes:
        weight: the tensor [d, inputs of a group, size].
        left: number of rows before n.
        by_channel: each channel reads only itself: [d, 1, size].
    """

    weight: str
    bias: str | None
    size: int = 0
    left: int = 0
    by_channel: bool = False


@dataclass(frozen=True, slots=True)
class ShortConvolution:
    """x += output(c * convolution(b * z)), b, c and z the thirds of input(norm(x)), 0 where x is masked (LFM2)."""

    norm: Norm
    input: Linear
    convolution: Convolution
    output: Linear


@dataclass(frozen=True, slots=True)
class ConvolvedInput:
    """x += activation(convolution(rows before the first block)) (DeBERTa)."""

    convolution: Convolution
    activation: Activation


@dataclass(frozen=True, slots=True)
class Parallel:
    """x += attention's addition to x + feed_forward's addition to the same x."""

    attention: Attention
    feed_forward: FeedForward


@dataclass(frozen=True, slots=True)
class Collect:
    """mean += share * x, of several layers; the last one gives x = mean (WeightedLayerPooling)."""

    share: float
    last: bool = False


@dataclass(frozen=True, slots=True)
class Decode:
    """x = a decoder's input layer of the ids, those of each sequence behind `start` and without its last (BART).

    Attributes:
        steps: the input layer.
        start: an id.
    """

    steps: tuple[Embed | AddPosition | Scale | LayerNorm, ...]
    start: int


@dataclass(frozen=True, slots=True)
class PlaceImages:
    """x = part `part` of an image's row at each token that the image gives; parts above 0 are added to x."""

    part: int = 0


Step = (
    Embed
    | AddType
    | AddPosition
    | AddSinusoid
    | AddIndexed
    | TokenDropout
    | MaskRows
    | Scale
    | Round
    | LayerNorm
    | RMSNorm
    | Linear
    | Multiply
    | Attention
    | FeedForward
    | Experts
    | LatentAttention
    | ShortConvolution
    | ConvolvedInput
    | PerLayerInput
    | Parallel
    | Collect
    | Decode
    | PlaceImages
)
Recipe = tuple[Step, ...]

TENSORS = ("table", "weight", "bias", "relative", "probe", "latents")  # fields that name a tensor of the base class
LORA = ("lora_a", "lora_b")  # of the file
Node = TypeVar("Node")


def tensors(recipe: Iterable[object]) -> tuple[str, ...]:
    """Return the names of the tensors that steps read, those of image towers too, in order of first use, each once."""
    return tuple(dict.fromkeys(name for step in recipe for name in _names(step)))


def _names(node: Any) -> list[str]:
    return [
        value
        for part in parts_of(node)
        for name, value in _values(part)
        if name in (*TENSORS, *LORA) and isinstance(value, str)
    ]


def parts_of(node: Any) -> Iterator[Any]:
    """Yield a step and all steps inside it."""
    yield node
    for _, value in _values(node):
        if is_dataclass(value):
            yield from parts_of(value)
        elif isinstance(value, tuple):
            for item in value:
                if is_dataclass(item):
                    yield from parts_of(item)


def _values(node: Any) -> list[tuple[str, Any]]:
    return [(field.name, getattr(node, field.name)) for field in fields(node)]


def renamed(node: Node, name_of: Callable[[str], str]) -> Node:
    """Return a step, or a tuple of them, with every tensor name replaced by `name_of(name)`."""
    changes: dict[str, Any] = {}
    if isinstance(node, tuple):
        return tuple(renamed(item, name_of) for item in node)  # type: ignore[return-value]
    if not is_dataclass(node):
        return node
    for name, value in _values(node):
        named = name in TENSORS and isinstance(value, str)
        changes[name] = name_of(value) if named else renamed(value, name_of)
    return replace(node, **changes)  # type: ignore[type-var]


def has_adapters(recipe: Recipe) -> bool:
    """Return whether a step reads `task_ids`."""
    return any(isinstance(part, Adapter) for step in recipe for part in parts_of(step))


def tables(recipe: Recipe) -> tuple[str, ...]:
    """Return the tensor names whose rows are looked up, in order of first use, each once."""
    return tuple(dict.fromkeys(step.table for step in recipe if hasattr(step, "table")))


def layers(recipe: Recipe) -> Iterator[Attention | FeedForward | Experts | ShortConvolution]:
    """Yield attention, feed-forward steps, mixtures of experts and short convolutions, those of a Parallel too."""
    for step in recipe:
        if isinstance(step, Attention | FeedForward | Experts | ShortConvolution):
            yield step
        elif isinstance(step, Parallel):
            yield from (step.attention, step.feed_forward)
