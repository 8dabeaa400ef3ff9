"""A listwise reranker (jina-reranker-v3): one text of a query and all documents, cut, divided and refused."""

import asyncio
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from models.artifacts.card import MULTI_VECTOR
from models.artifacts.export import export
from models.errors import BadCheckpoint
from models.recipes.listwise import DOCUMENT_TOKENS, QUERY_TOKENS, Listwise
from service.embedding.requests import Text
from service.errors import BadInput, TooLong
from tests.embed_requests import embed_request
from tests.reranker_models import VOCABULARY, write_reranker
from tests.service.registry.registry_service import Service

MARKS = ("<|embed_token|>", "<|rerank_token|>")
LISTWISE = Listwise(*MARKS, (len(VOCABULARY), len(VOCABULARY) + 1))
LONGEST = 2600
DOCUMENTS = ["a b", "c d e", "", "f"]


def write(folder: Path, **shapes: tuple[int, int]) -> Path:
    """A random checkpoint as jinaai/jina-reranker-v3 is published; `shapes` of its projector."""
    write_reranker(folder, template=None, longest=LONGEST, vocab_size=len(VOCABULARY) + 2)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(list(MARKS))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    own = {"architectures": ["JinaForRanking"], "max_position_embeddings": LONGEST}
    (folder / "config.json").write_text(json.dumps(config | own))
    draw, width = np.random.default_rng(3), config["hidden_size"]
    shapes = {"first": (width // 2, width), "second": (8, width // 2)} | shapes
    named = zip(("projector.0.weight", "projector.2.weight"), shapes.values(), strict=True)
    projector = {name: draw.normal(size=shape).astype(np.float32) for name, shape in named}
    save_file(load_file(folder / "model.safetensors") | projector, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("listwise")
    export(write(folder / "own"), folder / "store/own")
    return folder / "store"


def ranked(store: Path, query: str, documents: list[str], **fields: Any) -> Any:
    return asyncio.run(Service(store).rank(query, documents, **fields))


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        (None, "c43d3efd7213590ceb7b03f4267468ebbfcc543009fa3a584935c9bd7fbc160c"),
        ("i", "b3c6ba6c612fcb805473441de1a9bc42a420f2912437584f36bfc886760de592"),
    ],
)
def test_the_prompt_is_that_of_the_published_code(instruction: str | None, expected: str) -> None:
    """The hashes are of what its format_docs_prompts_func returns for q, [a, b] and the instruction."""
    assert sha256(LISTWISE.text("q", ["a", "b"], instruction).encode()).hexdigest() == expected


def test_scores_are_cosines_of_the_marks_of_one_text(store: Path) -> None:
    async def vectors() -> Any:
        request = embed_request([Text(LISTWISE.text("a", DOCUMENTS))], "own", outputs=(MULTI_VECTOR,))
        return (await Service(store).pipeline.embed(request)).outputs[0].rows.astype(np.float64)

    *documents, query = asyncio.run(vectors())
    expected = [each @ query / np.linalg.norm(each) / np.linalg.norm(query) for each in documents]
    np.testing.assert_allclose(ranked(store, "a", DOCUMENTS).scores, expected, rtol=1e-6, atol=1e-6)


def test_marks_in_texts_are_left_out(store: Path) -> None:
    marked = [MARKS[0] + text + MARKS[1] for text in DOCUMENTS]
    assert (ranked(store, "a" + MARKS[1], marked).scores == ranked(store, "a", DOCUMENTS).scores).all()


@pytest.mark.parametrize("around", MARKS)
@pytest.mark.parametrize("within", MARKS)
def test_marks_within_marks_give_no_further_vector(around: str, within: str, store: Path) -> None:
    nested = f"a {around[:5]}{within}{around[5:]} b"
    ranks = ranked(store, nested, [nested, "c"], instruction=nested)
    assert ranks.scores.shape == (2,)
    assert ranks.result.outputs[0].lengths == (3,)


def test_an_instruction_is_read(store: Path) -> None:
    plain, told = (ranked(store, "a", DOCUMENTS, instruction=each).scores for each in (None, "judge"))
    assert np.abs(plain - told).max() > 1e-4


def test_a_long_document_and_query_are_cut_or_refused(store: Path) -> None:
    room = LONGEST - 200
    long = "a " * room
    assert ranked(store, "a", ["b", long], truncate=True).result.truncated == (1,)
    query = "a " * (QUERY_TOKENS + 1)
    assert ranked(store, query, ["b", "c"], truncate=True).result.truncated == (0, 1)
    with pytest.raises(TooLong, match=rf"documents\[1\] has more tokens.*reads {DOCUMENT_TOKENS}"):
        ranked(store, "a", ["b", long], truncate=False)
    with pytest.raises(TooLong, match=rf"query has more tokens.*reads {QUERY_TOKENS}"):
        ranked(store, query, ["b"], truncate=False)


def test_a_long_list_is_several_texts(store: Path) -> None:
    documents = ["a b c d e f g h " * 10] * 40
    result = ranked(store, "a", documents)
    counts = [length - 1 for length in result.result.outputs[0].lengths]
    assert sum(counts) == 40
    assert len(counts) > 1
    assert result.scores.shape == (40,)


def test_a_text_without_marks_is_sent_to_rerank(store: Path) -> None:
    with pytest.raises(BadInput, match=r"no token that gets a vector.*/rerank"):
        asyncio.run(Service(store).pipeline.embed(embed_request([Text("a b")], "own", outputs=(MULTI_VECTOR,))))


def test_a_projector_of_other_shapes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match=r"projector.0.weight and projector.2.weight have the shapes \[3, 5\]"):
        export(write(tmp_path / "x", first=(3, 5)), tmp_path / "out")
