"""`inlay embed` with rerankers and classifiers: pairs of two columns, logits and scores as the service gives them."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from models.artifacts.export import export
from service.embedding.requests import Text
from tests.classifier_models import write_classifier
from tests.embed_requests import embed_request
from tests.reranker_models import IDS, write_reranker
from tests.service.cli.conftest import Run
from tests.service.registry.registry_service import Service

QUERIES = ["a b", "c", None, "d e f", "a"]
DOCUMENTS = ["c", "a " * 30, "b", None, "j i h"]
KNOWN = [0, 1, 4]  # rows that have both
TOKENS = {"architectures": ["BertForTokenClassification"], "id2label": {"0": "O", "1": "B"}}
SCORE = {"true_token_id": IDS["yes"], "false_token_id": IDS["no"]}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scores")
    export(write_classifier(folder / "ranks", "bert", 1), folder / "store/ranks")
    export(write_classifier(folder / "labels", "bert", 3), folder / "store/labels")
    export(write_classifier(folder / "tokens", "bert", None, **TOKENS), folder / "store/tokens")
    export(write_reranker(folder / "causal", score=SCORE, longest=20), folder / "store/causal")
    table = pa.table({"id": range(len(QUERIES)), "query": QUERIES, "document": DOCUMENTS})
    pq.write_table(table, folder / "in.parquet")
    return folder / "store"


@pytest.fixture(autouse=True)
def variables(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INLAY_STORE", str(store))
    monkeypatch.setenv("INLAY_THREADS", "2")


def bulk(inlay: Run, store: Path, output: Path, *words: str) -> list[Any]:
    files = [str(store.parent / "in.parquet"), str(output), "--column", "query", "--keep", "id"]
    assert inlay("embed", *files, *words)[0] == 0
    return pq.read_table(output).column(words[words.index("--output") + 1]).to_pylist()


@pytest.mark.parametrize("name", ["ranks", "causal"])
def test_scores_of_pairs_are_those_of_the_service(name: str, store: Path, inlay: Run, tmp_path: Path) -> None:
    words = ("--model", name, "--output", "scores", "--pair-column", "document")
    got = bulk(inlay, store, tmp_path / "out.parquet", *words)
    assert [row for row, scores in enumerate(got) if scores is not None] == KNOWN
    service = Service(store)
    for row in KNOWN:
        query, document = str(QUERIES[row]), str(DOCUMENTS[row])
        ranks = asyncio.run(service.rank(query, [document], name))
        np.testing.assert_array_equal(got[row], ranks.scores.astype(np.float32))


@pytest.mark.parametrize(("name", "output"), [("labels", "class_logits"), ("tokens", "token_class_logits")])
def test_logits_of_texts_are_those_of_the_service(
    name: str, output: str, store: Path, inlay: Run, tmp_path: Path
) -> None:
    got = bulk(inlay, store, tmp_path / "out.parquet", "--model", name, "--output", output)
    request = embed_request([Text(query) for query in QUERIES if query is not None], name, (output,))
    (expected,) = asyncio.run(Service(store).pipeline.embed(request)).outputs
    rows = np.concatenate([np.atleast_2d(np.array(row, np.float32)) for row in got if row is not None])
    np.testing.assert_array_equal(rows, expected.rows)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--model", "labels", "--dtype", "int8"), "is int8, which applies to sentence_embedding alone"),
        (("--model", "labels", "--pair-column", "id"), "column 'id' holds int64, not texts"),
        (("--model", "labels", "--pair-column", "other"), "no column 'other'"),
    ],
)
def test_what_cannot_be_written_is_told(
    words: tuple[str, ...], told: str, store: Path, inlay: Run, tmp_path: Path
) -> None:
    code, _, error = inlay(
        "embed", str(store.parent / "in.parquet"), str(tmp_path / "out"), "--column", "query", *words
    )
    assert code == 1
    assert told in " ".join(error.split())
