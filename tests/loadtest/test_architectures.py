"""The comparison of architectures: its inputs, which calls it leaves out, and its table."""

import json
from pathlib import Path

import pytest

from loadtest.architectures import report
from loadtest.architectures.cases import CONFIGS, LAST_ID, cases, models, tokens
from loadtest.architectures.comparison import Contender, compare, expected_seconds
from loadtest.architectures.prepare import Prepared
from loadtest.architectures.report import Section
from tests.loadtest.test_encoders import CORES, contestant, folder

__all__ = ["folder"]


def test_cases_have_the_tokens_they_say() -> None:
    chosen = {case.name: case for case in cases(8192)}
    assert [tokens(chosen[f"S{count}"]) for count in (24, 512, 4096)] == [24, 512, 4096]
    for name, count, shortest, longest in (("R16", 16, 17, 30), ("R32", 32, 7, 182)):
        lengths = [len(text.split()) for text in chosen[name].texts]
        assert (len(lengths), min(lengths) >= shortest, max(lengths) <= longest) == (count, True, True)
    assert cases(8192) == cases(8192)


def test_every_config_is_measured_up_to_its_positions() -> None:
    assert {one.config for one in models()} == set(CONFIGS.glob("*.json"))
    longest = {one.name: tokens(cases(one.longest)[-1]) for one in models()}
    assert longest == {
        "minilm-l6": 512,
        "mpnet-base": 512,
        "modernbert-base": 4096,
        "gemma3-270m": 4096,
        "qwen3-0.6b": 4096,
    }


def test_ids_are_in_every_vocabulary() -> None:
    sizes = [json.loads(one.config.read_text()).get("vocab_size", 30522) for one in models()]
    assert min(sizes) > LAST_ID


def test_a_library_that_fails_is_said_to_be_missing(folder: Path) -> None:
    small = models()[0]
    like = Contender(contestant("Blurred"), batches_only=True)
    chosen = [Contender(contestant("Same")), like, Contender(contestant("Absent"))]
    same, blurred, absent = compare(small, chosen, CORES, 2, 0.0, folder)
    assert set(same.timings) == {case.name for case in cases(small.longest)}
    assert set(blurred.timings) == {"R16", "R32"}
    assert absent.missing == "RuntimeError: no such processor"
    assert same.cosine == pytest.approx(1)
    assert same.used
    assert same.used.peak >= same.used.anonymous > 0
    prepared = Prepared(folder, folder, 1.0, 2.0, 90.0)
    heads, *lines = report.table(Section(small, prepared, [same, blurred, absent]))
    assert {len(line) for line in lines} == {len(heads)}
    assert lines[2][-1] == "missing: RuntimeError: no such processor"


def test_eight_times_the_tokens_may_take_twelve_times_as_long() -> None:
    longest = cases(8192)[-1]
    assert tokens(longest) == 4096
    assert expected_seconds(longest, {"S24": 0.1, "S512": 5.0, "R32": 9.0}) == pytest.approx(60)
    assert expected_seconds(cases(8192)[2], {"S24": 100.0}) == 0
