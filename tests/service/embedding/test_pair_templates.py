"""What a causal reranker reads of a pair: its template, cut so that its ending stays, and the scores of it."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.artifacts.export import export
from service.embedding.requests import Ids, Text
from service.embedding.tokenize.pair_templates import added_tokens, texts_of
from service.errors import ConflictingFields, TooLong, TooManyCharacters
from tests.classifier_models import tensors
from tests.embed_requests import embed_request
from tests.reranker_models import IDS, write_reranker
from tests.service.registry.registry_service import Service

SCORE = {"true_token_id": IDS["yes"], "false_token_id": IDS["no"]}
DOCUMENTS = ["c", "", "d e f", "g " * 40]
LONGEST = 20


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reranker(tmp_path_factory.mktemp("reranker") / "x", score=SCORE, longest=LONGEST)


@pytest.fixture
def service(checkpoint: Path, tmp_path: Path) -> Service:
    export(checkpoint, tmp_path / "store/own")
    return Service(tmp_path / "store")


def read(query: str, document: str, told: str = "a b") -> list[int]:
    """The ids of a pair: cut before the last two, which are the template's ending."""
    words = f"<|im_start|> judge {told} : {query} : {document} <|im_end|> system".split()
    ids = [IDS.get(word, 0) for word in words]
    return ids if len(ids) <= LONGEST else [*ids[: LONGEST - 2], *ids[-2:]]


async def scores(service: Service, query: str, documents: list[str], **fields: Any) -> Any:
    return (await service.rank(query, documents, truncate=True, **fields)).scores


async def expected(service: Service, checkpoint: Path, pairs: list[list[int]]) -> Any:
    """The sigmoid of yes less no, of the last hidden state times the output matrix."""
    request = embed_request([Ids(np.array(ids)) for ids in pairs], outputs=("last_hidden_state",))
    (hidden,) = (await service.pipeline.embed(request)).outputs
    last = hidden.rows[np.cumsum(hidden.lengths) - 1].astype(np.float64)
    logits = last @ tensors(checkpoint)["model.embed_tokens.weight"].T.astype(np.float64)
    return 1 / (1 + np.exp(logits[:, IDS["no"]] - logits[:, IDS["yes"]]))


async def test_scores_are_of_the_template(service: Service, checkpoint: Path) -> None:
    wanted = await expected(service, checkpoint, [read("h", document) for document in DOCUMENTS])
    np.testing.assert_allclose(await scores(service, "h", DOCUMENTS), wanted, atol=1e-6)


async def test_an_instruction_takes_the_place_of_the_models(service: Service, checkpoint: Path) -> None:
    wanted = await expected(service, checkpoint, [read("h", document, "i j k") for document in DOCUMENTS])
    np.testing.assert_allclose(await scores(service, "h", DOCUMENTS, instruction="i j k"), wanted, atol=1e-6)


async def test_a_long_query_is_cut_too(service: Service, checkpoint: Path) -> None:
    wanted = await expected(service, checkpoint, [read("h " * 50, "c")])
    np.testing.assert_allclose(await scores(service, "h " * 50, ["c"]), wanted, atol=1e-6)


async def test_a_score_does_not_depend_on_other_documents(service: Service) -> None:
    together = await scores(service, "h", DOCUMENTS * 5)
    alone = [(await scores(service, "h", [document]))[0] for document in DOCUMENTS]
    assert together.tolist() == alone * 5


async def test_many_characters_are_joined_in_a_thread(service: Service) -> None:
    documents = ["c " * 40_000, *DOCUMENTS]
    assert (await scores(service, "h", documents))[1:].tolist() == (await scores(service, "h", DOCUMENTS)).tolist()


async def test_a_long_query_is_not_copied_for_every_document(service: Service) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TooManyCharacters):
            await scores(service, "h " * 100_000, ["c"] * 1000)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20  # the copies would have 200 MB
    finally:
        tracemalloc.stop()


async def test_rejects_a_cut_at_the_left(service: Service) -> None:
    with pytest.raises(ConflictingFields, match="cut at their end"):
        await scores(service, "h", DOCUMENTS, direction="left")


async def test_rejects_a_long_pair_where_nothing_may_be_cut(service: Service) -> None:
    with pytest.raises(TooLong):
        await service.rank("h", DOCUMENTS, truncate=False)


def test_the_ending_is_what_the_tokenizer_makes_of_it_there(service: Service) -> None:
    model = service.registry.get(None)
    classifier = model.card.classifier
    assert classifier is not None
    assert classifier.template is not None
    (text,) = texts_of(classifier.template, model.tokenizer, [Text("h", "c")], None, 100)
    assert text.text == "<|im_start|> judge a b : h : c <|im_end|> system"
    assert text.ending == (IDS["<|im_end|>"], IDS["system"])
    assert model.tokenizer is not None
    assert added_tokens(classifier.template, model.tokenizer) == 8
