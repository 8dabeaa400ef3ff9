"""tei-client, which speaks text-embeddings-inference's REST and its gRPC, by stubs of its own."""

from collections.abc import AsyncIterator

import numpy as np
import pytest
from tei_client import GrpcClient, HttpClient
from tei_client.models import ModelType, TruncationDirection

from tests.clients.conftest import Server
from tests.clients.judged import GOLDEN, IDS, INPUTS, TEXTS, UNIT, assert_rows, assert_vectors, furthest

CLIENT = "tei-client"
pytestmark = pytest.mark.clients

Either = HttpClient | GrpcClient
del GrpcClient.__del__  # closes by an event loop that is gone by then, and fails to log that


@pytest.fixture(params=["REST", "gRPC"])
async def client(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[Either]:
    if request.param == "REST":
        yield HttpClient(server.url)
    else:
        made = GrpcClient(server.rpc)
        yield made
        made.channel.close()
        await made.async_channel.close()


def test_the_model_is_described(client: Either) -> None:
    info = client.info()
    assert info.server_model_type == ModelType.Embedding
    assert (info.server_model_dtype, info.max_input_length) == ("float32", 256)


def test_vectors(client: Either) -> None:
    assert_vectors(client.embed(INPUTS))


def test_vectors_that_are_not_normalised(server: Server) -> None:
    # over REST: its stubs are of a tei.proto whose `normalize` could not say false
    raw = np.array(HttpClient(server.url).embed(INPUTS, normalize=False))
    assert furthest(raw, np.array([case.arrays["pooled"] for case in TEXTS])) <= 3 * UNIT


def test_a_long_text_is_cut_where_asked_from_either_side(client: Either) -> None:
    for name, direction in (("over_257", TruncationDirection.Right), ("over_257_left", TruncationDirection.Left)):
        got = client.embed(GOLDEN[name].input, truncate=True, truncation_direction=direction)
        assert_vectors(got, [GOLDEN[name]])


def test_rows_of_every_token(client: Either) -> None:
    for rows, case in zip(client.embed_all(INPUTS), TEXTS, strict=True):
        assert_rows(rows, case)


def test_tokens_and_their_places(client: Either) -> None:
    for result, ids, text in zip(client.tokenize(INPUTS), IDS, INPUTS, strict=True):
        assert result.get_ids() == ids
        first, *words, last = result.tokens
        assert (first.special, last.special) == (True, True)
        assert [text[word.start : word.stop].lower() for word in words] == [word.text.lower() for word in words]


def test_ids_become_text_again(client: Either) -> None:
    got = client.decode(IDS[0], skip_special_tokens=True)
    assert (got if isinstance(got, str) else got[0]) == "hello world"


async def test_vectors_asynchronously(client: Either) -> None:
    assert_vectors(await client.async_embed(INPUTS))
