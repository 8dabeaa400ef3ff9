"""The committed results: the page is made of the figures, the plot can be drawn, the figures say what the page says."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.fleet import limits, plot, report
from loadtest.fleet.balancing import LEAST_CONNECTIONS, RANDOM
from loadtest.fleet.cases import QUEUE_ALONE, RECOMMENDED
from loadtest.processes import RESULTS


@pytest.fixture(scope="module")
def saved() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((RESULTS / "fleet.json").read_text(encoding="utf-8"))
    return document


def test_page_is_made_of_the_saved_figures(saved: dict[str, Any]) -> None:
    assert report.page(saved) == (RESULTS / "fleet.md").read_text(encoding="utf-8")


def test_plot_is_drawn(saved: dict[str, Any], tmp_path: Path) -> None:
    plot.draw(saved, tmp_path / "fleet.png")
    assert (tmp_path / "fleet.png").read_bytes().startswith(b"\x89PNG")


def test_shares_of_every_case_add_up(saved: dict[str, Any]) -> None:
    for row in [*saved["sizes"], *saved["loads"], *saved["shapes"]]:
        assert row["answered"] + row["given_up"] + row["timed_out"] + row["lost"] == pytest.approx(1, abs=3e-4)


def test_least_connections_beats_random_in_every_fleet(saved: dict[str, Any]) -> None:
    p99 = {(row["policy"], row["replicas"], row["is_bursty"]): row["p99_ms"] for row in saved["sizes"]}
    fleets = [(replicas, bursty) for policy, replicas, bursty in p99 if policy == LEAST_CONNECTIONS]
    assert len(fleets) == 6
    assert all(p99[LEAST_CONNECTIONS, *fleet] * 2 < p99[RANDOM, *fleet] for fleet in fleets)


def test_recommended_rule_is_steadier_than_the_queue_alone(saved: dict[str, Any]) -> None:
    rows = {(row["rule"], row["load"], row["start"]): row for row in saved["autoscaler"]["rows"]}
    for rule, load, start in [key for key in rows if key[0] == RECOMMENDED]:
        alone = rows[QUEUE_ALONE, load, start]
        assert rows[rule, load, start]["turns_an_hour"] < alone["turns_an_hour"]
        assert rows[rule, load, start]["late_share"] < alone["late_share"]


def test_real_server_is_near_the_simulation(saved: dict[str, Any]) -> None:
    for row in saved["one_server"]["rows"]:
        low, high = row["simulated"]["p99_ms_of_short_runs"]
        assert low <= row["measured"]["p99_ms"] <= high
        assert row["measured"]["p50_ms"] == pytest.approx(row["simulated"]["p50_ms"], rel=0.25)


def test_throughput_of_ids_is_read_from_the_benchmark() -> None:
    assert limits.ids_a_second() > 1000
