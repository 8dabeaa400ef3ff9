"""A table that is asked for: the function that makes it and its arguments, which decide every byte. Makes nothing."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from models import VERSION
from models.errors import BadEncoding
from models.positions.table import Table
from models.tables.quantization import QuantizedTable
from service.errors import BadParameters


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One table, not made yet.

    arguments   by the function's own names; arrays, ranges, numbers, texts and frozen dataclasses
    told        facts beside the table's own: the preset or the model it is of
    """

    function: Callable[..., Table]
    arguments: Mapping[str, Any]
    told: Mapping[str, Any] = field(default_factory=dict)

    def table(self) -> Table:
        """The table; raises BadParameters in the caller's words."""
        with in_the_callers_words():
            found = self.function(**self.arguments)
        return replace(found, facts={**self.told, **found.facts})

    def within(self, **arguments: Any) -> "Call":
        """The same with other arguments."""
        return replace(self, arguments={**self.arguments, **arguments})

    def tag(self, *more: str) -> str:
        """A strong ETag: another one for other bytes, of this version and this numpy; `more` is the form they take."""
        digest = hashlib.sha256(repr((VERSION, np.__version__, self.function.__name__, *more)).encode())
        for name, value in sorted({**self.arguments, **self.told}.items()):
            digest.update(f"{name}={_identity(value)};".encode())
        return f'"{digest.hexdigest()[:32]}"'


def _identity(value: Any) -> str:
    if isinstance(value, QuantizedTable):
        value = value[:]
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    return repr(value)


@contextmanager
def in_the_callers_words() -> Iterator[None]:
    """Turn a refusal of models/ into one of the service."""
    try:
        yield
    except BadEncoding as error:
        raise BadParameters(str(error)) from None
