"""`inlay health`: asks a running service whether it is ready.

Imports http.client alone (and ssl for TLS): a container runs it every few seconds.
"""

import os
import sys
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl

LOOPBACK = ("127.0.0.1", "::1", "localhost")
SECONDS = 3


def check(url: str | None = None, port: int | None = None, cert: str | None = None, key: str | None = None) -> int:
    """Print the answer of /health/ready; the exit code: 0 where the service is ready, else 1.

    Args:
        url: of the service; None: this machine, as the INLAY_ variables say.
        port: instead of INLAY_PORT.
        cert: PEM file to show to a service with mutual TLS; None: the service's own.
        key: its private key.
    """
    own = url is None
    url = url or _own_url(port)
    try:
        status, answer = _get(url, own, cert, key)
        if status == 200:
            print(answer)
            return 0
        reason = f"HTTP {status}: {answer[:500]}"
    except (OSError, HTTPException, ValueError) as error:
        reason = str(error) or type(error).__name__
    print(f"inlay: {url} is not ready: {reason}", file=sys.stderr)
    return 1


def _own_url(port: int | None) -> str:
    scheme = "https" if os.environ.get("INLAY_TLS_CERT") else "http"
    host = os.environ.get("INLAY_HOST", "")
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    variable = os.environ.get("INLAY_PORT", "")  # Kubernetes sets it to a URL for a Service named inlay
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port or (variable if variable.isdigit() else 8080)}"


def _get(url: str, own: bool, cert: str | None, key: str | None) -> tuple[int, str]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("a URL begins with http:// or https:// and names a host")
    if parts.scheme == "https":
        context = _tls(own or parts.hostname in LOOPBACK, cert, key)
        connection: HTTPConnection = HTTPSConnection(parts.hostname, parts.port, timeout=SECONDS, context=context)
    else:
        connection = HTTPConnection(parts.hostname, parts.port, timeout=SECONDS)
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}/health/ready")
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    finally:
        connection.close()


def _tls(own: bool, cert: str | None, key: str | None) -> "ssl.SSLContext":
    """Return a context that does not verify the service of this machine, whose certificate names another host."""
    import ssl

    context = ssl.create_default_context()
    if own:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if not cert and os.environ.get("INLAY_TLS_CLIENT_CA"):
        cert, key = os.environ.get("INLAY_TLS_CERT"), os.environ.get("INLAY_TLS_KEY")
    if cert:
        context.load_cert_chain(cert, key)
    return context
