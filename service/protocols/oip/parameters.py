"""The request parameters that are ours; the protocol leaves them a free map, so others are ignored, as Triton does."""

from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

from service.embedding.pooling import POOLINGS
from service.embedding.requests import DTYPES, Direction
from service.errors import BadRequest
from service.protocols.inlay.embed_body import SPELLINGS
from service.protocols.inlay.inputs import show

TIMEOUT = "timeout"  # in microseconds, as Triton has it; 0: as long as it takes
DATATYPES: dict[str, str] = {"FP32": "float32", "FP16": "float16", "BF16": "bfloat16"}
"""The protocol's names for `dtype`."""


class Options(NamedTuple):
    """What a request may say of itself, by the names and in the words of service.embedding.requests.EmbedRequest."""

    truncate: bool | None = None
    truncation_direction: Direction = "right"
    normalize: bool | None = None
    dimensions: int | None = None
    pooling: str | None = None
    dtype: str = "float32"
    prompt_name: str | None = None


def _flag(value: Any) -> bool | None:
    return value if type(value) is bool else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


def _word(value: Any) -> str | None:
    return value if type(value) is str else None


def _direction(value: Any) -> str | None:
    return value.lower() if value in ("right", "left", "Right", "Left") else None


def _pooling(value: Any) -> str | None:
    name = SPELLINGS.get(value, value) if type(value) is str else None
    return name if name in POOLINGS else None


def _dtype(value: Any) -> str | None:
    name = DATATYPES.get(value, value) if type(value) is str else None
    return name if name in DTYPES else None


OURS: dict[str, tuple[Any, str]] = {
    "truncate": (_flag, "true or false"),
    "truncation_direction": (_direction, " or ".join(get_args(Direction))),
    "normalize": (_flag, "true or false"),
    "dimensions": (_count, "a whole number from 1"),
    "pooling": (_pooling, ", ".join(POOLINGS)),
    "dtype": (_dtype, ", ".join((*DTYPES, *DATATYPES))),
    "prompt_name": (_word, "the name of one of the model's prompts"),
}
"""Name → what reads a value (None: it is not allowed), and what is allowed."""


def options_of(parameters: Mapping[str, Any]) -> Options:
    """Our parameters.

    raises   BadRequest naming one of ours that is not what it may be
    """
    if not parameters:
        return Options()
    found = {}
    for name, (read, allowed) in OURS.items():
        if name in parameters:
            value = read(parameters[name])
            if value is None:
                raise BadRequest(f"parameter {name!r} is {show(parameters[name])}; allowed: {allowed}")
            found[name] = value
    return Options(**found)


def seconds_of(parameters: Mapping[str, Any]) -> float | None:
    """How long the caller waits; None: it does not say.

    raises   BadRequest if that is no whole number
    """
    value = parameters.get(TIMEOUT)
    if value is None or value == 0:
        return None
    if type(value) is not int or value < 0:
        raise BadRequest(f"parameter {TIMEOUT!r} is {show(value)}; allowed: microseconds, a whole number from 0")
    return value / 1e6
