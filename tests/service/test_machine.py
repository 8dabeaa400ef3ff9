"""The cores a process may use are the lesser of its affinity and its cgroup's quota."""

import os

import pytest

from service.machine import available_cpus


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "100000 100000\n"}, 1),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({}, None),
    ],
)
def test_cgroup_quota_bounds_the_cores(tmp_path, files, quota):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    allowed = len(os.sched_getaffinity(0))
    assert available_cpus(tmp_path) == min(allowed, quota or allowed)
