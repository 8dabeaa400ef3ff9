"""Sweeps: long lists of like cases, of which `make test` runs an even part and `make test-all` every one."""

from collections.abc import Iterable
from typing import Any

import pytest


def sampled(cases: Iterable[Any], every: int, *, unpack: bool = False) -> list[Any]:
    """Return cases for pytest.mark.parametrize, of which `make test` runs the first and each `every`th after it.

    Args:
        every: without a divisor in common with an inner list of a product, or some of its values never come.
        unpack: each case is a tuple with a value for each argument.
    """
    return [
        pytest.param(*(case if unpack else (case,)), marks=[pytest.mark.sweep] if number % every else [])
        for number, case in enumerate(cases)
    ]
