"""Parses HTTP/1.1 requests with httptools. An Upgrade header has no effect: this server speaks no other protocol."""

import re

import httptools

from service.errors import Malformed
from service.http.routes import VARYING, Head

_HOST = re.compile(rb"[\w.~!$&'()*+;=%:\[\]-]*")  # and a port (RFC 3986, 3.2.2), without the comma that joins two
_UPGRADES = (b"upgrade", b"http2-settings")


class RequestParser:
    """Parses the requests of one connection, from pieces of data none of which holds parts of two.

    Attributes:
        target: the target of the request being received, as far as it has come.
        headers: its headers, as far as they have come, by lower-case name; empty once the head is complete.
        in_message: whether a request has begun and is not complete.
        head: the head that the last piece completed, with its headers of VARYING and whether another request may
            follow; None: it completed none.
        parts: the parts of the body in the last piece.
        ended: whether the last piece completed the request.
        keeps_alive: whether another request may follow the complete one; a trailer may forbid it.
    """

    def __init__(self) -> None:
        self.target = b""
        self.headers: dict[bytes, bytes] = {}
        self.in_message = self.ended = False
        self.keeps_alive = True
        self.head: tuple[Head, dict[bytes, bytes], bool] | None = None
        self.parts: list[bytes] = []
        self.on_body = self.parts.append
        self._parser = httptools.HttpRequestParser(self)

    def feed(self, piece: bytes) -> None:
        """Parse the next piece; raise Malformed if it is not HTTP/1.1, or a CONNECT request."""
        self.head, self.ended = None, False
        self.parts.clear()
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self._feed_without_upgrade()
        except httptools.HttpParserError:
            raise Malformed("the request is not HTTP/1.1", remedy="send a request line and headers") from None
        if self.ended and self.in_message:  # another request begins in a piece that was cut to hold one
            raise Malformed("the request's end is not clear")

    def _feed_without_upgrade(self) -> None:
        """Parse a head without its Upgrade header, which would make httptools skip the body."""
        parser, headers = self._parser, self.headers
        method = parser.get_method()
        if b"upgrade" not in headers:
            raise Malformed(f"{method.decode('ascii')} is not a method of this server")
        options = [option.strip() for option in headers.pop(b"connection", b"").split(b",")]
        if kept := b",".join([name for name in options if name.lower() not in (*_UPGRADES, b"")]):
            headers[b"connection"] = kept
        lines = [b"%b: %b\r\n" % header for header in headers.items() if header[0] not in _UPGRADES]
        self._parser = httptools.HttpRequestParser(self)
        self.feed(
            b"%b %b HTTP/%b\r\n%b\r\n" % (method, self.target, parser.get_http_version().encode(), b"".join(lines))
        )

    @property
    def verb(self) -> str:
        """The verb of the request being received; "GET" while it is unknown."""
        return self._parser.get_method().decode("ascii") if self.target else "GET"

    # ---- httptools callbacks

    def on_message_begin(self) -> None:
        """Begin a request."""
        self.in_message, self.target, self.headers = True, b"", {}

    def on_url(self, url: bytes) -> None:
        """Add a part of the request target."""
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add one header; repeated ones become a list (RFC 9110, 5.3)."""
        name = name.lower()
        headers, value = self.headers, value.rstrip(b" \t")
        headers[name] = headers[name] + b"," + value if name in headers else value

    def on_headers_complete(self) -> None:
        """Complete the head, unless httptools would skip the body."""
        parser, headers = self._parser, self.headers
        if parser.should_upgrade():
            return
        self.headers = {}  # trailers are not headers (RFC 9110, 6.5.1)
        varying = varying_of(headers)
        head = Head(parser.get_method().decode("ascii"), self.target, headers, parser.get_http_version())
        self.head = head, varying, parser.should_keep_alive()

    def on_message_complete(self) -> None:
        """End the request."""
        self.in_message, self.ended = False, True
        self.keeps_alive = self._parser.should_keep_alive()


def varying_of(headers: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the headers of VARYING, which are taken out of `headers`."""
    return {name: headers.pop(name) for name in VARYING & headers.keys()}


def ambiguity(head: Head) -> Malformed | None:
    """Return why other servers may read a request differently; a proxy that does so sees other bounds of requests."""
    headers, version = head.headers, head.version
    host, coding = headers.get(b"host"), headers.get(b"transfer-encoding")
    if version not in ("1.1", "1.0"):
        return Malformed(f"the request is HTTP/{version}", allowed="this server speaks HTTP/1.1")
    if host is None and version == "1.1":
        return Malformed("the request has no host header", remedy="send one (RFC 9112, 3.2)")
    if host is not None and not _HOST.fullmatch(host):
        return Malformed("the host header is not one host", remedy="send one host and port (RFC 9112, 3.2)")
    if coding is not None and (version == "1.0" or coding.lower() != b"chunked"):
        return Malformed(
            f"the transfer coding of HTTP/{version} is not understood",
            allowed="this server reads chunked, alone, of HTTP/1.1",
            remedy="send content-encoding for compressed bodies",
        )
    return None
