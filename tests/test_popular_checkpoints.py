"""The page of families and the table of the hundred most used checkpoints say the same."""

from tests.popular_checkpoints import END, PAGE, ROWS, SEEN, START, table


def test_the_page_shows_the_table() -> None:
    shown = PAGE.read_text(encoding="utf-8").partition(START)[2].partition(END)[0]
    assert shown == table(), "run `python -m tests.popular_checkpoints`"


def test_a_hundred_checkpoints_are_listed() -> None:
    names = {row.name for row in ROWS}
    assert len(names) == len(ROWS) == 100
    assert names >= set(SEEN)
