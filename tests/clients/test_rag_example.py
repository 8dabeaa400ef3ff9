"""docs/examples/rag.py with qdrant-client: what it finds, in which order, and what it says where something fails."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.conftest import DEMO, PYTHON, ROOT, SECONDS, Server, serving
from tests.clients.ranked import post
from tests.docs.example_scripts import EXAMPLES, run
from tests.score_models import RANKER, write_classifier

pytestmark = pytest.mark.clients

MOST_LINES = 40
PLANETS = EXAMPLES / "planets.txt"
PAGE = (EXAMPLES / "rag.md").read_text(encoding="utf-8")
QUESTIONS = {  # a question → how the one paragraph that answers it begins
    "Why is it still hot at night on Venus?": "Venus",
    "Why do we never see the far side of the Moon?": "The Moon shows us",
    "Where could there be life in water under ice?": "Europa",
    "What was the ninth planet until it lost that rank?": "Pluto",
}
LETTERS = ["a b", "c d e", "f g h", "i j", "a c", "hello world"]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The demo model, the default, and a tiny cross-encoder."""
    folder = tmp_path_factory.mktemp("rag")
    source = write_classifier(folder / "checkpoints" / RANKER, ("relevance",))
    export = [PYTHON.with_name("inlay"), "export", str(source), str(folder / "store" / RANKER)]
    subprocess.run(export, cwd=ROOT, check=True, capture_output=True, timeout=SECONDS)
    (folder / "store" / DEMO.name).symlink_to(DEMO.resolve())
    with serving(folder / "store", default_model=DEMO.name) as running:
        yield running


@pytest.fixture(scope="module")
def printed(both: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the script printed for each question, from one index of planets.txt."""
    folder = tmp_path_factory.mktemp("index")
    assert run("rag.py", "Venus", "--add", PLANETS, "--inlay", both.url, cwd=folder).returncode == 0
    done = {question: run("rag.py", question, "--inlay", both.url, cwd=folder) for question in QUESTIONS}
    assert {each.stderr for each in done.values()} == {""}
    return {question: each.stdout for question, each in done.items()}


def passages(output: str) -> list[str]:
    """The passages without their scores."""
    return [text.partition("] ")[2] for text in output.strip().split("\n\n")]


def test_has_forty_lines_at_most() -> None:
    lines = (EXAMPLES / "rag.py").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.strip()]) <= MOST_LINES


@pytest.mark.parametrize("question", QUESTIONS)
def test_first_passage_answers_the_question(question: str, printed: dict[str, str]) -> None:
    first, *others = passages(printed[question])
    assert first.startswith(QUESTIONS[question])
    assert len(others) == 2


def test_page_shows_what_the_script_prints(printed: dict[str, str]) -> None:
    shown = [text for question, text in printed.items() if f'rag.py "{question}"' in PAGE]
    assert len(shown) == 2
    assert [text.strip() in PAGE for text in shown] == [True, True]


def test_reranker_decides_the_order(both: Server, tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("\n\n".join(LETTERS), encoding="utf-8")
    words = ["a b", "--add", "letters.txt", "--inlay", both.url, "--reranker", RANKER]
    done = run("rag.py", *words, cwd=tmp_path)
    ranks = post(both, "/rerank", model=RANKER, query="a b", texts=LETTERS)
    assert passages(done.stdout) == [LETTERS[rank["index"]] for rank in ranks[:3]], done.stderr
    plain = run("rag.py", *words[:5], cwd=tmp_path)
    assert passages(plain.stdout) != passages(done.stdout)


def test_add_replaces_the_older_index(both: Server, tmp_path: Path) -> None:
    for number, text in enumerate(("the first", "the second")):
        (tmp_path / f"{number}.txt").write_text(text, encoding="utf-8")
        done = run("rag.py", "which?", "--add", f"{number}.txt", "--inlay", both.url, cwd=tmp_path)
    assert passages(done.stdout) == ["the second"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "rag-store holds no passages: name texts with --add"),
        (["--add", "empty.txt"], "the files of --add hold no text"),
        (["--add", PLANETS, "--model", "nothing"], "no model 'nothing' here"),
    ],
)
def test_says_what_is_missing(words: list[object], said: str, both: Server, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n", encoding="utf-8")
    done = run("rag.py", "why?", *words, "--inlay", both.url, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
