"""The fuzzer of costs sends something to every route and method, within the limits of heads and bodies."""

import pytest

from tests.fuzz.cost_cases import BODY_BYTES, Case, cases, roads
from tests.fuzz.cost_drawn import drawn

CASES = cases()
HEAD_BYTES = 64 << 10


def test_every_route_and_method_has_cases() -> None:
    routes = {f"{route.verb} {route.path}" for route in roads().routes}
    assert {case.road for case in CASES} == routes | roads().methods.keys()


def test_every_field_of_a_body_is_filled() -> None:
    for route in roads().routes:
        names = [case.name for case in CASES if case.road == f"POST {route.path}"]
        for field in [field for model in route.bodies for field in model.model_json_schema()["properties"]]:
            assert any(name.startswith((f"{field}:", f"{field}.")) for name in names), (route.path, field)


def test_part_of_the_cases_has_every_road() -> None:
    assert {case.road for case in cases(8)} == {case.road for case in CASES}


def test_seed_draws_the_same_case_again() -> None:
    first, second = drawn(7), drawn(7)
    assert (first.road, first.name, first.make()) == (second.road, second.name, second.make())


def test_drawn_cases_reach_many_roads_in_every_encoding() -> None:
    drawn_cases = [drawn(seed) for seed in range(250)]
    names = " ".join([case.name for case in drawn_cases])
    assert {case.copies for case in drawn_cases} == {1, 2}
    assert len({case.road for case in drawn_cases}) > 80
    for encoding in ("text of Hangul", "list of ones", "JSON list of", "config with long_factor", "items"):
        assert encoding in names


@pytest.mark.parametrize(
    "case", [*CASES[::97], *map(drawn, range(0, 90, 9))], ids=lambda case: f"{case.road} {case.name}"
)
def test_case_is_within_the_limits_of_its_road(case: Case) -> None:
    data = case.make()
    if case.streaming:
        assert len(data) <= BODY_BYTES
    else:
        head, _, body = data.partition(b"\r\n\r\n")
        assert len(head) < HEAD_BYTES
        assert len(body) <= BODY_BYTES
