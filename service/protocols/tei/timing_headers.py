"""What an answer took, as text-embeddings-inference's headers tell it. Measures nothing but the whole."""

from time import perf_counter

from service.embedding.requests import EmbedResult
from service.http.formats import Headers
from service.registry.registry import ModelRegistry

KINDS = {"cpu": b"cpu+optimized", "cuda": b"gpu+optimized"}  # theirs says gpu+optimized whatever it runs on
PLAIN = b"cpu"
NAMES = (
    "x-compute-type",
    "x-compute-time",
    "x-compute-characters",
    "x-compute-tokens",
    "x-total-time",
    "x-tokenization-time",
    "x-queue-time",
    "x-inference-time",
)
_LINES = b"x-compute-type: %b\r\n" + b"".join([name.encode() + b": %d\r\n" for name in NAMES[1:]])
_NUMBERS = tuple([b"%d" % number for number in range(1024)])


def headers(result: EmbedResult, catalog: ModelRegistry, started: float) -> Headers:
    """NAMES and their values, times in whole milliseconds.

    started   when the request arrived, on perf_counter
    """
    total = _number(int((perf_counter() - started) * 1e3))
    tokenization, queue, inference = result.times
    model = catalog.models.get(result.model)
    return (
        (b"x-compute-type", PLAIN if model is None else KINDS.get(model.engine.device, PLAIN)),
        (b"x-compute-time", total),
        (b"x-compute-characters", _number(result.characters)),
        (b"x-compute-tokens", _number(result.tokens)),
        (b"x-total-time", total),
        (b"x-tokenization-time", _number(int(tokenization * 1e3))),
        (b"x-queue-time", _number(int(queue * 1e3))),
        (b"x-inference-time", _number(int(inference * 1e3))),
    )


def lines(result: EmbedResult, models: ModelRegistry, started: float) -> bytes:
    """Return the same as header lines; made anew for every response, at a third of the cost of pairs."""
    total = int((perf_counter() - started) * 1e3)
    tokenization, queue, inference = result.times
    model = models.models.get(result.model)
    kind = PLAIN if model is None else KINDS.get(model.engine.device, PLAIN)
    return _LINES % (
        kind,
        total,
        result.characters,
        result.tokens,
        total,
        int(tokenization * 1e3),
        int(queue * 1e3),
        int(inference * 1e3),
    )


def _number(value: int) -> bytes:
    return _NUMBERS[value] if value < 1024 else b"%d" % value
