"""nginx and HAProxy in front of the server; the tests enter what they saw in one table."""

import pytest

SEEN = pytest.StashKey[dict[str, dict[str, str]]]()
COMMAND = "make proxies ARGS=--save-table=tests/proxies/results.md"


@pytest.fixture
def table(request: pytest.FixtureRequest) -> dict[str, dict[str, str]]:
    """What was seen, by case and proxy."""
    return request.config.stash.setdefault(SEEN, {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    seen, path = config.stash.get(SEEN, {}), config.getoption("--save-table")
    if seen and path and not terminalreporter.stats.get("failed"):
        path.write_text(markdown(seen), encoding="utf-8")


def markdown(seen: dict[str, dict[str, str]]) -> str:
    """The table as Markdown."""
    from tests.proxies.programs import PROXIES

    lines = ["# HTTP framing behind proxies", "", f"By `{COMMAND}`.", ""]
    lines += [f"- {name}: {proxy.about}" for name, proxy in PROXIES.items()]
    lines += ["", *(MEANING.strip().splitlines()), ""]
    lines += ["| case | " + " | ".join(PROXIES) + " |", "|---|" + "---|" * len(PROXIES)]
    lines += [f"| {case} | {' | '.join(row.get(name, '') for name in PROXIES)} |" for case, row in seen.items()]
    return "\n".join([*lines, ""])


MEANING = """
A cell shows the statuses of the answers to a case of `tests/service/http/framing_cases.py` and to the request behind
it, in brackets those that the proxy gave itself; 0 stands for bytes without a head, as HTTP/0.9 and HTTP/2 have them.
Each case was sent whole, cut behind each of its first eight lines, and byte by byte, with one result but where a cell
has several lines. What uvicorn's h11 gives behind the same proxy is named where it differs. Each request that was
served was answered, once, to its caller; after each case three other clients sent a request through the same proxy,
and each got its own answer.
"""
