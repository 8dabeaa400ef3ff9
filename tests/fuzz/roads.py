"""Whole roads, from bytes to bytes: every POST path of the ASGI application and every gRPC method, on tiny models.

What comes back is a refusal or an answer, and no fault was logged. Sockets, frames and long streams are left out.
"""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Coroutine
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import orjson
from google.protobuf.message import DecodeError

from models.artifacts.export import export
from proto import embed_pb2 as pb
from proto import open_inference_pb2 as oip_pb
from proto import tei_pb2 as tei_pb
from service.app import RPC_FAMILIES, RPC_SERVICES, Service, create_app
from service.settings import Settings
from tests.fuzz.bodies import DEEP, altered
from tests.fuzz.judging import Fault, Target
from tests.golden_cases import case, write_checkpoint, write_tiny_bert

MOST_SENT = 1 << 20  # bytes; who asks for a long table leaves after so many
MODELS = ("bert", "llama", "nobody")
DOCUMENTED = {424, 501, 503, 504}
JSON = (b"content-type", b"application/json")
HEADERS: tuple[tuple[tuple[bytes, bytes], ...], ...] = (
    (JSON,),
    (JSON, (b"accept", b"application/octet-stream")),
    (JSON, (b"accept", b"application/vnd.safetensors"), (b"accept-encoding", b"gzip;q=1, identity;q=0")),
    (JSON, (b"content-encoding", b"gzip")),
    ((b"content-type", b"application/vnd.safetensors"), (b"accept", b"application/x-npy")),
    ((b"content-type", b"multipart/form-data; boundary=x"),),
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
    """An event loop that does at once what others hand to threads: atheris traces one thread."""

    def run_in_executor(self, executor: Any, function: Any, *arguments: Any) -> Any:
        found = self.create_future()
        try:
            found.set_result(function(*arguments))
        except Exception as error:
            found.set_exception(error)
        return found


class _Refused(Exception):
    """A call that ended with a status which says so; what both targets refuse with."""


class Running(NamedTuple):
    """The service in this process: its application, POST paths and gRPC handlers by full name, and its event loop."""

    app: Service
    posts: dict[str, Any]
    handlers: dict[str, Any]
    loop: asyncio.AbstractEventLoop
    faults: _Faults
    folder: Path

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What `work` gives; raises the fault that was logged meanwhile."""
        self.faults.found.clear()
        found = self.loop.run_until_complete(work)
        for each in self.faults.found:
            raise each
        return found


@cache
def running() -> Running:
    """Built once a process; two tiny models."""
    folder = Path(tempfile.mkdtemp(prefix="inlay-fuzz-"))
    export(write_tiny_bert(folder / "c/bert", pooling="mean"), folder / "store/bert")
    export(write_checkpoint(case("input_llama"), folder / "c/llama"), folder / "store/llama")
    settings = Settings(
        store=folder / "store", device="cpu", default_model="bert", max_body_bytes=1 << 16, table_cache_bytes=1 << 20
    )
    app = create_app(settings)
    parts = app.state.parts
    parts.life.started = True
    posts = {path: item["post"] for path, item in sorted(app.api.openapi()["paths"].items()) if "post" in item}
    services = [*(each(parts) for each in RPC_SERVICES), *(each for row in RPC_FAMILIES for each in row(parts))]
    handlers = {f"{each.name}/{name}": handler for each in services for name, handler in each.handlers.items()}
    faults = _Faults()
    logging.getLogger("service").addHandler(faults)
    return Running(app, posts, dict(sorted(handlers.items())), _OneThread(), faults, folder)


def close() -> None:
    """Let go of what `running` made."""
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
    status = here.run(_asked(here.app, chosen, HEADERS[kind], body))
    if status >= 500 and status not in DOCUMENTED:
        raise Fault(f"{chosen} answers {status}")
    if status >= 400:
        raise _Refused(status)


async def _asked(app: Service, path: str, headers: tuple[tuple[bytes, bytes], ...], body: bytes) -> int:
    """The status of an answer; its client leaves after MOST_SENT bytes."""
    came, sent, status = asyncio.Event(), 0, 0
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await came.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal sent, status
        status = message.get("status", status)
        sent += len(message.get("body", b""))
        if sent > MOST_SENT:
            answering.cancel()

    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": path, "raw_path": path.encode()}
    scope |= {"scheme": "http", "query_string": b"", "root_path": "", "headers": list(headers), "state": {}}
    scope |= {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "asgi": {"version": "3.0"}}
    answering = asyncio.ensure_future(app(scope, receive, send))
    try:
        await answering
    except asyncio.CancelledError:
        if sent <= MOST_SENT:
            raise
    return status


def _http_seeds() -> list[bytes]:
    """Every example of the OpenAPI document, asked of its own path for each model."""
    found = []
    for index, operation in enumerate(running().posts.values()):
        content = operation.get("requestBody", {}).get("content", {})
        for example in content.get("application/json", {}).get("examples", {}).values():
            body = orjson.dumps(example["value"])
            found += [bytes([index, kind]) + body for kind in range(2 * len(MODELS))]
            found += [bytes([index, 0]) + body for body in altered(example["value"], (DEEP, b"[]"))]
        found.append(bytes([index, 0]) + b"{}")
    return found


# ---- gRPC


class _Context:
    """What handlers use of grpc.aio.ServicerContext."""

    def trailing_metadata(self) -> tuple[()]:
        return ()

    def time_remaining(self) -> None:
        return None

    def invocation_metadata(self) -> tuple[()]:
        return ()

    async def send_initial_metadata(self, metadata: Any) -> None:
        pass

    async def abort(self, code: grpc.StatusCode, message: str, metadata: Any = ()) -> None:
        message.encode()
        if code in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS):
            raise Fault(f"{code}: {message}")
        raise _Refused(code, message)


def _rpc(data: bytes) -> None:
    """1 byte of method, then the message."""
    here = running()
    handler = list(here.handlers.values())[(data[:1] or b"\0")[0] % len(here.handlers)]
    request = handler.request_deserializer(data[1:])
    here.run(_called(handler, request))


async def _called(handler: Any, request: Any) -> None:
    async def requests() -> Any:
        yield request

    given = requests() if handler.request_streaming else request
    if not handler.response_streaming:
        call = handler.stream_unary if handler.request_streaming else handler.unary_unary
        handler.response_serializer(await call(given, _Context()))
        return
    call, sent = handler.stream_stream if handler.request_streaming else handler.unary_stream, 0
    answers = call(given, _Context())
    async for answer in answers:
        sent += len(handler.response_serializer(answer))
        if sent > MOST_SENT:
            await answers.aclose()
            return


def _rpc_seeds() -> list[bytes]:
    ids = pb.Input(ids=pb.TokenIds(input_ids=[1, 2, 3], token_type_ids=[0, 0, 0]))
    texts = [pb.Input(text="hello"), pb.Input(pair=pb.TextPair(first="a", second="b")), ids]
    tensor = pb.Tensor(dtype=pb.FLOAT32, shape=[1, 1, 4], data=np.ones(4, np.float32).tobytes())
    positions = pb.PositionsRequest(scheme="rope", dtype=pb.FLOAT16)
    positions.parameters.update({"rotary_dim": 4, "length": 8})
    rotate = pb.RotateRequest(tensors={"q": tensor})
    rotate.parameters.update({"rotary_dim": 4})
    infer = oip_pb.ModelInferRequest(model_name="bert", raw_input_contents=[np.arange(3).tobytes()])
    infer.inputs.add(name="input_ids", datatype="INT64", shape=[1, 3])
    messages: dict[str, list[Any]] = {
        "Embed": [pb.EmbedRequest(inputs=texts, outputs=["sentence_embedding"], normalize=True, dimensions=4)],
        "EmbedStream": [pb.EmbedRequest(inputs=[ids], model="llama", encoding=pb.PROMPT_EMBEDS)],
        "Rope": [pb.RopeRequest(model="llama", length=8)],
        "Positions": [positions],
        "Rotate": [rotate],
        "ModelInfer": [infer],
        "ModelStreamInfer": [infer],
        "EmbedAll": [tei_pb.EmbedAllRequest(inputs="hello", truncate=True)],
        "Tokenize": [tei_pb.EncodeRequest(inputs="hello", add_special_tokens=True)],
        "Decode": [tei_pb.DecodeRequest(ids=[1, 2, 3])],
    }
    found = []
    for index, name in enumerate(running().handlers):
        service, _, method = name.partition("/")
        rows = messages.get(method, [])
        if service == "tei.v1.Embed" and method in ("Embed", "EmbedStream"):
            rows = [tei_pb.EmbedRequest(inputs="hello", truncate=True, normalize=True)]
        found += [bytes([index]) + each.SerializeToString() for each in rows] + [bytes([index])]
    return found


WORDS = (DEEP, b"null", b"-1", b"9223372036854775808", b"[]", b"{}", b'""')
TARGETS = {
    "every POST path": Target(
        _http,
        _http_seeds,
        (_Refused,),
        words=(DEEP, b"null", b"-1", b"9223372036854775808", b"[]", b"{}", b'""'),
    ),
    "every gRPC method": Target(_rpc, _rpc_seeds, (DecodeError, _Refused), words=(b"bert", b"llama", b"rope")),
}
