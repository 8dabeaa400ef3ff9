"""Reads what the kernel reports about this process; NaN outside Linux."""

import math
import os
from pathlib import Path


def private_bytes() -> float:
    """Return the memory that no other process shares; it grows if something leaks, and excludes mapped tables."""
    try:
        _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
    except OSError:
        return math.nan
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def open_files() -> float:
    """Return the number of file descriptors in use."""
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:
        return math.nan
