"""Engines map arrays to arrays. They know graphs and nothing of requests, text or protocols."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray


class Engine(Protocol):
    """A loaded model that runs its graphs.

    device     what it runs on: "cpu", "cuda", or "cpu (numpy float64)" for the reference
    """

    device: str

    def run(self, graph: str, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:
        """Run one graph of the card; `feeds` holds exactly the graph's inputs, the answer follows `outputs`."""
        ...

    def shrink(self) -> None:
        """Let the next run of each graph give back the memory that longer ones before it needed."""
        ...
