"""Every test that the security page names exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/security.md").read_text(encoding="utf-8")
CLAIMS = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PAGE)


@pytest.mark.parametrize(("file", "name"), CLAIMS)
def test_claims_name_existing_tests(file: str, name: str) -> None:
    assert re.search(rf"def {name}\(", (ROOT / file).read_text(encoding="utf-8"))


def test_every_row_of_a_table_names_a_test() -> None:
    tables = re.findall(r"^\| .*?\| Held by \|\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert [row for table in tables for row in table.splitlines() if "::test_" not in row] == []
    assert len(tables) == 2
