"""What a refusal looks like where no endpoint took the request: as the protocol that owns the path words it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from starlette.responses import Response

from service.errors import InlayError, UnsupportedCoding
from service.http.bodies import ACCEPTED
from service.http.endpoint import Answer, Refuses

CHALLENGE = (b"www-authenticate", b"Bearer")  # with every 401 (RFC 9110, 15.5.2)


class Words(NamedTuple):
    """A protocol's paths, by their beginnings, and its words."""

    prefixes: Sequence[str]
    refusal: Refuses


class Refusals:
    """Every protocol's words; `otherwise` speaks where none owns the path."""

    def __init__(self, rows: Sequence[Words], otherwise: Refuses) -> None:
        self._rows = rows
        self._otherwise = otherwise

    def response(self, path: str, error: InlayError) -> Response:
        """The error as an ASGI application."""
        headers, body, status = self._words(path)(error)
        response = Response(b"".join(body), status)
        response.raw_headers = [*headers, *([ACCEPTED] if isinstance(error, UnsupportedCoding) else [])]
        response.raw_headers += [CHALLENGE] if status == 401 else []
        return response

    def _words(self, path: str) -> Callable[[InlayError], Answer]:
        for prefixes, refusal in self._rows:
            if any(path == each or path.startswith(each + "/") for each in prefixes):
                return refusal
        return self._otherwise
