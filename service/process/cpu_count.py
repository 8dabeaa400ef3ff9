"""The number of cores that this process may use."""

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def available(cgroup: Path = CGROUP) -> int:
    """Return the lesser of its affinity and its cgroup's quota, in whole cores, at least 1.

    ONNX Runtime's own default counts the machine's cores and ignores both.
    """
    allowed = len(os.sched_getaffinity(0))
    quota = _quota_v2(cgroup) or _quota_v1(cgroup)
    return max(1, allowed if quota is None else min(allowed, int(quota)))


def _quota_v2(cgroup: Path) -> float | None:
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(cgroup: Path) -> float | None:
    try:
        quota = int((cgroup / "cpu/cpu.cfs_quota_us").read_text())
        period = int((cgroup / "cpu/cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 else None
