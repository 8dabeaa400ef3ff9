"""Gives memory that was freed back to the system. Frees nothing itself."""

import ctypes

_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; other C libraries give back by themselves


def give_back() -> None:
    """Return unused pages of the heap: glibc keeps a model's worth of them in each arena after every exchange."""
    if _TRIM is not None:
        _TRIM(0)
