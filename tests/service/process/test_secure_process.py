"""`inlay serve` with keys and TLS: its messages, the secrets that they leave out, and the health check."""

import os
import ssl
import subprocess
from pathlib import Path

import grpc
import httpx
import pytest
import trustme

from proto import embed_pb2 as pb
from proto.embed_pb2_grpc import EmbedderStub
from tests.service.cli.test_startup import INLAY, ROOT, command, running
from tests.sweeps import sampled

SECRET = "correct-horse-battery"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def pem(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """cert.pem and key.pem of a service, good for a caller too; ca.pem of their authority."""
    folder = tmp_path_factory.mktemp("pem")
    leaf = authority.issue_cert("localhost", "127.0.0.1")
    leaf.private_key_pem.write_to_path(str(folder / "key.pem"))
    (folder / "cert.pem").write_bytes(b"".join(each.bytes() for each in leaf.cert_chain_pems))
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    return folder


def pair(pem: Path) -> list[str]:
    return ["--tls-cert", str(pem / "cert.pem"), "--tls-key", str(pem / "key.pem")]


def test_workers_share_keys_and_certificates(
    tiny_store: Path, tmp_path: Path, authority: trustme.CA, pem: Path
) -> None:
    (tmp_path / "keys").write_text(f"one:{SECRET}\n")
    flags = ["--workers", "2", *pair(pem), "--api-keys-file", str(tmp_path / "keys")]
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with running(tiny_store, *flags) as (_, url, target):
        assert url.startswith("https://127.0.0.1:")
        statuses = []
        for key in (SECRET, "wrong") * 3:
            retrying = httpx.HTTPTransport(
                verify=context, retries=5
            )  # a worker says it is ready just before it listens
            with httpx.Client(transport=retrying, timeout=60) as http:
                headers = {"authorization": f"Bearer {key}"}
                statuses.append(http.post(f"{url}/embed", json={"inputs": "a"}, headers=headers).status_code)
        assert statuses == [200, 401] * 3
        credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
        with grpc.secure_channel(target, credentials) as channel:
            called = pb.EmbedRequest(inputs=[pb.Input(text="a")])
            metadata = [("authorization", f"Bearer {SECRET}")]
            assert EmbedderStub(channel).Embed(called, metadata=metadata, wait_for_ready=True, timeout=30).outputs


@pytest.mark.parametrize("mutual", sampled([True, False], 2))
def test_health_check_reaches_its_own_service_over_tls(tiny_store: Path, pem: Path, mutual: bool) -> None:
    """The files are those of the variables; the port is named, since others may serve beside these tests."""
    flags = [*pair(pem), *(["--tls-client-ca", str(pem / "ca.pem")] if mutual else [])]
    variables = {"INLAY_TLS_CERT": str(pem / "cert.pem"), "INLAY_TLS_KEY": str(pem / "key.pem")}
    variables |= {"INLAY_TLS_CLIENT_CA": str(pem / "ca.pem")} if mutual else {}
    with running(tiny_store, *flags) as (_, url, _):
        result = command("health", INLAY_PORT=url.rpartition(":")[2], **variables)
        assert (result.returncode, result.stdout) == (0, '{"status":"ready"}\n'), result.stderr
    assert command("health", "--port", url.rpartition(":")[2], **variables).returncode == 1


def test_health_check_verifies_other_machines(tiny_store: Path, pem: Path) -> None:
    with running(tiny_store, *pair(pem), "--host", "0.0.0.0") as (_, url, _):
        elsewhere = f"https://127.0.0.2:{url.rpartition(':')[2]}"  # this machine too, but the check cannot know
        result = command("health", "--url", elsewhere)
        assert (result.returncode, "CERTIFICATE_VERIFY_FAILED" in result.stderr) == (1, True), result.stderr


@pytest.mark.parametrize(
    ("variables", "said", "workers"),
    [
        ({"INLAY_TLS_CERT": "nowhere.pem", "INLAY_TLS_KEY": "nowhere.pem"}, "nowhere.pem cannot be used for TLS", "1"),
        ({"INLAY_API_KEYS": f"{SECRET},{SECRET}"}, "twice", "2"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else each,
)
def test_unusable_keys_or_files_are_one_line_and_exit_1(
    tiny_store: Path, variables: dict[str, str], said: str, workers: str
) -> None:
    flags = ["--store", tiny_store, "--port", "0", "--grpc-port", "0", "--workers", workers]
    ended = command("serve", *flags, **variables)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1), ended.stderr
    assert said in ended.stderr
    assert SECRET not in ended.stderr


@pytest.mark.parametrize(
    ("flags", "warned"),
    [(["--host", "0.0.0.0"], True), (["--host", "0.0.0.0", "--api-keys", SECRET], False), ([], False)],
)
def test_service_without_keys_logs_a_warning(tiny_store: Path, flags: list[str], warned: bool) -> None:
    arguments = ["--store", str(tiny_store), "--port", "0", "--grpc-port", "0", "--default-model", "bert", *flags]
    with subprocess.Popen(
        [INLAY, "serve", *arguments],
        cwd=ROOT,
        env=os.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        line = next(line for line in iter(process.stdout.readline, "") if line.startswith("try: "))
        process.terminate()
        _, log = process.communicate(timeout=60)
    assert ("all who reach this machine may call" in log) is warned
    assert SECRET not in log
    assert ("authorization: Bearer KEY" in line) is ("--api-keys" in flags)
