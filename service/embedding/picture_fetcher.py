"""PictureFetcher: fetches pictures from the hosts that an operator allows, within a size and a time.

A host's addresses are resolved once, all have to be public, and the connection goes to the address that was checked. A
redirect is followed if it leads to an allowed host, and is checked like the first address.
"""

import asyncio
import http.client
import ipaddress
import socket
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from urllib.parse import SplitResult, urljoin, urlsplit

from service.embedding.requests import Picture
from service.errors import BadInput

SECONDS = 10.0  # of one picture, redirects included
REDIRECTS = 3
THREADS = 4
CHUNK = 1 << 16
PORTS = {"http": 80, "https": 443}
MOVED = (301, 302, 303, 307, 308)
SHOWN = 40  # characters of an address


def is_public(address: str) -> bool:
    """Return whether an IP address is of the internet, not of a private network, this machine or a multicast group."""
    parsed = ipaddress.ip_address(address)
    return parsed.is_global and not parsed.is_multicast


class PictureFetcher:
    """Fetches pictures.

    Args:
        hosts: names that may be asked, each with a port if it is not the usual one; "*.name" allows all below it.
        max_bytes: the largest file.
        allowed_address: whether an IP address may be asked.
        seconds: that a picture may take.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        max_bytes: int,
        allowed_address: Callable[[str], bool] = is_public,
        seconds: float = SECONDS,
    ) -> None:
        self._hosts, self._max_bytes = tuple(host.lower() for host in hosts), max_bytes
        self._allowed_address, self._seconds = allowed_address, seconds
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="fetch")

    async def fetched(self, picture: Picture) -> Picture:
        """Return a picture with its bytes; raise BadInput if its address may not be asked, or gives no picture."""
        if not picture.url:
            return picture
        if not self._hosts:
            remedy = "send the file itself, as a data URL"
            allowed = "addresses are not fetched"
            raise BadInput(f"is {_shown(picture.url)}", field=picture.field, allowed=allowed, remedy=remedy)
        deadline = monotonic() + self._seconds
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._seconds):
                return Picture(await loop.run_in_executor(self._threads, self._fetch, picture.url, deadline))
        except (OSError, http.client.HTTPException, ValueError, TimeoutError) as error:
            reason = str(error)[:100] or type(error).__name__
            raise BadInput(f"is {_shown(picture.url)}, which gives no picture: {reason}", field=picture.field) from None

    def _fetch(self, url: str, deadline: float) -> bytes:
        """Return the bytes at an address; ValueError, OSError or HTTPException: there are none."""
        for _ in range(REDIRECTS + 1):
            parts = urlsplit(url)
            connection = self._connected(parts, deadline)
            try:
                target = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
                connection.request("GET", target, headers={"accept": "image/*"})
                response = connection.getresponse()
                if response.status == http.client.OK:
                    return self._read(response, connection, deadline)
                if response.status not in MOVED:
                    raise ValueError(f"its server answered {response.status}")
                url = urljoin(url, response.headers.get("location") or "")
            finally:
                connection.close()
        raise ValueError(f"it redirects more than {REDIRECTS} times")

    def _connected(self, parts: SplitResult, deadline: float) -> http.client.HTTPConnection:
        """Return a connection to an address of the host that was checked."""
        host, usual = (parts.hostname or "").lower(), PORTS.get(parts.scheme)
        port = parts.port or usual
        if usual is None or port is None or not self._allows(host if port == usual else f"{host}:{port}"):
            raise ValueError(f"{parts.netloc[:60]!r} is not among the hosts of INLAY_IMAGE_HOSTS")
        addresses = [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        if not addresses or not all(map(self._allowed_address, addresses)):
            raise ValueError(f"{host[:60]!r} has no public address")
        connection = http.client.HTTPConnection(host, port)
        connected = socket.create_connection((addresses[0], port), timeout=_left(deadline))
        if parts.scheme == "https":
            connected = ssl.create_default_context().wrap_socket(connected, server_hostname=host)
        connection.sock = connected
        return connection

    def _allows(self, host: str) -> bool:
        return any(host == each or (each[:2] == "*." and host.endswith(each[1:])) for each in self._hosts)

    def _read(
        self, response: http.client.HTTPResponse, connection: http.client.HTTPConnection, deadline: float
    ) -> bytes:
        """Return a body; ValueError if it is too large, TimeoutError if it takes too long."""
        parts: list[bytes] = []
        size = int(response.headers.get("content-length") or 0)
        while size <= self._max_bytes:
            connection.sock.settimeout(_left(deadline))
            part = response.read1(CHUNK)
            if not part:
                return b"".join(parts)
            parts.append(part)
            size = max(size, sum(map(len, parts)))
        raise ValueError(f"it has more than {self._max_bytes} bytes")


def _shown(url: str) -> str:
    return f'"{url}"' if len(url) <= SHOWN else f'"{url[:SHOWN]}…"'


def _left(deadline: float) -> float:
    """Return the seconds left; TimeoutError if there are none."""
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError("it takes too long")
    return left
