"""The progress of long commands where stderr is no terminal."""

import pytest

from service.cli import console


def test_progress_without_progress_yet_is_shown_without_a_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slow start reports nothing done, in a Job or by cron, where a division by it once ended the run."""
    clock = iter([0.0, 100.0, 200.0, 300.0])
    monkeypatch.setattr(console, "monotonic", lambda: next(clock))
    with console.progress_bars() as progress:
        for done in (0, 0, 50):
            progress("embedding", done, 200)
    told = ["embedding: 0 of 200", "embedding: 0 of 200", "embedding: 50 of 200, 600 s left"]
    assert capsys.readouterr().err.splitlines() == told
