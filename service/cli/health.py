"""`inlay health`: asks a running service whether it is ready.

A container runs it every few seconds, so it imports the standard library alone, and ssl for TLS only. On Linux it finds
the service by the command line in /proc, so that `inlay serve --port 9000` needs no word more.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl

LOOPBACK = ("127.0.0.1", "::1", "localhost")
SECONDS = 3
PROCESSES = Path("/proc")
OPTIONS = ("host", "port", "management_port", "tls_cert", "tls_key", "tls_client_ca")


class Service(NamedTuple):
    """A service on this machine, as its command line and its INLAY_ variables describe it.

    Args:
        values: the values of OPTIONS, as text; those that are neither given nor set are missing.
        folder: the folder that relative paths among them start from.
    """

    values: Mapping[str, str]
    folder: str = "."

    def port(self, *names: str) -> int:
        """Return the first port that is a number; Kubernetes sets INLAY_PORT to a URL for a Service named inlay."""
        texts = (self.values.get(name, "") for name in (*names, "port"))
        return next((int(text) for text in texts if text.isdecimal()), 8080)

    def url(self, port: int) -> str:
        """Return the URL of this service at a port."""
        host = self.values.get("host", "")
        host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        scheme = "https" if self.values.get("tls_cert") else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def path(self, name: str) -> str | None:
        """Return a value that is a path, made absolute."""
        value = self.values.get(name)
        return os.path.join(self.folder, value) if value else None  # noqa: PTH118 (this module imports little)


def check(url: str | None = None, port: int | None = None, cert: str | None = None, key: str | None = None) -> int:
    """Print the answer of /health/ready; return exit code 0 if the service is ready, else 1.

    Args:
        url: address of the service; None: this machine's, as `inlay serve` was started or the INLAY_ variables say.
        port: port on this machine; it overrides both.
        cert: PEM file to show to a service with mutual TLS; None: the service's own.
        key: its private key.
    """
    here, others = url is None, ""
    service = Service(_of_variables(os.environ))
    if url is None:
        service, others = _choose(service, port)
        url = service.url(service.port("management_port") if port in (None, service.port()) else port)
    if not cert and service.path("tls_client_ca"):
        cert, key = service.path("tls_cert"), service.path("tls_key")
    try:
        status, answer = _get(url, here, cert, key)
        if status == 200:
            print(answer)
            return 0
        reason = f"HTTP {status}: {answer[:500]}"
    except (OSError, HTTPException, ValueError) as error:
        reason = str(error) or type(error).__name__
    print(f"inlay: {url} is not ready: {reason}{others}", file=sys.stderr)
    return 1


def _choose(configured: Service, port: int | None) -> tuple[Service, str]:
    """Return the service to ask, and a hint about others for the case that it does not answer.

    It is the running one at the port that was asked for or that the variables name, else the only running one.
    """
    running = [service for service in _running() if service.port()]  # which one --port 0 took is not known
    for service in running:
        if service.port() == (port or configured.port()):
            return service, ""
    if len(running) == 1 and port is None:
        return running[0], ""
    ports = ", ".join(sorted({str(service.port()) for service in running}))
    return configured, f"; `inlay serve` runs here on port {ports}: name one with --port" if ports else ""


def _running() -> Iterator[Service]:
    """Yield the services of the `inlay serve` processes that this process may see; none without /proc."""
    for place in PROCESSES.glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to another user
            words = (place / "cmdline").read_bytes().decode(errors="replace").split("\0")
            programs = [word.rpartition("/")[2] for word in words[:2]]
            if "inlay" in programs and words[programs.index("inlay") + 1] == "serve":
                variables: dict[str, str] = {}
                with suppress(OSError):
                    pairs = (place / "environ").read_bytes().decode(errors="replace").split("\0")
                    variables = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
                yield Service(_of_variables(variables) | _of_words(words), f"{place}/cwd")


def _of_variables(variables: Mapping[str, str]) -> dict[str, str]:
    values = {name: variables.get(f"INLAY_{name.upper()}", "") for name in OPTIONS}
    return {name: value for name, value in values.items() if value}


def _of_words(words: Sequence[str]) -> dict[str, str]:
    """Return the values of a command line's options, written as --name=value or --name value."""
    values = {}
    for word, following in pairwise(words):
        option, equals, value = word.partition("=")
        name = option.removeprefix("--").replace("-", "_")
        if option.startswith("--") and name in OPTIONS:
            values[name] = value if equals else following
    return values


def _get(url: str, here: bool, cert: str | None, key: str | None) -> tuple[int, str]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("a URL begins with http:// or https:// and names a host")
    if parts.scheme == "https":
        context = _tls(here or parts.hostname in LOOPBACK, cert, key)
        connection: HTTPConnection = HTTPSConnection(parts.hostname, parts.port, timeout=SECONDS, context=context)
    else:
        connection = HTTPConnection(parts.hostname, parts.port, timeout=SECONDS)
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}/health/ready")
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    finally:
        connection.close()


def _tls(here: bool, cert: str | None, key: str | None) -> "ssl.SSLContext":
    """Return a TLS context; a service on this machine is not verified, since its certificate names another host."""
    import ssl

    context = ssl.create_default_context()
    if here:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if cert:
        context.load_cert_chain(cert, key)
    return context
