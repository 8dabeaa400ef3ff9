"""Both pipelines, from bytes to bytes: every POST path over HTTP and every gRPC method, on tiny models.

What comes back is a refusal or an answer, and no fault was logged. Sockets, frames and long streams are left out.
"""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import orjson

from models.artifacts.export import export
from proto import embed_pb2 as pb
from proto import open_inference_pb2 as oip_pb
from proto import tei_pb2 as tei_pb
from service.app import Application, create_app
from service.errors import InlayError
from service.grpc.calls import Shared
from service.grpc.server import Pipeline
from service.http.openapi import build_document
from service.http.response import Response
from service.http.routes import Head, Request
from service.protocols.inlay import rpc as inlay_rpc
from service.protocols.oip import rpc as oip_rpc
from service.protocols.oip.data_plane import DataPlane
from service.protocols.tei import rpc as tei_rpc
from service.settings import Settings
from tests.fuzz.bodies import DEEP, altered
from tests.fuzz.judging import Fault, Target
from tests.golden_cases import case, write_checkpoint, write_tiny_bert
from tests.score_models import CLASSIFIER, LABELS, RANKER, write_classifier

MOST_SENT = 1 << 20  # bytes; who asks for a long table leaves after so many
MODELS = ("bert", "llama", RANKER, "nobody")
SCORED = ("rerank", "score", "predict", "classify")  # ends of paths that are asked of models with labels too
DOCUMENTED = {424, 501, 503, 504}
JSON = (b"content-type", b"application/json")
HEADERS: tuple[tuple[tuple[bytes, bytes], ...], ...] = (
    (JSON,),
    (JSON, (b"accept", b"application/octet-stream")),
    (JSON, (b"accept", b"application/vnd.safetensors"), (b"accept-encoding", b"gzip;q=1, identity;q=0")),
    (JSON, (b"content-encoding", b"gzip")),
    (JSON, (b"accept", b"application/x-npy")),
    ((b"content-type", b"application/octet-stream"), (b"inference-header-content-length", b"0")),
    ((b"content-type", b"application/octet-stream"), (b"inference-header-content-length", b"100")),
)


class _Faults(logging.Handler):
    """What the service logged as its own fault."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            self.found.append(record.exc_info[1])


class _OneThread(asyncio.SelectorEventLoop):
    """An event loop that runs jobs for threads at once, because atheris traces one thread."""

    def run_in_executor(self, executor: Any, function: Any, *arguments: Any) -> Any:
        future = self.create_future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


class _Refused(Exception):
    """A call that ended with a status which says so; what both targets refuse with."""


class Running(NamedTuple):
    """The service in this process: its application, POST paths and gRPC methods, and its event loop."""

    app: Application
    posts: dict[str, Any]
    rpc: Pipeline
    methods: list[str]
    loop: asyncio.AbstractEventLoop
    faults: _Faults
    folder: Path

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What `work` gives; raises the fault that was logged meanwhile."""
        self.faults.found.clear()
        result = self.loop.run_until_complete(work)
        for each in self.faults.found:
            raise each
        return result


@cache
def running() -> Running:
    """Built once a process; four tiny models."""
    folder = Path(tempfile.mkdtemp(prefix="inlay-fuzz-"))
    export(write_tiny_bert(folder / "c/bert", pooling="mean"), folder / "store/bert")
    export(write_checkpoint(case("input_llama"), folder / "c/llama"), folder / "store/llama")
    for name, labels in ((RANKER, ("relevance",)), (CLASSIFIER, LABELS)):
        export(write_classifier(folder / "c" / name, labels), folder / "store" / name)
    settings = Settings(
        store=folder / "store", device="cpu", default_model="bert", max_body_bytes=1 << 16, table_cache_bytes=1 << 20
    )
    app = create_app(settings)
    context = app.context
    context.lifecycle.started = True
    document = build_document(app.pipeline.router, context.version, guarded=False, model="bert")
    posts = {path: item["post"] for path, item in sorted(document["paths"].items()) if "post" in item}
    services = [inlay_rpc.service(context), oip_rpc.service(DataPlane(context)), *tei_rpc.services(context)]
    methods = sorted(f"/{service.name}/{method.name}" for service in services for method in service.methods)
    rpc = Pipeline(Shared(context.metrics, context.admission), services, 64, 60.0, 16, {})
    faults = _Faults()
    logging.getLogger("service").addHandler(faults)
    return Running(app, posts, rpc, methods, _OneThread(), faults, folder)


def close() -> None:
    """Close the service that `running` built."""
    if running.cache_info().currsize:
        here = running()
        logging.getLogger("service").removeHandler(here.faults)
        here.loop.close()
        shutil.rmtree(here.folder)
        running.cache_clear()


# ---- HTTP


def _http(data: bytes) -> None:
    """1 byte of path, 1 of model and headers, then the body."""
    here, (path, choice), body = running(), (data + bytes(2))[:2], data[2:]
    chosen = list(here.posts)[path % len(here.posts)]
    kind, name = divmod(choice % (len(HEADERS) * len(MODELS)), len(MODELS))
    chosen = chosen.format(name=MODELS[name], version="1", region="r")
    status = here.run(_status_of(here.app, chosen, HEADERS[kind], body))
    if status >= 500 and status not in DOCUMENTED:
        raise Fault(f"{chosen} answers {status}")
    if status >= 400:
        raise _Refused(status)


async def _status_of(app: Application, path: str, headers: tuple[tuple[bytes, bytes], ...], body: bytes) -> int:
    """Return the status of an answer; its client leaves after MOST_SENT bytes."""
    pipeline = app.pipeline
    head = Head("POST", path.encode(), dict(headers))
    pipeline.prepare(head)
    request = Request(head, ("127.0.0.1", 1), {b"content-length": b"%d" % len(body)})
    response = pipeline.accept(request)
    if response is None:
        request.body = body
        if head.batched and head.route is not None and head.route.batch_handler is not None:
            (answer,) = head.route.batch_handler([request])
            if isinstance(answer, InlayError):
                answer = pipeline.error_response(request, answer)
            if isinstance(answer, Response):
                response = answer
            else:
                request.handler = answer
        response = response or await pipeline.respond(request)
    sent = 0
    if response.stream is not None:
        async with aclosing(response.stream) as parts:  # type: ignore[type-var]
            async for part in parts:
                sent += len(part)
                if sent > MOST_SENT:
                    break
    pipeline.finish(request, response.status)
    return response.status


def _http_seeds() -> list[bytes]:
    """Every example of the OpenAPI document, asked of its own path for each model."""
    seeds = []
    for index, (path, operation) in enumerate(running().posts.items()):
        content = operation.get("requestBody", {}).get("content", {})
        for example in content.get("application/json", {}).get("examples", {}).values():
            body = orjson.dumps(example["value"])
            seeds += [bytes([index, kind]) + body for kind in range(2 * len(MODELS))]
            seeds += [bytes([index, 0]) + body for body in altered(example["value"], (DEEP, b"[]"))]
            if path.endswith(SCORED):
                models = [orjson.dumps(example["value"] | {"model": name}) for name in (RANKER, CLASSIFIER)]
                seeds += [bytes([index, 0]) + body for body in models]
        seeds.append(bytes([index, 0]) + b"{}")
    return seeds


# ---- gRPC


class _Details(NamedTuple):
    """What the pipeline uses of grpc.HandlerCallDetails."""

    method: str
    invocation_metadata: tuple[()] = ()


class _Context:
    """What calls use of grpc.aio.ServicerContext; the client sends one message and leaves after MOST_SENT bytes."""

    sent = 0

    def __init__(self, message: bytes) -> None:
        self._messages: list[Any] = [message]

    async def read(self) -> Any:
        return self._messages.pop() if self._messages else grpc.aio.EOF

    def set_trailing_metadata(self, metadata: Any) -> None:
        pass

    def time_remaining(self) -> None:
        return None

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def send_initial_metadata(self, metadata: Any) -> None:
        pass

    async def write(self, data: bytes) -> None:
        self.sent += len(data)
        if self.sent > MOST_SENT:
            raise _Refused("the client left")

    async def abort(self, code: grpc.StatusCode, message: str, metadata: Any = ()) -> None:
        message.encode()
        if code in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS):
            raise Fault(f"{code}: {message}")
        raise _Refused(code, message)


def _rpc(data: bytes) -> None:
    """1 byte of method, then the message."""
    here = running()
    path = here.methods[(data[:1] or b"\0")[0] % len(here.methods)]
    here.run(_called(here.rpc, path, data[1:]))


async def _called(rpc: Pipeline, path: str, message: bytes) -> None:
    call, context = rpc.service(_Details(path)), _Context(message)

    async def messages() -> AsyncIterator[bytes]:
        yield message

    if call.request_streaming and call.response_streaming:
        await call.stream_stream(messages(), context)
    elif call.request_streaming:
        await call.stream_unary(messages(), context)
    elif call.response_streaming:
        await call.unary_stream(message, context)
    else:
        await call.unary_unary(message, context)


def _rpc_seeds() -> list[bytes]:
    ids = pb.Input(ids=pb.TokenIds(input_ids=[1, 2, 3], token_type_ids=[0, 0, 0]))
    texts = [pb.Input(text="hello"), pb.Input(pair=pb.TextPair(first="a", second="b")), ids]
    positions = pb.PositionsRequest(scheme="rope", dtype=pb.FLOAT16)
    positions.parameters.update({"rotary_dim": 4, "length": 8})
    infer = oip_pb.ModelInferRequest(model_name="bert", raw_input_contents=[np.arange(3).tobytes()])
    infer.inputs.add(name="input_ids", datatype="INT64", shape=[1, 3])
    vector = pb.Tensor(dtype=pb.FLOAT32, shape=[32], data=np.ones(32, np.float32).tobytes())
    spans = [pb.InputSpans(spans=[pb.Span(start=0, stop=3)])]
    ranked = oip_pb.ModelInferRequest(model_name=RANKER)
    for name in ("text", "text_pair"):
        ranked.inputs.add(name=name, datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"a b")
    messages: dict[str, list[Any]] = {
        "Embed": [
            pb.EmbedRequest(inputs=texts, outputs=["sentence_embedding"], normalize=True, dimensions=4),
            pb.EmbedRequest(inputs=texts[:1], spans=spans, span_unit=pb.CHARACTERS),
            pb.EmbedRequest(inputs=[ids], chunking=pb.Chunking(size=2, overlap=1)),
        ],
        "Logits": [pb.LogitsRequest(model="llama", hidden=vector, top_k=2, temperature=0.5, dtype=pb.FLOAT16)],
        "Similar": [
            pb.SimilarRequest(vector=vector, top_k=3, measure="dot"),
            pb.SimilarRequest(positive=[pb.SimilarItem(id=5)], negative=[pb.SimilarItem(text="a")], normalize=True),
        ],
        "Analysis": [pb.AnalysisRequest(model="bert", spectrum=False)],
        "Images": [pb.ImagesRequest(inputs=[pb.Image(picture=b"\x89PNG"), pb.Image(pixel_values=vector, grid=[1, 2])])],
        "EmbedStream": [pb.EmbedRequest(inputs=[ids], model="llama", encoding=pb.PROMPT_EMBEDS)],
        "Positions": [positions],
        "ModelInfer": [infer, ranked],
        "ModelStreamInfer": [infer],
        "EmbedAll": [tei_pb.EmbedAllRequest(inputs="hello", truncate=True)],
        "Tokenize": [tei_pb.EncodeRequest(inputs="hello", add_special_tokens=True)],
        "Decode": [tei_pb.DecodeRequest(ids=[1, 2, 3])],
    }
    seeds = []
    for index, name in enumerate(running().methods):
        service, _, method = name[1:].partition("/")
        rows = messages.get(method, [])
        if service == "tei.v1.Embed" and method in ("Embed", "EmbedStream"):
            rows = [tei_pb.EmbedRequest(inputs="hello", truncate=True, normalize=True)]
        seeds += [bytes([index]) + each.SerializeToString() for each in rows] + [bytes([index])]
    return seeds


WORDS = (DEEP, b"null", b"-1", b"9223372036854775808", b"[]", b"{}", b'""')
TARGETS = {
    "every POST path": Target(
        _http,
        _http_seeds,
        (_Refused,),
        words=(DEEP, b"null", b"-1", b"9223372036854775808", b"[]", b"{}", b'""'),
    ),
    "every gRPC method": Target(_rpc, _rpc_seeds, (_Refused,), words=(b"bert", b"llama", b"rope")),
}
