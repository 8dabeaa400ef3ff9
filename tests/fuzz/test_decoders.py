"""Bytes of any kind give a value or a refusal, soon and in bounded memory: seeds, their mutations, and old faults.

`make fuzz` tries millions of inputs; here are few, always the same.
"""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import files, roads
from tests.fuzz.catalogue import TARGETS, kept
from tests.fuzz.judging import judge
from tests.fuzz.mutating import mutated

MUTATIONS = 60


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    """Nothing stays open or on disk."""
    yield
    roads.close()
    files.close()


@pytest.mark.parametrize("name", TARGETS)
def test_seed_is_accepted(name: str) -> None:
    """Most of them at least: else mutations would start from nothing."""
    target = TARGETS[name]
    taken = [judge(target, seed, measured=True) for seed in target.seeds()]
    assert any(taken)


@pytest.mark.parametrize("name", TARGETS)
def test_changed_seed_is_accepted_or_rejected(name: str) -> None:
    target, choose = TARGETS[name], random.Random(0)
    seeds = target.seeds()
    for number in range(MUTATIONS):
        judge(target, mutated(seeds, target.words, choose), measured=number % 8 == 0)


@pytest.mark.parametrize("name", [name for name in TARGETS if not name.startswith("every")])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.binary(max_size=300))
def test_any_bytes_are_accepted_or_rejected(name: str, data: bytes) -> None:
    judge(TARGETS[name], data)


@pytest.mark.parametrize(("name", "data"), [(name, data) for name in TARGETS for data in kept(name)])
def test_inputs_of_former_faults_cause_none(name: str, data: bytes) -> None:
    judge(TARGETS[name], data, measured=True)
