"""JSON of too many parts is refused before it is parsed; what stands in strings is no part."""

import pytest

from service.errors import TooLarge
from service.http.json_structure import MAX_LISTS, MAX_MEMBERS, MAX_STRINGS, MAX_VALUES
from service.http.validation_errors import parse_json


def listed(item: bytes, count: int) -> bytes:
    """A list of `count` items."""
    return b"[" + b",".join([item] * count) + b"]"


def members(count: int) -> bytes:
    return b"{" + b",".join([b'"%d":0' % number for number in range(count)]) + b"}"


@pytest.mark.parametrize(
    ("item", "most"),
    [(b"[]", MAX_LISTS - 1), (b"{}", MAX_LISTS - 1), (b'"a"', MAX_STRINGS), (b"1", MAX_VALUES + 1)],
    ids=["lists", "objects", "strings", "values"],
)
def test_reads_as_many_items_as_allowed_and_no_more(item: bytes, most: int) -> None:
    assert len(parse_json(listed(item, most))) == most
    with pytest.raises(TooLarge, match="this server reads"):
        parse_json(listed(item, most + 1))


def test_reads_as_many_members_as_allowed_and_no_more() -> None:
    assert len(parse_json(members(MAX_MEMBERS))) == MAX_MEMBERS
    with pytest.raises(TooLarge, match=f"{MAX_MEMBERS + 1} members"):
        parse_json(members(MAX_MEMBERS + 1))


@pytest.mark.parametrize("text", [b"[{,:" * MAX_VALUES, b'\\"[,' * MAX_VALUES, b"\\\\" + b"[," * MAX_VALUES])
def test_text_may_hold_any_number_of_brackets(text: bytes) -> None:
    assert len(parse_json(b'["a\\\\",' + b'"b",' * 40 + b'"' + text + b'"]')) == 42


def test_quote_behind_an_escaped_backslash_ends_its_string() -> None:
    with pytest.raises(TooLarge, match=f"{MAX_LISTS + 2} lists"):
        parse_json(b'["' + b"a" * 300_000 + b'\\\\",' + listed(b"[]", MAX_LISTS) + b"]")


def test_a_string_may_go_on_over_counted_pieces() -> None:
    text = b"[" * 1_000_000
    assert parse_json(b'["' + text + b'"]') == [text.decode()]
