"""Static embeddings end to end: checkpoint → export → service → HTTP and gRPC, judged by the libraries themselves."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from models.artifacts.export import export
from proto import embed_pb2 as pb
from tests.served import Served, array_of, serving
from tests.static_golden import StaticCase, difference, static_case, static_cases, texts

ALL = pytest.mark.parametrize("case", static_cases(), ids=repr)
STATIC = [case for case in static_cases() if not case.name.startswith("transformer")]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("static")
    for case in static_cases():
        export(case.folder, place / case.name)
    return place


@pytest.fixture(scope="module")
def served(store: Path) -> Iterator[Served]:
    with serving(store) as running:
        yield running


def embed(served: Served, name: str, inputs: Any, **fields: Any) -> Any:
    answer = served.post({"model": name, "inputs": inputs, "truncate": True} | fields)
    assert answer.status_code == 200, answer.text
    return np.array(answer.json())


def ids_of(case: StaticCase, text: str) -> list[int]:
    """The ids by the tokenizers library itself, from the checkpoint's own file."""
    path = next(case.folder.glob("**/tokenizer.json"))
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


@ALL
def test_texts_give_the_vectors_of_the_library_over_http(case: StaticCase, served: Served) -> None:
    assert difference(embed(served, case.name, texts()), case.vectors) <= case.tolerance


@ALL
def test_texts_give_the_vectors_of_the_library_over_grpc(case: StaticCase, served: Served) -> None:
    request = pb.EmbedRequest(model=case.name, truncate=True)
    for text in texts():
        request.inputs.add(text=text)
    answer = served.stub.Embed(request)
    assert difference(array_of(answer.outputs[0].tensor), case.vectors) <= case.tolerance


@ALL
def test_a_text_has_the_same_bits_alone_and_in_a_batch(case: StaticCase, served: Served) -> None:
    together = embed(served, case.name, texts())
    alone = np.concatenate([embed(served, case.name, [text]) for text in texts()])
    if case in STATIC:
        assert np.array_equal(together, alone)
    assert difference(alone, together) <= 1e-6


@pytest.mark.parametrize("name", ["model2vec", "model2vec_weights", "model2vec_mapping", "static_unit"])
def test_token_ids_give_the_vector_without_unknown_or_masked(name: str, served: Served) -> None:
    case = static_case(name)
    chosen = [number for number, text in enumerate(texts()) if 0 < len(ids_of(case, text)) < 100]
    ids = [ids_of(case, texts()[number]) for number in chosen]
    assert difference(embed(served, name, ids), case.vectors[chosen]) <= case.tolerance
    padded = [{"input_ids": [*each, 5, 5], "attention_mask": [1] * len(each) + [0, 0]} for each in ids]
    assert np.array_equal(embed(served, name, padded), embed(served, name, ids))


def test_texts_without_a_known_token_give_zeros(served: Served) -> None:
    for case in STATIC:
        assert not embed(served, case.name, [""], normalize=True).any() or case.name == "static_prompt"
    assert not embed(served, "model2vec", ["xyzzy"]).any()
    assert embed(served, "static", ["xyzzy"]).any()


def test_neighbours_of_empty_texts_keep_their_vectors(served: Served) -> None:
    """Twice as many rows as tokens, as many rows as tokens, and none."""
    for inputs in (["", "the", "", "river"], ["", "the river", ""], ["", "", ""]):
        together = embed(served, "model2vec", inputs)
        assert np.array_equal(together, np.concatenate([embed(served, "model2vec", [text]) for text in inputs]))


def test_normalize_defaults_to_the_models_setting(served: Served) -> None:
    plain, unit = static_case("model2vec"), static_case("model2vec_unit")
    norms = np.linalg.norm(plain.vectors, axis=1, keepdims=True)
    scaled = np.divide(plain.vectors, norms, where=norms > 0, out=np.zeros_like(plain.vectors))
    assert difference(embed(served, "model2vec", texts(), normalize=True), scaled) <= 1e-6
    lengths = np.linalg.norm(embed(served, "model2vec_unit", texts(), normalize=False), axis=1)
    assert not np.allclose(lengths[norms[:, 0] > 0], 1)
    assert difference(embed(served, "model2vec_unit", texts()), unit.vectors) <= unit.tolerance


def test_the_mean_of_token_rows_is_the_sentence_vector(served: Served) -> None:
    body = {"model": "static", "inputs": ["the stones river", ""]}
    rows = served.post(body | {"outputs": ["input_embeddings"]}).json()["outputs"]["input_embeddings"]
    both = served.post(body | {"outputs": ["input_embeddings", "sentence_embedding"]}).json()["outputs"]
    assert np.allclose(np.array(rows[0]).mean(axis=0), both["sentence_embedding"][0], atol=1e-6)
    assert (both["input_embeddings"], rows[1]) == (rows, [])


def test_a_prompt_is_put_before_the_text(served: Served) -> None:
    """sentence-transformers' own default prompt is in the golden vectors; the other one is text like any other."""
    got = embed(served, "static_prompt", ["the market"], prompt_name="passage")
    model = json.loads((static_case("static_prompt").folder / "config_sentence_transformers.json").read_text())
    spelt = model["prompts"]["passage"] + "the market"
    bare = embed(served, "static_prompt", [ids_of(static_case("static_prompt"), spelt)])
    assert np.array_equal(got, bare)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("model2vec", "the " * 641, "has 2564 characters; this model reads 2560"),
        ("model2vec", "a . " * 400, "has 800 tokens; this model reads 512"),
        ("static_cut_at_6", "the " * 7, "has 7 tokens; this model reads 6"),
    ],
)
def test_rejects_text_over_the_limits_unless_truncated(name: str, text: str, message: str, served: Served) -> None:
    answer = served.post({"model": name, "inputs": [text], "truncate": False})
    assert answer.status_code == 422
    assert message in answer.text


def test_the_vectors_can_be_shortened(served: Served) -> None:
    case = static_case("static")
    got = embed(served, "static", texts(), dimensions=3, normalize=False)
    assert difference(got, case.vectors[:, :3]) <= 1e-6


def test_the_reference_engine_serves_the_same(store: Path) -> None:
    with serving(store, engine="reference") as judge:
        for case in STATIC:
            assert difference(embed(judge, case.name, texts()), case.vectors) <= case.tolerance
