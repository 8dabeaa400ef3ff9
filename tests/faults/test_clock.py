"""The wall clock jumps by years, as libfaketime makes it: nothing that serves depends on it."""

import email.utils
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.faults.conftest import Notes
from tests.faults.processes import running, until
from tests.faults.traffic import traffic

pytestmark = pytest.mark.faults
LIBRARIES = sorted(Path("/usr/lib").glob("**/faketime/libfaketime.so.1"))
JUMPS = {"+10y": 10, "-10y": -10, "+0": 0}


def test_a_clock_that_jumps(store: Path, log: Path, tmp_path: Path, notes: Notes) -> None:
    """Ten years ahead, ten back, and home, under traffic: every call right; deadlines neither pass nor stay; idle
    connections stay; request ids differ; a cached table is still the same; nothing is given up as stuck."""
    assert LIBRARIES, "libfaketime is not installed: on Debian, apt-get install faketime"
    said = tmp_path / "clock"
    said.write_text("+0")
    variables = {
        "LD_PRELOAD": str(LIBRARIES[0]),
        "FAKETIME_TIMESTAMP_FILE": str(said),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
    table = "/positions/rope?head_dim=8&length=16"
    with running(store, log, "--stuck-seconds", "5", variables=variables) as service:
        tag, ids, years = service.get(table).headers["etag"], set(), []
        with traffic(service) as seen:
            for jump, by in JUMPS.items():
                said.write_text(jump)
                many = len(seen.answered) + 40
                until(lambda many=many: len(seen.answered) > many, "traffic")  # type: ignore[misc]
                answer = service.embed(**{"inlay-timeout-ms": "20000"})
                assert answer.status_code == 200
                ids.add(answer.headers["x-request-id"])
                year = datetime.now(UTC).year + by
                until(lambda year=year: _year(service.get(table)) == year, "the Date header jumps")  # type: ignore[misc]
                years.append(_year(service.get(table)))
                assert service.get(table).headers["etag"] == tag
                assert service.get("/health/live").status_code == 200
                assert service.get("/health/ready").status_code == 200
        assert not seen.wrong
        assert not seen.broken
        assert len(ids) == len(JUMPS)
        assert service.measured("inlay_stuck_runs_total") == 0
        assert abs(service.measured("inlay_request_seconds_sum")) < 1000
        notes(f"{len(seen.answered)} calls right in the years {', '.join(map(str, years))}")


def _year(answer: object) -> int:
    return email.utils.parsedate_to_datetime(answer.headers["date"]).year  # type: ignore[attr-defined]
