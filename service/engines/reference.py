"""numpy float64 in the place of ONNX Runtime: slow, exact, for checking what is served. Runs exported recipes alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models import reference, safetensors
from models.card import Card
from models.positions.rope.angles import cos_sin
from models.positions.rope.frequencies import Rope, frequencies
from service.errors import StartError


class ReferenceEngine:
    """The recipe of one exported model, interpreted."""

    device = "cpu (numpy float64)"

    def __init__(self, card: Card, weights: Mapping[str, NDArray[Any]]) -> None:
        self._card = card
        self._weights = weights

    def run(self, graph: str, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:
        """Compute in float64 what the graph would; float32 leaves."""
        ropes = {table.graph: table.rope for table in self._card.encodings.ropes.values()}
        named = self._rope(graph, ropes[graph], feeds) if graph in ropes else self._rows(graph, feeds)
        return [named[name].astype(np.float32) for name in outputs]

    def _rope(self, graph: str, rope: Rope, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        tables = cos_sin(frequencies(rope, "parity"), feeds["positions"])
        return dict(zip(self._card.graphs[graph].outputs, tables, strict=True))

    def _rows(self, graph: str, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        ids, types = feeds["ids"], feeds.get("types")
        positions = feeds.get("positions", ids)  # a graph that takes none belongs to a recipe that reads none
        mask = feeds.get("mask")
        named = dict(reference.run(self._card.recipe, self._weights, ids, positions, types, mask))
        if "lengths" in feeds:
            rows = named["input_embeddings"]
            named["last_hidden_state"] = reference.encode(
                self._card.encoder, self._weights, rows, feeds["mask"], feeds["lengths"]
            )
        return named


def load(folder: Path, card: Card, device: str, threads: int) -> ReferenceEngine:
    """The same signature as the ONNX engine's; `device` and `threads` do not apply.

    raises   StartError if the model was adopted as ONNX and has no recipe
    """
    if card.weights is None:
        raise StartError(f"{card.name} was adopted as ONNX and has no recipe; serve it with --engine onnx")
    return ReferenceEngine(card, safetensors.tensors_of(folder / card.weights))
