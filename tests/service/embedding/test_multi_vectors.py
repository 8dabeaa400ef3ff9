"""Several vectors a text: which tokens are read and which get a vector, their numbers and bits, and what they cost."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts.card import MULTI_VECTOR
from models.artifacts.export import export
from service.embedding.outputs.multi_vector import MultiVector
from service.embedding.requests import EmbedOptions, EmbedResult, Ids, Text
from service.embedding.scores import maxsim
from service.errors import EngineFailure, InlayError, TooLarge, TooLong
from service.registry.warmup import warm_up
from tests.embed_requests import embed_request
from tests.late_interaction import (
    DOCUMENT_MARKER,
    MASK,
    QUERY_MARKER,
    TEXTS,
    VOCABULARY,
    bge_head,
    projection,
    write_bert,
    write_bge,
    write_native,
    write_pylate,
)
from tests.service.registry.registry_service import Service

CLS, SEP = VOCABULARY.index("[CLS]"), VOCABULARY.index("[SEP]")
Rows = NDArray[np.float32]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("late")
    export(write_pylate(write_bert(folder / "colbert")), folder / "store/colbert")
    native = write_native(
        write_bert(folder / "native"), query_expansion={"strategy": "min", "attend": True, "length": 8}
    )
    export(native, folder / "store/native")
    write_bge(write_bert(folder / "bge"))
    export(folder / "bge", folder / "store/bge")
    return folder / "store"


@pytest.fixture(scope="module")
def service(store: Path) -> Service:
    return Service(store)


async def embed(service: Service, inputs: Any, model: str = "colbert", **fields: Any) -> EmbedResult:
    items = [Text(item) if isinstance(item, str) else item for item in inputs]
    return await service.pipeline.embed(embed_request(items, model, **{"truncate": True} | fields))


async def vectors(service: Service, inputs: Any, model: str = "colbert", **fields: Any) -> list[Rows]:
    """The vectors of each input."""
    result = await embed(service, inputs, model, outputs=("multi_vector_embedding",), **fields)
    (output,) = result.outputs
    assert sum(output.lengths) == len(output.rows)
    return np.split(output.rows, np.cumsum(output.lengths)[:-1])


def numbers(text: str) -> list[int]:
    return [VOCABULARY.index(word) for word in text.split()]


async def expected(service: Service, ids: list[int], mask: list[int], kept: list[int]) -> NDArray[np.float64]:
    """The projected, scaled hidden states of some tokens."""
    result = await embed(service, [Ids(np.array(ids), np.array(mask))], outputs=("last_hidden_state",))
    rows = result.outputs[0].rows[kept].astype(np.float64) @ projection(32).T
    scaled: NDArray[np.float64] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return scaled


async def test_a_query_is_marked_and_filled_up(service: Service) -> None:
    (own,) = await vectors(service, ["hello, world"], input_type="query")
    read = [CLS, QUERY_MARKER, *numbers("hello , world"), SEP]
    ids, mask = read + [MASK] * (12 - len(read)), [1] * len(read) + [0] * (12 - len(read))
    np.testing.assert_allclose(own, await expected(service, ids, mask, list(range(12))), atol=1e-6)


@pytest.mark.parametrize("input_type", ["document", None])
async def test_a_document_is_marked_and_its_punctuation_skipped(service: Service, input_type: Any) -> None:
    (own,) = await vectors(service, ["hello, world ."], input_type=input_type)
    ids = [CLS, DOCUMENT_MARKER, *numbers("hello , world ."), SEP]
    kept = [0, 1, 2, 4, 6]
    np.testing.assert_allclose(own, await expected(service, ids, [1] * len(ids), kept), atol=1e-6)


async def test_filled_up_tokens_may_be_attended_to(service: Service) -> None:
    short, long = await vectors(service, ["a", "a b c d e f g"], "native", input_type="query")
    assert (len(short), len(long)) == (8, 11)  # query : a, and what opens and closes it


async def test_token_ids_are_taken_as_they_are(service: Service) -> None:
    ids = [CLS, QUERY_MARKER, *numbers("hello , world"), SEP]
    mask = [1, 1, 1, 1, 1, 0]
    (query,) = await vectors(service, [Ids(np.array(ids), np.array(mask))], input_type="query")
    np.testing.assert_allclose(query, await expected(service, ids, mask, list(range(5))), atol=1e-6)
    (document,) = await vectors(service, [Ids(np.array(ids))])
    assert len(document) == 5  # the comma has none


async def test_another_prompt_may_be_named(service: Service) -> None:
    (own,) = await vectors(service, ["hello"], input_type="document", prompt_name="query")
    np.testing.assert_allclose(
        own, await expected(service, [CLS, QUERY_MARKER, *numbers("hello"), SEP], [1] * 4, [0, 1, 2, 3]), atol=1e-6
    )


@pytest.mark.parametrize("input_type", ["query", "document"])
@pytest.mark.parametrize("model", ["colbert", "native", "bge"])
async def test_a_text_has_the_same_bits_among_others(service: Service, model: str, input_type: Any) -> None:
    together = await vectors(service, TEXTS, model, input_type=input_type)
    for text, own in zip(TEXTS, together, strict=True):
        (alone,) = await vectors(service, [text], model, input_type=input_type)
        assert alone.tobytes() == own.tobytes()


async def test_projecting_in_parts_changes_no_bit(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    through_head = MultiVector.behind_head
    monkeypatch.setattr(MultiVector, "behind_head", lambda *given: runs.append(1) or through_head(*given))
    whole = await vectors(service, TEXTS)
    assert len(runs) == 1
    monkeypatch.setattr(MultiVector, "held_rows", 20)
    parts = await vectors(service, TEXTS)
    assert len(runs) > 2
    assert [own.tobytes() for own in parts] == [own.tobytes() for own in whole]


async def test_long_texts_are_cut_to_the_length_of_their_kind(service: Service) -> None:
    text = "a " * 40
    query, document = [(await vectors(service, [text], input_type=kind))[0] for kind in ("query", "document")]
    assert (len(query), len(document)) == (12, 24)
    with pytest.raises(TooLong) as error:
        await vectors(service, [text], input_type="query", truncate=False)
    assert "this model reads 12" in str(error.value)


async def test_a_text_may_have_no_vector(service: Service) -> None:
    punctuation = Ids(np.array(numbers(". , !")))
    empty, one = await vectors(service, [punctuation, Ids(np.array(numbers("a")))])
    assert (empty.shape, one.shape) == ((0, 16), (1, 16))
    assert [own.shape for own in await vectors(service, [punctuation])] == [(0, 16)]


async def test_bge_m3_leaves_the_first_token_out(service: Service) -> None:
    result = await embed(service, ["hello world a"], "bge", outputs=("last_hidden_state", "multi_vector_embedding"))
    hidden, several = (output.rows for output in result.outputs)
    weight, bias = (np.float64(array) for array in bge_head(32))
    rows = hidden[1:].astype(np.float64) @ weight.T + bias
    np.testing.assert_allclose(several, rows / np.linalg.norm(rows, axis=1, keepdims=True), atol=1e-6)


async def test_all_heads_share_one_run_of_the_encoder(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    model = service.registry.get("bge")
    runs: list[str] = []
    run = type(model.engine).run
    monkeypatch.setattr(
        type(model.engine), "run", lambda self, graph, *given: runs.append(graph) or run(self, graph, *given)
    )
    names = ("sentence_embedding", "multi_vector_embedding", "last_hidden_state")
    result = await embed(service, ["hello world"], "bge", outputs=names)
    assert tuple(output.name for output in result.outputs) == names
    assert sorted(runs) == ["encoder", "multi_vector"]
    (alone,) = (await embed(service, ["hello world"], "bge")).outputs
    np.testing.assert_array_equal(alone.rows, result.outputs[0].rows)


async def test_vectors_count_for_the_limit_of_an_answer(store: Path) -> None:
    small = Service(store, max_answer_bytes=4 * 16 * 12)
    assert len(await vectors(small, ["a"], input_type="query")) == 1  # filled up to 12 tokens
    with pytest.raises(TooLarge) as error:
        await vectors(small, ["a", "b"], input_type="query")
    assert "has 24 tokens, whose multi_vector_embedding are 1536 bytes" in str(error.value)


async def test_ranking_is_maxsim_of_query_and_documents(service: Service) -> None:
    (query,) = await vectors(service, ["hello world"], input_type="query")
    documents = await vectors(service, TEXTS, input_type="document")
    ranks = await service.rank("hello world", TEXTS, "colbert", truncate=True)
    assert np.array_equal(ranks.scores, maxsim(query, documents))
    alone = await service.rank("hello world", TEXTS[2:3], "colbert", truncate=True)
    assert alone.scores[0] == ranks.scores[2]
    assert ranks.result.tokens > alone.result.tokens > 12


async def test_a_vector_that_is_not_finite_fails_the_request(service: Service) -> None:
    (kind,) = service.registry.get("colbert").plan(EmbedOptions((MULTI_VECTOR,)), "").kinds
    assert isinstance(kind, MultiVector)
    with pytest.raises(EngineFailure, match="multi_vector_embedding that is not finite"):
        kind.behind_head([np.full((2, 32), np.inf, np.float32)])


async def test_a_model_is_warmed_up_with_its_projection(service: Service) -> None:
    for name in ("colbert", "bge"):
        await warm_up(service.registry.get(name))


async def test_normalize_is_of_sentence_vectors(service: Service) -> None:
    with pytest.raises(InlayError, match="applies to sentence_embedding alone"):
        await vectors(service, ["a"], normalize=True)
