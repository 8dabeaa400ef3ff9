"""Sparse vectors of the core: the formulas, equal bits alone and among others, options, limits."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts.card import SPARSE
from models.artifacts.export import export
from service.embedding.outputs import sparse as sparse_vectors
from service.embedding.requests import Ids, Text
from service.errors import ConflictingFields, EngineFailure, OutOfRange, TooLarge
from tests.embed_requests import embed_request
from tests.golden_cases import WORDS, write_json
from tests.service.registry.registry_service import Service
from tests.sparse_models import (
    UNUSED,
    expected,
    weights_of_ids,
    write_lexical,
    write_router,
    write_splade,
    write_static,
)

TOLERANCE = 1e-5
SEQUENCES = [[2, 5, 6, 7, 3], [2, 3], [2, *range(5, 27), 6, 6, 9, 3], [2, 9, 9, 9, 8, 3], [5]]
SPLADES = {(pooling, way): f"{pooling}-{way}" for pooling in ("max", "sum") for way in ("relu", "log1p_relu")}
MADE = (*SPLADES.values(), "lexical", "router")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sparse")
    for choice, name in SPLADES.items():
        export(write_splade(folder / name, *choice), folder / "store" / name)
    for name, write in (("lexical", write_lexical), ("router", write_router), ("static", write_static)):
        export(write(folder / name), folder / "store" / name)
    return folder / "store"


@pytest.fixture(scope="module")
def service(store: Path) -> Service:
    return Service(store)


def vectors(service: Service, model: str, inputs: list[Any], **fields: Any) -> list[tuple[Any, Any]]:
    """Indices and values of each input."""
    items = [each if isinstance(each, Text) else Ids(np.array(each)) for each in inputs]
    result = asyncio.run(service.pipeline.embed(embed_request(items, model, (SPARSE,), **fields)))
    (output,) = result.outputs
    assert output.indices is not None
    ends = np.cumsum(output.lengths)[:-1]
    return list(zip(np.split(output.indices, ends), np.split(output.rows[:, 0], ends), strict=True))


def dense(vector: tuple[Any, Any]) -> NDArray[np.float64]:
    indices, values = vector
    assert indices.dtype == np.int32
    assert (np.diff(indices) > 0).all()
    assert (values > 0).all()
    row = np.zeros(len(WORDS))
    row[indices] = values
    return row


@pytest.mark.parametrize("engine", ["onnx", "reference"])
@pytest.mark.parametrize("name", MADE)
def test_vectors_follow_the_formula(name: str, engine: str, store: Path) -> None:
    own = Service(store, models=(name,), engine=engine)
    for got, wanted in zip(vectors(own, name, SEQUENCES), expected(store / name, SEQUENCES), strict=True):
        assert 0 < len(got[0]) < len(WORDS) or name == "lexical"
        assert np.abs(dense(got) - wanted).max() <= TOLERANCE * max(1, wanted.max())


@pytest.mark.parametrize("block", [1, 3, 4096])
@pytest.mark.parametrize("name", MADE)
def test_a_vector_has_the_same_bits_alone_and_among_others(
    name: str, block: int, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = [vectors(service, name, [ids])[0] for ids in SEQUENCES]
    monkeypatch.setattr(sparse_vectors, "LEAST_BLOCK", block)
    monkeypatch.setattr(sparse_vectors, "BLOCK_VALUES", 1)
    for one, other in zip(alone, vectors(service, name, SEQUENCES * 3), strict=False):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])


def test_logits_of_a_long_text_are_never_held_at_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    model = service.registry.get("max-relu")
    seen: list[int] = []
    run = model.engine.run

    def counted(graph: str, feeds: Any, outputs: Any) -> Any:
        seen.extend([len(feeds["hidden"])] if "hidden" in feeds else [])
        return run(graph, feeds, outputs)

    monkeypatch.setattr(model.engine, "run", counted)
    monkeypatch.setattr(sparse_vectors, "LEAST_BLOCK", 4)
    monkeypatch.setattr(sparse_vectors, "BLOCK_VALUES", 1)
    vectors(service, "max-relu", SEQUENCES)
    assert max(seen) == 4
    assert sum(seen) == sum(map(len, SEQUENCES)) + 1  # a row left alone is run twice


def test_masked_tokens_have_no_part(service: Service) -> None:
    for name in MADE[:1] + MADE[4:5]:
        ids = np.array([2, 5, 6, 3])
        request = embed_request([Ids(ids, np.array([1, 1, 0, 0]))], name, outputs=(SPARSE,))
        (output,) = asyncio.run(service.pipeline.embed(request)).outputs
        np.testing.assert_array_equal(output.rows[:, 0], vectors(service, name, [[2, 5]])[0][1])


@pytest.mark.parametrize("name", ["router", "static"])
def test_queries_are_looked_up_without_special_tokens(name: str, service: Service) -> None:
    ((indices, values),) = vectors(service, name, [Text("c c a b")], input_type="query")
    ids = [WORDS.index(word) for word in ("a", "b", "c")]
    wanted = {id_: weights_of_ids()[id_] for id_ in ids if weights_of_ids()[id_]}
    assert dict(zip(indices.tolist(), values.tolist(), strict=True)) == wanted
    assert len(wanted) == 2  # one of them weighs nothing


def test_a_router_encodes_what_is_no_query(service: Service) -> None:
    texts: list[Any] = [Text("a b c")]
    got = [vectors(service, "router", texts, input_type=kind)[0][1] for kind in ("document", None)]
    np.testing.assert_array_equal(*got)
    assert len(got[0]) != len(vectors(service, "router", texts, input_type="query")[0][1])


def test_a_text_without_tokens_has_an_empty_vector(service: Service) -> None:
    (first, second) = vectors(service, "static", [Text(""), Text("a")])
    assert (len(first[0]), len(second[0])) == (0, 1)


def test_a_query_without_tokens_has_an_empty_vector(service: Service) -> None:
    (first, second) = vectors(service, "router", [Text(""), Text("a b")], input_type="query")
    assert (len(first[0]), len(second[0]) > 0) == (0, True)
    assert len(vectors(service, "router", [Text("")], input_type="document")[0][0]) > 0  # of [CLS] and [SEP]


def test_special_tokens_have_no_lexical_weight(service: Service) -> None:
    for indices, _ in vectors(service, "lexical", SEQUENCES):
        assert not set(indices.tolist()) & set(UNUSED)
    assert len(vectors(service, "lexical", [[2, 3]])[0][0]) == 0


def test_dense_and_sparse_vectors_come_of_one_pass(service: Service) -> None:
    names = ("sentence_embedding", SPARSE, "last_hidden_state")
    texts = [Text("a b c"), Text("d")]
    together = asyncio.run(service.pipeline.embed(embed_request(texts, "lexical", outputs=names)))
    assert [output.name for output in together.outputs] == list(names)
    assert service.registry.get("lexical").batchers["encoder"].waiting_items == 0
    for output in together.outputs:
        alone = asyncio.run(service.pipeline.embed(embed_request(texts, "lexical", outputs=(output.name,)))).outputs[0]
        np.testing.assert_array_equal(output.rows, alone.rows)
        np.testing.assert_array_equal(output.indices, alone.indices)


def test_the_largest_values_are_kept(service: Service) -> None:
    (whole,) = vectors(service, "max-relu", [SEQUENCES[2]])
    (kept,) = vectors(service, "max-relu", [SEQUENCES[2]], max_active_dims=4)
    largest = np.sort(np.argsort(-whole[1], kind="stable")[:4])
    np.testing.assert_array_equal(kept[0], whole[0][largest])
    np.testing.assert_array_equal(kept[1], whole[1][largest])
    (all_,) = vectors(service, "max-relu", [SEQUENCES[2]], max_active_dims=1000)
    np.testing.assert_array_equal(all_[0], whole[0])


def test_the_files_say_how_many_values_are_kept(service: Service, tmp_path: Path) -> None:
    folder = write_splade(tmp_path / "made")
    write_json(folder / "config_sentence_transformers.json", {"max_active_dims": 3})
    card = export(folder, tmp_path / "store/few")
    assert ("active dimensions", "3 at most") in [(each.name, each.value) for each in card.provenance]
    few = Service(tmp_path / "store")
    for field in ({}, {"max_active_dims": 1000}):
        np.testing.assert_array_equal(
            vectors(few, "few", [SEQUENCES[2]], **field)[0][1],
            vectors(service, "max-relu", [SEQUENCES[2]], **{"max_active_dims": 3} | field)[0][1],
        )


def test_of_equal_values_those_of_the_lowest_indices_are_kept() -> None:
    indices = np.array([1, 4, 6, 9], np.int32)
    kept, values = sparse_vectors.largest(indices, np.array([1, 2, 2, 2], np.float32), 2)
    assert (kept.tolist(), values.tolist()) == ([4, 6], [2, 2])


def embed(service: Service, model: str, **fields: Any) -> None:
    asyncio.run(service.pipeline.embed(embed_request([Text("a b")], model, **fields)))


def test_options_of_other_vectors_are_refused(service: Service) -> None:
    with pytest.raises(ConflictingFields, match="applies to sparse_embedding alone"):
        embed(service, "lexical", max_active_dims=3)
    with pytest.raises(OutOfRange, match="max_active_dims is 0"):
        embed(service, "lexical", outputs=(SPARSE,), max_active_dims=0)
    with pytest.raises(ConflictingFields, match="normalize applies to sentence_embedding alone"):
        embed(service, "max-relu", normalize=True)
    with pytest.raises(ConflictingFields, match="runs no encoder"):
        embed(service, "router", outputs=(SPARSE, "last_hidden_state"), input_type="query")


def test_the_size_of_an_answer_is_bounded_before_it_is_computed(store: Path) -> None:
    most = Service(store, max_answer_bytes=3 * 8 * len(WORDS))
    for name in ("max-relu", "lexical"):
        assert len(vectors(most, name, [[2, 5, 3]] * 3)) == 3
    with pytest.raises(TooLarge, match="sparse_embedding are"):
        vectors(most, "max-relu", [[2, 5, 3]] * 4)
    with pytest.raises(TooLarge, match="sparse_embedding are"):
        vectors(most, "lexical", [[2] * 40, [2] * 40, [2, 3]])


def test_logits_that_are_not_finite_fail_their_text(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    model = service.registry.get("max-relu")
    run = model.engine.run

    def broken(graph: str, feeds: Any, outputs: Any) -> Any:
        arrays = run(graph, feeds, outputs)
        if graph == "head":
            arrays[0][1, 4] = np.nan
        return arrays

    monkeypatch.setattr(model.engine, "run", broken)
    with pytest.raises(EngineFailure, match=r"sparse_embedding of inputs\[0\] that is not finite"):
        vectors(service, "max-relu", SEQUENCES[:1])


def test_float16_values_are_rounded(service: Service) -> None:
    ((_, whole),) = vectors(service, "max-relu", SEQUENCES[:1])
    ((_, half),) = vectors(service, "max-relu", SEQUENCES[:1], dtype="float16")
    np.testing.assert_array_equal(half, whole.astype(np.float16))
