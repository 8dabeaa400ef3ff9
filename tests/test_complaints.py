"""Every test that the list of complaints names exists."""

import re
from pathlib import Path

import pytest

from tests.faults.complaints import COMPLAINTS, Complaint, table

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("complaint", COMPLAINTS, ids=lambda each: str(each.number))
def test_complaints_name_existing_tests(complaint: Complaint) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert complaint.tests
    for named in complaint.tests:
        if target := re.fullmatch(r"make (\w+)", named):
            assert re.search(rf"^{target[1]}:", makefile, re.MULTILINE)
            continue
        path, _, name = named.partition("::")
        assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), named


def test_results_of_the_faults_hold_the_same_table() -> None:
    text = (ROOT / "tests/faults/results.md").read_text(encoding="utf-8")
    assert text.endswith("\n".join([*table(), ""]))
