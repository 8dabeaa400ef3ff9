"""The users' requests as the protocols spell them, and the vectors of their answers. Knows no load generator."""

import base64
import random
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from loadtest import user_mix
from loadtest.response_checks import Floats, WrongAnswer, from_bytes
from loadtest.user_mix import Drawn

RAW, JSON = "application/octet-stream", "application/json"
Inputs = list[str] | list[list[int]]
TABLES = (  # positional tables that clients fetch
    "/positions/rope?preset=llama-3.1-8b&length=512&format=npy",
    "/positions/alibi?heads=12&query_length=64",
    "/positions/sinusoidal?length=128&dim=384&format=raw",
)


def inputs(rng: random.Random, drawn: Drawn) -> Inputs:
    """Return the texts, or the lists of token ids, of a request that was drawn."""
    if drawn.kind == user_mix.IDS:
        return [user_mix.ids(rng, tokens) for tokens in drawn.tokens]
    return [user_mix.text(rng, tokens) for tokens in drawn.tokens]


@dataclass(frozen=True)
class Route:
    """One REST route as its protocol's clients call it.

    Attributes:
        share: of the requests for vectors.
        path: {model} stands for the model's name.
        document: the body for a model and inputs.
        vectors: reads an answer.
        accept: the media type that is asked for.
        takes_ids: whether the protocol has token ids.
    """

    share: float
    path: str
    document: Callable[[str, Inputs], dict[str, Any]]
    vectors: Callable[[bytes, Mapping[str, str]], Floats]
    accept: str = JSON
    takes_ids: bool = True


def _openai(model: str, sent: Inputs) -> dict[str, Any]:
    return {"model": model, "input": sent, "encoding_format": "base64"}


def _openai_floats(model: str, sent: Inputs) -> dict[str, Any]:
    return {"model": model, "input": sent if len(sent) > 1 else sent[0]}


def _openai_vectors(body: bytes, headers: Mapping[str, str]) -> Floats:
    listed = [one["embedding"] for one in orjson.loads(body)["data"]]
    if isinstance(listed[0], str):
        return np.stack([np.frombuffer(base64.b64decode(one), np.float32) for one in listed])
    return np.array(listed, np.float32)


def _tei(model: str, sent: Inputs) -> dict[str, Any]:
    return {"inputs": sent if len(sent) > 1 else sent[0], "truncate": True}


def _tei_vectors(body: bytes, headers: Mapping[str, str]) -> Floats:
    return np.array(orjson.loads(body), np.float32)


def _inlay(model: str, sent: Inputs) -> dict[str, Any]:
    return {"model": model, "inputs": sent, "outputs": ["sentence_embedding"]}


def _oip(model: str, sent: Inputs) -> dict[str, Any]:
    if isinstance(sent[0], str):
        return {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [len(sent)], "data": sent}]}
    shape = [len(sent), len(sent[0])]
    return {"inputs": [{"name": "input_ids", "datatype": "INT64", "shape": shape, "data": sent}]}


def _oip_vectors(body: bytes, headers: Mapping[str, str]) -> Floats:
    for output in orjson.loads(body)["outputs"]:
        if output["name"] == "sentence_embedding":
            return np.array(output["data"], np.float32).reshape(output["shape"])
    raise WrongAnswer("no output sentence_embedding")


ROUTES = {
    "openai": Route(0.30, "/v1/embeddings", _openai, _openai_vectors),
    "openai, floats": Route(0.10, "/v1/embeddings", _openai_floats, _openai_vectors),
    "tei": Route(0.30, "/embed", _tei, _tei_vectors, takes_ids=False),
    "oip": Route(0.15, "/v2/models/{model}/infer", _oip, _oip_vectors),
    "inlay": Route(0.15, "/embed", _inlay, from_bytes, accept=RAW),
}


RERANKING: dict[str, tuple[str, Callable[[Any], list[tuple[int, float]]]]] = {
    "/rerank": ("texts", lambda document: [(each["index"], each["score"]) for each in document]),
    "/v1/rerank": (
        "documents",
        lambda document: [(each["index"], each["relevance_score"]) for each in document["results"]],
    ),
}
"""The name of the documents, and what reads the results, by path."""


def ranking(rng: random.Random) -> tuple[str, list[str]]:
    """Return a query and documents."""
    return user_mix.text(rng, rng.randint(5, 20)), [user_mix.text(rng, rng.randint(20, 200)) for _ in range(10)]


def picture(number: int) -> str:
    """Return the data URL of a PNG, 64 pixels square, whose colour the number gives."""
    rows = b"".join(b"\0" + bytes((37 * number % 256, 4 * row, 4 * (63 - row))) * 64 for row in range(64))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4) + kind + data + zlib.crc32(kind + data).to_bytes(4)

    header = (64).to_bytes(4) * 2 + bytes((8, 2, 0, 0, 0))
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()


def draw_route(rng: random.Random, kind: str) -> str:
    """Return the name of a route that takes this kind of request, by the shares."""
    fitting = [name for name, route in ROUTES.items() if route.takes_ids or kind != user_mix.IDS]
    return rng.choices(fitting, [ROUTES[name].share for name in fitting])[0]
