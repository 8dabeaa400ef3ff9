"""Accept-Encoding → the coding of an answer (RFC 9110, 12.5.3). Knows no body.

A client library says what it is able to read with every call: requests, httpx and aiohttp send `gzip, deflate` unasked.
That is taken at its word for documents. Floats hardly shrink, so for those the header must show a will: one coding
alone, or one preferred by its q; for vectors in JSON zstd or br among several will do, as browsers and
`curl --compressed` send (and httpx where their packages are installed).
"""

from functools import lru_cache
from typing import Literal, NamedTuple

from service.errors import NotAcceptable
from service.http.content_coding import ALIASES, CODINGS

Policy = Literal["asked", "always", "never"]
Kind = Literal["document", "vectors", "tensors"]
"""What an answer is: text for people and programs, numbers written out, or their bytes, which lose 7 % at best."""
WILLED: dict[Kind, tuple[str, ...]] = {"vectors": ("zstd", "br"), "tensors": ()}


class Choice(NamedTuple):
    """How an answer is coded.

    coding     its name; None: as it is
    required   the client refuses answers as they are
    """

    coding: str | None = None
    required: bool = False


PLAIN = Choice()


@lru_cache(maxsize=512)
def choose(accept: bytes | None, policy: Policy = "asked", kind: Kind = "document") -> Choice:
    """The coding of an answer that is large enough for one.

    accept   the header; None: there is none
    raises   NotAcceptable where the client refuses every coding there is and none at all
    """
    if not accept:
        return PLAIN
    qualities = _qualities(accept)
    others = qualities.get("*", 0.0)
    plain = qualities.get("identity", others if "*" in qualities else None)  # None: acceptable, the least preferred
    offers = {} if policy == "never" else {name: qualities.get(name, others) for name in CODINGS}
    best = max(offers, key=lambda name: offers[name], default=None)  # the first of equals: CODINGS' order
    if best is None or offers[best] <= 0:
        if plain == 0:
            has = ", ".join((*offers, "identity"))
            raise NotAcceptable(f"accept-encoding is {accept.decode('latin-1')[:80]}; this server has {has}")
        return PLAIN
    if plain == 0:
        return Choice(best, True)
    if plain is not None and plain > offers[best]:
        return PLAIN
    able = policy == "asked" and kind in WILLED and not _willed(qualities, WILLED[kind])
    return PLAIN if able else Choice(best)


def _willed(qualities: dict[str, float], telling: tuple[str, ...]) -> bool:
    """Whether the header is more than a list of what the client is able to read."""
    named = {name: quality for name, quality in qualities.items() if quality > 0 and name not in ("*", "identity")}
    best = [name for name, quality in named.items() if quality == max(named.values())]
    return len(best) == 1 or any(name in named for name in telling)


def _qualities(accept: bytes) -> dict[str, float]:
    """q by coding, in lower case; what cannot be read counts as 0."""
    found: dict[str, float] = {}
    for part in accept.decode("latin-1").lower().split(","):
        name, *parameters = (each.strip() for each in part.split(";"))
        if name:
            found[ALIASES.get(name, name)] = _quality(parameters)
    return found


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
