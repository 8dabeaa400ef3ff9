"""Negotiation of a response's content coding by Accept-Encoding (RFC 9110, 12.5.3).

requests, httpx and aiohttp send `gzip, deflate` with every call, so for documents any coding that is listed is used.
Floats hardly shrink: vectors are compressed only when Accept-Encoding names a single coding or prefers one by its
q-value; for vectors in JSON, also when it names zstd or br, as browsers and `curl --compressed` do.
"""

from functools import lru_cache
from typing import Literal, NamedTuple

from service.errors import NotAcceptable
from service.http.content_coding import ALIASES, CODINGS

Policy = Literal["asked", "always", "never"]
Kind = Literal["document", "vectors", "tensors"]
"""What a response holds: text, numbers as text, or numbers as bytes, which shrink by 7 % at best."""
CHOSEN_BY_NAME: dict[Kind, tuple[str, ...]] = {"vectors": ("zstd", "br"), "tensors": ()}
"""Codings that clients only list when they want compressed numbers."""


class Choice(NamedTuple):
    """The coding of a response.

    Args:
        coding: its name; None: not coded.
        required: the client refuses responses that are not coded.
    """

    coding: str | None = None
    required: bool = False


PLAIN = Choice()
LONGEST_KEPT = 256  # bytes of a header whose choice is kept; one may have 64 KiB


def choose(accept: bytes | None, policy: Policy = "asked", kind: Kind = "document") -> Choice:
    """Return the coding of a response that is large enough for one.

    Args:
        accept: the Accept-Encoding header; None: there is none.
        policy: asked: as the module describes; always: numbers are compressed as documents are; never.

    Raises:
        NotAcceptable: the client refuses every coding that this server has, and uncoded responses.
    """
    if not accept:
        return PLAIN
    return (_chosen if len(accept) <= LONGEST_KEPT else _chosen.__wrapped__)(accept, policy, kind)


def may_compress_vectors(accept: bytes | None, policy: Policy) -> bool:
    """Return whether a response of vectors may be compressed, or has to be refused, for this Accept-Encoding header."""
    try:
        return any(choose(accept, policy, kind) is not PLAIN for kind in CHOSEN_BY_NAME)
    except NotAcceptable:
        return True


@lru_cache(maxsize=512)
def _chosen(accept: bytes, policy: Policy, kind: Kind) -> Choice:
    qualities = _qualities(accept)
    others = qualities.get("*", 0.0)
    plain = qualities.get("identity", others if "*" in qualities else None)  # None: acceptable, the least preferred
    offers = {} if policy == "never" else {name: qualities.get(name, others) for name in CODINGS}
    best = max(offers, key=lambda name: offers[name], default=None)  # the first of equals: CODINGS' order
    if best is None or offers[best] <= 0:
        if plain == 0:
            has = ", ".join((*offers, "identity"))
            raise NotAcceptable(
                f"accept-encoding is {accept[:40].decode('latin-1')!r}", allowed=f"this server has {has}"
            )
        return PLAIN
    if plain == 0:
        return Choice(best, True)
    if plain is not None and plain > offers[best]:
        return PLAIN
    if policy == "asked" and kind in CHOSEN_BY_NAME and not _is_choice(qualities, CHOSEN_BY_NAME[kind]):
        return PLAIN
    return Choice(best)


def _is_choice(qualities: dict[str, float], chosen_by_name: tuple[str, ...]) -> bool:
    """Return whether the header is more than a library's list of the codings that it can read."""
    named = {name: quality for name, quality in qualities.items() if quality > 0 and name not in ("*", "identity")}
    best = [name for name, quality in named.items() if quality == max(named.values())]
    return len(best) == 1 or any(name in named for name in chosen_by_name)


def _qualities(accept: bytes) -> dict[str, float]:
    """Return the q-value by coding, in lower case; one that cannot be read is 0."""
    qualities: dict[str, float] = {}
    for part in accept.decode("latin-1").lower().split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        if name:
            qualities[ALIASES.get(name, name)] = _quality(parameters)
    return qualities


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
