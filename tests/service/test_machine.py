"""The cores a process may use are the lesser of its affinity and its cgroup's quota; flags are the processor's."""

import os

import pytest

from service.machine import available_cpus, processor_flags


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


def test_processor_flags_are_read_from_cpuinfo(tmp_path):
    (tmp_path / "cpuinfo").write_text(
        "processor\t: 0\nmodel name\t: X\nflags\t\t: fpu avx2 amx_bf16\nvmx flags\t: ept\n"
    )
    assert processor_flags(tmp_path / "cpuinfo") == {"fpu", "avx2", "amx_bf16"}
    (tmp_path / "cpuinfo").write_text("processor\t: 0\n")
    assert processor_flags(tmp_path / "cpuinfo") == processor_flags(tmp_path / "none") == frozenset()
