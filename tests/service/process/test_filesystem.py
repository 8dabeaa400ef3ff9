"""No string of a request reaches the file system, a host or a program: every string of every route and every gRPC
message, with names that would lead out of the store, while the interpreter's audit events are watched.

Run with what an operator can switch on: model control. What native libraries open is not audited, so
there are models to be found where the names lead: none may ever be served.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import httpx
import pytest
from google.protobuf import message_factory

from proto import embed_pb2, open_inference_pb2, tei_pb2
from tests.served import Served, serving
from tests.sweeps import sampled

MARK = "h0stile"
NAMES = [
    f"../{MARK}",  # a model, beside the store
    f".{MARK}",  # a model in the store, being written
    f"{MARK}/../bert",
    "..",
    f"/etc/{MARK}",
    f"..\\{MARK}",
    f"..%2f{MARK}",
    f"bert\0{MARK}",
    f"$(touch {MARK})",
    f"file:///etc/{MARK}",
    f"http://127.0.0.1:1/{MARK}",
    f"hf://{MARK}/{MARK}",
    MARK * 200,
    f"{MARK}\udcff".encode("utf-8", "surrogatepass").decode("latin-1"),
]
MEMBERS = (
    "model",
    "preset",
    "prompt_name",
    "key",
    "name",
    "dtype",
    "encoding_format",
    "format",
    "output",
    "layer_type",
    "pooling",
    "scheme",
    "table",
    "repository_name",
    "user",
    "id",
)
TEXTS = ("inputs", "input", "query", "texts", "text", "ids", "messages", "image", "images", "url")
VERBS = ("get", "post")
EVERYWHERE = (NAMES[0],)


class Watch:
    """Records what the interpreter opens or runs whose name contains MARK."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[tuple[str, str]] = []
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.on and not event.startswith("object."):
            for each in arguments:
                if isinstance(each, str | bytes | os.PathLike) and MARK in os.fsdecode(each):
                    self.seen.append((event, os.fsdecode(each)[:80]))

    @contextmanager
    def watching(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
        stat = os.stat

        def noted(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
            if not isinstance(path, int):
                self._note("os.stat", (path,))
            return stat(path, *arguments, **options)

        self.seen.clear()
        with monkeypatch.context() as patched:
            patched.setattr(os, "stat", noted)  # not an audit event
            self.on = True
            try:
                yield self.seen
            finally:
                self.on = False


@pytest.fixture(scope="module")
def watch() -> Watch:
    return Watch()


@pytest.fixture(scope="module")
def exposed(tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service with every option switched on, and models at the paths in NAMES."""
    folder = tmp_path_factory.mktemp("exposed")
    shutil.copytree(tiny_store, folder / "store")
    shutil.copytree(tiny_store / "bert", folder / MARK)
    shutil.copytree(tiny_store / "bert", folder / "store" / f".{MARK}")
    with serving(folder / "store", default_model="bert", model_control="explicit") as service:
        yield service


def test_the_observer_sees_file_access(watch: Watch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with watch.watching(monkeypatch) as seen:
        (tmp_path / MARK).write_text("")
        (tmp_path / MARK).is_file()
        list(tmp_path.joinpath("a", "..").glob(MARK))
        with pytest.raises(FileNotFoundError):
            os.open(os.fsencode(f"/nowhere/{MARK}"), os.O_RDONLY)
    assert {"open", "os.stat"} <= {event for event, _ in seen}
    assert len([event for event, _ in seen if event == "open"]) >= 2


def requests(name: str, paths: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each verb of each path with the name in its parameters; as a POST's model; and, for some names, everywhere."""
    spelled = quote(name, safe="")
    for path, verbs in paths.items():
        for verb in (each for each in VERBS if each in verbs):
            parameters = [each for each in verbs[verb].get("parameters", []) if each.get("in", "header") != "header"]
            strange, plain = path, path
            for each in parameters:
                if each["in"] == "path":
                    strange = strange.replace(f"{{{each['name']}}}", spelled)
                    plain = plain.replace(f"{{{each['name']}}}", "bert")
            queries = [each["name"] for each in parameters if each["in"] == "query"]
            bodies = list(documents(name)) if verb == "post" else []
            content = {"json": bodies[0]} if bodies else {"params": dict.fromkeys(queries, name)}
            yield verb, strange, content
            if name not in EVERYWHERE or path.endswith(("/unload", "/load")):  # these need no name in their body
                continue
            yield from ((verb, plain, {"json": document}) for document in bodies)
            yield from ((verb, plain, {"params": {query: name}}) for query in queries if not bodies)


def documents(name: str) -> Iterator[dict[str, Any]]:
    """Bodies that hold the name where some route reads a string."""
    fine: dict[str, Any] = {"inputs": "a", "input": "a"}
    yield from (fine | {member: name} for member in MEMBERS)
    yield from ({member: value} for member in TEXTS for value in (name, [name], {"url": name}))
    yield {"model": name, "parameters": {"config": name, f"file:{name}": name, "binary_data_output": True}}
    yield {"key": name, "offset": 0, "byte_size": 8, "raw_handle": {"b64": name}}
    lent = {"shared_memory_region": name, "shared_memory_offset": 0, "shared_memory_byte_size": 8}
    yield {"inputs": [{"name": name, "shape": [1], "datatype": "BYTES", "parameters": lent}]}
    yield {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [name]}], "outputs": [{"name": name}]}


@pytest.mark.parametrize("name", sampled(NAMES, 4), ids=lambda name: ascii(name)[:40])
def test_no_route_opens_a_file_or_host_named_by_a_caller(
    exposed: Served, watch: Watch, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    paths = exposed.http.get("/openapi.json").json()["paths"]
    loaded = {each["name"] for each in exposed.http.post("/v2/repository/index", json={"ready": True}).json()}
    sent = 0
    with watch.watching(monkeypatch) as seen:
        for verb, path, content in requests(name, paths):
            answer = exposed.http.request(verb, path, **content)
            sent += 1
            assert answer.status_code < 500 or answer.status_code == 501, (verb, path, content, answer.text)
            assert f"{MARK}" not in str(answer.headers)
        assert seen == []
    assert sent > (2000 if name in EVERYWHERE else 100)
    assert {each["name"] for each in exposed.http.post("/v2/repository/index", json={"ready": True}).json()} == loaded


def fill(message: Any, name: str, depth: int = 0) -> Any:
    """Every string of a message is the name; of a oneof the last member stands."""
    for each in message.DESCRIPTOR.fields:
        value = getattr(message, each.name)
        if each.type == each.TYPE_STRING:
            value.append(name) if each.is_repeated else setattr(message, each.name, name)
        elif each.type == each.TYPE_MESSAGE and depth < 4:
            if not each.is_repeated:
                fill(value, name, depth + 1)
            elif not each.message_type.GetOptions().map_entry:
                fill(value.add(), name, depth + 1)
            elif each.message_type.fields_by_name["value"].type == each.TYPE_MESSAGE:
                fill(value[name], name, depth + 1)
    return message


CALLS = [
    (service.full_name, method)
    for file in (embed_pb2, tei_pb2, open_inference_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
FAULTS = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)


@pytest.mark.parametrize(("service", "method"), CALLS, ids=lambda each: getattr(each, "name", each))
def test_no_call_opens_a_file_or_host_named_by_a_caller(
    exposed: Served, watch: Watch, monkeypatch: pytest.MonkeyPatch, service: str, method: Any
) -> None:
    kind = message_factory.GetMessageClass(method.input_type)
    with grpc.insecure_channel(exposed.rpc_address) as channel, watch.watching(monkeypatch) as seen:
        call = channel.stream_stream(f"/{service}/{method.name}", lambda message: message.SerializeToString(), bytes)
        ended = {name: ends(call(iter([fill(kind(), name)]), timeout=60)) for name in NAMES}
        assert {name: code for name, code in ended.items() if code in FAULTS} == {}
        assert seen == []


def ends(call: Any) -> grpc.StatusCode:
    """The status of a call whose answers are read."""
    with suppress(grpc.RpcError):
        list(call)
    code: grpc.StatusCode = call.code()
    return code


def test_names_invalid_in_http_are_refused(exposed: Served) -> None:
    for raw in (
        b"/models/..%2f..%2fetc%2fpasswd",
        b"/models/%00",
        b"/models/%ff%fe",
        b"/docs/%2e%2e/%2e%2e/core.py",
    ):
        answer = exposed.http.get(httpx.URL(str(exposed.http.base_url)).copy_with(raw_path=raw))
        assert answer.status_code in (404, 422), raw
