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
from contextlib import suppress
from urllib.parse import SplitResult, urljoin, urlsplit

from service.embedding.requests import Picture
from service.errors import BadInput

SECONDS = 10.0  # of one picture, redirects included
REDIRECTS = 3
THREADS = 4
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
        held: list[socket.socket] = []
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._seconds):
                return Picture(await loop.run_in_executor(self._threads, self._fetch, picture.url, held))
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = str(error)[:100] or "it takes too long"
            raise BadInput(f"is {_shown(picture.url)}, which gives no picture: {reason}", field=picture.field) from None
        finally:
            for connected in held:  # a thread that still reads ends now
                with suppress(OSError):
                    connected.shutdown(socket.SHUT_RDWR)
                connected.close()

    def _fetch(self, url: str, held: list[socket.socket]) -> bytes:
        """Return the bytes at an address; ValueError, OSError or HTTPException: there are none."""
        for _ in range(REDIRECTS + 1):
            parts = urlsplit(url)
            connection = self._connected(parts, held)
            target = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
            connection.request("GET", target, headers={"accept": "image/*"})
            with connection.getresponse() as response:
                if response.status == http.client.OK:
                    data = response.read(self._max_bytes + 1)
                    if len(data) > self._max_bytes:
                        raise ValueError(f"it has more than {self._max_bytes} bytes")
                    return data
                if response.status not in MOVED:
                    raise ValueError(f"its server answered {response.status}")
                url = urljoin(url, response.headers.get("location") or "")
        raise ValueError(f"it redirects more than {REDIRECTS} times")

    def _connected(self, parts: SplitResult, held: list[socket.socket]) -> http.client.HTTPConnection:
        """Return a connection to an address of the host that was checked."""
        host, usual = (parts.hostname or "").lower(), PORTS.get(parts.scheme)
        port = parts.port or usual
        if usual is None or port is None or not self._allows(host if port == usual else f"{host}:{port}"):
            raise ValueError(f"{parts.netloc[:60]!r} is not among the hosts of INLAY_IMAGE_HOSTS")
        addresses = [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        if not addresses or not all(map(self._allowed_address, addresses)):
            raise ValueError(f"{host[:60]!r} has no public address")
        connection = http.client.HTTPConnection(host, port)
        held.append(socket.create_connection((addresses[0], port), timeout=self._seconds))
        if parts.scheme == "https":
            held.append(ssl.create_default_context().wrap_socket(held[-1], server_hostname=host))
        connection.sock = held[-1]
        return connection

    def _allows(self, host: str) -> bool:
        return any(host == each or (each[:2] == "*." and host.endswith(each[1:])) for each in self._hosts)


def _shown(url: str) -> str:
    return f'"{url}"' if len(url) <= SHOWN else f'"{url[:SHOWN]}…"'
