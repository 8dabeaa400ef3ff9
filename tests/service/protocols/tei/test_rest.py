"""text-embeddings-inference's REST routes: responses, defaults, and every error with its status and type."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from tokenizers import Tokenizer

from models.artifacts import card as cards
from service.embedding.tokenize.tokenizer import beside
from service.errors import WrongModelKind
from service.protocols.tei import answers
from service.protocols.tei.handlers import token_output
from tests.golden_cases import write_tokenizer
from tests.served import Served, serving_here
from tests.service.protocols.tei.conftest import PROMPTS

TIMES = ("x-compute-time", "x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time")
LONG = "a " * 60  # `bert` reads 24 tokens
PAIRED = {"source_sentence": "a b", "sentences": ["a b", "c d e"]}
SPARSE = "Model is not an embedding model with SPLADE pooling: bert gives dense vectors, by /embed"
EMPTY = "cannot be empty: send one at least"
NO_CLASSIFIER = "Model is not a classifier model: bert gives embeddings, by /embed"

# path, body, status, error_type, what the message says
ERRORS: list[tuple[str, Any, int, str, str]] = [
    ("/", b"{", 400, "Validation", "the body is not JSON"),
    ("/", {"inputs": []}, 400, "Empty", "send one text"),
    ("/", {"input": "a"}, 422, "Validation", 'did you mean "inputs"?'),
    ("/", {"inputs": {"source_sentence": "a"}}, 422, "Validation", "inputs.sentences is missing"),
    ("/invocations", {"inputs": {"source_sentence": "a", "sentences": []}}, 400, "Empty", EMPTY),
    ("/similarity", b"[", 400, "Validation", "the body is not JSON"),
    ("/similarity", {"inputs": "a"}, 422, "Validation", 'inputs is "a"; allowed: an object with source_sentence'),
    ("/similarity", {"inputs": PAIRED | {"sentence": "a"}}, 422, "Validation", 'did you mean "sentences"?'),
    ("/similarity", {"inputs": PAIRED | {"sentences": ["a", 1]}}, 422, "Validation", "inputs.sentences[1] is 1"),
    ("/similarity", {"inputs": PAIRED | {"sentences": []}}, 400, "Empty", f"`inputs.sentences` {EMPTY}"),
    ("/similarity", {"inputs": PAIRED | {"sentences": ["a"] * 8}}, 422, "Validation", "batch size 8 > maximum"),
    (
        "/similarity",
        {"inputs": PAIRED, "parameters": []},
        422,
        "Validation",
        "parameters is a list of 0; allowed: an object",
    ),
    ("/similarity", {"inputs": PAIRED, "parameters": {"prompt_name": "x"}}, 422, "Validation", "prompt_name is 'x'"),
    ("/similarity", {"inputs": PAIRED, "model": "llama"}, 424, "Backend", "Model is not an embedding model; llama"),
    ("/embed_all", {"inputs": []}, 400, "Empty", "send one text"),
    ("/embed_all", {"inputs": ["a"] * 9}, 422, "Validation", "9 inputs; this server takes 8"),
    ("/embed_all", {"inputs": LONG, "truncate": False}, 422, "Validation", "inputs[0] has 62 tokens"),
    ("/embed_all", {"inputs": "a", "model": "berd"}, 404, "Validation", "did you mean 'bert'?"),
    ("/tokenize", {"inputs": []}, 400, "Empty", f"`inputs` {EMPTY}"),
    ("/tokenize", {"inputs": ["a"] * 9}, 422, "Validation", "batch size 9 > maximum allowed batch size 8"),
    ("/tokenize", {"inputs": ["a " * 300] * 2}, 422, "Validation", "604 tokens; this server takes 400"),
    ("/tokenize", {"inputs": [1]}, 422, "Validation", "allowed: a text or a list of texts"),
    ("/tokenize", {"inputs": "a", "add_special_tokens": 1}, 422, "Validation", "add_special_tokens is 1"),
    ("/tokenize", {"inputs": "a", "prompt_name": "x"}, 422, "Validation", "bert has the prompts 'query', 'passage'"),
    ("/tokenize", {"inputs": "a", "model": "llama"}, 424, "Backend", "llama was exported without a tokenizer"),
    ("/decode", {"ids": []}, 400, "Empty", f"`ids` {EMPTY}"),
    ("/decode", {"ids": [[5]] * 9}, 422, "Validation", "batch size 9 > maximum allowed batch size 8"),
    ("/decode", {"ids": [5, 27]}, 422, "Validation", "ids[0] holds 27, which this model's vocabulary does not"),
    ("/decode", {"ids": [[5], [6, 4294967295]]}, 422, "Validation", "ids[1] holds 4294967295"),
    ("/decode", {"ids": [[5], [6, 4294967296]]}, 422, "Validation", "ids[1][1] is 4294967296; an id is an integer"),
    ("/decode", {"ids": [-1]}, 422, "Validation", "ids[0] is -1; an id is an integer from 0"),
    ("/decode", {"ids": [True]}, 422, "Validation", "ids[0] is true"),
    ("/decode", {"ids": [[5], 6]}, 422, "Validation", "ids[1] is 6; where one is a list of ids, all are"),
    ("/decode", {"ids": "a"}, 422, "Validation", 'ids is "a"; send a list of ids'),
    ("/decode", {"ids": [5], "model": "llama"}, 424, "Backend", "llama was exported without a tokenizer"),
    ("/embed_sparse", b"x", 400, "Validation", "the body is not JSON"),
    ("/embed_sparse", {"inputs": []}, 400, "Empty", EMPTY),
    ("/embed_sparse", {"inputs": 1}, 422, "Validation", "inputs is 1"),
    ("/embed_sparse", {"inputs": ["a", [5, 6]]}, 424, "Backend", SPARSE),
    ("/predict", {"text": "a"}, 422, "Validation", "inputs is missing"),
    ("/predict", {"inputs": []}, 422, "Validation", "inputs is a list of 0"),
    ("/predict", {"inputs": ["a", "b", "c"]}, 422, "Validation", "inputs is a list of 3"),
    ("/predict", {"inputs": "a", "raw_scores": True}, 424, "Backend", NO_CLASSIFIER),
    ("/predict", {"inputs": ["a", "b"], "truncate": None}, 424, "Backend", NO_CLASSIFIER),
    ("/predict", {"inputs": [["a"], ["a", "b"]]}, 424, "Backend", NO_CLASSIFIER),
    ("/rerank", {"query": "a", "texts": []}, 400, "Empty", f"`texts` {EMPTY}"),
    ("/rerank", {"query": "a", "texts": "b"}, 422, "Validation", 'texts is "b"; allowed: a list of texts'),
    ("/rerank", {"query": "a", "texts": ["b"], "return_text": True}, 424, "Backend", "Model is not a re-ranker model"),
]
POSTS = sorted({path for path, *_ in ERRORS})


def post(served: Served, path: str, body: Any, **headers: str) -> httpx.Response:
    content = {"content": body} if isinstance(body, bytes) else {"json": body}
    return served.http.post(path, **content, headers={"content-type": "application/json"} | headers)


def answer(served: Served, path: str, body: Any) -> Any:
    response = post(served, path, body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize(("path", "body", "status", "kind", "message"), ERRORS)
def test_errors_have_tei_status_type_and_a_remedy(
    served: Served, path: str, body: Any, status: int, kind: str, message: str
) -> None:
    response = post(served, path, body)
    document = response.json()
    assert (response.status_code, document["error_type"]) == (status, kind), document
    assert message in document["error"]
    assert "x-compute-type" not in response.headers


@pytest.mark.parametrize("path", POSTS)
def test_rejects_bad_media_types_sizes_and_json_as_tei_does(served: Served, path: str) -> None:
    assert served.http.post(path, content=b"{}").status_code == 415
    assert served.http.post(path, content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    assert post(served, path, b'{"inputs": "' + b"a" * 20_000 + b'"}').status_code == 413
    assert post(served, path, b"nonsense").status_code == 400
    assert post(served, path, b"[]").status_code == 422
    assert served.http.put(path, json={}).status_code == 405


@pytest.mark.parametrize("path", ["/", "/invocations"])
def test_root_answers_as_embed_or_similarity(served: Served, path: str) -> None:
    for body in (
        {"inputs": "a b"},
        {"inputs": ["a b", [5, 6]], "normalize": False, "truncate": True, "dimensions": 4},
        {"inputs": ["source_sentence"]},
        {"inputs": {"input_ids": [5, 6]}},
    ):
        assert answer(served, path, body) == answer(served, "/embed", body)
    compared = {"inputs": PAIRED, "parameters": {}}
    assert answer(served, path, compared) == answer(served, "/similarity", compared)


def test_root_has_the_formats_of_embed(served: Served) -> None:
    body = {"inputs": ["a b", "c"]}
    octets = post(served, "/", body, accept="application/octet-stream")
    np.testing.assert_array_equal(
        np.frombuffer(octets.content, np.float32).reshape(2, -1), np.array(answer(served, "/embed", body), np.float32)
    )


def test_similarity_is_the_product_of_unit_vectors(served: Served) -> None:
    texts = [PAIRED["source_sentence"], *PAIRED["sentences"]]
    source, *others = np.array(answer(served, "/embed", {"inputs": texts, "normalize": False}))
    cosines = [each @ source / np.linalg.norm(each) / np.linalg.norm(source) for each in others]
    np.testing.assert_allclose(answer(served, "/similarity", {"inputs": PAIRED}), cosines, atol=1e-6)


@pytest.mark.parametrize("how", [{"truncate": True, "truncation_direction": "Left"}, {"prompt_name": "query"}])
def test_similarity_applies_its_parameters(served: Served, how: dict[str, Any]) -> None:
    texts = ["a " * 40 + "b c d e f g", "b " * 40 + "a"]
    body = {"inputs": {"source_sentence": texts[0], "sentences": texts[1:]}}
    source, other = np.array(answer(served, "/embed", {"inputs": texts, "normalize": True} | how))
    (similarity,) = answer(served, "/similarity", body | {"parameters": how})
    assert similarity == pytest.approx(source @ other, abs=1e-6)
    assert similarity != answer(served, "/similarity", body)[0]


def test_embed_all_returns_encoder_rows_unnormalised(served: Served) -> None:
    inputs = ["a b c", [5, 6], "a"]
    rows = answer(served, "/embed_all", {"inputs": inputs})
    named = answer(served, "/embed", {"inputs": inputs, "outputs": "last_hidden_state"})
    assert rows == named["outputs"]["last_hidden_state"]
    assert [len(each) for each in rows] == [5, 2, 3]
    assert answer(served, "/embed_all", {"inputs": inputs[0]}) == rows[:1]
    assert not np.allclose(np.linalg.norm(rows[0], axis=1), 1, atol=1e-3)
    means = np.array([np.mean(each, axis=0) for each in rows])
    np.testing.assert_allclose(answer(served, "/embed", {"inputs": inputs, "normalize": False}), means, atol=1e-6)


@pytest.mark.parametrize("model", ["llama", "words"])
def test_embed_all_of_an_input_layer_returns_its_rows(served: Served, model: str) -> None:
    body = {"inputs": [[5, 6, 7]], "model": model}
    named = answer(served, "/embed", body | {"outputs": "input_embeddings"})
    assert answer(served, "/embed_all", body) == named["outputs"]["input_embeddings"]


def test_rejects_embed_all_of_models_with_pooled_vectors_only(served: Served, store: Any) -> None:
    card = cards.read(store / "words")
    alone = {"vectors": replace(next(iter(card.graphs.values())), outputs=("sentence_embedding",))}
    with pytest.raises(WrongModelKind, match="Model has no token embeddings; words gives sentence_embedding alone"):
        token_output(replace(card, name="words", graphs=alone))


def test_embed_all_truncates_from_the_named_side(served: Served) -> None:
    text = "a " * 40 + "b"
    right = answer(served, "/embed_all", {"inputs": text})
    left = answer(served, "/embed_all", {"inputs": text, "truncation_direction": "Left"})
    assert len(right[0]) == len(left[0]) == 24
    assert right != left


@pytest.mark.parametrize(
    ("path", "body", "characters", "tokens"),
    [
        ("/embed", {"inputs": ["a b", "c"]}, 4, 7),
        ("/embed", {"inputs": [5, 6]}, 0, 2),
        ("/", {"inputs": "a é"}, 3, 4),
        ("/embed_all", {"inputs": ["a b", "c"]}, 4, 7),
        ("/similarity", {"inputs": PAIRED}, 11, 13),
        ("/embed", {"inputs": "c", "prompt_name": "query"}, 1, 5),
    ],
)
def test_timing_headers_count_characters_and_tokens(
    served: Served, path: str, body: Any, characters: int, tokens: int
) -> None:
    headers = post(served, path, body).headers
    assert headers["x-compute-type"] == "cpu+optimized"
    assert (headers["x-compute-characters"], headers["x-compute-tokens"]) == (str(characters), str(tokens))
    times = {name: int(headers[name]) for name in TIMES}
    assert times["x-total-time"] >= times["x-inference-time"]


def test_tokens_match_the_tokenizers_library(served: Served, tmp_path: Any) -> None:
    write_tokenizer(tmp_path / "tokenizer.json")
    judge = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    judge.no_padding()
    judge.no_truncation()
    text = "abc hello  world q " * 4
    for special in (True, False):
        (tokens,) = answer(served, "/tokenize", {"inputs": text, "add_special_tokens": special})
        expected = judge.encode(text, add_special_tokens=special)
        assert [each["id"] for each in tokens] == expected.ids
        assert [each["special"] for each in tokens] == [bool(each) for each in expected.special_tokens_mask]
        for each, name, (start, stop) in zip(tokens, expected.tokens, expected.offsets, strict=True):
            place = (None, None, name) if each["special"] else (start, stop, text[start:stop])
            assert (each["start"], each["stop"], each["text"]) == place


def test_special_tokens_have_no_offsets_and_can_be_left_out(served: Served) -> None:
    first, word, last = answer(served, "/tokenize", {"inputs": "a"})[0]
    assert first == {"id": 2, "text": "[CLS]", "special": True, "start": None, "stop": None}
    assert word == {"id": 5, "text": "a", "special": False, "start": 0, "stop": 1}
    assert last["text"] == "[SEP]"
    assert answer(served, "/tokenize", {"inputs": ["a"], "add_special_tokens": False}) == [[word]]


def test_prompt_precedes_the_text_and_counts_in_offsets(served: Served) -> None:
    body = {"inputs": "d", "prompt_name": "query", "add_special_tokens": False}
    prompted = answer(served, "/tokenize", body)[0]
    assert [each["text"] for each in prompted] == ["a", "b", "d"]
    assert prompted[2]["start"] == len(PROMPTS["query"])
    assert answer(served, "/tokenize", {"inputs": "d", "add_special_tokens": False, "model": "prompted"})[0] == prompted


def test_decode_leaves_out_special_tokens_by_default(served: Served) -> None:
    assert answer(served, "/decode", {"ids": [2, 25, 26, 3]}) == ["hello world"]
    assert answer(served, "/decode", {"ids": [[2, 25, 3], [26], []]}) == ["hello", "world", ""]
    assert answer(served, "/decode", {"ids": [2, 25, 3], "skip_special_tokens": False}) == ["[CLS] hello [SEP]"]


def test_info_holds_every_field_of_tei(served: Served) -> None:
    document = served.http.get("/info").json()
    assert document == {
        "model_id": "bert",
        "model_sha": None,
        "model_dtype": "float32",
        "served_model_name": "bert",
        "model_type": {"embedding": {"pooling": "mean"}},
        "max_concurrent_requests": 1024,
        "max_input_length": 24,
        "max_batch_tokens": 64,
        "max_batch_requests": None,
        "max_client_batch_size": 8,
        "auto_truncate": True,
        "tokenization_workers": document["tokenization_workers"],
        "version": served.http.get("/").json()["version"],
        "sha": None,
        "docker_label": None,
    }
    assert document["tokenization_workers"] >= 1


def test_info_of_another_model_by_name(served: Served) -> None:
    document = served.http.get("/info", params={"model": "llama"}).json()
    assert (document["served_model_name"], document["model_type"]) == ("llama", {"embedding": {"pooling": "none"}})
    assert served.http.get("/info", params={"model": "x"}).status_code == 404
    assert served.http.get("/info", params={"name": "x"}).headers["inlay-ignored-fields"] == "name"


def test_probes_answer_without_body(served: Served) -> None:
    for path in ("/health", "/ping"):
        response = served.http.get(path)
        assert (response.status_code, response.content) == (200, b"")
    assert served.http.get("/").json()["service"] == "inlay"


async def test_probes_fail_with_error_object_while_stopping(store: Any) -> None:
    async with (
        serving_here(store, default_model="bert") as here,
        httpx.AsyncClient(trust_env=False, timeout=60) as client,
    ):
        here.context.lifecycle.stopping = True
        for path in ("/", "/health", "/ping"):
            response = await client.get(f"http://127.0.0.1:{here.address[1]}{path}")
            assert (response.status_code, response.json()["error_type"]) == (503, "Unhealthy")
        here.context.lifecycle.stopping = False


async def test_long_texts_are_tokenised_off_the_event_loop(store: Any) -> None:
    async with serving_here(store, default_model="bert", max_body_bytes=4_000_000, max_request_tokens=10**7) as here:
        model = here.context.registry.get(None)
        assert model.tokenizer is not None
        turns = 0
        work, budget = (model.tokenizer.tokens, ["a b " * 5000], True, 10**7, answers.tokens_json), here.context.budget
        tokenising = asyncio.ensure_future(beside(20_000, budget, *work))
        while not tokenising.done():
            turns += 1
            await asyncio.sleep(0.01)
        (tokens,) = json.loads(await tokenising)
        assert len(tokens) == 10_002
        assert turns > 1
