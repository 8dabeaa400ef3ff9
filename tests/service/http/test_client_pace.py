"""How a client's pace is judged, by a clock that the tests set."""

from service.http.client_pace import CLIENT_BYTES_PER_SECOND, ClientPace, ConnectionSettings

SECONDS = 10.0


def pace() -> ClientPace:
    return ClientPace(ConnectionSettings(client_seconds=SECONDS, idle_seconds=60.0))


def held_up(client: ClientPace, *checks: tuple[object, int]) -> list[bool]:
    """The result of checks that are half of `client_seconds` apart; each says which transfer and how many bytes."""
    return [client.is_held_up(transfer, size, index * SECONDS / 2) for index, (transfer, size) in enumerate(checks)]


def test_silent_client_is_held_up_after_client_seconds() -> None:
    assert held_up(pace(), (1, 100), (1, 100), (1, 100)) == [False, False, True]


def test_steady_client_is_never_held_up() -> None:
    step = int(CLIENT_BYTES_PER_SECOND * SECONDS / 2)
    assert not any(held_up(pace(), *[(1, index * step) for index in range(50)]))


def test_trickling_client_is_held_up() -> None:
    assert held_up(pace(), (1, 0), (1, 10), (1, 20))[-1]


def test_each_request_is_judged_by_its_own_bytes() -> None:
    """A client that sends one large body after the other keeps up, whatever part of each a check meets."""
    assert not any(held_up(pace(), (1, 9_000_000), (2, 5_000_000), (3, 3_000_000), (4, 10), (5, 20), (6, 30)))


def test_pause_ends_what_was_measured() -> None:
    client = pace()
    assert not client.is_held_up("response", 0, 0.0)
    client.reset()
    assert not client.is_held_up("response", 0, SECONDS)


def test_next_check_is_no_later_than_the_end_of_idleness() -> None:
    client = pace()
    assert client.seconds_to_check(None, 100.0) == SECONDS / 2
    assert client.seconds_to_check(100.0, 158.0) == 2.0
    assert client.seconds_to_check(100.0, 161.0) == 0.01
    assert not client.has_idled_too_long(100.0, 159.0)
    assert client.has_idled_too_long(100.0, 160.0)
