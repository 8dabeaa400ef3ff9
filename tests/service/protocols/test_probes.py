"""Requests on which embedding servers differ, as one table of rows x protocols with one runner.

A row is a question every protocol is asked in its own form; a cell is what it answers, in its own words and code.
Rows 9 and 13 need a service held in mid-flight and row 10 one with keys: they have runners of their own; row 20 has a
test elsewhere.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import orjson
import pytest
from numpy.typing import NDArray

from proto import open_inference_pb2 as oip
from proto import tei_pb2 as tei
from proto.open_inference_pb2_grpc import GRPCInferenceServiceStub
from proto.tei_pb2_grpc import EmbedStub
from service.embedding.requests import Ids
from tests.embed_requests import embed_request
from tests.served import Here, Served, serving, serving_here

ROOT = Path(__file__).parents[3]
ROWS = range(1, 21)
MOST_INPUTS, WIDTH, VOCABULARY = 64, 32, 37  # of `served` and its `bert`
LONG_TEXT = "a b c d e " * 8
JSON = {"content-type": "application/json"}


# ---- what is sent


@dataclass(frozen=True)
class Http:
    """A POST: a document as JSON, or bytes as they are."""

    path: str
    body: Any
    fields: dict[str, str] = field(default_factory=lambda: JSON)


def embed(inputs: Any, **members: Any) -> Http:
    return Http("/embed", {"inputs": inputs} | members)


def openai(inputs: Any, model: str = "bert", **members: Any) -> Http:
    return Http("/v1/embeddings", {"input": inputs, "model": model} | members)


def cohere(texts: Any, model: str = "bert", **members: Any) -> Http:
    return Http("/v2/embed", {"texts": texts, "model": model, "input_type": "search_query"} | members)


def ollama(texts: Any, model: str = "bert", **members: Any) -> Http:
    return Http("/api/embed", {"input": texts, "model": model} | members)


def ids_tensor(rows: list[list[int]], datatype: str = "INT64") -> dict[str, Any]:
    shape = [len(rows), max(map(len, rows), default=0)]
    return {"name": "input_ids", "shape": shape, "datatype": datatype, "data": rows}


def text_tensor(texts: list[str]) -> dict[str, Any]:
    return {"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": texts}


def infer(*inputs: dict[str, Any], model: str = "bert", **parameters: Any) -> Http:
    document = {"inputs": inputs} | ({"parameters": parameters} if parameters else {})
    return Http(f"/v2/models/{model}/infer", document)


def binary(header: str, size: int = 24, raw: bytes = bytes(24)) -> Http:
    """Three INT64 ids behind a JSON part, whose length the header says unless it says something else."""
    tensor = {"name": "input_ids", "shape": [1, 3], "datatype": "INT64", "parameters": {"binary_data_size": size}}
    part = orjson.dumps({"inputs": [tensor]})
    fields = {"inference-header-content-length": header or str(len(part))}
    return Http("/v2/models/bert/infer", part + raw, fields)


def raw_ids(*rows: list[int], model: str = "bert", parameters: dict[str, Any] | None = None) -> oip.ModelInferRequest:
    array = np.array(rows, "<i8").reshape(len(rows), -1)
    tensor = oip.ModelInferRequest.InferInputTensor(name="input_ids", datatype="INT64", shape=array.shape)
    return oip.ModelInferRequest(
        model_name=model, inputs=[tensor], raw_input_contents=[array.tobytes()], parameters=parameters or {}
    )


def mixed_contents() -> oip.ModelInferRequest:
    request = raw_ids([5, 6, 7])
    request.inputs[0].contents.int64_contents.extend([5, 6, 7])
    return request


def uneven_contents() -> oip.ModelInferRequest:
    request = raw_ids([5, 6, 7])
    request.raw_input_contents.append(bytes(24))
    return request


def tei_embed(text: str, **members: Any) -> tei.EmbedRequest:
    return tei.EmbedRequest(inputs=text, **members)


Sent = Http | oip.ModelInferRequest | tei.EmbedRequest

# ---- what comes back


@dataclass(frozen=True)
class Vectors:
    """As many vectors as inputs, bit for bit those /embed gives for these inputs as one list."""

    inputs: list[Any]


@dataclass(frozen=True)
class Refused:
    """An HTTP status or the name of a gRPC one, and a part of what is said."""

    code: int | str
    says: str = ""


@dataclass(frozen=True)
class Probe:
    """One cell: the row's number, the protocol, what is sent and what must come back."""

    row: int
    protocol: str
    sent: Sent
    expects: Vectors | Refused

    def __str__(self) -> str:
        said = self.expects.code if isinstance(self.expects, Refused) else f"{len(self.expects.inputs)} vectors"
        return f"{self.row}-{self.protocol}-{said}"


def openai_fault(document: Any) -> str:
    assert set(document) == {"error"}
    assert set(document["error"]) == {"message", "type", "param", "code"}
    return str(document["error"]["message"])


def cohere_fault(document: Any) -> str:
    assert {"id", "message"} <= set(document)
    return str(document["message"])


def ollama_fault(document: Any) -> str:
    assert set(document) == {"error"}
    return str(document["error"])


def oip_fault(document: Any) -> str:
    assert set(document) == {"error"}
    return str(document["error"])


TEI_TYPES = {400: ("Empty", "Validation"), 404: ("Validation",), 413: ("Validation",), 415: ("Validation",)} | {
    401: ("Validation",),
    422: ("Validation",),
    429: ("Overloaded",),
}


def tei_fault(document: Any) -> str:
    assert document["error_type"] in TEI_TYPES[document["status"]]
    return str(document["error"])


def oip_vectors(document: Any) -> list[list[float]]:
    [output] = document["outputs"]
    assert output["name"] == "sentence_embedding"
    assert output["datatype"] == "FP32"
    return np.array(output["data"]).reshape(output["shape"]).tolist()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Wording:
    """How an HTTP protocol spells vectors and faults."""

    vectors: Callable[[Any], Any]
    fault: Callable[[Any], str]


WORDINGS = {
    "TEI": Wording(lambda document: document, tei_fault),
    "OpenAI": Wording(lambda document: [item["embedding"] for item in document["data"]], openai_fault),
    "Cohere": Wording(lambda document: document["embeddings"]["float"], cohere_fault),
    "Ollama": Wording(lambda document: document["embeddings"], ollama_fault),
    "OIP": Wording(oip_vectors, oip_fault),
}

# ---- the table

ONE, IDS = "hello world", [5, 6, 7]
MANY = [[5]] * (MOST_INPUTS + 1)
BROKEN, HUGE = b'{"inputs": [', b'{"inputs": "' + b"x" * 100_001 + b'"}'
PADDED = [
    ids_tensor([[5, 6], [7, 0]]),
    {"name": "attention_mask", "shape": [2, 2], "datatype": "INT64", "data": [1, 1, 1, 0]},
]

PROBES = [
    # 1 no items; an empty text is one: sentence-transformers gives it a vector, OpenAI and tei.v1 refuse it
    Probe(1, "TEI", embed([]), Refused(400, "empty")),
    Probe(1, "TEI", embed(""), Vectors([""])),
    Probe(1, "OpenAI", openai([]), Refused(400, "empty")),
    Probe(1, "OpenAI", openai(""), Refused(400)),
    Probe(1, "OpenAI", openai([ONE, ""]), Refused(400)),
    Probe(1, "Cohere", cohere([]), Refused(400, "empty")),
    Probe(1, "Cohere", cohere([""]), Vectors([""])),
    Probe(1, "Ollama", ollama([]), Vectors([])),
    Probe(1, "Ollama", ollama([ONE, ""]), Vectors([ONE, ""])),
    Probe(1, "OIP", infer(), Refused(400)),
    Probe(1, "OIP", infer(text_tensor([])), Refused(400)),
    Probe(1, "OIP", infer(text_tensor([""])), Vectors([""])),
    Probe(1, "OIP", infer({"name": "input_ids", "shape": [0, 4], "datatype": "INT64", "data": []}), Refused(400)),
    Probe(1, "OIP gRPC", oip.ModelInferRequest(model_name="bert"), Refused("INVALID_ARGUMENT")),
    Probe(1, "TEI gRPC", tei_embed(""), Refused("INVALID_ARGUMENT", "empty")),
    # 2 one string and a list of one
    Probe(2, "TEI", embed(ONE), Vectors([ONE])),
    Probe(2, "TEI", embed([ONE]), Vectors([ONE])),
    Probe(2, "OpenAI", openai(ONE), Vectors([ONE])),
    Probe(2, "OpenAI", openai([ONE]), Vectors([ONE])),
    Probe(2, "Cohere", cohere([ONE]), Vectors([ONE])),
    Probe(2, "Cohere", cohere(ONE), Refused(400, "texts")),
    Probe(2, "Ollama", ollama(ONE), Vectors([ONE])),
    Probe(2, "Ollama", ollama([ONE]), Vectors([ONE])),
    Probe(2, "OIP", infer(text_tensor([ONE])), Vectors([ONE])),
    Probe(2, "TEI gRPC", tei_embed(ONE), Vectors([ONE])),
    # 3 one list of ids
    Probe(3, "TEI", embed(IDS), Vectors([IDS])),
    Probe(3, "OpenAI", openai(IDS), Vectors([IDS])),
    Probe(3, "OIP", infer(ids_tensor([IDS])), Vectors([IDS])),
    Probe(3, "OIP gRPC", raw_ids(IDS), Vectors([IDS])),
    # 4 two lists of ids
    Probe(4, "TEI", embed([[5, 6], [7]]), Vectors([[5, 6], [7]])),
    Probe(4, "OpenAI", openai([[5, 6], [7]]), Vectors([[5, 6], [7]])),
    Probe(4, "OIP", infer(*PADDED), Vectors([[5, 6], [7]])),
    # 5 more inputs than the limit
    Probe(5, "TEI", embed(MANY), Refused(422, str(MOST_INPUTS))),
    Probe(5, "OpenAI", openai(MANY), Refused(400, str(MOST_INPUTS))),
    Probe(5, "Cohere", cohere(["a"] * (MOST_INPUTS + 1)), Refused(400, str(MOST_INPUTS))),
    Probe(5, "Ollama", ollama(["a"] * (MOST_INPUTS + 1)), Refused(400, str(MOST_INPUTS))),
    Probe(5, "OIP", infer(ids_tensor(MANY)), Refused(400, str(MOST_INPUTS))),
    Probe(5, "OIP gRPC", raw_ids(*MANY), Refused("INVALID_ARGUMENT", str(MOST_INPUTS))),
    # 6 a text longer than the model reads, not to be cut; OpenAI's form has no such member, tei.v1 cuts only if told to
    Probe(6, "TEI", embed(LONG_TEXT, truncate=False), Refused(422, "24")),
    Probe(6, "OpenAI", openai(LONG_TEXT), Vectors([LONG_TEXT])),
    Probe(6, "Cohere", cohere([LONG_TEXT]), Vectors([LONG_TEXT])),
    Probe(6, "Cohere", cohere([LONG_TEXT], truncate="NONE"), Refused(400, "24")),
    Probe(6, "Ollama", ollama(LONG_TEXT), Vectors([LONG_TEXT])),
    Probe(6, "Ollama", ollama(LONG_TEXT, truncate=False), Refused(400, "24")),
    Probe(6, "OIP", infer(text_tensor([LONG_TEXT]), truncate=False), Refused(400, "24")),
    Probe(6, "TEI gRPC", tei_embed(LONG_TEXT), Refused("INVALID_ARGUMENT", "24")),
    Probe(6, "TEI gRPC", tei_embed(LONG_TEXT, truncate=True), Vectors([LONG_TEXT])),
    # 7 dimensions 0, and too many
    Probe(7, "TEI", embed(ONE, dimensions=0), Refused(422, "dimensions")),
    Probe(7, "TEI", embed(ONE, dimensions=WIDTH + 1), Refused(422, str(WIDTH))),
    Probe(7, "OpenAI", openai(ONE, dimensions=0), Refused(400, "dimensions")),
    Probe(7, "OpenAI", openai(ONE, dimensions=WIDTH + 1), Refused(400, str(WIDTH))),
    Probe(7, "Cohere", cohere([ONE], output_dimension=0), Refused(400, "output_dimension")),
    Probe(7, "Cohere", cohere([ONE], output_dimension=WIDTH + 1), Refused(400, str(WIDTH))),
    Probe(7, "Ollama", ollama(ONE, dimensions=0), Vectors([ONE])),
    Probe(7, "Ollama", ollama(ONE, dimensions=WIDTH + 1), Refused(400, str(WIDTH))),
    Probe(7, "OIP", infer(text_tensor([ONE]), dimensions=0), Refused(400, "dimensions")),
    Probe(7, "OIP", infer(text_tensor([ONE]), dimensions=WIDTH + 1), Refused(400, str(WIDTH))),
    Probe(7, "TEI gRPC", tei_embed(ONE, dimensions=0), Refused("INVALID_ARGUMENT", "dimensions")),
    Probe(7, "TEI gRPC", tei_embed(ONE, dimensions=WIDTH + 1), Refused("INVALID_ARGUMENT", str(WIDTH))),
    # 8 a model that is not here; tei.v1 names none
    Probe(8, "TEI", embed(ONE, model="nobody"), Refused(404, "nobody")),
    Probe(8, "OpenAI", openai(ONE, model="nobody"), Refused(404, "nobody")),
    Probe(8, "Cohere", cohere([ONE], model="nobody"), Refused(404, "nobody")),
    Probe(8, "Ollama", ollama(ONE, model="nobody"), Refused(404, "nobody")),
    Probe(8, "OIP", infer(ids_tensor([IDS]), model="nobody"), Refused(404, "nobody")),
    Probe(8, "OIP gRPC", raw_ids(IDS, model="nobody"), Refused("NOT_FOUND", "nobody")),
    # 11 broken JSON, and a wrong type
    Probe(11, "TEI", Http("/embed", BROKEN), Refused(400, "JSON")),
    Probe(11, "TEI", embed(5), Refused(422, "inputs")),
    Probe(11, "TEI", embed(ONE, normalize="yes"), Refused(422, "normalize")),
    Probe(11, "OpenAI", Http("/v1/embeddings", BROKEN), Refused(400, "JSON")),
    Probe(11, "OpenAI", openai(5), Refused(400, "input")),
    Probe(11, "Cohere", Http("/v2/embed", BROKEN), Refused(400, "JSON")),
    Probe(11, "Cohere", cohere(5), Refused(400, "texts")),
    Probe(11, "Ollama", Http("/api/embed", BROKEN), Refused(400, "JSON")),
    Probe(11, "Ollama", ollama(5), Refused(400, "input")),
    Probe(11, "OIP", Http("/v2/models/bert/infer", BROKEN), Refused(400, "JSON")),
    Probe(11, "OIP", Http("/v2/models/bert/infer", {"inputs": 5}), Refused(400, "inputs")),
    # 12 a body over the limit
    Probe(12, "TEI", Http("/embed", HUGE), Refused(413, "100000")),
    Probe(12, "OpenAI", Http("/v1/embeddings", HUGE), Refused(413, "100000")),
    Probe(12, "Cohere", Http("/v2/embed", HUGE), Refused(413, "100000")),
    Probe(12, "Ollama", Http("/api/embed", HUGE), Refused(413, "100000")),
    Probe(12, "OIP", Http("/v2/models/bert/infer", HUGE), Refused(400, "100000")),
    Probe(12, "TEI gRPC", tei_embed("x" * 100_001), Refused("RESOURCE_EXHAUSTED")),
    # 14 no content-type
    Probe(14, "TEI", Http("/embed", b'{"inputs": "a"}', {}), Refused(415, "application/json")),
    Probe(14, "OpenAI", Http("/v1/embeddings", b'{"input": "a", "model": "bert"}', {}), Refused(415)),
    Probe(14, "Cohere", Http("/v2/embed", orjson.dumps(cohere([ONE]).body), {}), Refused(415)),
    Probe(14, "Ollama", Http("/api/embed", orjson.dumps(ollama(ONE).body), {}), Vectors([ONE])),
    Probe(14, "OIP", Http("/v2/models/bert/infer", orjson.dumps({"inputs": [ids_tensor([IDS])]}), {}), Vectors([IDS])),
    # 15 a JSON part longer than the body, negative, or no number
    *[Probe(15, "OIP", binary(header), Refused(400)) for header in ("100000", "-1", "x", "1.5")],
    # 16 binary data that the shape does not take
    Probe(16, "OIP", binary("", size=16, raw=bytes(16)), Refused(400, "input_ids")),
    Probe(16, "OIP", binary("", size=32, raw=bytes(32)), Refused(400, "input_ids")),
    Probe(16, "OIP", binary("", size=24, raw=bytes(16)), Refused(400)),
    Probe(16, "OIP", binary("", size=24, raw=bytes(32)), Refused(400)),
    # 17 half precision in JSON
    *[Probe(17, "OIP", infer(ids_tensor([IDS], half)), Refused(400, half)) for half in ("FP16", "BF16")],
    # 18 raw and typed contents together, 19 raw contents that are not as many as the inputs
    Probe(18, "OIP gRPC", mixed_contents(), Refused("INVALID_ARGUMENT")),
    Probe(19, "OIP gRPC", uneven_contents(), Refused("INVALID_ARGUMENT")),
]

OVERLOADED = [
    Probe(9, "TEI", embed(ONE), Refused(429)),
    Probe(9, "OpenAI", openai(ONE), Refused(429)),
    Probe(9, "Cohere", cohere([ONE]), Refused(429)),
    Probe(9, "Ollama", ollama(ONE), Refused(429)),
    Probe(9, "OIP", infer(text_tensor([ONE])), Refused(503)),
    Probe(9, "OIP gRPC", raw_ids(IDS), Refused("UNAVAILABLE")),
    Probe(9, "TEI gRPC", tei_embed(ONE), Refused("RESOURCE_EXHAUSTED")),
]
"""Row 9, over capacity: asked of a service whose queue is full."""

GONE = Refused(499)
DISCONNECTED = [
    Probe(13, "TEI", embed(IDS), GONE),
    Probe(13, "OpenAI", openai(IDS), GONE),
    Probe(13, "Cohere", cohere([ONE]), GONE),
    Probe(13, "Ollama", ollama(ONE), GONE),
    Probe(13, "OIP", infer(ids_tensor([IDS])), GONE),
    Probe(13, "OIP gRPC", raw_ids(IDS), GONE),
    Probe(13, "TEI gRPC", tei_embed(ONE), GONE),
]
"""Row 13, a client that leaves before its request is computed: nobody hears the answer, so what counts is what ran."""

WRONG_KEY = JSON | {"authorization": "Bearer wrong"}
ANONYMOUS = [
    Probe(10, "TEI", embed(ONE), Refused(401, "Bearer KEY")),
    Probe(10, "TEI", Http("/embed", {"inputs": ONE}, WRONG_KEY), Refused(401, "not one of")),
    Probe(10, "OpenAI", openai(ONE), Refused(401, "Bearer KEY")),
    Probe(10, "OpenAI", Http("/v1/embeddings", {"input": ONE, "model": "bert"}, WRONG_KEY), Refused(401, "not one of")),
    Probe(10, "Cohere", cohere([ONE]), Refused(401, "Bearer KEY")),
    Probe(10, "Cohere", Http("/v2/embed", {}, WRONG_KEY), Refused(401, "not one of")),
    Probe(10, "Ollama", ollama(ONE), Refused(401, "Bearer KEY")),
    Probe(10, "Ollama", Http("/api/embed", {}, WRONG_KEY), Refused(401, "not one of")),
    Probe(10, "OIP", infer(text_tensor([ONE])), Refused(403, "Bearer KEY")),
    Probe(10, "OIP", Http("/v2/models/bert/infer", {}, WRONG_KEY), Refused(403, "not one of")),
    Probe(10, "OIP gRPC", raw_ids(IDS), Refused("UNAUTHENTICATED", "Bearer KEY")),
    Probe(10, "TEI gRPC", tei_embed(ONE), Refused("UNAUTHENTICATED", "No valid auth token")),
]
"""Row 10, no key or a wrong one: asked of a service that has keys."""

ELSEWHERE = {
    20: ("tests/service/cli/test_startup.py", "test_stop_finishes_requests_in_flight_and_exits_0"),
}
"""Row → the test that shows it for the road all protocols share: 20 a stop in mid-flight."""

# ---- the runner


@dataclass(frozen=True)
class ProbeClient:
    """Sends a probe to a service: its answer's vectors, or its refusal."""

    http: httpx.Client
    oip: GRPCInferenceServiceStub
    tei: EmbedStub

    def __call__(self, probe: Probe) -> NDArray[Any] | Refused:
        if isinstance(probe.sent, Http):
            return self._over_http(probe.sent, WORDINGS[probe.protocol])
        try:
            if isinstance(probe.sent, tei.EmbedRequest):
                return np.array([self.tei.Embed(probe.sent).embeddings], np.float32)
            answer = self.oip.ModelInfer(probe.sent)
        except grpc.RpcError as error:
            return Refused(error.code().name, error.details())
        [output], [raw] = answer.outputs, answer.raw_output_contents
        return np.frombuffer(raw, "<f4").reshape(tuple(output.shape))

    def _over_http(self, sent: Http, wording: Wording) -> NDArray[Any] | Refused:
        body = sent.body if isinstance(sent.body, bytes) else orjson.dumps(sent.body)
        answer = self.http.post(sent.path, content=body, headers=sent.fields)
        if answer.status_code != 200:
            return Refused(answer.status_code, wording.fault(answer.json()))
        return np.array(wording.vectors(answer.json()), np.float32)

    def plainly(self, inputs: list[Any]) -> NDArray[Any]:
        """The vectors of `inputs` as raw bytes of /embed."""
        answer = self.http.post("/embed", json={"inputs": inputs}, headers={"accept": "application/octet-stream"})
        return np.frombuffer(answer.raise_for_status().content, "<f4").reshape(len(inputs), WIDTH)


@contextmanager
def asking(address: tuple[str, int], rpc_address: str) -> Iterator[ProbeClient]:
    with (
        httpx.Client(base_url="http://{}:{}".format(*address), trust_env=False, timeout=60) as http,
        grpc.insecure_channel(rpc_address) as channel,
    ):
        yield ProbeClient(http, GRPCInferenceServiceStub(channel), EmbedStub(channel))


@pytest.fixture(scope="module")
def ask(served: Served) -> Iterator[ProbeClient]:
    with asking(served.address, served.rpc_address) as asker:
        yield asker


def check(ask: ProbeClient, probe: Probe) -> None:
    got = ask(probe)
    if isinstance(probe.expects, Vectors):
        assert not isinstance(got, Refused), got
        if probe.expects.inputs:  # /embed refuses an empty list
            np.testing.assert_array_equal(got, ask.plainly(probe.expects.inputs))
        else:
            assert len(got) == 0
    else:
        assert isinstance(got, Refused), got
        assert got.code == probe.expects.code, got
        assert probe.expects.says in got.says
        assert got.says


@pytest.mark.parametrize("probe", PROBES, ids=str)
def test_probe_is_answered_in_the_protocols_format(ask: ProbeClient, probe: Probe) -> None:
    check(ask, probe)


@dataclass
class Held:
    """A service whose engine is held in its first run, and how many token ids it was given to compute."""

    here: Here
    running: asyncio.Event = field(default_factory=asyncio.Event)
    free: threading.Event = field(default_factory=threading.Event)
    ids: int = 0

    def embed(self, *ids: int) -> "asyncio.Future[Any]":
        """Embed ids; not those of a probe, which would share the run."""
        return asyncio.ensure_future(self.here.context.embedder.embed(embed_request([Ids(np.array(ids, np.int64))])))

    async def until_admitted(self, requests: int) -> None:
        """Until so many requests are being served, all of which wait for the run."""
        bert = self.here.context.registry.get("bert")
        while self.here.context.admission.active != requests or not (
            requests == 0 or any(batcher.waiting_items for batcher in bert.batchers.values())
        ):
            await asyncio.sleep(0)


@asynccontextmanager
async def holding(store: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> AsyncIterator[Held]:
    async with serving_here(store, default_model="bert", **settings) as here:
        held, loop = Held(here), asyncio.get_running_loop()
        engine = here.context.registry.get("bert").engine
        run = engine.run

        def hold(graph: str, feeds: Mapping[str, NDArray[Any]], outputs: Any) -> Any:
            held.ids += feeds["ids"].size
            loop.call_soon_threadsafe(held.running.set)
            assert held.free.wait(60)
            return run(graph, feeds, outputs)

        monkeypatch.setattr(engine, "run", hold)
        try:
            yield held
        finally:
            held.free.set()


async def test_full_service_is_reported_in_the_protocols_format(
    tiny_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request runs, one that fills the queue waits, and then row 9 is asked."""
    async with holding(tiny_store, monkeypatch, max_queue_tokens=3) as held:
        first = held.embed(7, 6, 5)
        await held.running.wait()
        second = held.embed(6, 7, 5)
        with asking(held.here.address, held.here.rpc_address) as ask:
            for probe in OVERLOADED:
                await asyncio.to_thread(check, ask, probe)
        held.free.set()
        assert (await first).tokens == (await second).tokens == 3


@pytest.fixture(scope="module")
def guarded(tiny_store: Path) -> Iterator[ProbeClient]:
    with (
        serving(tiny_store, default_model="bert", api_keys="right") as service,
        asking(service.address, service.rpc_address) as asker,
    ):
        yield asker


@pytest.mark.parametrize("probe", ANONYMOUS, ids=str)
def test_missing_key_is_reported_in_the_protocols_format(guarded: ProbeClient, probe: Probe) -> None:
    check(guarded, probe)


@pytest.mark.parametrize("probe", DISCONNECTED, ids=str)
async def test_client_gone_before_its_run_causes_no_run(
    tiny_store: Path, monkeypatch: pytest.MonkeyPatch, probe: Probe
) -> None:
    """One request runs, the probe waits for it, and its client leaves."""
    async with holding(tiny_store, monkeypatch) as held:
        first = held.embed(7, 6, 5)
        await held.running.wait()
        if isinstance(probe.sent, Http):
            _, connection = await asyncio.open_connection(*held.here.address)
            connection.write(written(probe.sent))
            await held.until_admitted(1)
            connection.close()
        else:
            async with grpc.aio.insecure_channel(held.here.rpc_address) as channel:
                is_tei = isinstance(probe.sent, tei.EmbedRequest)
                ask = EmbedStub(channel).Embed if is_tei else GRPCInferenceServiceStub(channel).ModelInfer
                call = asyncio.ensure_future(ask(probe.sent))  # type: ignore[arg-type]
                await held.until_admitted(1)
                call.cancel()
        await held.until_admitted(0)
        held.free.set()
        await first
        await held.embed(7, 6, 5)
        assert held.ids == 2 * 3


def written(sent: Http) -> bytes:
    """A POST as bytes on the wire."""
    body = sent.body if isinstance(sent.body, bytes) else orjson.dumps(sent.body)
    fields = sent.fields | {"host": "test", "content-length": str(len(body))}
    lines = [f"POST {sent.path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def test_the_table_has_every_row() -> None:
    shown = {probe.row for probe in (*PROBES, *OVERLOADED, *ANONYMOUS, *DISCONNECTED)}
    assert sorted(shown | set(ELSEWHERE)) == list(ROWS)
    for file, name in ELSEWHERE.values():
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file} has no {name}"
