"""JavaScript's clients: a script of tests/clients/js each, which prints what its client made of the answers.

The packages are those of the lock beside the scripts, which make installs into `.venv/js`.
"""

import json
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.clients.conftest import JAVASCRIPT, SECONDS, Server
from tests.clients.judged import INPUTS, MODEL, TEXTS, UNIT, furthest, similarities
from tests.clients.ranked import DOCUMENTS, QUERY, best
from tests.score_models import RANKER

Answers = Callable[[str], dict[str, Any]]
SCRIPTS = Path(__file__).with_name("js")
PACKAGES = {
    "@huggingface/inference": "texts query similarities labels refused",
    "@langchain/cohere": "texts query ranking",
    "@langchain/ollama": "texts query",
    "@langchain/openai": "texts query shortened",
    "@llamaindex/openai": "texts query",
    "ai": "texts query shortened openai cohere ranking count",
    "cohere-ai": "texts shortened signs v1 ranking ranking_v1 missing",
    "ollama": "texts query shortened models running capabilities missing",
    "openai": "texts query shortened floats models missing",
    "voyageai": "texts shortened ranking",
}
"""What each package's script prints; `expected` says what it has to be."""
CLAIMS = [(package, claim) for package, claims in PACKAGES.items() for claim in claims.split()]
pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def answers(server: Server, scorers: Server) -> Answers:
    """Returns what a package's script prints; each runs once."""
    arguments = {"url": server.url, "model": MODEL, "texts": INPUTS}
    arguments |= {"rankerUrl": scorers.url, "ranker": RANKER, "query": QUERY, "documents": DOCUMENTS}

    @cache
    def printed(package: str) -> dict[str, Any]:
        script = SCRIPTS / f"{package.removeprefix('@').replace('/', '-')}.mjs"
        done = subprocess.run(
            ["node", "--input-type=module", "-", json.dumps(arguments)],
            cwd=JAVASCRIPT,
            input=script.read_text(encoding="utf-8"),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert not done.returncode, done.stderr
        claims: dict[str, Any] = json.loads(done.stdout)
        return claims

    return printed


@pytest.fixture(scope="module")
def expected(scorers: Server) -> dict[str, Any]:
    """The vectors of sentence-transformers, the ranking of /rerank, the names and statuses of the server."""
    units = np.array([case.unit for case in TEXTS])
    cut = units[:, :128] / np.linalg.norm(units[:, :128], axis=1, keepdims=True)
    ranking = np.array(best(scorers))
    vectors = dict.fromkeys(("texts", "floats", "openai", "cohere", "v1"), units)
    return vectors | {
        "query": units[0],
        "shortened": cut,
        "signs": np.packbits(units > 0, axis=1),
        "similarities": np.array(similarities(TEXTS[0], TEXTS)),
        "ranking": ranking,
        "ranking_v1": ranking,
        "labels": ["relevance"],
        "models": [MODEL],
        "running": [MODEL],
        "capabilities": ["embedding"],
        "missing": 404,
        "count": 2000,
        "refused": 422,
    }


@pytest.mark.parametrize(("package", "claim"), CLAIMS)
def test_javascript_client_reads_the_answer(
    answers: Answers, expected: dict[str, Any], package: str, claim: str
) -> None:
    got, wanted = answers(package)[claim], expected[claim]
    if isinstance(wanted, np.ndarray):
        assert np.shape(got) == wanted.shape
        assert furthest(np.array(got), wanted) <= 2 * UNIT
    else:
        assert got == wanted
