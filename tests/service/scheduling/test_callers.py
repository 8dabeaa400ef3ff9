"""Who counts as a caller: the key, else the address, alike over REST and gRPC."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from proto import embed_pb2 as pb
from proto.embed_pb2_grpc import EmbedderStub
from service.grpc.calls import address_of
from service.request_context import RequestContext
from tests.served import Here, serving_here

KEY = "a-key-that-is-long-enough"
OTHER_KEY = "another-key-long-enough"


class Recorder:
    """Notes the caller of every request that reaches the embedding pipeline."""

    def __init__(self, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
        self.callers: list[str] = []
        embed = here.context.embedder.embed

        async def recorded(request: Any, context: RequestContext | None = None) -> Any:
            assert context is not None
            self.callers.append(context.caller)
            return await embed(request, context)

        monkeypatch.setattr(here.context.embedder, "embed", recorded)


@asynccontextmanager
async def from_address(here: Here, address: str, key: str = "") -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    transport = httpx.AsyncHTTPTransport(local_address=address)
    url = "http://{}:{}".format(*here.address)
    async with httpx.AsyncClient(base_url=url, transport=transport, headers=headers, timeout=60) as client:
        yield client


async def call(here: Here, key: str = "") -> None:
    metadata = [("authorization", f"Bearer {key}")] if key else []
    async with grpc.aio.insecure_channel(here.rpc_address) as channel:
        request = pb.EmbedRequest(inputs=[pb.Input(text="hello")])
        await EmbedderStub(channel).Embed(request, metadata=metadata, timeout=60)


async def test_caller_is_the_address(minilm_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving_here(minilm_store) as here:
        recorder = Recorder(here, monkeypatch)
        for address in ("127.0.0.1", "127.0.0.2"):
            async with from_address(here, address) as client:
                assert (await client.post("/embed", json={"inputs": "hello"})).status_code == 200
                body = {"input": "hello", "model": "minilm"}
                assert (await client.post("/v1/embeddings", json=body)).status_code == 200
        await call(here)
        forwarded = {"x-forwarded-for": "10.0.0.1", "forwarded": "for=10.0.0.1"}
        async with from_address(here, "127.0.0.1") as client:
            assert (await client.post("/embed", json={"inputs": "hello"}, headers=forwarded)).status_code == 200
    assert recorder.callers == ["127.0.0.1"] * 2 + ["127.0.0.2"] * 2 + ["127.0.0.1"] * 2


async def test_caller_is_the_key_where_keys_are_used(minilm_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving_here(minilm_store, api_keys=[f"search:{KEY}", f"batch:{OTHER_KEY}"]) as here:
        recorder = Recorder(here, monkeypatch)
        for key in (KEY, OTHER_KEY):
            for address in ("127.0.0.1", "127.0.0.2"):
                async with from_address(here, address, key) as client:
                    assert (await client.post("/embed", json={"inputs": "hello"})).status_code == 200
            await call(here, key)
    assert recorder.callers == ["search"] * 3 + ["batch"] * 3


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:38444", "127.0.0.1"),
        ("ipv6:%5B::1%5D:35370", "::1"),
        ("ipv6:[2001:db8::7]:35370", "2001:db8::7"),
        ("unix:", "unix:"),
    ],
)
def test_address_of_a_grpc_peer(peer: str, address: str) -> None:
    assert address_of(peer) == address
