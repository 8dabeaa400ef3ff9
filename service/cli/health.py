"""`inlay health`: asks a running service whether it is ready.

A container runs it every few seconds, so it imports the standard library alone, and ssl for TLS only. There it reads
the command of the first process, so that `inlay serve --port 9000` needs no word more.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl

LOOPBACK = ("127.0.0.1", "::1", "localhost")
SECONDS = 3
FIRST_PROCESS = Path("/proc/1/cmdline")
OPTIONS = ("host", "port", "management_port", "tls_cert", "tls_key", "tls_client_ca")


def check(url: str | None = None, port: int | None = None, cert: str | None = None, key: str | None = None) -> int:
    """Print the answer of /health/ready; return exit code 0 if the service is ready, else 1.

    Args:
        url: address of the service; None: this machine's, as the container's command or the INLAY_ variables say.
        port: port on this machine; it overrides both.
        cert: PEM file to show to a service with mutual TLS; None: the service's own.
        key: its private key.
    """
    values = _variables() if url else _service()
    here, url = url is None, url or _url(values, port)
    if not cert and values.get("tls_client_ca"):
        cert, key = values.get("tls_cert"), values.get("tls_key")
    try:
        status, answer = _get(url, here, cert, key)
        if status == 200:
            print(answer)
            return 0
        reason = f"HTTP {status}: {answer[:500]}"
    except (OSError, HTTPException, ValueError) as error:
        reason = str(error) or type(error).__name__
    print(f"inlay: {url} is not ready: {reason}", file=sys.stderr)
    return 1


def _url(values: Mapping[str, str], port: int | None) -> str:
    """Return the URL of a service on this machine, of its management port unless another is asked for."""
    if port in (None, _port(values)):
        port = _port(values, "management_port", "port")
    host = values.get("host", "")
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http{'s' if 'tls_cert' in values else ''}://{f'[{host}]' if ':' in host else host}:{port}"


def _port(values: Mapping[str, str], *names: str) -> int:
    """Return the first port that is a number; Kubernetes sets INLAY_PORT to a URL for a Service named inlay."""
    texts = (values.get(name, "") for name in names or ("port",))
    return next((int(text) for text in texts if text.isdecimal()), 8080)


def _service() -> dict[str, str]:
    """Return the values of OPTIONS that the variables give, and the command of a container's first process."""
    words: list[str] = []
    with suppress(OSError):  # not Linux
        words = FIRST_PROCESS.read_bytes().decode(errors="replace").split("\0")
    serves = any(program.rpartition("/")[2] == "inlay" and verb == "serve" for program, verb in pairwise(words))
    return _variables() | (_options(words) if serves else {})


def _variables() -> dict[str, str]:
    values = {name: value for name in OPTIONS if (value := os.environ.get(f"INLAY_{name.upper()}"))}
    return {"port": os.environ.get("PORT", "")} | values  # what `serve` reads as well


def _options(words: Sequence[str]) -> dict[str, str]:
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
