"""x-request-id on every answer of every protocol, and in the log line of a fault."""

import logging
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from proto import embed_pb2 as pb
from service.request_context import request_id
from tests.served import Served, serving

JSON = {"content-type": "application/json"}
# verb, path, body, status
ANSWERS = [
    ("POST", "/embed", b'{"inputs": "a"}', 200),
    ("POST", "/embed", b"{", 400),
    ("GET", "/embed", b"", 405),
    ("POST", "/v1/embeddings", b'{"input": "a", "model": "bert"}', 200),
    ("POST", "/v1/embeddings", b'{"input": "a", "model": "bort"}', 404),
    ("GET", "/v2/models/bert", b"", 200),
    ("GET", "/v2/models/bort", b"", 404),
    ("POST", "/tokenize", b'{"inputs": "a"}', 200),
    ("GET", "/health/live", b"", 200),
    ("HEAD", "/health/live", b"", 200),
    ("GET", "/positions/rope?head_dim=8&length=2", b"", 200),
    ("GET", "/positions/rope?head_dim=7&length=2", b"", 422),
    ("GET", "/metrics", b"", 200),
    ("GET", "/openapi.json", b"", 200),
    ("GET", "/nothing", b"", 404),
    ("GET", "/v1/nothing", b"", 404),
]


@pytest.mark.parametrize(("verb", "path", "body", "status"), ANSWERS)
def test_response_has_the_callers_id_or_a_new_one(
    served: Served, verb: str, path: str, body: bytes, status: int
) -> None:
    own = served.http.request(verb, path, content=body, headers=JSON | {"x-request-id": "mine-1"})
    assert (own.status_code, own.headers.get_list("x-request-id")) == (status, ["mine-1"])
    fresh = [served.http.request(verb, path, content=body, headers=JSON).headers["x-request-id"] for _ in range(3)]
    assert len(set(fresh)) == 3


@pytest.mark.parametrize(
    ("sent", "kept"),
    [("a", True), ("!~" * 64, True), ("", False), ("a" * 129, False), ("a b", False), ("\xe9", False), ("a\tb", False)],
)
def test_keeps_ids_of_up_to_128_visible_characters(served: Served, sent: str, kept: bool) -> None:
    answer = served.http.get("/health/live", headers=[(b"x-request-id", sent.encode("latin-1"))])
    assert (answer.headers["x-request-id"] == sent) is kept
    assert answer.headers["x-request-id"].isascii()


def _fresh(numbers: Any) -> None:
    numbers.put(request_id(None))


def test_processes_do_not_share_ids() -> None:
    context = get_context("spawn")
    numbers = context.Queue()
    workers = [context.Process(target=_fresh, args=(numbers,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    ids = {numbers.get(timeout=60) for _ in workers}
    for worker in workers:
        worker.join()
    assert len({*ids, request_id(None)}) == 3


def test_grpc_sends_the_id_with_answers_and_errors(served: Served) -> None:
    own = (("x-request-id", "mine-2"),)
    _, call = served.stub.Embed.with_call(pb.EmbedRequest(inputs=[pb.Input(text="a")]), metadata=own)
    assert dict(call.trailing_metadata())["x-request-id"] == "mine-2"
    with pytest.raises(grpc.RpcError) as refused:
        served.stub.Embed(pb.EmbedRequest(), metadata=own)
    trailing = dict(refused.value.trailing_metadata())
    assert (trailing["x-request-id"], trailing["inlay-code"]) == ("mine-2", "empty")
    _, first = served.stub.ListModels.with_call(pb.ListModelsRequest())
    _, second = served.stub.ListModels.with_call(pb.ListModelsRequest())
    assert dict(first.trailing_metadata())["x-request-id"] != dict(second.trailing_metadata())["x-request-id"]


def test_grpc_streams_send_the_id(served: Served) -> None:
    requests = iter([pb.EmbedRequest(inputs=[pb.Input(text="a")])])
    answers = served.stub.EmbedStream(requests, metadata=(("x-request-id", "mine-3"),))
    assert len(list(answers)) == 1
    assert dict(answers.trailing_metadata())["x-request-id"] == "mine-3"
    request = pb.PositionsRequest(scheme="rope", model="llama")
    request.parameters.update({"length": 2})
    rope = served.stub.Positions(request, metadata=(("x-request-id", "mine-4"),))
    assert list(rope)
    assert dict(rope.trailing_metadata())["x-request-id"] == "mine-4"


@pytest.fixture
def broken(tiny_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    async def fail(self: Any, *arguments: Any) -> Any:
        raise ZeroDivisionError("by a test")

    monkeypatch.setattr("service.embedding.pipeline.EmbeddingPipeline.embed", fail)
    with serving(tiny_store, default_model="bert") as service:
        yield service


def test_fault_is_logged_under_the_id_its_caller_got(broken: Served, caplog: pytest.LogCaptureFixture) -> None:
    answer: httpx.Response = broken.post({"inputs": "a"})
    assert answer.status_code == 500
    with pytest.raises(grpc.RpcError) as refused:
        broken.stub.Embed(pb.EmbedRequest(inputs=[pb.Input(text="a")]), metadata=(("x-request-id", "mine-5"),))
    assert refused.value.code() is grpc.StatusCode.INTERNAL
    lines = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    for number in (answer.headers["x-request-id"], "mine-5"):
        assert any("met a fault" in line and number in line for line in lines)
