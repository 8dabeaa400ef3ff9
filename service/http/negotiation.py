"""What a client accepts: media types by Accept, content codings by Accept-Encoding (RFC 9110, 12.5).

requests, httpx and aiohttp send a list of all codings that they read with every call, so for documents the best of them
is used. Numbers hardly shrink: they are compressed only where Accept-Encoding names a single coding or prefers one.
"""

from functools import lru_cache
from typing import Literal

from service.errors import NotAcceptable
from service.http.content_coding import ALIASES, CODINGS

Policy = Literal["asked", "always", "never"]
LONGEST_KEPT = 256  # bytes of a header whose choice is kept; one may have 64 KiB


def negotiate(accept: bytes | None, offers: tuple[str, ...]) -> str:
    """Return the offer that an Accept header prefers: by q, then by how exactly it names it, then by their order.

    Raises:
        NotAcceptable: the header accepts none of them.
    """
    if not accept:
        return offers[0]
    return (_preferred if len(accept) <= LONGEST_KEPT else _preferred.__wrapped__)(accept, offers)


@lru_cache(maxsize=256)
def _preferred(accept: bytes, offers: tuple[str, ...]) -> str:
    qualities = _qualities(accept)
    best, rank = offers[0], (0.0, 0)
    for offer in offers:
        names = ("*/*", offer.split("/")[0] + "/*", offer)
        exactness, quality = max(((names.index(name), q) for name, q in qualities if name in names), default=(0, 0.0))
        if (quality, exactness) > rank:
            best, rank = offer, (quality, exactness)
    if rank[0] <= 0:
        received = f"no format named by Accept: {accept.decode('latin-1')[:80]}"
        raise NotAcceptable(received, allowed=f"this path has {', '.join(offers)}")
    return best


def choose(accept: bytes | None, policy: Policy = "asked", *, numbers: bool = False) -> str | None:
    """Return the coding of a response that is large enough for one; None: it is not coded.

    A client that refuses uncoded responses (`identity;q=0`) gets them where they are small, and where it accepts none
    of this server's codings.

    Args:
        accept: the Accept-Encoding header; None: there is none.
        policy: asked: as the module describes; always: numbers are compressed as documents are; never.
        numbers: the response is numbers, as text or as bytes.
    """
    if not accept or policy == "never":
        return None
    return (_chosen if len(accept) <= LONGEST_KEPT else _chosen.__wrapped__)(accept, policy, numbers)


@lru_cache(maxsize=512)
def _chosen(accept: bytes, policy: Policy, numbers: bool) -> str | None:
    qualities = {ALIASES.get(name, name): quality for name, quality in _qualities(accept)}
    others = qualities.get("*", 0.0)
    plain = qualities.get("identity", qualities.get("*"))  # None: acceptable, the least preferred
    offers = {name: qualities.get(name, others) for name in CODINGS}
    best = max(offers, key=lambda name: offers[name])  # the first of equals: CODINGS' order
    if offers[best] <= 0 or (plain or 0) > offers[best]:
        return None
    named = [quality for name, quality in qualities.items() if quality > 0 and name not in ("*", "identity")]
    if numbers and policy == "asked" and plain != 0 and (not named or named.count(max(named)) > 1):
        return None  # the header is a library's list of what it can read
    return best


def _qualities(header: bytes) -> list[tuple[str, float]]:
    """Return the names in a header, in lower case, with their q-values; one that cannot be read is 0."""
    items = [[piece.strip() for piece in part.split(";")] for part in header.decode("latin-1").lower().split(",")]
    return [(name, _quality(parameters)) for name, *parameters in items if name]


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                quality = float(value)
            except ValueError:
                return 0.0
            return quality if 0 <= quality <= 1 else 0.0
    return 1.0
