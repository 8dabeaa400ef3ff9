"""uvicorn's HTTP/1.1 protocol, with the head and the first bytes of a body leaving in one system call instead of two.

uvloop 0.23 hands every write to the kernel at once and uvicorn 0.54 writes the head on its own, which wakes a client
twice for one answer. Knows nothing of what is sent.
"""

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

FINAL = (b"HTTP/1.1 2", b"HTTP/1.1 4")  # heads of final answers; 100 Continue must leave at once
END_OF_HEAD = b"\r\n\r\n"


class OneWrite(HttpToolsProtocol):
    """The protocol uvicorn serves with `http=OneWrite`."""

    def connection_made(self, transport: Any) -> None:
        """Put the gathering transport between the protocol and its connection."""
        super().connection_made(_Gathering(transport))  # type: ignore[arg-type]

    def on_response_complete(self) -> None:
        """Send a head that no body followed: the answer to HEAD."""
        self.transport.flush()  # type: ignore[attr-defined]
        super().on_response_complete()


class _Gathering:
    """A transport that holds a head back until the next write, the end of the answer, or the end of the connection."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._head: bytes | None = None

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._transport, name)
        setattr(self, name, value)  # looked up once
        return value

    def write(self, data: bytes | memoryview) -> None:
        """Hold a head; send anything else together with the head before it."""
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.writelines((head, data))
        elif type(data) is bytes and data.startswith(FINAL) and data.endswith(END_OF_HEAD):
            self._head = data
        else:
            self._transport.write(data)

    def flush(self) -> None:
        """Send a head that is still held."""
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.write(head)

    def close(self) -> None:
        """Send what is held, then close."""
        self.flush()
        self._transport.close()
