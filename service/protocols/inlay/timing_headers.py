"""The x-* headers with the times and counts of a response, as text-embeddings-inference sends them."""

from time import perf_counter
from typing import TYPE_CHECKING

from service.embedding.requests import EmbedResult

if TYPE_CHECKING:
    from service.registry.registry import ModelRegistry

DEVICES = {"cpu": b"cpu+optimized", "cuda": b"gpu+optimized"}  # TEI sends gpu+optimized on every device
UNLOADED = b"cpu"  # of a model that was unloaded meanwhile
_TOTAL = "whole milliseconds from the request's arrival to its response"
HEADERS = {
    "x-compute-type": "what the model ran on: cpu+optimized, gpu+optimized, or cpu of a model that is gone by now",
    "x-compute-time": _TOTAL,
    "x-compute-characters": "characters of the texts, prompts not counted",
    "x-compute-tokens": "tokens that were read, special ones included",
    "x-total-time": _TOTAL,
    "x-tokenization-time": "whole milliseconds that tokenising all texts took",
    "x-queue-time": "whole milliseconds that an input waited, the mean over the inputs",
    "x-inference-time": "whole milliseconds that the run of an input took, the mean over the inputs",
}
"""Descriptions by name, in the order in which they are sent."""
_LINES = b"x-compute-type: %b\r\n" + b"".join([name.encode() + b": %d\r\n" for name in list(HEADERS)[1:]])


def lines(result: EmbedResult, registry: "ModelRegistry", started: float) -> bytes:
    """Return the headers as lines for `Response.lines`.

    Args:
        started: when the request arrived, on `time.perf_counter`.
    """
    total = int((perf_counter() - started) * 1e3)
    tokenization, queue, inference = result.times
    model = registry.models.get(result.model)
    return _LINES % (
        UNLOADED if model is None else DEVICES.get(model.engine.device, UNLOADED),
        total,
        result.characters,
        result.tokens,
        total,
        int(tokenization * 1e3),
        int(queue * 1e3),
        int(inference * 1e3),
    )


def metadata(result: EmbedResult, registry: "ModelRegistry", started: float) -> tuple[tuple[str, str], ...]:
    """Return the headers as gRPC metadata."""
    values = [line.partition(": ")[2] for line in lines(result, registry, started).decode().splitlines()]
    return tuple(zip(HEADERS, values, strict=True))
