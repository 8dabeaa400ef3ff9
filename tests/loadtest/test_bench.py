"""A whole run of make bench against the servers that compute nothing, and its checks before timing."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from loadtest import bench, bench_report, servers
from loadtest.generators import BadLoad
from loadtest.processes import split_cores
from loadtest.servers import RunningServer

ALL_CORES = split_cores(pin=False)[0]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunningServer]]:
    logs = tmp_path_factory.mktemp("logs")
    with ExitStack() as stack:
        specs = (servers.empty_http(reads_body=True), servers.empty_grpc())
        yield [stack.enter_context(servers.started(spec, logs, ALL_CORES)) for spec in specs]


def pairs(running: list[RunningServer]) -> list[tuple[bench.Case, RunningServer]]:
    cases = bench.cases(peers=False)
    chosen = [case for case in cases if case.rows == 16 and case.connections == 32 and not case.form]
    return [(case, one) for case in chosen for one in running if case.is_answered_by(one.spec)]


def test_run_of_empty_servers_is_measured_and_saved(empty: list[RunningServer], tmp_path: Path) -> None:
    run = bench.Run(pairs(empty), ALL_CORES, seconds=0.2, rounds=2, fallback=True)
    rows = run.rows()
    bench_report.save(rows, run.generator_notes(), {}, tmp_path / "bench")
    cases = json.loads((tmp_path / "bench.json").read_text())["cases"]
    assert [case["case"] for case in cases] == ["POST /embed, 16 ids", "gRPC Embed, 16 ids"]
    for case in cases:
        first, second = case["samples"]["empty"]
        assert first["per_second"] > 0
        assert second["cpu_us"] > 0


def test_answer_of_the_wrong_size_is_not_measured(empty: list[RunningServer]) -> None:
    case, running = pairs(empty)[0]
    shorter = replace(running, spec=replace(running.spec, ids_path="/1"))
    with pytest.raises(BadLoad, match="200 and 1536 bytes, not 24576"):
        bench.check_numbers([(case, shorter)])


@pytest.mark.parametrize(("names", "error"), [(("inlay", "fastapi"), 1e-3), (("inlay", "empty"), 1.0)])
def test_server_with_other_numbers_is_not_measured(
    names: tuple[str, str], error: float, empty: list[RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    case, running = pairs(empty)[0]
    compared = [replace(running, spec=replace(running.spec, name=name)) for name in names]
    answers = {names[0]: np.ones((16, 384), np.float32), names[1]: np.zeros((16, 384), np.float32)}
    monkeypatch.setattr(bench, "call_once", lambda case, one: answers[one.spec.name])
    if "empty" not in names:
        answers[names[1]] = answers[names[0]] + np.float32(1e-6)
        bench.check_numbers([(case, one) for one in compared])
    answers[names[1]] = answers[names[0]] * np.float32(1 + error)
    with pytest.raises(BadLoad, match="differs from"):
        bench.check_numbers([(case, one) for one in compared])


def test_every_bar_of_the_benchmark_has_a_case() -> None:
    cases = [case for case in bench.cases(peers=False) if case.bar]
    bars = {(case.protocol, case.rows, case.connections): case.bar for case in cases}
    assert bars == {
        ("http", 16, 1): 0.55,
        ("http", 16, 32): 0.70,
        ("http", 128, 32): 0.40,
        ("http", 512, 32): 0.28,
        ("grpc", 16, 1): 0.70,
        ("grpc", 16, 32): 0.70,
    }


def test_every_form_of_headers_is_compared_with_an_empty_server() -> None:
    cases = [case for case in bench.cases(peers=False) if case.rows == 16 and case.protocol == "http"]
    assert sorted((case.form, case.connections) for case in cases) == sorted(product(bench.FORMS, (1, 32)))
    empty, inlay = servers.empty_http(), servers.inlay_server(Path(), "a")
    guarded = replace(inlay, guarded=True)
    for case in cases:
        answering = [spec for spec in (empty, inlay, guarded) if case.is_answered_by(spec)]
        assert answering == [empty, guarded if "authorization" in bench.FORMS[case.form] else inlay]


def test_peers_are_measured_in_all_eight_cells() -> None:
    cells = {(case.rows, case.connections) for case in bench.cases(peers=True)}
    assert cells == {(rows, connections) for rows in (16, 128, 512, 1) for connections in (1, 32)}
