"""Which requests are bulk: they give way to interactive ones that wait for the same model."""

from collections.abc import Container

from service.errors import UnknownValue

HEADER = "inlay-priority"  # of HTTP requests, and the key of gRPC's metadata
PRIORITIES = {"interactive": False, "bulk": True}


def is_bulk(sent: str | None, path: str, bulk_paths: Container[str]) -> bool:
    """Return whether a request is bulk by what it sends, or else by its path.

    Args:
        sent: the value of HEADER; None: it was not sent.
        path: path of the route or of the gRPC method.
        bulk_paths: those whose requests are bulk.

    Raises:
        UnknownValue: HEADER has another value.
    """
    if sent is None:
        return path in bulk_paths
    if sent not in PRIORITIES:
        raise UnknownValue(f"the header {HEADER} is {sent[:40]!r}", allowed=f"allowed: {', '.join(PRIORITIES)}")
    return PRIORITIES[sent]
