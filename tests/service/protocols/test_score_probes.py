"""The questions of test_probes.py to every route that ranks, scores or classifies, in the answers of its protocol."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import orjson
import pytest

from proto import open_inference_pb2 as oip
from proto import tei_pb2 as tei
from proto.open_inference_pb2_grpc import GRPCInferenceServiceStub
from proto.tei_pb2_grpc import PredictStub, RerankStub
from service.embedding.requests import Text
from tests.embed_requests import embed_request
from tests.score_models import EMBEDDER, RANKER
from tests.score_roads import strings
from tests.served import Here, Served, serving, serving_here

MOST, MOST_BYTES = 8, 50_000
LONG, HUGE = "a " * 60, "x" * (MOST_BYTES + 1)
JSON = {"content-type": "application/json"}
Body = Callable[[list[str]], dict[str, Any]]


def problem(document: Any) -> str:
    assert {"error", "error_type", "status"} <= set(document)
    return str(document["error"])


def coheres(document: Any) -> str:
    assert set(document) == {"id", "message", "detail"}
    return str(document["message"])


def openais(document: Any) -> str:
    assert set(document["error"]) == {"message", "type", "param", "code"}
    return str(document["error"]["message"])


def oips(document: Any) -> str:
    assert set(document) == {"error"}
    return str(document["error"])


@dataclass(frozen=True)
class Wire:
    """A route that scores texts.

    Args:
        body: for these texts, each with the same query where the route reads pairs.
        uncut: fields of a body whose texts must not be cut; None: it has none such.
        fault: the sentence in an error, once it is found to look as its protocol's do.
        invalid: the status of a body that cannot be served; `kind`, `full`, `keyless`: of a model of another kind, a
            full queue and a caller without a key.
        names_model: how a body names another model; None: the path does.
    """

    path: str
    body: Body
    uncut: dict[str, Any] | None
    fault: Callable[[Any], str]
    invalid: int
    kind: int
    full: int = 429
    keyless: int = 401
    names_model: str | None = "model"


def tensors(texts: list[str]) -> dict[str, Any]:
    return {"inputs": [strings("text", ["a b"]), strings("text_pair", texts)]}


def pairs(texts: list[str]) -> dict[str, Any]:
    return {"inputs": [["a b", text] for text in texts]}


def ranking(texts: list[str]) -> dict[str, Any]:
    return {"query": "a b", "texts": texts}


def documents(texts: list[str]) -> dict[str, Any]:
    return {"query": "a b", "documents": texts}


def two_texts(texts: list[str]) -> dict[str, Any]:
    return {"text_1": "a b", "text_2": texts}


UNCUT, TRUNCATION = {"truncate": False}, {"truncation": False}
INFER = f"/v2/models/{RANKER}/infer"
WIRES = {
    "TEI rerank": Wire("/rerank", ranking, UNCUT, problem, 422, 424),
    "TEI predict": Wire("/predict", pairs, UNCUT, problem, 422, 424),
    "TEI root": Wire("/", ranking, UNCUT, problem, 422, 424),
    "Jina": Wire("/rerank", documents, TRUNCATION, coheres, 400, 200),
    "Cohere v1": Wire("/v1/rerank", documents, TRUNCATION, coheres, 400, 200),
    "Cohere v2": Wire("/v2/rerank", documents, TRUNCATION, coheres, 400, 200),
    "vLLM score": Wire("/score", two_texts, None, openais, 400, 200),
    "vLLM score, v1": Wire("/v1/score", two_texts, None, openais, 400, 200),
    "vLLM classify": Wire("/classify", lambda texts: {"input": texts}, None, openais, 400, 400),
    "OIP": Wire(INFER, tensors, {"parameters": UNCUT}, oips, 400, 400, 503, 403, None),
}
Ask = Callable[..., tuple[int, Any]]


@contextmanager
def asking(address: tuple[str, int]) -> Iterator[Ask]:
    with httpx.Client(base_url="http://{}:{}".format(*address), trust_env=False, timeout=60) as http:

        def ask(wire: Wire, body: Any, headers: Mapping[str, str] = JSON) -> tuple[int, Any]:
            content = body if isinstance(body, bytes) else orjson.dumps(body)
            answer = http.post(wire.path, content=content, headers=headers)
            return answer.status_code, answer.json()

        yield ask


@pytest.fixture(scope="module")
def ask(score_store: Path) -> Iterator[Ask]:
    with (
        serving(score_store, default_model=RANKER, max_inputs=MOST, max_body_bytes=MOST_BYTES) as service,
        asking(service.address) as asked,
    ):
        yield asked


def refused(asked: tuple[int, Any], wire: Wire, status: int, says: str) -> None:
    code, document = asked
    assert code == status, document
    assert says in wire.fault(document)


every_wire = pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)


@every_wire
def test_one_text_an_empty_text_and_many_are_served(ask: Ask, wire: Wire) -> None:
    for texts in (["c"], [""], ["c"] * MOST, [LONG]):
        status, document = ask(wire, wire.body(texts))
        assert status == 200, document


@every_wire
def test_no_texts_are_refused(ask: Ask, wire: Wire) -> None:
    empty = 422 if wire.path == "/predict" else 400
    refused(ask(wire, wire.body([])), wire, empty, "is a list of 0" if wire.path == "/predict" else "empty")


@every_wire
def test_more_texts_than_the_limit_are_refused(ask: Ask, wire: Wire) -> None:
    refused(ask(wire, wire.body(["c"] * (MOST + 1))), wire, wire.invalid, str(MOST))


@every_wire
def test_a_long_text_that_must_not_be_cut_is_refused(ask: Ask, wire: Wire) -> None:
    if wire.uncut is None:
        pytest.skip("the protocol has no such field")
    refused(ask(wire, wire.body(["c", LONG]) | wire.uncut), wire, wire.invalid, "this model reads 24")


@every_wire
def test_other_models_are_answered_by_their_kind(ask: Ask, wire: Wire) -> None:
    if wire.names_model is None:
        pytest.skip("the path names the model")
    refused(ask(wire, wire.body(["c"]) | {"model": "nobody"}), wire, 404, "nobody")
    status, document = ask(wire, wire.body(["c"]) | {"model": EMBEDDER})
    assert status == wire.kind, document
    if status != 200:
        assert "Model is not a" in wire.fault(document)


@every_wire
def test_broken_bodies_are_refused(ask: Ask, wire: Wire) -> None:
    broken = b'{"documents": [' if wire is WIRES["Jina"] else b'{"inputs": ['
    code, document = ask(wire, broken)
    assert code == 400
    assert "JSON" in (problem if wire.path == "/rerank" else wire.fault)(document)
    wrong = {name: 5 for name in wire.body(["c"])}
    status, document = ask(wire, wrong)
    assert status == wire.invalid, document
    assert wire.fault(document)


@every_wire
def test_bodies_over_the_limit_are_refused(ask: Ask, wire: Wire) -> None:
    code, document = ask(wire, wire.body([HUGE]))
    assert code == (400 if wire is WIRES["OIP"] else 413)
    assert str(MOST_BYTES) in (problem if wire.path == "/rerank" else wire.fault)(document)


@every_wire
def test_bodies_without_a_type_are_refused(ask: Ask, wire: Wire) -> None:
    status, document = ask(wire, orjson.dumps(wire.body(["c"])), {})
    if wire is WIRES["OIP"]:  # tritonclient sends none
        assert status == 200, document
    else:
        assert status == 415, document
        assert "application/json" in (problem if wire.path == "/rerank" else wire.fault)(document)


@every_wire
def test_callers_without_a_key_are_refused(guarded: Ask, wire: Wire) -> None:
    for headers in (JSON, JSON | {"authorization": "Bearer wrong"}):
        code, document = guarded(wire, wire.body(["c"]), headers)
        assert code == wire.keyless
        assert (problem if wire.path == "/rerank" else wire.fault)(document)
    status, _ = guarded(wire, wire.body(["c"]), JSON | {"authorization": "Bearer right"})
    assert status == 200


@pytest.fixture(scope="module")
def guarded(score_store: Path) -> Iterator[Ask]:
    with serving(score_store, default_model=RANKER, api_keys="right") as service, asking(service.address) as asked:
        yield asked


@pytest.mark.parametrize(
    "path", ["/rerank", "/predict", "/", "/v1/rerank", "/v2/rerank", "/score", "/v1/score", "/classify"]
)
def test_examples_of_the_openapi_document_are_served(described: Served, path: str) -> None:
    content = described.http.get("/openapi.json").json()["paths"][path]["post"]["requestBody"]["content"]
    examples = [example["value"] for example in content["application/json"]["examples"].values()]
    assert examples
    for example in examples:
        model = (
            EMBEDDER if path == "/" and type(example.get("inputs")) is not str and "query" not in example else RANKER
        )
        answer = described.http.post(path, json=example | {"model": model})
        assert answer.status_code == 200, answer.text


@pytest.fixture(scope="module")
def described(score_store: Path) -> Iterator[Served]:
    with serving(score_store, default_model=RANKER) as service:
        yield service


# ---- services held in mid-flight

RPCS: dict[str, tuple[Any, Any]] = {
    "Rerank": (RerankStub, tei.RerankRequest(query="a b", texts=["c"])),
    "RerankStream": (RerankStub, [tei.RerankStreamRequest(query="a b", text="c")]),
    "Predict": (PredictStub, tei.PredictRequest(inputs="c")),
    "PredictPair": (PredictStub, tei.PredictPairRequest(inputs=["a b", "c"])),
    "ModelInfer": (GRPCInferenceServiceStub, oip.ModelInferRequest(model_name=RANKER)),
}
for name in ("text", "text_pair"):
    message = RPCS["ModelInfer"][1].inputs.add(name=name, datatype="BYTES", shape=[1])
    message.contents.bytes_contents.append(b"a b")


class Held:
    """A service whose engine is held in its first run, and how many sequences it was given to compute."""

    def __init__(self, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
        self.here, self.running, self._free, self.sequences = here, asyncio.Event(), threading.Event(), 0
        engine, loop = here.context.registry.get(RANKER).engine, asyncio.get_running_loop()
        run = engine.run

        def hold(graph: str, feeds: Mapping[str, Any], outputs: Any) -> Any:
            self.sequences += len(feeds.get("lengths", ()))
            loop.call_soon_threadsafe(self.running.set)
            assert self._free.wait(60)
            return run(graph, feeds, outputs)

        monkeypatch.setattr(engine, "run", hold)

    def embed(self, text: str) -> "asyncio.Future[Any]":
        return asyncio.ensure_future(self.here.context.embedder.embed(embed_request([Text(text)], RANKER)))

    def let_go(self) -> None:
        self._free.set()

    @property
    def waiting(self) -> int:
        return sum([batcher.waiting_items for batcher in self.here.context.registry.get(RANKER).batchers.values()])


@asynccontextmanager
async def holding(store: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> AsyncIterator[Held]:
    async with serving_here(store, default_model=RANKER, **settings) as here:
        held = Held(here, monkeypatch)
        try:
            yield held
        finally:
            held.let_go()


async def test_a_full_queue_is_reported_by_every_wire(score_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with holding(score_store, monkeypatch, max_queue_tokens=8) as held:
        first = held.embed("a b c d")
        await held.running.wait()
        second = held.embed("e f g h j i")
        with asking(held.here.address) as ask:
            for wire in WIRES.values():
                asked = await asyncio.to_thread(ask, wire, wire.body(["c"]))
                refused(asked, wire, wire.full, "queue holds 8")
        async with grpc.aio.insecure_channel(held.here.rpc_address) as channel:
            for name, (stub, sent) in RPCS.items():
                with pytest.raises(grpc.aio.AioRpcError) as refusal:
                    await getattr(stub(channel), name)(iter(sent) if isinstance(sent, list) else sent)
                assert refusal.value.code().name == ("UNAVAILABLE" if name == "ModelInfer" else "RESOURCE_EXHAUSTED")
        held.let_go()
        await asyncio.gather(first, second)


async def test_callers_that_leave_before_their_run_cause_none(
    score_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with holding(score_store, monkeypatch) as held:
        first = held.embed("a")  # none of the others is so light that it would run beside it
        await held.running.wait()
        with httpx.Client(base_url="http://{}:{}".format(*held.here.address), trust_env=False, timeout=60) as http:
            for wire in WIRES.values():
                before = held.waiting
                _, connection = await asyncio.open_connection(*held.here.address)
                body = orjson.dumps(wire.body(["c", "d"]))
                head = f"POST {wire.path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"
                connection.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
                await until(lambda before=before: held.waiting > before)  # type: ignore[misc]
                connection.close()
                await until(lambda: held.here.context.admission.active == 0)
            async with grpc.aio.insecure_channel(held.here.rpc_address) as channel:
                for name, (stub, sent) in RPCS.items():
                    before = held.waiting
                    call = asyncio.ensure_future(_awaited(getattr(stub(channel), name), sent))
                    await until(lambda before=before: held.waiting > before)  # type: ignore[misc]
                    call.cancel()
                    cancelled = re.compile(rf'"[a-z.]*{name}".*"CANCELLED"')
                    while not cancelled.search((await asyncio.to_thread(http.get, "/metrics")).text):
                        pass
        held.let_go()
        await first
        await held.embed("e f")
        assert held.sequences == 2


async def _awaited(method: Any, sent: Any) -> Any:
    return await method(iter(sent) if isinstance(sent, list) else sent)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)
