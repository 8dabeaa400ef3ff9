"""TLS and mutual TLS for REST and gRPC, TLS 1.2 or newer; renewed files are used without a restart.

Files are looked at in handshakes: HTTP asks for the newest context, gRPC for the newest bytes, and open connections go
on as they are. Certificate and key that do not fit are logged once, and the last good ones are kept.
"""

import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any, Generic, NamedTuple, TypeVar

from service.errors import StartError
from service.security.file_changes import FileChanges
from service.settings import Settings

Loaded = TypeVar("Loaded")
log = logging.getLogger(__name__)


class Files(NamedTuple):
    """Paths of the PEM files.

    Args:
        cert: the certificate and those that lead to its authority.
        key: its private key, not encrypted.
        client_ca: authorities whose certificates callers must show; None: callers show none.
    """

    cert: Path
    key: Path
    client_ca: Path | None


class Pem(NamedTuple):
    """The contents of Files."""

    cert: bytes
    key: bytes
    client_ca: bytes | None


def files(settings: Settings) -> Files | None:
    """Return the files that the settings name, None without TLS; raise StartError if the settings are incomplete."""
    cert, key, client_ca = settings.tls_cert, settings.tls_key, settings.tls_client_ca
    if cert and key:
        return Files(cert, key, client_ca)
    if cert or key or client_ca:
        raise StartError("TLS needs a certificate and its key: set INLAY_TLS_CERT and INLAY_TLS_KEY both, or neither")
    return None


def context(files: Files) -> ssl.SSLContext:
    """Return the TLS context of a server; raise StartError if the files cannot be used."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_alpn_protocols(["http/1.1"])
    path = files.cert
    try:
        made.load_cert_chain(files.cert, files.key, password=_no_password)
        if files.client_ca:
            path = files.client_ca
            made.load_verify_locations(files.client_ca)
            made.verify_mode = ssl.CERT_REQUIRED
            # a resumed session shows no certificate, so it outlives its authority; that of TLS 1.2 cannot be refused
            made.minimum_version, made.num_tickets = ssl.TLSVersion.TLSv1_3, 0
    except (OSError, ValueError) as error:
        unreadable = next((each for each in _paths(files) if not each.is_file()), path)
        raise StartError(f"{unreadable} cannot be used for TLS: {_reason(error)}") from None
    return made


class Renewed(Generic[Loaded]):
    """What is loaded from the files; asked for in handshakes, it is loaded again once they have changed.

    Attributes:
        current: what was loaded last; it stays while the files cannot be used.
    """

    def __init__(
        self, files: Files, load: Callable[[Files], Loaded], protocol: str, clock: Callable[[], float] = monotonic
    ) -> None:
        """Load the files; raises what `load` does."""
        self._files, self._load, self._protocol = files, load, protocol
        self._changes = FileChanges(_paths(files), clock)  # before they are read: a later change is seen
        self.current = load(files)

    def renew(self) -> bool:
        """Load the files again if they have changed; return whether `current` is new."""
        if not self._changes.since_last():
            return False
        try:
            self.current = self._load(self._files)
        except StartError as error:
            log.error("%s stays with the certificate it has: %s", self._protocol, error)
            return False
        log.info("%s uses the certificate now in %s", self._protocol, self._files.cert)
        return True


def renewing(files: Files, clock: Callable[[], float] = monotonic) -> ssl.SSLContext:
    """Return a context whose handshakes use the present contents of the files; raises as `context` does."""
    renewed = Renewed(files, context, "HTTP", clock)

    def choose(connection: Any, name: str | None, initial: ssl.SSLContext) -> None:
        renewed.renew()
        if renewed.current is not initial:
            connection.context = renewed.current

    first = renewed.current
    first.sni_callback = choose  # OpenSSL calls it in every handshake, with a server name or without
    return first


def contents(files: Files) -> Pem:
    """Return the contents of all files at one moment, after checking that they belong together."""
    changes = FileChanges(_paths(files))
    before = changes.stamps()
    context(files)
    cert, key, *client_ca = [path.read_bytes() for path in _paths(files)]
    if changes.stamps() != before:
        raise StartError(f"{files.cert} is being written")
    return Pem(cert, key, client_ca[0] if client_ca else None)


def _paths(files: Files) -> list[Path]:
    return [path for path in files if path]


def _no_password() -> str:
    raise ValueError("the key is encrypted: store it without a password, readable by this service alone")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
