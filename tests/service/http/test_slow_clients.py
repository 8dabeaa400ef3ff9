"""A client that goes on is waited for, one that does not is not; clocks are passed in."""

import pytest

from service.http.slow_clients import (
    HEAD_BYTES,
    SLOWEST,
    Patience,
    unframed,
)

WHAT, OTHER = object(), object()


@pytest.mark.parametrize(
    ("looks", "over"),
    [
        ([(WHAT, 0, 0.0), (WHAT, 0, 9.9)], False),
        ([(WHAT, 0, 0.0), (WHAT, 0, 5.0), (WHAT, 0, 10.0)], True),
        ([(WHAT, 0, 0.0), (None, 0, 5.0), (WHAT, 0, 9.0), (WHAT, 0, 18.0)], False),
        ([(WHAT, 0, 0.0), (OTHER, 0, 9.0), (OTHER, 0, 18.0)], False),
        ([(WHAT, 0, 0.0), (WHAT, 10, 5.0), (WHAT, 20, 10.0)], True),  # it drips
        ([(WHAT, 0, 0.0), (WHAT, 5 * SLOWEST, 5.0), (WHAT, 10 * SLOWEST, 10.0), (WHAT, 10 * SLOWEST, 19.0)], False),
        ([(WHAT, 0, 0.0), (WHAT, 5 * SLOWEST, 5.0), (WHAT, 5 * SLOWEST, 15.0)], True),
        ([(WHAT, -1000, 0.0), (WHAT, -2000, 5.0), (WHAT, -2000, 10.0)], True),  # more waits to be taken, nothing was
        ([(None, 0, 0.0), (None, 0, 100.0)], False),
    ],
)
def test_a_client_is_judged_by_what_has_passed(looks: list[tuple[object, int, float]], over: bool) -> None:
    patience = Patience(10.0)
    assert [patience.over(*look) for look in looks][-1] is over


def test_a_request_may_be_all_body_or_a_head_of_reasonable_size() -> None:
    assert not unframed(HEAD_BYTES, 0)
    assert unframed(HEAD_BYTES + 1, 0)
    assert not unframed(20_000_000, 16_000_000)
    assert unframed(20_000_000, 1_000_000)
