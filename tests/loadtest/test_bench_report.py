"""The verdicts of make bench: medians of rounds, shares of the empty server, the fastest peer."""

import json
from pathlib import Path

import pytest

from loadtest.bench_report import Row, Sample, save
from loadtest.servers import EMPTY, FASTAPI, INLAY


def samples(*speeds: float, cores: float = 1.0, p50_us: float = 100, p99_us: float = 200) -> list[Sample]:
    return [Sample(speed, p50_us, p99_us, cores * 1e6 / speed) for speed in speeds]


def row(bar: float | None = 0.7, connections: int = 32, **servers: list[Sample]) -> Row:
    return Row("POST /embed, 16 ids", connections, "wrk", False, bar, servers)


def test_ratio_is_the_median_of_rounds_compared_in_pairs() -> None:
    # the shares of the three rounds are 0.5, 0.9 and 0.8
    ratio = row(inlay=samples(50, 180, 80), empty=samples(100, 200, 100)).ratio
    assert ratio is not None
    assert (ratio.reference, ratio.median, ratio.low, ratio.high) == (EMPTY, 0.8, 0.5, 0.9)


@pytest.mark.parametrize(("speed", "verdict"), [(71, "met (>= 0.70)"), (69, "NOT met (>= 0.70)")])
def test_bar_is_met_from_its_share_of_the_empty_server(speed: float, verdict: str) -> None:
    assert row(inlay=samples(speed), empty=samples(100)).verdict == verdict


def test_met_bar_is_unsure_when_the_empty_server_was_idle() -> None:
    assert row(inlay=samples(90), empty=samples(100, cores=0.5)).verdict == "unsure (>= 0.70)"


def test_met_bar_is_unsure_when_a_lone_caller_was_held_up() -> None:
    slow = samples(100, cores=0.5, p99_us=2000)
    assert row(connections=1, inlay=samples(90), empty=slow).verdict == "unsure (>= 0.70)"


def test_case_without_a_bar_has_no_verdict() -> None:
    assert row(None, inlay=samples(10), empty=samples(100)).verdict == ""
    assert row(None, inlay=samples(10)).verdict == ""


@pytest.mark.parametrize(("speed", "verdict"), [(31, "ahead of mosec"), (29, "BEHIND mosec")])
def test_peers_are_judged_by_the_fastest_of_them(speed: float, verdict: str) -> None:
    assert row(None, inlay=samples(speed), fastapi=samples(20), mosec=samples(30)).verdict == verdict


def test_save_writes_a_line_for_each_server_and_a_verdict(tmp_path: Path) -> None:
    rows = [row(inlay=samples(80), empty=samples(100)), row(None, inlay=samples(5), fastapi=samples(4))]
    save(rows, ["a note"], {"rounds": "1"}, tmp_path / "bench")
    cases = json.loads((tmp_path / "bench.json").read_text())["cases"]
    assert [case["verdict"] for case in cases] == ["met (>= 0.70)", "ahead of fastapi"]
    assert cases[0]["medians"][INLAY]["per_second"] == 80
    lines = (tmp_path / "bench.md").read_text().splitlines()
    table = [line for line in lines if line.startswith("| POST")]
    assert [line.split(" | ")[2] for line in table] == [INLAY, EMPTY, INLAY, FASTAPI]
    assert "- a note" in lines
