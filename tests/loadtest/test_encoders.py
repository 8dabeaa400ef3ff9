"""The comparison of encoders: its inputs, its workers, and what its figures are judged by."""

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from loadtest.bench_report import Row, Sample
from loadtest.encoders import bars, growth, input_layer, plot, report
from loadtest.encoders.bars import OWN_FORM
from loadtest.encoders.cases import BATCH_TOKENS, SPECIAL, arrangements, cases, lengths, padded_batches
from loadtest.encoders.contestants import INLAY, INLAY_INT8
from loadtest.encoders.engines import Comparison, EngineResult, Quality, Timing, quality_of
from loadtest.encoders.over_http import HttpResult
from loadtest.encoders.workers import Contestant, Missing, started
from loadtest.processes import ROOT, split_cores

CORES = split_cores(pin=False)[0]
HERE = Path(sys.executable)
ENGINES = '''
import time
import numpy as np

class Same:
    """Each text's vector is its own."""
    def prepare(self, texts):
        return texts
    def embed(self, texts):
        return np.array([[len(text), 1.0] for text in texts], np.float32)

class Blurred(Same):
    """A text's vector depends on the number of its neighbours."""
    def embed(self, texts):
        return super().embed(texts) + len(texts)

class Absent:
    def __init__(self):
        raise RuntimeError("no such\\nprocessor")

class Loud(Same):
    def __init__(self):
        print("a library that prints")
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "made_up_engines.py").write_text(ENGINES)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{tmp_path}")
    return tmp_path  # type: ignore[return-value]


def contestant(name: str) -> Contestant:
    return Contestant(name, HERE, ("made_up_engines", name))


# ---- inputs


def test_cases_hold_the_tokens_that_they_announce() -> None:
    tokens = {case.name: [len(text.split()) + SPECIAL for text in case.texts] for case in cases()}
    assert {name: (len(each), sum(each)) for name, each in tokens.items()} == {
        "S1": (1, 24),
        "S16": (16, 376),
        "R32": (32, 2016),
        "L16": (16, 8192),
    }
    assert (min(tokens["R32"]), max(tokens["R32"])) == (5 + SPECIAL, 200 + SPECIAL)


def test_lengths_rise_and_add_up_to_the_total() -> None:
    rising = lengths(32, 7, 202, 2016)
    assert sum(rising) == 2016
    assert all(one <= other + 1 for one, other in pairwise(rising))


def test_padded_batches_hold_each_text_once_within_the_bound() -> None:
    counts = [1, 511, 3, 513, 200, 200, 200, 2]
    batches = padded_batches(counts)
    assert sorted(index for batch in batches for index in batch) == list(range(len(counts)))
    assert all(
        len(batch) == 1 or len(batch) * max(counts[index] for index in batch) <= BATCH_TOKENS for batch in batches
    )


def test_every_text_is_arranged_with_several_neighbours() -> None:
    batches = arrangements(["a"] * 16)
    for index in range(16):
        assert len({len(batch) for batch in batches if index in batch}) >= 3
    assert any(len(set(batch)) < len(batch) for batch in batches)


# ---- workers


def test_comparison_tells_which_vectors_a_batch_changes(folder: Path) -> None:
    chosen = [contestant(name) for name in ("Same", "Blurred", "Absent", "Loud")]
    same, blurred, absent, loud = Comparison(chosen, CORES, rounds=2, seconds=0.0).run(folder)
    assert same.quality
    assert blurred.quality
    assert (same.quality.differ, loud.missing) == (0, None)
    assert blurred.quality.differ == blurred.quality.compared > 0
    assert blurred.quality.least_cosine < same.quality.least_cosine == pytest.approx(1)
    assert [len(timing.rounds_ms) for timing in same.timings.values()] == [2] * len(cases())
    assert absent.missing == "RuntimeError: no such processor"


def test_reference_that_fails_ends_the_comparison(folder: Path) -> None:
    with pytest.raises(Missing, match="no such processor"):
        Comparison([contestant("Absent"), contestant("Same")], CORES, rounds=1, seconds=0.0).run(folder)


def test_library_without_an_environment_is_missing(folder: Path) -> None:
    absent = Contestant("peer", ROOT / ".venv/no-such/bin/python", ("made_up_engines", "Same"))
    with pytest.raises(Missing, match="make bench ARGS=--encoders"), started(absent, folder, CORES):
        pass


# ---- figures


def test_quality_counts_vectors_that_differ_in_a_bit() -> None:
    reference = [np.array([1.0, 0.0], np.float32), np.array([0.0, 1.0], np.float32)]
    own = [reference[0], np.array([1.0, 1.0], np.float32)]
    nudged = np.nextafter(reference[1], np.float32(2))
    quality = quality_of(own, reference, reference, [(0, reference[0]), (1, nudged)])
    assert quality.least_cosine == pytest.approx(2**-0.5)
    assert quality.mean_cosine == pytest.approx((1 + 2**-0.5) / 2)
    assert (quality.compared, quality.differ) == (2, 1)


def test_ratio_compares_the_rounds_in_pairs() -> None:
    reference = Timing((10.0, 40.0, 30.0), 8.0)
    own = Timing((5.0, 10.0, 30.0), 4.0)
    assert (own.ratio(reference), own.ratio_of_fastest(reference)) == (2.0, 2.0)


def faster(ratio: float, differ: int = 0) -> list[EngineResult]:
    good = Quality(1.0, 1.0, 10, 0, 0.0)
    slow = {name: Timing((10.0,), 10.0) for name in ("S1", "S16", "R32")}
    fast = {name: Timing((10.0 / ratio,), 10.0 / ratio) for name in slow}
    own = EngineResult(INLAY_INT8, None, {}, Quality(0.995, 0.999, 10, differ, 0.1), fast)
    return [EngineResult(INLAY, None, {}, good, slow), own]


@pytest.mark.parametrize(
    ("ratio", "differ", "verdicts"),
    [
        (2.0, 0, ["met"] * 6),
        (1.7, 0, ["NOT met", "NOT met", "met", "met", "met", "met"]),
        (2.0, 1, ["met"] * 5 + ["NOT met"]),
    ],
)
def test_int8_is_held_to_its_bars(ratio: float, differ: int, verdicts: list[str]) -> None:
    judged = [bar for bar in bars.engine_bars(faster(ratio, differ)) if bar.about.startswith(INLAY_INT8)]
    assert [bar.verdict for bar in judged] == verdicts


def test_missing_form_is_said_and_not_failed() -> None:
    results = [faster(2.0)[0], EngineResult(INLAY_INT8, "no such option")]
    judged = {bar.verdict for bar in bars.engine_bars(results)}
    assert judged == {"missing: no such option", "missing: it was not asked for"}


def row(connections: int, **speeds: float) -> Row:
    samples = {name.replace("_", ", "): [Sample(speed, 1.0, 1.0, 1.0)] for name, speed in speeds.items()}
    return Row("text", connections, "wrk", False, None, samples)


def test_http_is_judged_by_the_best_layout_and_peer() -> None:
    judged = list(bars.http_bars([row(1, inlay=90, inlay_a=100, peer=50), row(32, inlay=99, inlay_a=100, peer=60)], {}))
    assert [(bar.measured, bar.verdict) for bar in judged] == [(0.9, "NOT met"), (0.99, "met"), (1.65, "met")]


def test_rounded_encoders_are_no_peers_of_fp32() -> None:
    one = row(32, inlay=99, inlay_a=100, peer=66)
    one = Row(*(one.case, 32, "wrk", False, None), {**one.samples, INLAY_INT8: [Sample(200, 1.0, 1.0, 1.0)]})
    assert [bar.measured for bar in bars.http_bars([one], {})] == [0.99, 1.5]


def test_peers_that_did_not_start_are_named() -> None:
    [_, bar] = bars.http_bars([row(32, inlay=99, inlay_a=100)], {"mosec": "no such module"})
    assert bar.verdict == "missing: no other server took part (mosec did not start)"


def test_input_layer_is_judged_by_its_best_form() -> None:
    taken = {"16": {"Inlay": (9.0, 1.1), "numpy": (1.0, 1.0)}, "512": {"Inlay": (1.0, 1.3), "numpy": (1.0, 1.0)}}
    assert [bar.verdict for bar in bars.input_layer_bars(taken)] == ["met", "NOT met"]


def test_saved_parts_lie_beside_those_of_other_runs(tmp_path: Path) -> None:
    target = tmp_path / "encoders"
    report.save(report.http_part(HttpResult([row(32, inlay=99, inlay_a=100)], {})), {"cores": "2"}, target)
    report.save(report.engines_part(_with_long_case(faster(2.0))), {"cores": "1"}, target)
    point = {"waiting": 16, "length": 1, "joining_us": 1.0, "running_us": 2.0}
    report.save(report.growth_part({"1": [point], "2": [point]}), {"cores": "2"}, target)
    lines = target.with_suffix(".md").read_text().splitlines()
    titles = [line for line in lines if line.startswith("## ")]
    assert titles == ["## Engines in a process of their own", "## Over HTTP", "## Cost against growth"]
    assert [line.count("2.00/2.00") for line in lines if line.startswith(f"| {INLAY_INT8} |")] == [3]
    plot.draw(target.with_suffix(".json"), target.with_suffix(".png"))
    assert target.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_growth_sends_as_many_tokens_as_are_to_wait() -> None:
    for tokens, length in ((1, 1), (16, 16), (16_384, 1), (1_048_576, 512)):
        requests = growth.requests_of(tokens, length)
        assert sum(len(sequence.ids) for request in requests for sequence in request.inputs) == tokens  # type: ignore[union-attr]


async def test_growth_measures_a_queue_that_it_does_not_empty(minilm_store: Path) -> None:
    found = await growth.points(minilm_store, "minilm", waiting=(16, 4096), lengths=(16, 512))
    assert [(point.waiting, point.length) for point in found] == [(16, 16), (4096, 16), (4096, 512)]
    assert all(point.joining_us > 0 < point.running_us for point in found)


def test_every_form_of_the_input_layer_gives_the_same_rows(minilm_store: Path) -> None:
    taken = input_layer.measure(minilm_store / "minilm", rounds=1)
    assert list(taken) == ["16", "128", "512", "4096"]
    assert all(OWN_FORM in forms and len(forms) == 10 for forms in taken.values())


def test_form_with_other_rows_is_refused() -> None:
    own = np.ones((2, 2), np.float32)
    forms = {OWN_FORM: lambda feeds: own, "other": lambda feeds: own * np.float32(1.1)}
    with pytest.raises(SystemExit, match=r"other differs by 0\.1 for 2 tokens"):
        input_layer.check(forms, {})


def _with_long_case(results: list[EngineResult]) -> list[EngineResult]:
    long = {"L16": Timing((1.0,), 1.0)}
    return [EngineResult(one.name, None, {}, one.quality, {**one.timings, **long}) for one in results]
