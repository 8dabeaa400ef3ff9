"""The reference engine: exported recipes in numpy float64, slow and exact, to check ONNX Runtime."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.artifacts import weights
from models.artifacts.card import CLASSIFIER, HEAD, MODULES, MULTI_VECTORS, SPARSE_LINEAR, Card
from models.graphs import input_layer as graphs
from models.positions.rope.angles import cos_sin
from models.positions.rope.frequencies import Rope, frequencies
from models.recipes.extra_inputs import TASKS
from models.reference import head as head_reference
from models.reference import interpreter as reference
from models.reference import sentence_modules as modules_reference
from models.reference import static, vision
from service.errors import StartError


class ReferenceEngine:
    """Interprets the recipe of one exported model."""

    device = "cpu (numpy float64)"
    runs = 1
    alone: None = None

    def __init__(self, card: Card, weights: Mapping[str, NDArray[Any]]) -> None:
        self._card = card
        self._weights = weights
        self.widths: Mapping[str, int] = {}
        self._modules = {
            MODULES: card.modules,
            CLASSIFIER: card.classifier and card.classifier.modules,
            MULTI_VECTORS: card.multi_vector and card.multi_vector.modules,
            SPARSE_LINEAR: card.sparse and card.sparse.lexical and card.sparse.lexical.modules,
        }

    def run(self, graph: str, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:
        """Return the outputs of a graph, computed in float64, as float32."""
        if graph == HEAD and self._card.head:
            return [head_reference.logits(self._card.head, self._weights, feeds["hidden"]).astype(np.float32)]
        if modules := self._modules.get(graph):
            return [modules_reference.vectors(modules, self._weights, feeds["pooled"]).astype(np.float32)]
        ropes = {table.graph: table.rope for table in self._card.encodings.ropes.values()}
        if self._card.static:
            named = static.outputs(self._card.static, self._weights, feeds)
        elif self._card.image:
            named = vision.encoded(self._card.image, self._card.encoder, self._weights, feeds)
        else:
            named = self._rope(graph, ropes[graph], feeds) if graph in ropes else self._rows(graph, feeds)
        return [named[name].astype(np.float32) for name in outputs]

    def shrink(self) -> None:
        """Do nothing: numpy keeps no memory between runs."""

    def _rope(self, graph: str, rope: Rope, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        tables = cos_sin(frequencies(rope, "parity"), feeds["positions"])
        return dict(zip(self._card.graphs[graph].outputs, tables, strict=True))

    def _rows(self, graph: str, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        if graph == "per_layer":
            return {"per_layer_embeddings": reference.per_layer(self._card.per_layer, self._weights, feeds["ids"])}
        ids, types = feeds["ids"], feeds.get("types")
        positions = feeds.get("positions", ids)  # a graph that takes none belongs to a recipe that reads none
        mask = feeds.get("mask")
        recipe = graphs.components_of(self._card.recipe) if graph.startswith("components") else self._card.recipe
        named = dict(reference.run(recipe, self._weights, ids, positions, types, mask, feeds))
        if "lengths" in feeds:
            rows = named["input_embeddings"]
            named["last_hidden_state"] = reference.encode(
                self._card.encoder,
                self._weights,
                rows,
                feeds["mask"],
                feeds["lengths"],
                positions,
                self._card.encodings.ropes,
                feeds.get(TASKS),
                ids=ids,
            )
        return named


def load(folder: Path, card: Card) -> ReferenceEngine:
    """Return an engine for the recipe of an exported model.

    Raises:
        StartError: the model was adopted as ONNX and has no recipe.
    """
    if card.weights is None:
        raise StartError(f"{card.name} was adopted as ONNX and has no recipe; serve it with --engine onnx")
    return ReferenceEngine(card, weights.tensors(folder, card))
