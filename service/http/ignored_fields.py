"""The response header that names ignored fields of a body, as other servers of the protocol ignore them silently."""

from collections.abc import Iterable

from service.http.response import Headers

NAME = "inlay-ignored-fields"
MOST_SHOWN, SHOWN_CHARACTERS = 16, 40


def headers(names: Iterable[str]) -> Headers:
    """Return the header for these names, if there are any. Names that are not identifiers are shown as `?`."""
    shown = [name if name.isascii() and name.isidentifier() else "?" for name in names]
    return ((NAME.encode(), ",".join([name[:SHOWN_CHARACTERS] for name in shown[:MOST_SHOWN]]).encode()),) * bool(shown)
