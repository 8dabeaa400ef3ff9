"""Every way in which a request says, or its operator says for it, that it is bulk; seen by its admission."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from proto import embed_pb2 as pb
from service.app import create_app
from service.errors import StartError
from service.request_context import BULK, RequestContext
from service.settings import Settings
from tests.served import Served, serving

KEYS = "one:0123456789abcdef0123 priority=bulk\ntwo:abcdef0123456789abcd\n"
TEXT: dict[str, Any] = {"inputs": ["hello"]}
OPENAI: dict[str, Any] = {"input": "hello"}
OIP: dict[str, Any] = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["hello"]}]}


@pytest.fixture(scope="module")
def service(tiny_store: Path) -> Iterator[Served]:
    paths = "/embed_all,/inlay.v1.Embedder/EmbedStream"
    with serving(tiny_store, default_model="bert", bulk_paths=paths) as served:
        yield served


@contextmanager
def callers(service: Served) -> Iterator[list[str]]:
    """The callers of the requests that the embedding pipeline gets."""
    seen, embedder = list[str](), service.app.context.embedder
    embed = embedder.embed

    async def noting(request: Any, context: RequestContext) -> Any:
        seen.append(context.caller)
        return await embed(request, context)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedder, "embed", noting)
        yield seen


def is_bulk(service: Served, path: str, body: dict[str, Any], **headers: str) -> bool:
    with callers(service) as seen:
        answer = service.http.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    (caller,) = seen
    assert caller.removeprefix(BULK) in ("127.0.0.1", "one", "two")
    return caller.startswith(BULK)


@pytest.mark.parametrize(
    ("path", "body", "headers", "expected"),
    [
        ("/embed", TEXT, {}, False),
        ("/embed", TEXT, {"inlay-priority": "bulk"}, True),
        ("/embed", TEXT, {"inlay-priority": "interactive"}, False),
        ("/embed_all", TEXT, {}, True),
        ("/embed_all", TEXT, {"inlay-priority": "interactive"}, False),
        ("/v1/embeddings", OPENAI, {}, False),
        ("/v1/embeddings", OPENAI | {"service_tier": "flex"}, {}, True),
        ("/v1/embeddings", OPENAI | {"service_tier": "auto"}, {}, False),
        ("/v1/embeddings", OPENAI | {"priority": 5}, {}, True),
        ("/v1/embeddings", OPENAI | {"priority": -1}, {}, False),
        ("/v2/models/bert/infer", OIP | {"parameters": {"priority": 1}}, {}, False),
        ("/v2/models/bert/infer", OIP | {"parameters": {"priority": 2}}, {}, True),
    ],
)
def test_requests_that_are_bulk(
    service: Served, path: str, body: dict[str, Any], headers: dict[str, str], expected: bool
) -> None:
    for _ in range(3):  # the head of a second request is remembered
        assert is_bulk(service, path, body, **headers) is expected
    assert service.app.context.admission.active == 0


def test_other_priorities_are_refused(service: Served) -> None:
    answer = service.http.post("/embed", json=TEXT, headers={"inlay-priority": "high"})
    assert answer.status_code == 422
    assert answer.json()["detail"] == "the header inlay-priority is 'high'; allowed: interactive, bulk"
    with pytest.raises(grpc.RpcError) as refused:
        service.stub.Embed(pb.EmbedRequest(), metadata=(("inlay-priority", "high"),))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "allowed: interactive, bulk" in refused.value.details()


def test_grpc_calls_that_are_bulk(service: Served) -> None:
    request = pb.EmbedRequest(inputs=[pb.Input(text="hello")])
    with callers(service) as seen:
        service.stub.Embed(request)
        service.stub.Embed(request, metadata=(("x-request-id", "a"), ("inlay-priority", "bulk")))
        assert len([*service.stub.EmbedStream(iter([request]))]) == 1
        assert len([*service.stub.EmbedStream(iter([request]), metadata=(("inlay-priority", "interactive"),))]) == 1
    assert [caller.startswith(BULK) for caller in seen] == [False, True, True, False]


def test_priority_of_a_key_is_the_operators(tiny_store: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(KEYS)
    with serving(tiny_store, default_model="bert", api_keys_file=keys) as service:
        one, two = ("Bearer " + line.split()[0].partition(":")[2] for line in KEYS.splitlines())
        assert is_bulk(service, "/embed", TEXT, authorization=one)
        assert is_bulk(service, "/embed", TEXT, authorization=one, **{"inlay-priority": "interactive"})
        assert not is_bulk(service, "/embed", TEXT, authorization=two)
        assert is_bulk(service, "/embed", TEXT, authorization=two, **{"inlay-priority": "bulk"})
        with callers(service) as seen:
            service.stub.Embed(pb.EmbedRequest(inputs=[pb.Input(text="hello")]), metadata=(("authorization", one),))
        assert seen == [f"{BULK}one"]


def test_paths_that_are_not_served_end_the_start(tiny_store: Path) -> None:
    values: dict[str, Any] = {"store": tiny_store, "default_model": "bert", "bulk_paths": "/v1/embedding"}
    settings = Settings(**values)
    said = "INLAY_BULK_PATHS names '/v1/embedding', which is not served; write it as /v1/embeddings"
    with pytest.raises(StartError, match=said):
        create_app(settings)
