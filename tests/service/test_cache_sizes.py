"""What callers can vary fills no cache with more than a few megabytes, however long it is."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from models.vision.resample import weights
from proto import embed_pb2 as pb
from service.embedding.requests import EmbedOptions, EmbedResult, Output
from service.http.formats import FORMATS, OCTETS, encoder
from service.http.negotiation import choose
from service.observability.metrics import Metrics
from service.protocols.inlay import embed
from service.protocols.inlay.rpc_messages import embed_response
from service.protocols.inlay.rpc_requests import decode
from service.protocols.openai import embeddings
from service.protocols.openai.schemas import EmbeddingsBody
from service.registry.loading import load_model
from service.settings import Settings
from tests.collector import collect
from tests.sweeps import sampled

TIMES, KEPT_BYTES = 300, 4 << 20
LENGTHS = (1,) * 1024


def result(number: int) -> EmbedResult:
    """The answer to a request of many inputs, of a model's name of its own."""
    rows = np.zeros((len(LENGTHS), 4), np.float32)
    outputs = tuple([Output(f"{number}-{index}", rows, (*LENGTHS[1:], number), False) for index in range(8)])
    return EmbedResult("m", outputs, number, True, LENGTHS)


FILLS: dict[str, Callable[[int], object]] = {
    "Accept": lambda number: encoder(b"application/json;a=%d" % number + b" " * 60_000),
    "Accept-Encoding": lambda number: choose(b"gzip;a=%d" % number + b" " * 60_000),
    "options of /embed": lambda number: embed.read(b'{"inputs":"a","outputs":["%d"%s]}' % (number, b',"a"' * 2_000)),
    "options of /v1/embeddings": lambda number: embeddings.read(
        b'{"input":"a","model":"%d%s"}' % (number, b"a" * 60_000), EmbeddingsBody
    ),
    "options of Embed": lambda number: decode(pb.EmbedRequest(model=f"{number}" + "a" * 60_000)),
    "outputs of Embed": lambda number: decode(pb.EmbedRequest(outputs=["a"] * 20_000, dimensions=number)),
    "frames of Embed": lambda number: embed_response(result(number)),
    "headers of a tensor": lambda number: FORMATS[OCTETS](
        result(number)._replace(outputs=result(number).outputs[:1]), False
    ),
    "weights of a resize": lambda number: weights("bicubic", 1000 + number, 64),
}


@pytest.mark.parametrize("name", sampled(FILLS, 3))
def test_cache_keeps_few_bytes_of_long_keys(name: str) -> None:
    FILLS[name](0)
    collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(1, TIMES):
            FILLS[name](number)
        collect()
        assert tracemalloc.get_traced_memory()[0] - before < KEPT_BYTES
    finally:
        tracemalloc.stop()


def test_plans_of_repeated_outputs_are_kept_once(tiny_store: Path) -> None:
    model = load_model(tiny_store / "bert", Settings(store=tiny_store, device="cpu"), 1, Metrics())
    once = model.plan(EmbedOptions(("sentence_embedding",)), "")
    assert model.plan(EmbedOptions(("sentence_embedding",) * 300_000), "") is once
