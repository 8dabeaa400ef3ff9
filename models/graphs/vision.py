"""Emits the steps of models/vision as ONNX graphs of any batch, height and width.

image             pixel_values [batch, channels, height, width]  ->  input_embeddings [batch, rows, d]
                  pixel_values [rows, f], and grid [2] where positions are resized  ->  input_embeddings [rows, d]
                  input_features [batch, bins, frames]  ->  input_embeddings [batch, rows, d]
image_encoder     the same  ->  last_hidden_state [batch, rows, d], and image_embedding [batch, width] where the tower
                  makes a vector of an image; of flattened patches [rows, d] and [1, width]
image_components  the same  ->  patch_embeddings, and position_embeddings where there are any
"""

from dataclasses import dataclass
from typing import Any

from models.graphs import tower_blocks
from models.graphs.builder import GraphBuilder
from models.graphs.row_steps import emit_row_step
from models.recipes.steps import LayerNorm, Recipe, RMSNorm
from models.vision.image_spec import AxialRope
from models.vision.resample import RESIZES
from models.vision.steps import AddGrid, AddRows, Convolve, Insert, Patchify, Project, Steps, VectorSteps

Inputs = dict[str, tuple[str, tuple[str | int, ...]]]
LAST = 2**31  # beyond the end of any axis


@dataclass(frozen=True, slots=True)
class TowerSizes:
    """The sizes of a tower graph's inputs, and the widths of its outputs.

    Attributes:
        inputs: inputs as `inputs_of` returns them.
        hidden: width of a row.
        vector: width of an image's vector; 0: there is none.
    """

    inputs: Inputs
    hidden: int
    vector: int


def inputs_of(steps: Steps, width: int) -> Inputs:
    """Return the graph's inputs; `width` is that of a pixel, a patch or a frame."""
    match steps[0]:
        case Patchify():
            return {"pixel_values": ("FLOAT", ("batch", width, "height", "width"))}
        case Convolve():
            return {"input_features": ("FLOAT", ("batch", width, "frames"))}
    grid: Inputs = {"grid": ("INT64", (2,))} if any(isinstance(step, AddGrid) for step in steps) else {}
    return {"pixel_values": ("FLOAT", ("rows", width))} | grid


def image(builder: GraphBuilder, steps: Steps, inputs: Inputs, hidden: int) -> Any:
    """Return the ModelProto of the whole input layer."""
    return _model(builder, "image", steps, inputs, ("input_embeddings",), hidden)


def input_rows(builder: GraphBuilder, steps: Steps) -> str:
    """Emit the input layer and return the rows before the first block, float32 [batch, rows, d]."""
    return _Emitter(builder, steps, only_parts=False).run()["input_embeddings"]


def encoder(
    builder: GraphBuilder, steps: Steps, blocks: Recipe, vector: VectorSteps, sizes: TowerSizes, axial: AxialRope | None
) -> Any:
    """Return the ModelProto of a whole tower.

    Args:
        builder: builder of the graph.
        steps: steps of the input layer.
        blocks: the steps of all blocks.
        vector: steps from their rows to an image's vector; empty: it is no output.
        sizes: sizes of inputs and outputs.
        axial: how the attention rotates; None: it does not.
    """
    emitter = _Emitter(builder, steps, only_parts=False)
    x = emitter.run()["input_embeddings"]
    flat = isinstance(steps[0], Project)
    values = tower_blocks.emit(builder, x, blocks, vector, sizes.hidden, flat, axial, emitter.sizes)
    shapes: dict[str, tuple[str | int, ...]] = {
        "last_hidden_state": ("rows", sizes.hidden) if flat else ("batch", "rows", sizes.hidden),
        "image_embedding": (1 if flat else "batch", sizes.vector),
    }
    outputs = {name: (value, "FLOAT", shapes[name]) for name, value in values.items()}
    return builder.model("image_encoder", sizes.inputs, outputs)


def components(builder: GraphBuilder, steps: Steps, inputs: Inputs, hidden: int) -> Any:
    """Return the ModelProto of patches and positions before they are added; None if the steps name neither."""
    named = _parts(steps)
    return _model(builder, "image_components", steps, inputs, named, hidden) if named else None


def _parts(steps: Steps) -> tuple[str, ...]:
    patches = isinstance(steps[0], Patchify | Project)
    positions = any(isinstance(step, AddGrid | AddRows) for step in steps)
    return ("patch_embeddings",) * patches + ("position_embeddings",) * positions


def _model(
    builder: GraphBuilder, name: str, steps: Steps, inputs: Inputs, outputs: tuple[str, ...], hidden: int
) -> Any:
    values = _Emitter(builder, steps, only_parts="input_embeddings" not in outputs).run()
    flat = isinstance(steps[0], Project)
    described = {}
    for output in outputs:
        value = builder.op("Squeeze", values[output], builder.ints(0)) if flat else values[output]
        shape = ("rows", hidden) if flat else ("batch", output if len(outputs) > 1 else "rows", hidden)
        described[output] = (value, "FLOAT", shape)
    return builder.model(name, inputs, described)


class _Emitter:
    """Emits the steps of one graph; `run` returns the names of its outputs' values."""

    def __init__(self, builder: GraphBuilder, steps: Steps, only_parts: bool) -> None:
        self._builder = builder
        self._steps = steps
        self._only_parts = only_parts
        self._values: dict[str, str] = {}
        self.sizes = ""  # rows and columns of patches, int64 [2]

    def run(self) -> dict[str, str]:
        x = self._first()
        for step in self._steps:
            match step:
                case Patchify():
                    x = self._values["patch_embeddings"] = self._patches(step, x)
                case Project(weight, bias):
                    x = self._values["patch_embeddings"] = self._projected(weight, bias, x)
                case Insert(table, at):
                    x = self._inserted(table, at, x)
                case AddGrid() | AddRows():
                    x = self._positioned(step, x)
                    if self._only_parts:
                        break
                case Convolve():
                    x = self._convolved(step, x)
                case LayerNorm() | RMSNorm():
                    x = emit_row_step(self._builder, step, x)
        return self._values | {"input_embeddings": x}

    def _first(self) -> str:
        match self._steps[0]:
            case Patchify():
                return "pixel_values"
            case Convolve():
                return self._op("Transpose", "input_features", perm=[0, 2, 1])
        if any(isinstance(step, AddGrid) for step in self._steps):
            self.sizes = "grid"
        return self._op("Unsqueeze", "pixel_values", self._builder.ints(0))

    def _op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self._builder.op(kind, *inputs, **attributes)

    def _patches(self, step: Patchify, pixels: str) -> str:
        if step.padded:
            sizes = self._builder.cut(self._op("Shape", pixels), 2, 4)
            lacking = self._op("Mod", self._op("Neg", sizes), self._builder.ints(step.patch))
            pixels = self._op("Pad", pixels, self._op("Concat", self._builder.ints(0, 0, 0, 0, 0, 0), lacking, axis=0))
        weights = [self._builder.weight(name) for name in (step.weight, step.bias) if name]
        side = [step.patch, step.patch]
        patches = self._op("Conv", pixels, *weights, kernel_shape=side, strides=side)  # (B, d, h, w)
        self.sizes = self._builder.cut(self._op("Shape", patches), 2, 4)
        flat = self._op("Reshape", patches, self._builder.ints(0, 0, -1))
        return self._op("Transpose", flat, perm=[0, 2, 1])  # (B, hw, d)

    def _projected(self, weight: str, bias: str | None, x: str) -> str:
        turned = self._op("Transpose", self._builder.weight(weight), perm=[1, 0])
        product = self._op("MatMul", x, turned)
        return self._op("Add", product, self._builder.weight(bias)) if bias else product

    def _inserted(self, table: str, at: int, x: str) -> str:
        batch = self._builder.cut(self._op("Shape", x), 0, 1)
        target = self._op("Concat", batch, self._builder.ints(1, 1), axis=0)
        rows = self._op("Expand", self._op("Unsqueeze", self._builder.weight(table), self._builder.ints(0)), target)
        if at == 0:
            return self._op("Concat", rows, x, axis=1)
        before = self._builder.cut(x, 0, at, axis=1)
        after = self._builder.cut(x, at, LAST, axis=1)
        return self._op("Concat", before, rows, after, axis=1)

    def _positioned(self, step: AddGrid | AddRows, x: str) -> str:
        if isinstance(step, AddRows):
            count = self._builder.cut(self._op("Shape", x), 1, 2)
            positions = self._op(
                "Slice", self._builder.weight(step.table), self._builder.ints(0), count, self._builder.ints(0)
            )
        else:
            positions = self._grid(step)
        if self._only_parts:
            self._values["position_embeddings"] = self._op("Expand", positions, self._op("Shape", x))
        return self._op("Add", x, positions)

    def _grid(self, step: AddGrid) -> str:
        """Emit the positions [extra + rows * columns, d] of the image's patches."""
        table = self._builder.weight(step.table)
        source = self._builder.cut(table, step.extra, LAST) if step.extra else table
        square = self._op("Reshape", source, self._builder.ints(1, step.rows, step.columns, -1))
        square = self._op("Transpose", square, perm=[0, 3, 1, 2])  # (1, d, h0, w0)
        depth = self._builder.cut(self._op("Shape", square), 0, 2)
        sizes = self._op("Concat", depth, self.sizes, axis=0)
        resized = self._op("Resize", square, "", "", sizes, **RESIZES[step.resize].onnx)
        rows = self._rowwise(resized, step.merge)
        if not step.extra:
            return rows
        return self._op("Concat", self._builder.cut(table, 0, step.extra), rows, axis=0)

    def _rowwise(self, grid: str, merge: int) -> str:
        """Emit [1, d, h, w] as [hw, d], in blocks of merge x merge."""
        depth = self._builder.cut(self._op("Shape", grid), 1, 2)
        if merge > 1:
            sizes, side = self._op("Div", self.sizes, self._builder.ints(merge)), self._builder.ints(merge)
            split = self._op(
                "Concat", depth, self._builder.cut(sizes, 0, 1), side, self._builder.cut(sizes, 1, 2), side, axis=0
            )
            blocks = self._op("Reshape", grid, split)
            grid = self._op("Transpose", blocks, perm=[1, 3, 2, 4, 0])
            return self._op("Reshape", grid, self._op("Concat", self._builder.ints(-1), depth, axis=0))
        flat = self._op("Reshape", grid, self._op("Concat", depth, self._builder.ints(-1), axis=0))
        return self._op("Transpose", flat, perm=[1, 0])

    def _convolved(self, step: Convolve, x: str) -> str:
        weights = [self._builder.weight(name) for name in (step.weight, step.bias)]
        first = self._op("Transpose", x, perm=[0, 2, 1])
        convolved = self._op("Conv", first, *weights, kernel_shape=[3], pads=[1, 1], strides=[step.stride])
        return self._op("Transpose", self._op("Gelu", convolved), perm=[0, 2, 1])
