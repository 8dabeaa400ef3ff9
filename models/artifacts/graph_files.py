"""Writes the graphs of a model that reads text: its input layer, positions, blocks and output head."""

from pathlib import Path
from typing import Any

from models.artifacts.card import HEAD, Graph, RowGraphs
from models.artifacts.task_heads import FoundHeads
from models.checkpoints.safetensors import Tensor
from models.checkpoints.sentence_transformers import Pooling
from models.families.fitting import Plan
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


def write_graphs(folder: Path, planned: Plan, placed: dict[str, Tensor]) -> dict[str, Graph]:
    """Emit every graph the model has and return the card's entries for them."""
    width = planned.config.count("hidden_size")
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

    for suffix, recipe in _recipes(planned).items():
        add_input_layer(recipe, suffix)
    if planned.per_layer:
        add("per_layer", input_layer.per_layer(GraphBuilder(placed), planned.per_layer), ("ids",))
    for table in planned.encodings.ropes.values():
        suffix = table.graph.removeprefix("rope")
        add(table.graph, rope(frequencies(table.rope, "parity"), suffix), ("positions",))
    if planned.encoder:
        for suffix, recipe in _recipes(planned).items():
            add("encoder" + suffix, _encoder(planned, placed, recipe), encoder_inputs(recipe, planned.encoder))
    if planned.head:
        save(head_graph.head(GraphBuilder(placed), planned.head), folder / f"{HEAD}.onnx")
    return graphs


def write_row_graphs(
    folder: Path, planned: Plan, placed: dict[str, Tensor], pooling: Pooling | None, heads: FoundHeads
) -> RowGraphs | None:
    """Write the graphs for one row of each sequence and return the card's entry; None: the model reads others too."""
    if heads.multi_vector or heads.sparse:  # its other vectors have the bits that they have beside these
        return None
    modes = [pooling.mode if pooling.include_prompt else "others"] if pooling else []
    if own := heads.classifier:
        modes.append("others" if own.pooling is None or own.pad_id is not None else own.pooling)
    row = ROWS.get(modes[0]) if len(set(modes)) == 1 else None
    if row is None or not ends_row_by_row(planned.encoder):
        return None
    files = {}
    for suffix, recipe in _recipes(planned).items():
        files["encoder" + suffix] = f"encoder_row{suffix}.onnx"
        save(_encoder(planned, placed, recipe, row), folder / files["encoder" + suffix])
    return RowGraphs(row, files)


def _encoder(planned: Plan, placed: dict[str, Tensor], recipe: Recipe, row: Row | None = None) -> Any:
    """Return the graph of the input layer and all blocks."""
    projections = Int8() if int8_matrices.holds_codes(placed, planned.encoder) else Float32()
    return encoder_graph(
        GraphBuilder(placed),
        recipe,
        planned.encoder,
        planned.config.count("hidden_size"),
        projections,
        planned.encodings.ropes,
        planned.token_width,
        row,
    )


def _recipes(planned: Plan) -> dict[str, Recipe]:
    """Return the input layer by the suffix of its graphs' names: where types are optional, without and with them."""
    typed = {"_typed": planned.recipe} if planned.types == "optional" else {}
    return {"": planned.usual_recipe, **typed}
