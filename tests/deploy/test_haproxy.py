"""HAProxy's files: what they say of the service is so."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from google.protobuf.descriptor import MethodDescriptor

from proto import embed_pb2, open_inference_pb2, tei_pb2
from service.settings import Settings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/haproxy"
POLICY = (FOLDER / "haproxy.cfg").read_text()
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


def seconds(name: str, section: str) -> int:
    """Return a timeout of a `defaults` section."""
    text = POLICY.split(f"defaults {section} ")[1].split("\n\n")[0]
    found = re.search(rf"timeout {name} (\d+)(s|h)\n", text + "\n")
    assert found
    return int(found[1]) * {"s": 1, "h": 3600}[found[2]]


def test_timeouts_fit_the_settings() -> None:
    settings = Settings()
    assert seconds("http-keep-alive", "http") < settings.idle_seconds
    assert seconds("server", "http") > settings.max_queue_seconds
    assert seconds("client", "http") > settings.client_seconds


def test_calls_that_send_on_are_not_waited_for() -> None:
    """HAProxy reads the whole body of a unary call first, which a client that streams would wait for."""
    exempt = re.search(r"wait-for-body .* unless \{ path_sub (\w+) \} \|\| \{ path_beg (\S+) \}", POLICY)
    assert exempt
    methods: list[MethodDescriptor] = [
        method
        for module in (embed_pb2, tei_pb2, open_inference_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]
    assert {method.full_name for method in methods if method.client_streaming} == {
        method.full_name for method in methods if exempt[1] in method.full_name
    }
    assert "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo".startswith(exempt[2])


def test_compose_names_the_replicas_and_their_ports() -> None:
    servers = re.findall(r"server-template \w+ \d+ (\w+):(\d+)", (FOLDER / "compose.cfg").read_text())
    settings = Settings()
    assert set(servers) == {("replica", str(settings.port)), ("replica", str(settings.grpc_port))}
    assert "ports" not in COMPOSE["replica"]
    published = [port.rsplit(":", 1)[1] for port in COMPOSE["balancer"]["ports"]]
    assert published == re.findall(r'bind "\$\{\w+-:(\d+)\}"', POLICY)


@pytest.mark.parametrize("name", COMPOSE)
def test_every_container_is_bounded(name: str) -> None:
    service = COMPOSE[name]
    assert service["pids_limit"]
    assert service["logging"]["options"] == {"max-size": "10m", "max-file": "3"}
    assert service["restart"] if name not in ("load", "volume") else True


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")
def test_haproxy_accepts_its_files() -> None:
    command = ["haproxy", "-c", "-f", str(FOLDER / "haproxy.cfg"), "-f", str(FOLDER / "compose.cfg")]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
