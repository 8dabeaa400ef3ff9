"""POST /embed answered in batches: the same bytes as the embedding pipeline gives, whatever comes together."""

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.served import Here, serving_here
from tests.service.http.toy_server import Client, connected, request

JSON = b"content-type: application/json"
PIPELINE = b"inlay-timeout-ms: 60000"  # a request with a deadline is answered by the pipeline
FIXED = ("content-type", "content-length", "inlay-shape", "inlay-dtype", "inlay-lengths", "retry-after", "allow")


@pytest.fixture(params=[{}, {"max_request_tokens": 12}, {"max_concurrent_requests": 4}], ids=str)
async def here(request: pytest.FixtureRequest, tiny_store: Path) -> AsyncIterator[Here]:
    async with serving_here(tiny_store, default_model="bert", **request.param) as here:
        yield here


def a_body(chance: random.Random) -> bytes:
    """A body of /embed, valid more often than not."""
    ids = [[chance.randrange(20) for _ in range(chance.choice([1, 3, 8, 30]))] for _ in range(chance.choice([1, 1, 3]))]
    inputs: Any = chance.choice([ids[0], ids, ids, ids, "hello", ["hello", ids[0]], [], [[]], [[5, 999]], [[-1]], {}])
    if chance.random() < 0.1:
        inputs = {"input_ids": ids[0], "attention_mask": [1] * (len(ids[0]) - chance.randrange(2))}
    body: dict[str, Any] = {"inputs": inputs}
    if chance.random() < 0.3:
        body["model"] = chance.choice(["bert", "llama", "nobody"])
    if body.get("model") != "llama" or chance.random() < 0.5:  # pooled rows of an encoder may differ by their last bits
        body["outputs"] = chance.choice(["input_embeddings", ["input_embeddings", "token_embeddings"], "nothing"])
    if chance.random() < 0.2:
        body |= chance.choice([{"dtype": "float16"}, {"encoding_format": "base64"}, {"truncate": False}, {"typo": 1}])
    document = orjson.dumps(body)
    return document if chance.random() < 0.95 else document[:-1]


HEADERS = ([], [], [], [b"accept: application/octet-stream"], [b"accept: application/x-npy"], [b"accept: text/html"])


async def answers(clients: list[Client], sent: list[bytes]) -> list[tuple[int, dict[str, str], bytes]]:
    for client, each in zip(clients, sent, strict=True):
        client.writer.write(each)
    responses = [await client.answer() for client in clients]
    return [
        (status, {name: headers[name] for name in FIXED if name in headers}, body)
        for status, headers, body in responses
    ]


@pytest.mark.parametrize("seed", range(6))
async def test_batched_answers_are_those_of_the_pipeline(here: Here, seed: int) -> None:
    chance = random.Random(seed)
    async with connected(here.address[1]) as alone:
        opened = [connected(here.address[1]) for _ in range(12)]
        clients = [await each.__aenter__() for each in opened]
        for _ in range(15):
            rows = [(chance.choice(HEADERS), a_body(chance)) for _ in clients]
            batched = await answers(clients, [request(b"POST /embed", JSON, *more, body=body) for more, body in rows])
            for (more, body), (status, headers, answer) in zip(rows, batched, strict=True):
                if status == 429:  # more at a time than this server allows
                    continue
                [expected] = await answers([alone], [request(b"POST /embed", JSON, PIPELINE, *more, body=body)])
                assert (status, headers, answer) == expected, body
        for each in opened:
            await each.__aexit__(None, None, None)
