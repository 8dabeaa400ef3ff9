"""SECURITY.md claims what tests hold: each one that it names is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CLAIMS = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("file", "name"), CLAIMS)
def test_the_test_that_holds_a_claim_is_there(file: str, name: str) -> None:
    assert re.search(rf"def {name}\(", (ROOT / file).read_text(encoding="utf-8"))


def test_every_claim_of_a_table_names_one() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| .*?\| Held by \|\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert [row for table in tables for row in table.splitlines() if "::test_" not in row] == []
    assert len(tables) == 2
