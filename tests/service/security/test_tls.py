"""TLS and mutual TLS with real certificates and clients, over HTTP and gRPC; files that change while it serves."""

import logging
import os
import socket
import ssl
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import trustme
import uvicorn
from cryptography.hazmat.primitives import serialization

from proto import embed_pb2 as pb
from proto.embed_pb2_grpc import EmbedderStub
from service.app import create_app
from service.errors import StartError
from service.http.server import HttpProtocol
from service.security import tls
from service.security.file_changes import LOOK_SECONDS
from service.settings import Settings
from tests.served import Served

TEXT, BYTES = {"inputs": "a"}, {"accept": "application/octet-stream"}
CALL = pb.EmbedRequest(inputs=[pb.Input(text="a")])


class Clock:
    """A clock that advances by a second at every call."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += LOOK_SECONDS
        return self.now


@dataclass
class Shop:
    """An authority, the service's certificate, and the files of both."""

    folder: Path
    authority: trustme.CA = field(default_factory=trustme.CA)
    mutual: bool = False

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.write(self.authority.issue_cert("localhost", "127.0.0.1"))
        if self.mutual:
            self.authority.cert_pem.write_to_path(str(self.folder / "clients.pem"))

    def write(self, leaf: trustme.LeafCert, cert: bool = True, key: bool = True) -> None:
        if key:
            leaf.private_key_pem.write_to_path(str(self.folder / "key.pem"))
        if cert:
            chain = b"".join(each.bytes() for each in leaf.cert_chain_pems)
            (self.folder / "cert.pem").write_bytes(chain)

    @property
    def files(self) -> tls.Files:
        client_ca = self.folder / "clients.pem" if self.mutual else None
        return tls.Files(self.folder / "cert.pem", self.folder / "key.pem", client_ca)

    @property
    def settings(self) -> dict[str, Any]:
        return {f"tls_{name}": path for name, path in self.files._asdict().items()}

    def trusting(self, *, shown: trustme.LeafCert | None = None, other: trustme.CA | None = None) -> ssl.SSLContext:
        """A client's side."""
        context = ssl.create_default_context()
        (other or self.authority).configure_trust(context)
        if shown:
            shown.configure_cert(context)
        return context

    def channel(self, address: str, *, shown: trustme.LeafCert | None = None, other: trustme.CA | None = None) -> Any:
        credentials = grpc.ssl_channel_credentials(
            (other or self.authority).cert_pem.bytes(),
            shown.private_key_pem.bytes() if shown else None,
            b"".join(each.bytes() for each in shown.cert_chain_pems) if shown else None,
        )
        options = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
        return grpc.secure_channel(address.replace("127.0.0.1", "localhost"), credentials, options)


@dataclass(frozen=True)
class Secure:
    """A service that speaks TLS alone."""

    url: str
    rpc_address: str
    port: int


@contextmanager
def serving_securely(store: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Secure]:
    """As listen.py does it, with clocks that let a second pass between two handshakes."""
    monkeypatch.setattr(tls.Renewed.__init__, "__defaults__", (Clock(),))
    settings = Settings(store=store, grpc_port=0, device="cpu", default_model="bert", **shop.settings)
    rpc_ports: list[int] = []
    started = threading.Event()

    def ready(_parts: object, port: int) -> None:
        rpc_ports.append(port)
        started.set()

    app = create_app(settings, ready=ready)
    listener = socket.create_server(("127.0.0.1", 0))
    context = tls.renewing(shop.files, Clock())
    config = uvicorn.Config(
        app,
        http=HttpProtocol,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        ssl_context_factory=lambda _config, _default: context,
        timeout_keep_alive=60,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="secure")
    thread.start()
    try:
        assert started.wait(60)
        port = listener.getsockname()[1]
        yield Secure(f"https://localhost:{port}", f"127.0.0.1:{rpc_ports[0]}", port)
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "tls")


@pytest.fixture
def secure(tiny_store: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Secure]:
    with serving_securely(tiny_store, shop, monkeypatch) as service:
        yield service


@pytest.fixture
def mutual_shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "tls", mutual=True)


@pytest.fixture
def mutual(tiny_store: Path, mutual_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Secure]:
    with serving_securely(tiny_store, mutual_shop, monkeypatch) as service:
        yield service


def embed(url: str, context: ssl.SSLContext) -> bytes:
    """A vector, over a connection of its own."""
    with httpx.Client(verify=context, trust_env=False, timeout=60) as http:
        return http.post(f"{url}/embed", json=TEXT, headers=BYTES).raise_for_status().content


def serial(secure: Secure, context: ssl.SSLContext) -> str:
    """Of the certificate that a new connection is shown."""
    with (
        socket.create_connection(("127.0.0.1", secure.port)) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as wrapped,
    ):
        shown: Any = wrapped.getpeercert()
        number: str = shown["serialNumber"]
        return number


def code_of(channel: Any, timeout: float = 10) -> grpc.StatusCode:
    """What a call over a channel of its own ends with."""
    with channel:
        try:
            EmbedderStub(channel).Embed(CALL, timeout=timeout)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return grpc.StatusCode.OK


def test_vector_is_the_same_over_tls(secure: Secure, shop: Shop, served: Served) -> None:
    plain = np.frombuffer(served.post(TEXT, BYTES["accept"]).content, "<f4")
    np.testing.assert_array_equal(np.frombuffer(embed(secure.url, shop.trusting()), "<f4"), plain)
    with shop.channel(secure.rpc_address) as channel:
        tensor = EmbedderStub(channel).Embed(CALL).outputs[0].tensor
    np.testing.assert_array_equal(np.frombuffer(tensor.data, "<f4"), plain)


def test_large_response_arrives_whole(secure: Secure, shop: Shop) -> None:
    with httpx.Client(verify=shop.trusting(), trust_env=False, timeout=60) as http:
        body = {"inputs": ["a b c d e"] * 1000}
        small, large = (http.post(f"{secure.url}/embed", json=each, headers=BYTES) for each in (TEXT, body))
        assert (small.status_code, large.status_code) == (200, 200)
        assert int(large.headers["content-length"]) == len(large.content) > 100_000


def test_another_authority_is_not_trusted(secure: Secure, shop: Shop) -> None:
    another = trustme.CA()
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        embed(secure.url, shop.trusting(other=another))
    assert code_of(shop.channel(secure.rpc_address, other=another), 3) is grpc.StatusCode.UNAVAILABLE


def test_plain_text_clients_get_no_response(secure: Secure) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(secure.url.replace("https", "http") + "/health", trust_env=False, timeout=60)
    assert code_of(grpc.insecure_channel(secure.rpc_address), 3) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(("version", "spoken"), [("TLSv1_1", False), ("TLSv1_2", True), ("TLSv1_3", True)])
def test_tls_1_1_is_refused(secure: Secure, shop: Shop, version: str, spoken: bool) -> None:
    context = shop.trusting()
    context.set_ciphers("ALL:@SECLEVEL=0")  # else this client's own OpenSSL refuses 1.1
    with warnings.catch_warnings(action="ignore"):  # 1.1 is old, which is the point
        context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    for port in (secure.port, int(secure.rpc_address.rpartition(":")[2])):
        with socket.create_connection(("127.0.0.1", port)) as plain:
            if spoken:
                context.wrap_socket(plain, server_hostname="localhost").close()
            else:
                with pytest.raises(ssl.SSLError):
                    context.wrap_socket(plain, server_hostname="localhost")


def test_mutual_tls_needs_a_certificate_of_the_authority(mutual: Secure, mutual_shop: Shop) -> None:
    known = mutual_shop.authority.issue_cert("caller@example.org")
    assert embed(mutual.url, mutual_shop.trusting(shown=known))
    assert code_of(mutual_shop.channel(mutual.rpc_address, shown=known)) is grpc.StatusCode.OK
    for shown in (None, trustme.CA().issue_cert("caller@example.org")):
        with pytest.raises(httpx.TransportError):
            embed(mutual.url, mutual_shop.trusting(shown=shown))
        assert code_of(mutual_shop.channel(mutual.rpc_address, shown=shown), 3) is grpc.StatusCode.UNAVAILABLE


def test_new_certificate_is_used_without_a_restart(secure: Secure, shop: Shop) -> None:
    context, kept = shop.trusting(), httpx.Limits(keepalive_expiry=60)
    with (
        httpx.Client(verify=context, trust_env=False, timeout=60, base_url=secure.url, limits=kept) as http,
        shop.channel(secure.rpc_address) as channel,
    ):
        assert http.post("/embed", json=TEXT).status_code == 200
        EmbedderStub(channel).Embed(CALL)
        first = serial(secure, context)
        shop.authority = trustme.CA()  # nobody can mistake the one for the other
        shop.write(shop.authority.issue_cert("localhost", "127.0.0.1"))
        assert serial(secure, shop.trusting()) != first
        assert code_of(shop.channel(secure.rpc_address)) is grpc.StatusCode.OK
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            embed(secure.url, context)
        assert http.post("/embed", json=TEXT).status_code == 200
        EmbedderStub(channel).Embed(CALL)


@pytest.mark.parametrize("fault", ["another key", "no certificate", "gone"])
def test_broken_pair_keeps_the_old_one_and_is_logged_once(
    secure: Secure, shop: Shop, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    context, before = shop.trusting(), (shop.folder / "key.pem").read_bytes()
    first = serial(secure, context)
    if fault == "another key":
        shop.write(shop.authority.issue_cert("localhost"), cert=False)
    elif fault == "no certificate":
        (shop.folder / "cert.pem").write_text("-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----\n")
    else:
        (shop.folder / "key.pem").unlink()
    for _ in range(3):
        assert serial(secure, context) == first
        assert code_of(shop.channel(secure.rpc_address)) is grpc.StatusCode.OK
    errors = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert sorted(line.split()[0] for line in errors) == ["HTTP", "gRPC"]
    assert before.decode().split("\n")[1] not in caplog.text
    shop.write(shop.authority.issue_cert("localhost", "127.0.0.1"))
    assert serial(secure, context) != first
    assert code_of(shop.channel(secure.rpc_address)) is grpc.StatusCode.OK


def test_callers_of_a_removed_authority_are_refused(mutual: Secure, mutual_shop: Shop) -> None:
    old, new = mutual_shop.authority.issue_cert("old@example.org"), trustme.CA()
    context = mutual_shop.trusting(shown=old)
    assert embed(mutual.url, context)
    new.cert_pem.write_to_path(str(mutual_shop.folder / "clients.pem"))
    with pytest.raises(httpx.TransportError):
        embed(mutual.url, context)  # the same context: no ticket of it opens a session either
    assert code_of(mutual_shop.channel(mutual.rpc_address, shown=old), 3) is grpc.StatusCode.UNAVAILABLE
    shown = new.issue_cert("new@example.org")
    assert embed(mutual.url, mutual_shop.trusting(shown=shown))
    assert code_of(mutual_shop.channel(mutual.rpc_address, shown=shown)) is grpc.StatusCode.OK


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
@pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
def test_no_tls_session_outlives_its_authority(mutual: Secure, mutual_shop: Shop, protocol: str, version: str) -> None:
    """One of TLS 1.2 over HTTP would: so it speaks 1.3 alone, and gives no ticket. gRPC forgets its sessions."""
    port = mutual.port if protocol == "HTTP" else int(mutual.rpc_address.rpartition(":")[2])
    context = mutual_shop.trusting(shown=mutual_shop.authority.issue_cert("old@example.org"))
    context.set_alpn_protocols(["h2", "http/1.1"])
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]

    def connect(session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool]:
        """The session of a connection, and whether it was there before."""
        with (
            suppress(ssl.SSLError),
            socket.create_connection(("127.0.0.1", port)) as plain,
            context.wrap_socket(plain, server_hostname="localhost", session=session) as wrapped,
        ):
            wrapped.settimeout(0.2)
            with suppress(TimeoutError, ConnectionError):
                wrapped.recv(1)  # a ticket comes after the handshake
            return wrapped.session, bool(wrapped.session_reused)
        return None, False

    session, _ = connect(None)
    trustme.CA().cert_pem.write_to_path(str(mutual_shop.folder / "clients.pem"))
    for _ in range(2):
        assert connect(session)[1] is False


# ---- files that do not do


def encrypted(shop: Shop) -> None:
    key = serialization.load_pem_private_key((shop.folder / "key.pem").read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"password")
    kinds = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret
    (shop.folder / "key.pem").write_bytes(key.private_bytes(*kinds))


FAULTS = {
    "missing key": (lambda shop: (shop.folder / "key.pem").unlink(), r"key\.pem cannot be used for TLS: No such file"),
    "empty certificate": (lambda shop: (shop.folder / "cert.pem").write_text(""), r"cert\.pem cannot be used"),
    "another key": (lambda shop: shop.write(shop.authority.issue_cert("b"), cert=False), r"key values mismatch"),
    "encrypted key": (encrypted, r"without a password"),
    "empty authorities": (lambda shop: (shop.folder / "clients.pem").write_text(""), r"clients\.pem cannot be used"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_unusable_files_are_one_line_at_the_start(mutual_shop: Shop, fault: str) -> None:
    breaks, said = FAULTS[fault]
    breaks(mutual_shop)
    with pytest.raises(StartError, match=said) as error:
        tls.context(mutual_shop.files)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("names", [("cert",), ("key",), ("client_ca",), ("cert", "client_ca"), ("key", "client_ca")])
def test_half_a_pair_is_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(StartError, match="INLAY_TLS_CERT and INLAY_TLS_KEY"):
        tls.files(Settings(**{f"tls_{name}": Path("a.pem") for name in names}))  # type: ignore[arg-type]


def test_no_tls_without_files() -> None:
    assert tls.files(Settings()) is None


def test_pair_exchanged_while_reading_is_used(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    read = tls.context

    def exchanged(files: tls.Files) -> ssl.SSLContext:
        made = read(files)
        monkeypatch.setattr(tls, "context", read)
        shop.write(shop.authority.issue_cert("localhost"))
        os.utime(files.cert, (1, 1))  # two writes may fall into one tick of the file system
        return made

    monkeypatch.setattr(tls, "context", exchanged)
    first = tls.renewing(shop.files, Clock())
    connection = SimpleNamespace(context=first)
    first.sni_callback(connection, "localhost", first)  # type: ignore[misc,arg-type]
    assert connection.context is not first


def test_files_are_looked_at_once_a_second_at_most(shop: Shop) -> None:
    now = [0.0]
    changes = tls.FileChanges([shop.files.cert], lambda: now[0])
    os.utime(shop.files.cert, (1, 1))
    assert not changes.since_last()
    now[0] = LOOK_SECONDS
    assert changes.since_last()
    now[0] = 2 * LOOK_SECONDS
    assert not changes.since_last()
