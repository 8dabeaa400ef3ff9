"""A query and documents for clients that rank, and the service's own answers, which other tests judge."""

import json
from collections.abc import Sequence
from typing import Any
from urllib.request import Request, urlopen

from tests.clients.conftest import Server

QUERY = "a b"
DOCUMENTS = ["c", "d e f", "a b c", "hello world", "j"]
TOLERANCE = 1e-6


def post(server: Server, path: str, **body: Any) -> Any:
    request = Request(f"{server.url}{path}", json.dumps(body).encode(), {"content-type": "application/json"})
    with urlopen(request, timeout=30) as response:
        return json.load(response)


def best(server: Server, documents: Sequence[str] = DOCUMENTS) -> list[tuple[int, float]]:
    """Number and score of each document, the best first, as /rerank has them."""
    return [(rank["index"], rank["score"]) for rank in post(server, "/rerank", query=QUERY, texts=documents)]
