"""Parses HTTP/1.1 requests with httptools. An Upgrade header has no effect: this server speaks no other protocol."""

import re
from collections.abc import Mapping
from typing import Protocol

import httptools

from service.errors import Malformed
from service.http.routes import VARYING, Head

_HOST = re.compile(rb"[\w.~!$&'()*+;=%:\[\]-]*")  # and a port (RFC 3986, 3.2.2), without the comma that joins two


class RequestReceiver(Protocol):
    """Receives the parts of requests as they are parsed."""

    def on_message_begin(self) -> bool:
        """Begin a request; return whether it is to be served."""
        ...

    def on_head(self, head: Head, varying: Mapping[bytes, bytes], keep_alive: bool) -> None:
        """Receive a request's head, its headers of VARYING, and whether another request may follow."""
        ...

    def on_body(self, body: bytes) -> None:
        """Receive a part of the body."""
        ...

    def on_message_complete(self) -> None:
        """End the request."""
        ...


class RequestParser:
    """Parses the requests of one connection.

    Args:
        receiver: called for each part of a request.

    Attributes:
        target: the target of the request being received, as far as it has come.
        headers: its headers, as far as they have come, by lower-case name; empty once the head is complete.
    """

    def __init__(self, receiver: RequestReceiver) -> None:
        self._receiver = receiver
        self.on_body, self.on_message_complete = receiver.on_body, receiver.on_message_complete
        self.target = b""
        self.headers: dict[bytes, bytes] = {}
        self._serving = False  # the request being received
        self._upgrading = False
        self._parser = httptools.HttpRequestParser(self)

    def feed(self, data: bytes) -> None:
        """Parse the next bytes.

        Raises:
            Malformed: the bytes are not HTTP/1.1, or a CONNECT request.
            httptools.HttpParserCallbackError: the receiver raised an error, which is its context.
        """
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._feed_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError:
            raise
        except httptools.HttpParserError:
            raise Malformed("the request is not HTTP/1.1", remedy="send a request line and headers") from None

    def _feed_without_upgrade(self, rest: bytes) -> None:
        """Parse a request without its Upgrade header, which would make httptools skip the body."""
        if not self._serving:
            return
        method = self._parser.get_method()
        if not self._upgrading:
            raise Malformed(f"{method.decode('ascii')} is not a method of this server")
        self._upgrading = False
        headers = {name: value for name, value in self.headers.items() if name not in (b"upgrade", b"http2-settings")}
        options = [option.strip() for option in headers.pop(b"connection", b"").split(b",")]
        kept = b",".join([name for name in options if name.lower() not in (b"upgrade", b"http2-settings", b"")])
        if kept:
            headers[b"connection"] = kept
        version = self._parser.get_http_version().encode()
        head = b"%b %b HTTP/%b\r\n" % (method, self.target, version)
        head += b"".join([b"%b: %b\r\n" % header for header in headers.items()]) + b"\r\n"
        self._parser = httptools.HttpRequestParser(self)
        self.feed(head)
        if rest:
            self.feed(rest)

    @property
    def verb(self) -> str:
        """The verb of the request being received; "GET" while it is unknown."""
        return self._parser.get_method().decode("ascii") if self.target else "GET"

    @property
    def keeps_alive(self) -> bool:
        """Whether another request may follow the complete one; a trailer may forbid it."""
        return bool(self._parser.should_keep_alive())

    # ---- httptools callbacks

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._serving = self._receiver.on_message_begin()
        self.target, self.headers = b"", {}

    def on_url(self, url: bytes) -> None:
        """Add a part of the request target."""
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add one header; repeated ones become a list (RFC 9110, 5.3)."""
        name = name.lower()
        headers, value = self.headers, value.rstrip(b" \t")
        headers[name] = headers[name] + b"," + value if name in headers else value

    def on_headers_complete(self) -> None:
        """Pass on the head of a request that is to be served."""
        if not self._serving:
            return
        parser, headers = self._parser, self.headers
        if parser.should_upgrade():
            self._upgrading = b"upgrade" in headers
            return
        self.headers = {}  # trailers are not headers (RFC 9110, 6.5.1)
        varying = varying_of(headers)
        head = Head(parser.get_method().decode("ascii"), self.target, headers, parser.get_http_version())
        self._receiver.on_head(head, varying, parser.should_keep_alive())


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
