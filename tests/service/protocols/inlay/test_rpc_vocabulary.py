"""Logits, Similar and Analysis over gRPC: bit for bit what HTTP gives, refused with the same codes."""

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts.export import export
from proto import embed_pb2 as pb
from service.heavy import lane
from service.protocols.inlay import rpc_tables, similar
from tests.golden_cases import case, write_checkpoint, write_tokenizer
from tests.served import Served, serving

GOLDEN = case("input_bert")
HIDDEN = GOLDEN.arrays["head_in"]
NUMPY: dict[int, Any] = {pb.FLOAT32: np.float32, pb.FLOAT64: np.float64, pb.INT64: np.int64}


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`bert` with a head and a tokenizer."""
    folder = tmp_path_factory.mktemp("heads")
    checkpoint = write_checkpoint(GOLDEN, folder / "bert")
    write_tokenizer(checkpoint / "tokenizer.json")
    export(checkpoint, folder / "store/bert")
    with serving(folder / "store") as service:
        yield service


def tensor(values: Any, dtype: Any = pb.FLOAT32) -> pb.Tensor:
    array = np.array(values, NUMPY[dtype])
    return pb.Tensor(dtype=dtype, shape=array.shape, data=array.tobytes())


def table_of(chunks: list[pb.PositionsChunk]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The facts and the outputs by name; each chunk must begin where the last one of its output ended."""
    data = {output.name: b"" for output in chunks[0].outputs}
    for chunk in chunks:
        if chunk.output:
            assert chunk.offset == len(data[chunk.output])
            data[chunk.output] += chunk.data
    return json.loads("".join(chunk.facts_json for chunk in chunks)), data


def refused(call: Callable[[], Any]) -> tuple[str, str, str]:
    """The status, the code and the message of a call that fails."""
    with pytest.raises(grpc.RpcError) as refusal:
        call()
    metadata = {each.key: each.value for each in refusal.value.trailing_metadata()}
    return refusal.value.code().name, metadata.get("inlay-code", ""), refusal.value.details()


# ---- Logits


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"dtype": pb.FLOAT16, "temperature": 0.5},
        {"output": "log_probabilities", "dtype": pb.FLOAT64},
        {"top_k": 3, "temperature": 2.0},
        {"top_k": 2, "output": "ids"},
    ],
)
def test_logits_are_those_of_http(heads: Served, fields: dict[str, Any]) -> None:
    chunks = list(heads.stub.Logits(pb.LogitsRequest(hidden=tensor(HIDDEN), **fields)))
    facts, data = table_of(chunks)
    body = {name: pb.DType.Name(value).lower() if name == "dtype" else value for name, value in fields.items()}
    body |= {"hidden": HIDDEN.tolist()}
    document = heads.http.post("/models/bert/logits", json=body).raise_for_status().json()
    assert facts == {name: value for name, value in document.items() if name not in data}
    for output in chunks[0].outputs:
        raw = heads.http.post("/models/bert/logits", json=body | {"format": "raw", "output": output.name})
        assert data[output.name] == raw.raise_for_status().content
        assert raw.headers["inlay-shape"] == ",".join(map(str, output.shape))
        assert raw.headers["inlay-dtype"] == pb.DType.Name(output.dtype).lower()


def test_long_facts_go_on_in_the_next_chunk(heads: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    request = pb.LogitsRequest(model="bert", hidden=tensor(HIDDEN), top_k=5)
    facts, data = table_of(list(heads.stub.Logits(request)))
    monkeypatch.setattr(rpc_tables, "FACTS_CHARACTERS", 100)
    chunks = list(heads.stub.Logits(request))
    assert sum(bool(chunk.facts_json) for chunk in chunks) > 3
    assert table_of(chunks) == (facts, data)


LOGITS_ERRORS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"model": "bart"}, "NOT_FOUND", "unknown_model", "did you mean 'bert'"),
    ({}, "INVALID_ARGUMENT", "missing_field", "hidden is missing"),
    ({"hidden": tensor([1.0, 2.0])}, "INVALID_ARGUMENT", "wrong_shape", "hidden has shape [2]"),
    (
        {"hidden": pb.Tensor(shape=[2], data=b"123")},
        "INVALID_ARGUMENT",
        "wrong_type",
        "hidden cannot be read: data has",
    ),
    ({"hidden": tensor(HIDDEN), "top_k": 0}, "INVALID_ARGUMENT", "out_of_range", "top_k is 0"),
    ({"hidden": tensor(HIDDEN), "top_k": 9999}, "INVALID_ARGUMENT", "out_of_range", "top_k is 9999"),
    ({"hidden": tensor(HIDDEN), "temperature": 0.0}, "INVALID_ARGUMENT", "out_of_range", "temperature is 0.0"),
    ({"hidden": tensor(HIDDEN), "output": "ids"}, "INVALID_ARGUMENT", "conflicting_fields", "ids goes with top_k"),
    ({"hidden": tensor(HIDDEN), "output": "x"}, "INVALID_ARGUMENT", "unknown_value", 'output is "x"'),
    ({"hidden": tensor(HIDDEN), "dtype": pb.INT64}, "INVALID_ARGUMENT", "unknown_value", "dtype is INT64"),
]


@pytest.mark.parametrize(("fields", "status", "code", "said"), LOGITS_ERRORS)
def test_logits_errors_have_a_status_and_a_code(
    heads: Served, fields: dict[str, Any], status: str, code: str, said: str
) -> None:
    got = refused(lambda: list(heads.stub.Logits(pb.LogitsRequest(**fields))))
    assert got[:2] == (status, code)
    assert said in got[2]


def test_a_model_without_a_head_has_no_logits(served: Served) -> None:
    request = pb.LogitsRequest(model="bert", hidden=tensor(HIDDEN))
    assert refused(lambda: list(served.stub.Logits(request)))[:2] == ("NOT_FOUND", "not_found")


# ---- Similar

VECTOR = np.linspace(-1, 1, 32).astype(np.float32)
SIMILAR: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"token_id": 5}, {"token": 5}),
    ({"token": "hello", "top_k": 3}, {"token": "hello", "top_k": 3}),
    ({"text": "hello world", "measure": "dot"}, {"text": "hello world", "measure": "dot"}),
    ({"vector": tensor(VECTOR), "exclude_inputs": False}, {"vector": VECTOR.tolist(), "exclude_inputs": False}),
    (
        {
            "positive": [pb.SimilarItem(id=5), pb.SimilarItem(vector=tensor(VECTOR))],
            "negative": [pb.SimilarItem(text="world")],
            "normalize": True,
        },
        {"positive": [5, VECTOR.tolist()], "negative": ["world"], "normalize": True},
    ),
]


@pytest.mark.parametrize(("fields", "body"), SIMILAR)
def test_similar_tokens_are_those_of_http(served: Served, fields: dict[str, Any], body: dict[str, Any]) -> None:
    rest = served.http.post("/models/bert/similar", json=body).raise_for_status().json()
    answer = served.stub.Similar(pb.SimilarRequest(model="bert", **fields))
    assert [(each.id, each.token, each.score) for each in answer.results] == [
        (each["id"], each["token"], each["score"]) for each in rest["results"]
    ]
    assert [(each.id, each.token) for each in answer.inputs] == [(each["id"], each["token"]) for each in rest["inputs"]]
    table = {"name": answer.table, "shape": list(answer.table_shape), "dtype": answer.table_dtype}
    assert (answer.model, answer.measure, table) == (rest["model"], rest["measure"], rest["table"])


SIMILAR_ERRORS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"model": "bart", "token": "a"}, "NOT_FOUND", "unknown_model", "bart"),
    ({}, "INVALID_ARGUMENT", "conflicting_fields", "none came"),
    (
        {"token": "a", "positive": [pb.SimilarItem(id=5)]},
        "INVALID_ARGUMENT",
        "conflicting_fields",
        "token and positive",
    ),
    ({"negative": [pb.SimilarItem(id=5)]}, "INVALID_ARGUMENT", "missing_field", "negative takes away from positive"),
    ({"positive": [pb.SimilarItem()]}, "INVALID_ARGUMENT", "missing_field", "positive[0] is empty"),
    ({"token_id": -1}, "INVALID_ARGUMENT", "out_of_range", "token is -1"),
    ({"token": "hello world"}, "INVALID_ARGUMENT", "bad_request", "is 2 tokens"),
    ({"vector": tensor([1.0, 2.0])}, "INVALID_ARGUMENT", "bad_request", "2"),
    ({"token": "a", "top_k": 1001}, "INVALID_ARGUMENT", "out_of_range", "top_k is 1001"),
    ({"token": "a", "measure": "x"}, "INVALID_ARGUMENT", "unknown_value", 'measure is "x"'),
]


@pytest.mark.parametrize(("fields", "status", "code", "said"), SIMILAR_ERRORS)
def test_similar_errors_have_a_status_and_a_code(
    served: Served, fields: dict[str, Any], status: str, code: str, said: str
) -> None:
    got = refused(lambda: served.stub.Similar(pb.SimilarRequest(**fields)))
    assert got[:2] == (status, code)
    assert said in got[2]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Holds up searches; set once one has begun."""
    begun, go_on, search = threading.Event(), threading.Event(), similar.nearest

    def nearest(*arguments: Any, **options: Any) -> Any:
        begun.set()
        go_on.wait()
        return search(*arguments, **options)

    monkeypatch.setattr(similar, "nearest", nearest)
    yield begun
    go_on.set()


def test_a_deadline_ends_the_call(served: Served, held: threading.Event) -> None:
    request = pb.SimilarRequest(token="hello")
    assert refused(lambda: served.stub.Similar(request, timeout=0.2))[0] == "DEADLINE_EXCEEDED"


def test_http_and_grpc_wait_in_one_queue(
    served: Served, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = pb.SimilarRequest(token="hello")
    running = served.stub.Similar.future(request)
    assert held.wait(30)
    monkeypatch.setattr(lane, "MAX_WAITING", 0)
    assert refused(lambda: served.stub.Similar(request))[:2] == ("RESOURCE_EXHAUSTED", "overloaded")
    assert served.http.post("/models/bert/similar", json={"token": "hello"}).status_code == 429
    running.cancel()


# ---- Analysis


def test_analysis_is_that_of_http(served: Served) -> None:
    rest = served.http.get("/models/bert/analysis").raise_for_status().json()
    answer = served.stub.Analysis(pb.AnalysisRequest(model="bert"))
    values: NDArray[np.float64] = np.frombuffer(answer.singular_values.data, np.float64)
    assert values.tolist() == rest["spectrum"].pop("singular_values")
    assert (answer.singular_values.dtype, list(answer.singular_values.shape)) == (pb.FLOAT64, [len(values)])
    assert json.loads(answer.analysis_json) == rest


def test_analysis_without_a_spectrum(served: Served) -> None:
    rest = served.http.get("/models/bert/analysis?spectrum=false").raise_for_status().json()
    answer = served.stub.Analysis(pb.AnalysisRequest(spectrum=False))
    assert json.loads(answer.analysis_json) == rest
    assert not answer.HasField("singular_values")


def test_analysis_of_an_unknown_model_is_not_found(served: Served) -> None:
    got = refused(lambda: served.stub.Analysis(pb.AnalysisRequest(model="bart")))
    assert got[:2] == ("NOT_FOUND", "unknown_model")
