"""The fuzzer of costs sends something to every route and method, within the limits of heads and bodies."""

import pytest

from tests.fuzz.cost_cases import BODY_BYTES, Case, cases, roads

CASES = cases()
HEAD_BYTES = 64 << 10


def test_every_route_and_method_has_cases() -> None:
    routes = {f"{route.verb} {route.path}" for route in roads().routes}
    assert {case.road for case in CASES} == routes | roads().methods.keys()


def test_every_field_of_a_body_is_filled() -> None:
    for route in roads().routes:
        if route.body is not None and route.body.model is not None:
            names = [case.name for case in CASES if case.road == f"POST {route.path}"]
            for field in route.body.model.model_json_schema()["properties"]:
                assert any(name.startswith((f"{field}:", f"{field}.")) for name in names), (route.path, field)


def test_part_of_the_cases_has_every_road() -> None:
    assert {case.road for case in cases(8)} == {case.road for case in CASES}


@pytest.mark.parametrize("case", CASES[::97], ids=lambda case: f"{case.road} {case.name}")
def test_case_is_within_the_limits_of_its_road(case: Case) -> None:
    data = case.make()
    if case.streaming:
        assert len(data) <= BODY_BYTES
    else:
        head, _, body = data.partition(b"\r\n\r\n")
        assert len(head) < HEAD_BYTES
        assert len(body) <= BODY_BYTES
