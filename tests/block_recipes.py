"""Recipes of two blocks that show what the steps of blocks can say, with random tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from models.checkpoints import safetensors
from models.graphs.builder import GraphBuilder, save
from models.graphs.encoder import encoder
from models.positions.rope.frequencies import Rope, frequencies
from models.recipes.positional_encodings import RopeTable
from models.recipes.steps import (
    Activation,
    Adapter,
    Attention,
    Collect,
    Convolution,
    ConvolvedInput,
    Decode,
    Disentangled,
    DistanceBias,
    Embed,
    Experts,
    FeedForward,
    HeadNorms,
    LatentAttention,
    LayerNorm,
    Linear,
    MaskRows,
    Multiply,
    Parallel,
    PerLayerInput,
    Recipe,
    RMSNorm,
    ScoreBias,
    ShortConvolution,
)

WIDTH, HEADS, INNER, VOCABULARY, TASK_COUNT = 16, 4, 32, 50, 5
TABLE = Embed("table")


def rope(theta: float, rotary: int, layout: str, scale: str = "default", **parameters: Any) -> RopeTable:
    """A table of rotations."""
    own = Rope.of(theta, rotary, scale, parameters, max_position_embeddings=64)
    found = frequencies(own, "parity")
    numbers = tuple(found.inverse_frequency.tolist())
    return RopeTable(own, layout, None, None, 1.0, found.attention_factor, numbers, (), "rope")


ROPES = {
    "near": rope(100.0, 4, "half"),
    "far": rope(160000.0, 4, "half"),
    "pairs": rope(1000.0, 4, "interleaved"),
    "turned back": rope(100.0, 4, "half_negative"),
    "part": rope(1000.0, 2, "half"),
    "part of pairs": rope(1000.0, 2, "interleaved"),
    "wide": rope(500000.0, 8, "half", "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                 original_max_position_embeddings=64),
    "grown": rope(1000.0, 4, "half", "dynamic", factor=4.0),
    "long": rope(1000.0, 4, "interleaved", "longrope", short_factor=[1.0, 2.0], long_factor=[3.0, 40.0], factor=8.0,
                 original_max_position_embeddings=64),
    "two factors": rope(1000.0, 4, "half", "longrope", short_factor=[1.0, 2.0], long_factor=[1.0, 2.0],
                        short_mscale=1.2, long_mscale=1.6, original_max_position_embeddings=64),
}  # fmt: skip


@dataclass
class Drawn:
    """Steps, and the tensors drawn for them."""

    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(17))
    weights: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    def tensor(self, *shape: int, spread: float = 1.0, around: float = 0.0) -> str:
        """The name of a new tensor."""
        name = f"t{len(self.weights)}"
        self.weights[name] = (around + spread * self.random.normal(size=shape)).astype(np.float32)
        return name

    def linear(self, outputs: int, inputs: int, bias: bool = True) -> Linear:
        weight = self.tensor(outputs, inputs, spread=1.5 / inputs**0.5)
        return Linear(weight, self.tensor(outputs, spread=0.3) if bias else None)

    def layer_norm(self, width: int = WIDTH, bias: bool = True) -> LayerNorm:
        weight = self.tensor(width, spread=0.2, around=1.0)
        return LayerNorm(weight, self.tensor(width, spread=0.2) if bias else None, 1e-5)

    def rms(self, width: int = WIDTH, offset: float = 0.0) -> RMSNorm:
        return RMSNorm(self.tensor(width, spread=0.2, around=1.0 - offset), 1e-6, offset)

    def attention(self, key_heads: int = HEADS, head_width: int = 4, biased: bool = True, **more: Any) -> Attention:
        keys = key_heads * head_width
        query, output = self.linear(HEADS * head_width, WIDTH, biased), self.linear(WIDTH, HEADS * head_width, biased)
        return Attention(
            HEADS,
            query,
            self.linear(keys, WIDTH, biased),
            self.linear(keys, WIDTH, biased),
            output,
            key_heads=0 if key_heads == HEADS else key_heads,
            head_width=0 if HEADS * head_width == WIDTH else head_width,
            **{"norm": self.layer_norm()} | more,
        )

    def feed_forward(self, activation: Activation = "gelu", gate: bool = False, **more: Any) -> FeedForward:
        up, down = self.linear(INNER, WIDTH), self.linear(WIDTH, INNER)
        gated = self.linear(INNER, WIDTH) if gate else None
        return FeedForward(up, down, activation, **{"norm": self.layer_norm(), "gate": gated} | more)

    def expert(self, inner: int, gate: bool = False, activation: Activation = "gelu") -> FeedForward:
        up, down = self.linear(inner, WIDTH, bias=False), self.linear(WIDTH, inner, bias=gate)
        return FeedForward(up, down, activation, gate=self.linear(inner, WIDTH) if gate else None)

    def experts(self, count: int = 8, chosen: int = 2, gate: bool = True, **more: Any) -> Experts:
        experts = tuple(self.expert(INNER, gate) for _ in range(count))
        return Experts(self.linear(count, WIDTH, bias=False), experts, chosen, INNER, **{"norm": self.rms()} | more)

    def short_convolution(self, left: int, biased: bool) -> ShortConvolution:
        own = Convolution(self.tensor(WIDTH, 1, 3), self.tensor(WIDTH) if biased else None, 3, left, by_channel=True)
        return ShortConvolution(self.rms(), self.linear(3 * WIDTH, WIDTH), own, self.linear(WIDTH, WIDTH, biased))

    def head_norms(self) -> HeadNorms:
        return HeadNorms(tuple(self.layer_norm(4, bias=False) for _ in range(HEADS)))

    def distances(self, factors: Any) -> Disentangled:
        return Disentangled(self.tensor(2 * 700 - 1, 4), None, None, None, 0, 700, factors)

    def disentangled(self, key: bool = True, query: bool = True, norm: bool = True, buckets: int = 8) -> Disentangled:
        reach = 24
        span = buckets if buckets > 0 else reach
        own = self.layer_norm() if norm else None
        linears = [self.linear(WIDTH, WIDTH, bias=bias) if there else None for there, bias in ((key, 1), (query, 0))]
        return Disentangled(self.tensor(2 * span, WIDTH), own, *linears, buckets=buckets, reach=reach)


Made = Callable[[Drawn], Recipe]


def two(first: Mapping[str, Any], second: Mapping[str, Any] | None = None) -> Made:
    """Two blocks of attention and a feed-forward step."""

    def made(draw: Drawn) -> Recipe:
        steps = [
            step
            for own in (first, first if second is None else second)
            for step in (draw.attention(**own), draw.feed_forward())
        ]
        return (*steps, draw.layer_norm())

    return made


def attending(more: Callable[[Drawn], Mapping[str, Any]]) -> Made:
    """The same with parts that are drawn."""
    return lambda draw: (*two(more(draw), more(draw))(draw),)


def adapted(draw: Drawn) -> Recipe:
    """A block whose query, key and value share their A, as parts of a fused matrix do."""

    def adapter(inputs: int, outputs: int, lora_a: str | None = None) -> Adapter:
        lora_a = lora_a or draw.tensor(TASK_COUNT * 3, inputs, spread=0.5)
        return Adapter(lora_a, draw.tensor(outputs, TASK_COUNT * 3, spread=0.3), TASK_COUNT, 3, 0.75)

    mixing, feed_forward = draw.attention(), draw.feed_forward()
    query = replace(mixing.query, adapter=adapter(WIDTH, WIDTH))
    assert query.adapter
    shared = query.adapter.lora_a
    key, value = (replace(own, adapter=adapter(WIDTH, WIDTH, shared)) for own in (mixing.key, mixing.value))
    output = replace(mixing.output, adapter=adapter(WIDTH, WIDTH))
    up, down = (
        replace(feed_forward.up, adapter=adapter(WIDTH, INNER)),
        replace(feed_forward.down, adapter=adapter(INNER, WIDTH)),
    )
    return (replace(mixing, query=query, key=key, value=value, output=output), replace(feed_forward, up=up, down=down))


def gate(activation: Activation, gated: bool) -> Made:
    return lambda draw: (draw.attention(), draw.feed_forward(activation, gated), draw.rms())


def sandwich(draw: Drawn) -> Recipe:
    def norms() -> dict[str, RMSNorm]:
        return {"norm": draw.rms(offset=1.0), "closing": draw.rms(offset=1.0)}

    return (draw.attention(**norms(), right=0), draw.feed_forward("gelu_tanh", True, **norms()))


def parallel(draw: Drawn) -> Recipe:
    blocks = [Parallel(draw.attention(rotation="pairs", right=0), draw.feed_forward(gate=True)) for _ in range(2)]
    return (*blocks, draw.layer_norm(bias=False))


def by_head(draw: Drawn) -> dict[str, Any]:
    return {"query_norm": draw.rms(4), "key_norm": draw.rms(4, offset=1.0), "value_norm": draw.layer_norm(4)}


def behind_rotation(draw: Drawn) -> dict[str, Any]:
    own = {"query_norm": draw.rms(4), "key_norm": RMSNorm(None, 1e-6), "norms_behind": True, "rotation": "turned back"}
    return own | {"norm": LayerNorm(None, None, 1e-5), "closing": replace(draw.layer_norm(), offset=1.0)}


def over_heads(draw: Drawn) -> dict[str, Any]:
    return {"query_norm": draw.rms(16), "key_norm": draw.rms(8), "norm_of": "heads", "key_heads": 2}


def like_gemma3(draw: Drawn) -> dict[str, Any]:
    own = {"query_norm": draw.rms(8, 1.0), "key_norm": draw.rms(8, 1.0), "rotation": "wide", "scale": 0.3}
    return own | {"key_heads": 2, "head_width": 8, "left": 20, "right": 0, "cap": 4.0}


def mixed(more: Callable[[Drawn], Mapping[str, Any]]) -> Made:
    """Two blocks with a mixture of experts."""

    def made(draw: Drawn) -> Recipe:
        steps = [step for _ in range(2) for step in (draw.attention(right=0), draw.experts(**more(draw)))]
        return (*steps, draw.rms())

    return made


def shared_expert(draw: Drawn) -> dict[str, Any]:
    return {"weights": "all", "shared": draw.expert(48, gate=True, activation="silu"), "shared_inner": 48,
            "shared_gate": draw.linear(1, WIDTH), "count": 5, "chosen": 3, "factor": 0.5}  # fmt: skip


def with_bias(draw: Drawn) -> dict[str, Any]:
    return {"bias": draw.tensor(WIDTH), "weights": "all", "gate": False, "norm": None, "closing": draw.rms()}


def per_layer_inputs(draw: Drawn) -> Recipe:
    def added() -> PerLayerInput:
        linears = draw.linear(32, WIDTH), draw.linear(32, WIDTH, bias=False), draw.linear(WIDTH, 32)
        return PerLayerInput(*linears, "gelu_tanh", draw.rms(32), draw.rms(), 32, 0.25)

    def block(heads: int, width: int) -> Recipe:
        norms = {"query_norm": draw.rms(width), "key_norm": draw.rms(width), "value_norm": RMSNorm(None, 1e-6)}
        mixing = draw.attention(heads, width, norm=draw.rms(), closing=draw.rms(), scale=1.0, **norms)
        return mixing, added(), Multiply(draw.tensor(1, around=1.0))

    return (*block(2, 8), *block(1, 4), draw.linear(WIDTH, WIDTH, bias=False))


def latents(draw: Drawn) -> Recipe:
    linears = [draw.linear(*sizes, bias=False) for sizes in ((15, WIDTH), (15, WIDTH), (15, WIDTH), (WIDTH, 15))]
    norms = draw.layer_norm(), draw.tensor(7, WIDTH), draw.layer_norm()
    return draw.attention(), LatentAttention(*linears, *norms, heads=3, head_width=5, count=7), draw.feed_forward()


def both_sides(draw: Drawn) -> Recipe:
    encoder = draw.attention(), draw.feed_forward(), Decode((TABLE, draw.layer_norm()), 3)
    return *encoder, draw.attention(right=0), draw.attention(across=True), draw.feed_forward()


def convolved_input(draw: Drawn) -> Recipe:
    own = Convolution(draw.tensor(WIDTH, WIDTH, 5, spread=0.1), draw.tensor(WIDTH), 5, 2)
    return draw.attention(), ConvolvedInput(own, "tanh"), draw.layer_norm(), MaskRows(), draw.feed_forward()


SLOPES = (0.5, 0.25, 0.03, 0.001)
CASES: dict[str, Made] = {
    "both ways": two({}),
    "no norm": two({"norm": None}),
    "causal": two({"right": 0}),
    "window behind": two({"left": 7, "right": 0}, {"right": 0}),
    "window to both sides": two({"left": 5, "right": 5}, {}),
    "uneven window": two({"left": 3, "right": 70}),
    "left alone": two({"left": 2}),
    "right alone": two({"right": 2}),
    "itself alone": two({"left": 0, "right": 0}),
    "one key head": two({"key_heads": 1}),
    "key heads": two({"key_heads": 2, "right": 0}),
    "wide heads": two({"key_heads": 2, "head_width": 8}),
    "narrow heads": two({"head_width": 2, "biased": False}),
    "norms of a head": attending(by_head),
    "norms of all heads": attending(over_heads),
    "norms behind the rotation": attending(behind_rotation),
    "masked rows are 0": lambda draw: (*two({})(draw), MaskRows(), draw.feed_forward(norm=None)),
    "rotation, two tables": two({"rotation": "near"}, {"rotation": "far"}),
    "rotation of pairs": two({"rotation": "pairs", "right": 0}, {}),
    "rotation in part": two({"rotation": "part", "key_heads": 2}, {"rotation": "part of pairs"}),
    "rotation, scaled table": two({"rotation": "wide", "head_width": 8, "key_heads": 2}),
    "rotation by length": two({"rotation": "grown"}, {"rotation": "long"}),
    "rotation by length, a factor": two({"rotation": "two factors", "right": 0}, {"rotation": "near"}),
    "cap": two({"cap": 1.5}),
    "cap, causal": two({"cap": 1.5, "right": 0, "scale": 0.9}),
    "scale": two({"scale": 0.1}, {"scale": 1.0}),
    "score bias": attending(lambda draw: {"bias": ScoreBias(draw.tensor(8, HEADS), 8, 30)}),
    "score bias, window": attending(
        lambda draw: {"bias": ScoreBias(draw.tensor(32, HEADS), 32, 128), "left": 40, "right": 40}
    ),
    "distance bias": two({"bias": DistanceBias(SLOPES)}),
    "distance bias, causal": two({"bias": DistanceBias(SLOPES), "right": 0}),
    "disentangled": attending(lambda draw: {"bias": draw.disentangled(), "scale": 0.29}),
    "disentangled by key": attending(lambda draw: {"bias": draw.disentangled(query=False, norm=False)}),
    "disentangled by query": attending(lambda draw: {"bias": draw.disentangled(key=False, buckets=-1)}),
    "disentangled, window": attending(lambda draw: {"bias": draw.disentangled(), "left": 9, "right": 9}),
    "distances": attending(lambda draw: {"bias": draw.distances("q")}),
    "distances of keys too": attending(lambda draw: {"bias": draw.distances("qk"), "left": 9}),
    "norms of each head": attending(lambda draw: {"query_norm": draw.head_norms(), "key_norm": draw.head_norms()}),
    "short convolutions": lambda draw: (
        *(draw.short_convolution(2, biased=False), draw.feed_forward()),
        *(draw.short_convolution(1, biased=True), draw.attention(right=0)),
    ),
    "convolved input": convolved_input,
    "parallel": parallel,
    "sandwich": sandwich,
    "norm of the sum": attending(lambda draw: {"sum_norm": draw.layer_norm(), "norm": None}),
    "adapters": adapted,
    "factor": lambda draw: (draw.attention(factor=0.22, right=0), draw.feed_forward(factor=1.5, gate=True)),
    "Gemma 3": attending(like_gemma3),
    "norms inside, scaled by channel": lambda draw: (
        draw.attention(mixed_norm=draw.layer_norm(), closing=Multiply(draw.tensor(WIDTH))),
        draw.feed_forward(gate=True, inner_norm=draw.layer_norm(INNER), closing=Multiply(draw.tensor(WIDTH))),
    ),
    "mean of layers": lambda draw: (Collect(0.5), draw.attention(), Collect(0.2), draw.attention(), Collect(0.3, True)),
    "inputs for each layer": per_layer_inputs,
    "decoder behind an encoder": both_sides,
    "attention to latents": latents,
    "experts": mixed(lambda draw: {}),
    "one expert of three": mixed(lambda draw: {"count": 3, "chosen": 1, "gate": False}),
    "all of four experts": mixed(lambda draw: {"count": 4, "chosen": 4}),
    "experts, softmax over all": mixed(with_bias),
    "experts, a shared one": mixed(shared_expert),
    "experts, sparsemixer": mixed(lambda draw: {"weights": "sparsemixer", "jitter": 0.2, "count": 6}),
    **{f"{own}, gate": gate(own, True) for own in get_args(Activation)},
    **{f"{own}, no gate": gate(own, False) for own in get_args(Activation)},
}  # fmt: skip


def made(name: str) -> tuple[Recipe, dict[str, NDArray[np.float32]]]:
    """The blocks of a case, and all tensors."""
    draw = Drawn()
    blocks = CASES[name](draw)
    return blocks, draw.weights | {TABLE.table: draw.random.normal(size=(VOCABULARY, WIDTH)).astype(np.float32)}


def write_graph(folder: Path, blocks: Recipe, weights: Mapping[str, NDArray[np.float32]]) -> Path:
    """The graph of a case."""
    sources = [safetensors.TensorSource(name, "F32", own.shape, [own]) for name, own in weights.items()]
    placed = safetensors.write(folder / "weights.safetensors", sources)
    save(encoder(GraphBuilder(placed), (TABLE,), blocks, WIDTH, ropes=ROPES), folder / "encoder.onnx")
    return folder / "encoder.onnx"
