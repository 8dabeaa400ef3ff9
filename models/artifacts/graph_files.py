"""Writes the graphs of a model that reads text: its input layer, positions, blocks and output head."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.artifacts.card import HEAD, Card, Graph, GraphLayout, RowGraphs
from models.artifacts.task_heads import TaskHeads
from models.checkpoints.safetensors import Tensor
from models.checkpoints.sentence_transformers import Pooling
from models.families.fitting import FittedModel
from models.graphs import head as head_graph
from models.graphs import input_layer
from models.graphs.builder import GraphBuilder, save
from models.graphs.encoder import encoder as encoder_graph
from models.graphs.encoder import ends_row_by_row
from models.graphs.positions.rope import rope
from models.graphs.projections import Float32, Int8, Narrow
from models.graphs.row_layout import Row
from models.graphs.sentence_modules import sentence_modules
from models.positions.rope.frequencies import frequencies
from models.recipes.steps import AddType, Recipe
from models.tables import int8_matrices

FOR_GPUS = {"RMSNormalization": "SimplifiedLayerNormalization"}  # which keeps the opset that CUDA has all kernels of
ROWS: dict[str, Row] = {"cls": "first", "lasttoken": "last"}  # that a pooling takes


def save_graphs(folder: Path, models: Mapping[str, Any], layout: GraphLayout = "packed") -> dict[str, Graph]:
    """Write ONNX graphs by their names and return the card's entries for them."""
    graphs = {}
    for name, model in models.items():
        save(model, folder / f"{name}.onnx")
        inputs, outputs = (tuple(value.name for value in values) for values in (model.graph.input, model.graph.output))
        graphs[name] = Graph(f"{name}.onnx", inputs, outputs, layout)
    return graphs


def write_graphs(
    folder: Path, fitted: FittedModel, placed: dict[str, Tensor], splade: bool = False
) -> dict[str, Graph]:
    """Emit every graph of the model's tokens and return the card's entries for them.

    Args:
        folder: folder with the weights.
        fitted: the model.
        placed: place of each tensor.
        splade: sparse vectors are made of the logits of every token, for which the head's matrix is packed.
    """
    if fitted.head:
        save(head_graph.head(GraphBuilder(placed), fitted.head, packed=splade), folder / f"{HEAD}.onnx")
    recipes, models = _recipes(fitted), {}
    for suffix, recipe in recipes.items():
        width = fitted.config.count("hidden_size")
        models[f"embedding{suffix}"] = input_layer.embedding(GraphBuilder(placed), recipe, width)
        models[f"components{suffix}"] = input_layer.components(GraphBuilder(placed), recipe)
    if fitted.per_layer:
        models["per_layer"] = input_layer.per_layer(GraphBuilder(placed), fitted.per_layer)
    for table in fitted.encodings.ropes.values():
        models[table.graph] = rope(frequencies(table.rope, "parity"), table.graph.removeprefix("rope"))
    if fitted.encoder:
        models |= {f"encoder{suffix}": _encoder(fitted, placed, recipe) for suffix, recipe in recipes.items()}
    return save_graphs(folder, models)


def write_module_graphs(folder: Path, card: Card, placed: dict[str, Tensor]) -> None:
    """Emit the graphs of the modules after pooling and of heads, beside their tensors."""
    for name, (modules, output) in card.module_graphs.items():
        save(sentence_modules(GraphBuilder(placed), modules, name, output), folder / f"{name}.onnx")


def write_row_graphs(
    folder: Path, fitted: FittedModel, placed: dict[str, Tensor], pooling: Pooling | None, heads: TaskHeads
) -> RowGraphs | None:
    """Write the graphs for one row of each sequence and return the card's entry; None if other rows are read too."""
    if heads.multi_vector or heads.sparse:  # its other vectors have the bits that they have beside these
        return None
    modes = [pooling.mode if pooling.include_prompt else "others"] if pooling else []
    if classifier := heads.classifier:
        modes.append("others" if classifier.pooling is None or classifier.pad_id is not None else classifier.pooling)
    row = ROWS.get(modes[0]) if len(set(modes)) == 1 else None
    if row is None or not ends_row_by_row(fitted.encoder):
        return None
    files = {}
    for suffix, recipe in _recipes(fitted).items():
        files["encoder" + suffix] = f"encoder_row{suffix}.onnx"
        save(_encoder(fitted, placed, recipe, row), folder / files["encoder" + suffix])
    return RowGraphs(row, files)


def encoder_for_gpus(card: Card, name: str, placed: Mapping[str, Tensor], element: str) -> bytes:
    """Return the form for GPUs of an encoder graph of the card, which is made when the model is loaded.

    Args:
        name: name of the graph.
        placed: place of each tensor.
        element: ONNX name of the element type of products and attention.
    """
    typed = "types" in card.graphs[name].inputs
    recipe = tuple(step for step in card.recipe if typed or not isinstance(step, AddType))
    projections = Float32() if element == "FLOAT" else Narrow(element)
    ropes, width = card.encodings.ropes, card.hidden_size
    builder = GraphBuilder(placed, FOR_GPUS)
    model = encoder_graph(builder, recipe, card.encoder, width, projections, ropes, card.token_width, sent=True)
    serialized: bytes = model.SerializeToString()
    return serialized


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
