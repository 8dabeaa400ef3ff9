"""Large requests of every kind are read and computed beside the server: what goes over a limit fails alone."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from proto import embed_pb2 as pb
from tests.served import Served, serving

HANGUL = "각!" * 2**16
REQUESTS: dict[str, Callable[[], tuple[str, Any]]] = {
    "lists in JSON": lambda: ("/positions/learned", {"length": 1, "weights": [[]] * 2**20}),
    "rows in a string": lambda: ("/positions/mask", {"query_length": 8, "attention_mask": "1;" * 2**22 + "1"}),
    "a search's vector": lambda: ("/models/bert/similar", {"vector": [[0.5, 0.25]] * 2**19}),
    "tokens of a long text": lambda: ("/tokenize", {"inputs": HANGUL}),
    "a figure": lambda: ("/positions/rope.png?head_dim=64&width=4000&height=4000", None),
}


@pytest.fixture(scope="module")
def limited(tiny_store: Path) -> Iterator[Served]:
    with serving(tiny_store, default_model="bert", heavy_memory_bytes=32 * 2**20) as served:
        yield served


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_without_enough_memory_fails_alone(limited: Served, name: str) -> None:
    path, body = REQUESTS[name]()
    answer = limited.http.get(path) if body is None else limited.http.post(path, json=body)
    assert (answer.status_code, answer.json().get("code", "body_too_large")) == (413, "body_too_large"), answer.text
    assert "INLAY_HEAVY_MEMORY_BYTES" in answer.text
    assert limited.post({"inputs": [[5, 6]]}).status_code == 200
    assert limited.http.post("/positions/rope", json={"head_dim": 8, "length": 2}).status_code == 200


def test_a_call_without_enough_memory_fails_alone(limited: Served) -> None:
    request = pb.PositionsRequest(scheme="mask")
    request.parameters.update({"query_length": 8, "attention_mask": "1;" * 2**22 + "1"})
    with pytest.raises(grpc.RpcError) as caught:
        list(limited.stub.Positions(request))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "INLAY_HEAVY_MEMORY_BYTES" in caught.value.details()


def test_metrics_count_what_the_process_did(limited: Served) -> None:
    path, body = REQUESTS["lists in JSON"]()
    limited.http.post(path, json=body)
    lines = dict(
        line.split(" ")
        for line in limited.http.get("/metrics").text.splitlines()
        if "inlay_heavy" in line and line[0] != "#"
    )
    assert float(lines["inlay_heavy_ended_total"]) >= 1
    assert float(lines["inlay_heavy_tasks_total"]) >= 1
    assert float(lines["inlay_heavy_waiting"]) == 0


def test_threads_read_large_requests_without_processes(tiny_store: Path) -> None:
    with serving(tiny_store, default_model="bert", heavy_processes=0) as served:
        positions = list(range(0, 2**18, 2))
        answer = served.http.post("/positions/sinusoidal", json={"dim": 2, "positions": positions, "format": "raw"})
        assert len(answer.content) == 2 * 4 * len(positions)
