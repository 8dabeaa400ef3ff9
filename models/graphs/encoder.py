"""Emits a whole encoder as one packed ONNX graph over rows [N, d]; attention.py emits the attention.

Measured on one CPU core (ONNX Runtime 1.31, MiniLM, 8 to 256 tokens), this form is at the FLOP or memory limit: merging
query, key and value, transposing weights beforehand, and other Gelu forms are within 3 % of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from models.graphs import rectangle
from models.graphs.attention import attend, attend_of_one
from models.graphs.builder import CONTRIB, GraphBuilder
from models.graphs.convolution import convolved, sequence_numbers
from models.graphs.experts import gated, mixture
from models.graphs.input_layer import INPUTS, emit_input_layer, inputs_of, mask_rows, packed_output
from models.graphs.positions.rope import cos_sin, filled
from models.graphs.positions.rope_by_length import cos_sin_by_length
from models.graphs.projections import Float32, Recorded
from models.graphs.row_layout import Row, RowLayout, layout, rows_of_one
from models.graphs.row_steps import activate, emit_row_step
from models.graphs.score_terms import Terms, relative_matrices, terms_of
from models.positions.rope.frequencies import BY_LENGTH, frequencies
from models.positions.rope.rotation import LAYOUTS
from models.recipes.extra_inputs import IMAGE_ROWS, PLACES, TASKS
from models.recipes.graph_names import ONE_ROW
from models.recipes.positional_encodings import RopeTable
from models.recipes.steps import (
    Attention,
    Collect,
    Convolution,
    ConvolvedInput,
    Decode,
    Disentangled,
    Experts,
    FeedForward,
    HeadNorms,
    LatentAttention,
    LayerNorm,
    Linear,
    MaskRows,
    Multiply,
    Norm,
    Parallel,
    PerLayerInput,
    PlaceImages,
    Recipe,
    RMSNorm,
    Scale,
    ShortConvolution,
    Step,
    has_adapters,
    layers,
)
from models.tables.int8_matrices import products, products_of

LANES = 16  # float32 values of the widest register
Ropes = Mapping[str, RopeTable]


def encoder_inputs(recipe: Recipe, blocks: Recipe) -> tuple[str, ...]:
    """Return the names of the inputs of the graph of a whole encoder."""
    read = {*inputs_of(recipe), "mask", "lengths"}
    if any(step.rotation for step in layers(blocks) if isinstance(step, Attention)) and not places_images(blocks):
        read.add("positions")
    if has_adapters(blocks):
        read.add(TASKS)
    if places_images(blocks):
        read |= {PLACES, IMAGE_ROWS}
    return tuple(name for name in INPUTS if name in read)


def places_images(blocks: Recipe) -> bool:
    """Return whether a step reads the inputs `places` and `image_rows`."""
    return any(isinstance(step, PlaceImages) for step in blocks)


def ends_row_by_row(blocks: Recipe) -> bool:
    """Return whether all steps behind the last attention are feed-forward steps, norms and products of single rows."""
    return bool(blocks) and not has_adapters(blocks) and _is_plain(blocks[_last_attention(blocks)])


def _is_plain(step: Step) -> bool:
    return isinstance(step, Attention) and step.sum_norm is None


def _last_attention(blocks: Recipe) -> int:
    """Return the place of the last step of blocks that may read several rows, or is no step of plain rows."""
    rowwise = (FeedForward, LayerNorm, RMSNorm, Linear, Scale)
    return next(place for place in reversed(range(len(blocks))) if not isinstance(blocks[place], rowwise))


def encoder(
    builder: GraphBuilder,
    recipe: Recipe,
    blocks: Recipe,
    width: int,
    projections: Float32 | None = None,
    ropes: Ropes | None = None,
    ends: int | None = None,
    row: Row | None = None,
    sent: bool = False,
) -> Any:
    """Return the ModelProto of the input layer and all blocks.

    Its inputs are those of the input layer, mask bool [N] and lengths int64 [B] (sum N, each at least 1), and where its
    attention rotates positions int64 [N]. Its output is last_hidden_state float32 [N, d]. No row attends to a row whose
    mask is False, but it has an output. A sequence whose rows are all False attends to all of them, as if its mask were
    all True.

    Args:
        builder: builder of the graph.
        recipe, blocks: the steps of the input layer and of all blocks.
        width: d.
        projections: how products are computed; None: in float32. What `Recorded` notes becomes outputs.
        ropes: the tables of the rotations, by name.
        ends: the width of the rows behind the last step; None: d.
        row: the output is ONE_ROW float32 [B, d] instead, the row of this token of each sequence: what is
            behind the last attention is computed of these rows alone. `blocks` must end row by row.
        sent: attention takes the form for GPUs, whose further inputs are rectangle.INPUTS, and ONE_ROW, the vector of
            each sequence by `shares`, is an output too.
    """
    projections = projections or Float32()
    x = emit_input_layer(builder, recipe)
    rows = rectangle.layout(builder) if sent else layout(builder)
    emitter = Blocks(builder, projections, rows, width, ropes or {}, by_places=places_images(blocks))
    outputs: dict[str, tuple[str, str, Sequence[str | int]]]
    if row:
        outputs = {ONE_ROW: (emitter.emit_one(blocks, x, row), "FLOAT", ("sequences", ends or width))}
    else:
        x = emitter.emit(blocks, x)
        outputs = {"last_hidden_state": packed_output(x, ends or width)}
    if sent:
        outputs[ONE_ROW] = rectangle.pooled(builder, x), "FLOAT", ("sequences", ends or width)
    if isinstance(projections, Recorded):
        outputs |= {name: (value, "FLOAT", ("columns",)) for name, value in projections.largest.items()}
    inputs = {name: INPUTS[name] for name in encoder_inputs(recipe, blocks)}
    return builder.model("encoder", inputs | rectangle.INPUTS if sent else inputs, outputs)


@dataclass(slots=True)
class Blocks:
    """Emits the steps of blocks; a value that several of them read is emitted once.

    Attributes:
        builder: builder of the graph.
        projections: how products are computed.
        rows: where the sequences lie.
        width: width of a row.
        ropes: the tables of the rotations, by name.
        windows: where the windows lie that steps which are `windowed` attend in; None: there are none.
        by_places: rotations go by the input `places`, not by `positions`.
        encoded: the rows before the last Decode.
        sequences: the number of each row's sequence, int64 [N]; empty until a convolution reads it.
        turns: cos and sin [N, r/2] of the rotations, by the name of their table.
    """

    builder: GraphBuilder
    projections: Float32
    rows: RowLayout
    width: int
    ropes: Ropes
    windows: RowLayout | None = None
    by_places: bool = False
    encoded: str = ""
    sequences: str = ""
    terms: dict[Any, Terms] = field(default_factory=dict)
    turns: dict[str, tuple[str, str]] = field(default_factory=dict)

    def emit(self, steps: Recipe, x: str) -> str:
        """Emit the steps over rows x [N, d] and return the name of the rows behind the last."""
        first, mean = x, ""
        for step in steps:
            match step:
                case Collect(share, last):
                    part = self.builder.op("Mul", x, self.builder.scalar(share))
                    mean = self.builder.op("Add", mean, part) if mean else part
                    x = mean if last else x
                case MaskRows():
                    x = mask_rows(self.builder, x)
                case PlaceImages(part):
                    x = self.with_images(part, x)
                case ShortConvolution():
                    x = self.builder.op("Add", self.short_convolution(step, x), x)
                case ConvolvedInput(convolution, activation):
                    added = activate(self.builder, self.convolved(convolution, first), activation)
                    x = self.builder.op("Add", added, x)
                case Decode(own, start):
                    self.encoded = x
                    x = emit_input_layer(self.builder, own, self._shifted_ids(start))
                case PerLayerInput():
                    x = self.builder.op("Add", self.per_layer_input(step, x, first), x)
                case Attention():
                    x = self.builder.op("Add", self.attention(step, x), x)
                case FeedForward():
                    x = self.builder.op("Add", self.feed_forward(step, x), x)
                case Experts():
                    x = self.builder.op("Add", self.experts(step, x), x)
                case LatentAttention():
                    x = self.builder.op("Add", self.latent_attention(step, x), x)
                case Parallel(mixing, feed_forward):
                    added = self.builder.op("Add", self.attention(mixing, x), self.feed_forward(feed_forward, x))
                    x = self.builder.op("Add", added, x)
                case _:
                    x = emit_row_step(self.builder, step, x)
        return x

    def emit_one(self, steps: Recipe, x: str, row: Row) -> str:
        """Emit the steps over rows x [N, d], the last attention and what follows for one row of each sequence.

        These rows are computed twice over: products that are not packed take another kernel, of other bits, for a
        single row, which a text alone would have here.
        """
        place = _last_attention(steps)
        x = self.emit(steps[:place], x)
        last = steps[place]
        assert isinstance(last, Attention)
        index = rows_of_one(self.builder, self.rows, row)
        added = self.attention(last, x, index)
        twice = self.builder.op("Concat", index, index, axis=0)
        x = self.builder.op("Add", added, self.builder.op("Gather", x, twice))
        x = self.emit(steps[place + 1 :], x)
        bounds = self.builder.ints(0), self.builder.op("Shape", self.rows.lengths)
        return self.builder.op("Slice", x, *bounds)

    def attention(self, step: Attention, x: str, index: str | None = None) -> str:
        """Emit the term that an attention step adds to x or, with an `index`, to its rows [B], each doubled."""
        first, *others, last = products((step,))
        values = self.projections.emit(self.builder, first, self._normed(step.norm, x))
        for product in others:
            values += self.projections.emit(self.builder, product, self.encoded)
        heads, width = step.key_heads or step.heads, step.head_width or self.width // step.heads
        query, key = (
            self._placed(rows, count, width, norm, step)
            for rows, count, norm in zip(values, (step.heads, heads), (step.query_norm, step.key_norm), strict=False)
        )
        value = self.projections.widened(self.builder, values[2]) if step.value_norm else values[2]
        value = self._by_head(value, heads, width, step.value_norm, step)
        if heads < step.heads:
            key, value = (self._repeated(rows, heads, width, step.heads // heads) for rows in (key, value))
        relative: tuple[str | None, str | None] = (None, None)
        if isinstance(step.bias, Disentangled):
            relative = relative_matrices(
                self.builder,
                step.bias,
                step.heads,
                lambda linear, rows: self.projections.constant(self.builder, first, linear, rows),
            )
        projected = query, key, value
        if index is None:
            mixed = self._attended(projected, step, width, relative)
        else:
            one_row = attend_of_one(self.builder, projected, self.rows, step, width, self._terms(step), relative, index)
            mixed = self.builder.op("Concat", one_row, one_row, axis=0)
        mixed = self._normed(step.mixed_norm, mixed)
        added = self._closed(step, self.projections.emit(self.builder, last, mixed)[0])
        return self._normed(step.sum_norm, self.builder.op("Add", added, x)) if step.sum_norm else added

    def _attended(
        self, projected: tuple[str, str, str], step: Attention, width: int, relative: tuple[str | None, str | None]
    ) -> str:
        rows = self.windows if step.windowed and self.windows else self.rows
        convert = self.projections.widened if step.cap else self.projections.narrowed
        query, key, value = (convert(self.builder, each) for each in projected)
        element = "FLOAT" if step.cap else self.projections.element
        terms = self._terms(step)
        mixed = attend(self.builder, (query, key, value), rows, step, width, terms, relative, element)
        return self.projections.like(mixed, query)

    def feed_forward(self, step: FeedForward, x: str) -> str:
        """Emit the term that a feed-forward step adds to x."""
        return self._closed(step, self._inner(step, self._normed(step.norm, x)))

    def experts(self, step: Experts, x: str) -> str:
        """Emit the term that a mixture of experts adds to x."""
        rows = self._normed(step.norm, x)

        def compute(expert: FeedForward, chosen: str) -> str:
            return self._inner(expert, chosen, smoothed=False)

        total = mixture(self.builder, step, rows, compute)
        if step.shared:
            total = self.builder.op("Add", total, gated(self.builder, step, rows, compute(step.shared, rows)))
        return self._closed(step, total)

    def latent_attention(self, step: LatentAttention, x: str) -> str:
        """Emit the term that attention to latent rows adds to x, one product a head, of matrices that are packed."""
        builder, count = self.builder, step.heads
        latents = emit_row_step(builder, step.latents_norm, builder.weight(step.latents))
        by_head = [
            builder.op("Split", emit_row_step(builder, linear, rows), axis=1, num_outputs=count, outputs=count)
            for linear, rows in ((step.query, self._normed(step.norm, x)), (step.key, latents), (step.value, latents))
        ]
        mixed = []
        for number in range(count):
            query, key, value = (f"{rows}.{number}" if number else rows for rows in by_head)
            scores = builder.op("Gemm", query, key, transB=1, alpha=step.head_width**-0.5)  # (N, count)
            mixed.append(builder.op("Gemm", builder.op("Softmax", scores, axis=-1), value))
        return emit_row_step(builder, step.output, builder.op("Concat", *mixed, axis=1))

    def short_convolution(self, step: ShortConvolution, x: str) -> str:
        """Emit the term that a short convolution adds to x."""
        builder, (first, last) = self.builder, products((step,))
        rows = mask_rows(builder, self._normed(step.norm, x))
        joined = self.projections.widened(builder, self.projections.emit(builder, first, rows)[0])
        parts = builder.op("Split", joined, axis=1, num_outputs=3, outputs=3)
        mixed = self.convolved(step.convolution, builder.op("Mul", parts, f"{parts}.2"))
        rows = self.projections.emit(builder, last, builder.op("Mul", f"{parts}.1", mixed))[0]
        return self.projections.widened(builder, rows)

    def convolved(self, step: Convolution, x: str) -> str:
        """Emit a convolution of rows x."""
        self.sequences = self.sequences or sequence_numbers(self.builder, self.rows.starts)
        return convolved(self.builder, step, x, self.sequences)

    def with_images(self, part: int, x: str) -> str:
        """Emit x [N, d] with the rows of images at their tokens, or with these added."""
        builder = self.builder
        rows = builder.cut(IMAGE_ROWS, part * self.width, (part + 1) * self.width, axis=1)  # (M, d)
        rows = builder.op("Concat", rows, builder.constant(np.zeros((1, self.width), np.float32)), axis=0)
        flags = builder.op("Gather", PLACES, builder.ints(3), axis=1)  # (N, 1)
        numbers = builder.op("Mul", builder.op("CumSum", flags, builder.scalar(0, np.int64)), flags)
        index = builder.op("Sub", numbers, builder.scalar(1, np.int64))  # -1: the zeros
        taken = builder.op("Gather", rows, builder.op("Squeeze", index, builder.ints(1)))
        return builder.op("Add", x, taken) if part else builder.op("Where", builder.cast(flags, "BOOL"), taken, x)

    def _shifted_ids(self, start: int) -> str:
        """Emit the ids of each sequence behind `start` and without its last."""
        builder, starts = self.builder, self.rows.starts
        first, zero, end = (builder.ints(value) for value in (start, 0, -1))
        moved = builder.op("Concat", first, builder.op("Slice", "ids", zero, end, zero), axis=0)
        return builder.op("ScatterElements", moved, starts, builder.op("Expand", first, builder.op("Shape", starts)))

    def per_layer_input(self, step: PerLayerInput, x: str, first: str) -> str:
        """Emit the term that a layer adds to x from the rows `first` before the first block."""
        source, gate = (
            emit_row_step(self.builder, linear, rows) for linear, rows in ((step.source, first), (step.gate, x))
        )
        scaled = emit_row_step(self.builder, step.norm, emit_row_step(self.builder, Scale(step.scale), source))
        inner = self.builder.op("Mul", activate(self.builder, gate, step.activation), scaled)
        return emit_row_step(self.builder, step.closing, emit_row_step(self.builder, step.output, inner))

    def _inner(self, step: FeedForward, rows: str, smoothed: bool = True) -> str:
        """Emit a feed-forward step without its norms."""
        first, last = products_of(step, smoothed)
        values = self.projections.emit(self.builder, first, rows)
        values = self.projections.activated_as(self.builder, values, step.activation)
        inner = activate(self.builder, values[-1], step.activation)  # of the gate where there is one
        if step.gate:
            inner = self.builder.op("Mul", inner, values[0])
        inner = self._normed(step.inner_norm, self.projections.like(inner, values[0]))
        return self.projections.widened(self.builder, self.projections.emit(self.builder, last, inner)[0])

    def _normed(self, norm: Norm | Multiply | None, x: str) -> str:
        return emit_row_step(self.builder, norm, self.projections.widened(self.builder, x)) if norm else x

    def _closed(self, step: Attention | FeedForward | Experts, value: str) -> str:
        value = self._normed(step.closing, self.projections.widened(self.builder, value))
        return value if step.factor == 1.0 else self.builder.op("Mul", value, self.builder.scalar(step.factor))

    def _terms(self, step: Attention) -> Terms:
        """Return the terms of the scores, which layers share; tables of a Disentangled share theirs."""
        same = step.bias
        if isinstance(same, Disentangled):
            same = type(same)(same.relative, None, None, None, same.buckets, same.reach)
        key = (same, step.left, step.right)
        if key not in self.terms:
            self.terms[key] = terms_of(self.builder, step, self.rows.slots)
        return self.terms[key]

    def _placed(self, rows: str, heads: int, width: int, norm: Norm | HeadNorms | None, step: Attention) -> str:
        """Emit queries or keys with their norm and rotated, in the step's order."""
        if norm or step.rotation:
            rows = self.projections.widened(self.builder, rows)
        if not step.norms_behind:
            rows = self._by_head(rows, heads, width, norm, step)
        rows = self._rotated(rows, heads, width, step.rotation) if step.rotation else rows
        return self._by_head(rows, heads, width, norm, step) if step.norms_behind else rows

    def _by_head(self, rows: str, heads: int, width: int, norm: Norm | HeadNorms | None, step: Attention) -> str:
        """Emit the norm of a head's channels, or of all heads' together."""
        if norm is None:
            return rows
        if step.norm_of == "heads" and not isinstance(norm, HeadNorms):
            return emit_row_step(self.builder, norm, rows)
        together = self.builder.ints(-1, heads * width)
        split = self.builder.op("Reshape", rows, self.builder.ints(-1, heads, width))
        if isinstance(norm, HeadNorms):
            normed = emit_row_step(self.builder, LayerNorm(None, None, norm.heads[0].eps), split)
            weights = [self.builder.weight(str(own.weight)) for own in norm.heads]
            joined = self.builder.op("Reshape", normed, together)
            return self.builder.op("Mul", joined, self.builder.op("Concat", *weights, axis=0))
        return self.builder.op("Reshape", emit_row_step(self.builder, norm, split), together)

    def _rotated(self, rows: str, heads: int, width: int, table: str) -> str:
        """Emit rows [N, heads * width] rotated, each by the angles of its own row of cos and sin."""
        rope = self.ropes[table]
        cos, sin = self._turns(table)
        zero, one = (self.builder.scalar(number, np.int64) for number in (0, 1))
        first = self.builder.ints(0)
        count = self.builder.op("Gather", self.builder.op("Shape", cos), zero)
        numbers = self.builder.op("Unsqueeze", self.builder.op("Range", zero, count, one), first)  # (1, N)
        turned = self.builder.op(
            "RotaryEmbedding",
            self.builder.op("Unsqueeze", rows, first),
            numbers,
            cos,
            sin,
            domain=CONTRIB,
            interleaved=int(rope.layout == "interleaved"),
            num_heads=heads,
            rotary_embedding_dim=0 if rope.rope.rotary_dim == width else rope.rope.rotary_dim,
        )
        return self.builder.op("Squeeze", turned, first)

    def _turns(self, table: str) -> tuple[str, str]:
        """Emit cos and sin [N, r/2] of a table, once for all layers.

        They are computed of a multiple of LANES columns: else the bits of the last values would depend on how many rows
        there are, since ONNX Runtime computes what does not fill a register by another formula.
        """
        if table not in self.turns:
            builder, rope = self.builder, self.ropes[table].rope
            width = rope.rotary_dim // 2
            column = "" if self.by_places else builder.op("Unsqueeze", "positions", builder.ints(-1))
            if self.by_places:
                axes = np.array(self.ropes[table].turns_with or [0] * width)
                columns = builder.constant(np.pad(axes, (0, -width % LANES)))
                places = builder.op("Gather", PLACES, columns, axis=1)  # (N, r/2)
                values = cos_sin(builder, filled(frequencies(rope, "parity"), LANES), places)
            elif rope.rope_type in BY_LENGTH:
                values = cos_sin_by_length(builder, rope, column, LANES)
            else:
                values = cos_sin(builder, filled(frequencies(rope, "parity"), LANES), column)
            if LAYOUTS[self.ropes[table].layout].sign < 0:
                values = (values[0], builder.op("Neg", values[1]))
            if width % LANES:
                values = (builder.cut(values[0], 0, width, axis=1), builder.cut(values[1], 0, width, axis=1))
            self.turns[table] = values
        return self.turns[table]

    def _repeated(self, rows: str, heads: int, width: int, times: int) -> str:
        """Emit rows [N, heads * width] with each head `times` times side by side."""
        builder = self.builder
        split = builder.op("Reshape", rows, builder.ints(-1, heads, 1, width))
        wide = builder.op("Expand", split, builder.ints(1, 1, times, 1))
        return self.projections.like(builder.op("Reshape", wide, builder.ints(-1, heads * times * width)), rows)
