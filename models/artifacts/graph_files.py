"""Writes the graphs of a model that reads text: its input layer, positions, blocks and output head."""

from pathlib import Path
from typing import Any

from models.artifacts.card import HEAD, Graph, RowGraphs
from models.artifacts.task_heads import TaskHeads
from models.checkpoints.safetensors import Tensor
from models.checkpoints.sentence_transformers import Pooling
from models.families.fitting import FittedModel
from models.graphs import head as head_graph
from models.graphs import input_layer
from models.graphs.builder import GraphBuilder, save
from models.graphs.encoder import encoder as encoder_graph
from models.graphs.encoder import encoder_inputs, ends_row_by_row
from models.graphs.positions.rope import rope
from models.graphs.projections import Float32, Int8
from models.graphs.row_layout import Row
from models.positions.rope.frequencies import frequencies
from models.recipes.steps import Recipe
from models.tables import int8_matrices

ROWS: dict[str, Row] = {"cls": "first", "lasttoken": "last"}  # that a pooling takes


def write_graphs(folder: Path, fitted: FittedModel, placed: dict[str, Tensor]) -> dict[str, Graph]:
    """Emit every graph the model has and return the card's entries for them."""
    width = fitted.config.count("hidden_size")
    graphs: dict[str, Graph] = {}

    def add(name: str, model: Any, inputs: tuple[str, ...]) -> None:
        save(model, folder / f"{name}.onnx")
        graphs[name] = Graph(f"{name}.onnx", inputs, tuple(output.name for output in model.graph.output))

    def add_input_layer(recipe: Recipe, suffix: str) -> None:
        add(
            "embedding" + suffix,
            input_layer.embedding(GraphBuilder(placed), recipe, width),
            input_layer.inputs_of(recipe),
        )
        read = input_layer.inputs_of(input_layer.components_of(recipe))
        add("components" + suffix, input_layer.components(GraphBuilder(placed), recipe), read)

    for suffix, recipe in _recipes(fitted).items():
        add_input_layer(recipe, suffix)
    if fitted.per_layer:
        add("per_layer", input_layer.per_layer(GraphBuilder(placed), fitted.per_layer), ("ids",))
    for table in fitted.encodings.ropes.values():
        suffix = table.graph.removeprefix("rope")
        add(table.graph, rope(frequencies(table.rope, "parity"), suffix), ("positions",))
    if fitted.encoder:
        for suffix, recipe in _recipes(fitted).items():
            add("encoder" + suffix, _encoder(fitted, placed, recipe), encoder_inputs(recipe, fitted.encoder))
    if fitted.head:
        save(head_graph.head(GraphBuilder(placed), fitted.head), folder / f"{HEAD}.onnx")
    return graphs


def write_row_graphs(
    folder: Path, fitted: FittedModel, placed: dict[str, Tensor], pooling: Pooling | None, heads: TaskHeads
) -> RowGraphs | None:
    """Write the graphs for one row of each sequence and return the card's entry; None: the model reads others too."""
    if heads.multi_vector or heads.sparse:  # its other vectors have the bits that they have beside these
        return None
    modes = [pooling.mode if pooling.include_prompt else "others"] if pooling else []
    if own := heads.classifier:
        modes.append("others" if own.pooling is None or own.pad_id is not None else own.pooling)
    row = ROWS.get(modes[0]) if len(set(modes)) == 1 else None
    if row is None or not ends_row_by_row(fitted.encoder):
        return None
    files = {}
    for suffix, recipe in _recipes(fitted).items():
        files["encoder" + suffix] = f"encoder_row{suffix}.onnx"
        save(_encoder(fitted, placed, recipe, row), folder / files["encoder" + suffix])
    return RowGraphs(row, files)


def _encoder(fitted: FittedModel, placed: dict[str, Tensor], recipe: Recipe, row: Row | None = None) -> Any:
    """Return the graph of the input layer and all blocks."""
    projections = Int8() if int8_matrices.holds_codes(placed, fitted.encoder) else Float32()
    return encoder_graph(
        GraphBuilder(placed),
        recipe,
        fitted.encoder,
        fitted.config.count("hidden_size"),
        projections,
        fitted.encodings.ropes,
        fitted.token_width,
        row,
    )


def _recipes(fitted: FittedModel) -> dict[str, Recipe]:
    """Return the input layer by the suffix of its graphs' names: where types are optional, without and with them."""
    typed = {"_typed": fitted.recipe} if fitted.types == "optional" else {}
    return {"": fitted.usual_recipe, **typed}
