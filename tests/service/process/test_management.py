"""The management port: probes, metrics and the loading of models there and not on the public ports."""

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import httpx
import pytest

from proto import open_inference_pb2 as pb
from proto.open_inference_pb2_grpc import GRPCInferenceServiceStub
from tests.service.cli.test_startup import INLAY, ROOT, SECONDS
from tests.service.process.test_moving_workers import post, until
from tests.service.security.test_tls import Shop

MOVED = ("/health/live", "/health/ready", "/health", "/ping", "/metrics")
KEY = "a-key-of-at-least-32-characters-here"


def get(url: str, path: str) -> httpx.Response:
    return httpx.get(url + path, timeout=SECONDS, trust_env=False, verify=False)


def served(url: str) -> bool:
    try:
        return get(url, "/health/ready").status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def managed(store: Path, *flags: str | Path) -> Iterator[tuple[str, str, str]]:
    """The REST and management URLs and the gRPC address of a service with a management port, once it is ready."""
    arguments = ["--store", store, "--port", "0", "--grpc-port", "0", "--management-port", "0", *flags]
    process = subprocess.Popen([INLAY, "serve", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = r"REST (https?)(\S+) .* gRPC (\S+) · management (\S+)"
        lines = iter(process.stdout.readline, "")
        found = next(match for each in lines if (match := re.search(line, each)))
        management = f"{found[1]}://{found[4]}"
        until(lambda: served(management))
        yield found[1] + found[2], management, found[3]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(SECONDS)
        process.stdout.close()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_routes_have_moved_to_the_management_port(tiny_store: Path, workers: str) -> None:
    with managed(tiny_store, "--default-model", "bert", "--workers", workers) as (public, management, _):
        assert [get(public, path).status_code for path in MOVED] == [404] * len(MOVED)
        until(lambda: [get(management, path).status_code for path in MOVED] == [200] * len(MOVED))
        assert post(public, "/embed", {"inputs": "hello"}).status_code == 200
        refused = post(management, "/embed", {"inputs": "hello"})
        assert (refused.status_code, "/docs" in refused.text) == (404, False)
        assert get(public, "/v2/health/ready").status_code == 200  # a part of the Open Inference Protocol
        assert not set(MOVED) & set(get(public, "/openapi.json").json()["paths"])


def test_models_are_loaded_on_the_management_port_alone(tiny_store: Path) -> None:
    flags = ("--model-control", "explicit", "--api-keys", KEY)
    with managed(tiny_store, *flags) as (public, management, address):
        path = "/v2/repository/models/bert/unload"
        headers = {"authorization": f"Bearer {KEY}"}
        assert httpx.post(public + path, headers=headers, trust_env=False, timeout=60).status_code == 404
        assert httpx.post(management + path, trust_env=False, timeout=60).status_code == 403
        with grpc.insecure_channel(address) as channel:
            stub = GRPCInferenceServiceStub(channel)
            metadata = [("authorization", f"Bearer {KEY}")]
            with pytest.raises(grpc.RpcError) as refused:
                stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="bert"), metadata=metadata)
            assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
        assert httpx.post(management + path, headers=headers, trust_env=False, timeout=60).status_code == 200


def test_probes_need_no_certificate_with_mutual_tls(tiny_store: Path, tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop", mutual=True)
    flags = [word for name, path in shop.settings.items() for word in (f"--{name.replace('_', '-')}", path)]
    with managed(tiny_store, *flags) as (public, management, _):
        assert get(management, "/health/live").status_code == 200
        with pytest.raises(httpx.TransportError):
            get(public, "/v2/health/live")
