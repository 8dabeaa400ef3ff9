"""The page of families and the table of the hundred most used checkpoints say the same."""

from tests.popular_checkpoints import END, PAGE, ROWS, START, table


def test_the_page_shows_the_table() -> None:
    shown = PAGE.read_text(encoding="utf-8").partition(START)[2].partition(END)[0]
    assert shown == table(), "run `python -m tests.popular_checkpoints`"


def test_a_hundred_checkpoints_are_listed() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) == 100
