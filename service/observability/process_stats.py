"""What the kernel says of this process. Linux alone; elsewhere nothing is known, which is NaN."""

import math
import os
import time
from pathlib import Path

STATM = Path("/proc/self/statm")
FILES = Path("/proc/self/fd")


def private_bytes() -> float:
    """Memory that no other process shares: what grows if something leaks; mapped tables are not in it."""
    try:
        _, resident, shared, *_ = STATM.read_text().split()
    except OSError:
        return math.nan
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds() -> float:
    """Processor time of all threads."""
    return time.process_time()


def open_files() -> float:
    """File descriptors in use."""
    try:
        return sum(1 for _ in FILES.iterdir())
    except OSError:
        return math.nan
