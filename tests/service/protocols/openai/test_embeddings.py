"""/v1/embeddings, /embeddings, /pooling and /v1/models over HTTP: OpenAI's shape, vLLM's members, infinity's list."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import pytest

from service.errors import SHORTEN_OR_TRUNCATE, BadInput, Overloaded
from service.protocols.openai.errors import render_error
from tests.minilm_golden import Case, cases
from tests.served import Served, serving
from tests.sweeps import sampled

PATHS = ("/v1/embeddings", "/embeddings", "/infinity/embeddings")
UNIT = 1e-6
ALL = cases()
TEXTS = [case for case in ALL if isinstance(case.input, str) and case.input]
BARE_IDS = [
    case for case in ALL if all(case.attention_mask) and not any(case.token_type_ids) and len(case.input_ids) <= 256
]
# body, status, param, code, beginning of the message
ERRORS: list[tuple[dict[str, Any], int, str | None, str, str]] = [
    ({"input": ""}, 400, "input", "empty_input", "input is an empty string"),
    ({"input": ["a", ""]}, 400, "input", "empty_input", "input[1] is an empty string"),
    ({"input": []}, 400, "input", "empty", "input is empty"),
    ({"input": 5}, 400, "input", "wrong_type", "input is 5; send a text"),
    ({"input": [["a", "b"]]}, 400, "input", "wrong_type", 'input[0][0] is "a"'),
    ({"input": [1, True]}, 400, "input", "wrong_type", "input[1] is true"),
    ({"input": [[1], []]}, 400, "input", "empty_input", "input[1] has no token ids"),
    ({"input": [[1], [2, -5]]}, 400, "input", "out_of_range", "input[1][1] is -5; the vocabulary holds 0 to 26"),
    ({"input": [{"role": "user"}]}, 400, "input", "wrong_type", "input[0] is an object"),
    ({"input": [2**63]}, 400, "input", "out_of_range", "input holds an integer beyond 64 bits"),
    ({"input": "a", "model": "berd"}, 404, "model", "model_not_found", "no model 'berd' here"),
    ({"input": [3], "model": "llama"}, 400, "model", "wrong_model_kind", "llama gives one vector per token"),
    ({"input": "a", "dimensions": 0}, 400, "dimensions", "out_of_range", "dimensions is 0"),
    ({"input": "a", "dimensions": 99999}, 400, "dimensions", "out_of_range", "dimensions is 99999"),
    ({"input": "a", "encoding_format": "hex"}, 400, "encoding_format", "unknown_value", 'encoding_format is "hex"'),
    ({"input": ["a"] * 65}, 400, "input", "too_many_inputs", "input holds 65 inputs; this server takes 64"),
    (
        {"input": "a b c" * 9, "truncate_prompt_tokens": "1"},
        400,
        "truncate_prompt_tokens",
        "wrong_type",
        "truncate_pr",
    ),
    ({"input": "a", "embed_dtype": "int8"}, 400, "embed_dtype", "unknown_value", 'embed_dtype is "int8"'),
    (
        {"input": "a", "truncate_prompt_tokens": -2},
        400,
        "truncate_prompt_tokens",
        "out_of_range",
        "truncate_prompt_tok",
    ),
    ({"input": "a", "truncate_prompt_tokens": 0}, 400, "truncate_prompt_tokens", "out_of_range", "truncate_prompt_tok"),
    ({"input": "a", "truncate_prompt_tokens": 9999}, 400, "truncate_prompt_tokens", "out_of_range", "truncate_prompt"),
    ({"input": "a", "user": 1}, 400, "user", "wrong_type", "user is 1"),
    (
        {"input": "a", "dimension": 1},
        400,
        "dimension",
        "unknown_field",
        'dimension is not known here; did you mean "dimensions"?',
    ),
    ({"inputs": "a"}, 400, "inputs", "unknown_field", 'inputs is not known here; did you mean "input"?'),
]


@pytest.fixture(scope="module")
def minilm(minilm_store: Path) -> Iterator[Served]:
    with serving(minilm_store) as running:
        yield running


def post(served: Served, path: str = "/v1/embeddings", **body: Any) -> httpx.Response:
    return served.http.post(path, json=body)


def vectors(response: httpx.Response, member: str = "embedding") -> list[Any]:
    assert response.status_code == 200, response.text
    return [np.array(entry[member]) for entry in response.json()["data"]]


def decoded(response: httpx.Response, dtype: Any = "<f4") -> list[Any]:
    return [np.frombuffer(base64.b64decode(entry["embedding"]), dtype) for entry in response.json()["data"]]


@pytest.mark.parametrize("case", sampled(TEXTS, 5), ids=lambda case: case.name)
def test_text_vectors_match_sentence_transformers(minilm: Served, case: Case) -> None:
    side = {"truncation_side": case.direction.lower()}
    served_vectors = vectors(post(minilm, input=case.input, model="minilm", truncate_prompt_tokens=-1, **side))
    np.testing.assert_allclose(served_vectors[0], case.unit, atol=UNIT)


@pytest.mark.parametrize("first", sampled(range(4), 4))
@pytest.mark.parametrize("path", PATHS)
def test_texts_and_token_ids_give_the_same_vectors(minilm: Served, path: str, first: int) -> None:
    chosen = [case for case in TEXTS if case in BARE_IDS and case.direction.lower() == "right"][first::4]
    assert len(chosen) > 2
    mixed = [case.input if index % 2 else case.input_ids for index, case in enumerate(chosen)]
    ids = vectors(post(minilm, path, input=[case.input_ids for case in chosen]))
    together = vectors(post(minilm, path, input=mixed))
    alone = [vectors(post(minilm, path, input=case.input_ids))[0] for case in chosen]
    for case, *rows in zip(chosen, ids, together, alone, strict=True):
        for each in rows:
            np.testing.assert_allclose(each, case.unit, atol=UNIT)


def test_response_has_openai_shape_and_token_counts(minilm: Served) -> None:
    case = next(case for case in BARE_IDS if isinstance(case.input, str))
    response = post(minilm, input=[case.input, case.input_ids], model="minilm", user="me")
    document = response.json()
    tokens = 2 * len(case.input_ids)
    assert (document["object"], document["model"]) == ("list", "minilm")
    assert [(entry["object"], entry["index"]) for entry in document["data"]] == [("embedding", 0), ("embedding", 1)]
    assert document["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert response.headers["openai-processing-ms"].isdigit()


def test_base64_is_little_endian_float32(served: Served) -> None:
    floats = vectors(post(served, input=["a", "b c"]))
    packed = decoded(post(served, input=["a", "b c"], encoding_format="base64"))
    np.testing.assert_array_equal(np.float32(floats), packed)


@pytest.mark.parametrize("endianness", ["native", "little", "big"])
@pytest.mark.parametrize(
    ("embed_dtype", "kind"),
    [
        ("float32", np.float32),
        ("float16", np.float16),
        ("bfloat16", ml_dtypes.bfloat16),
        ("fp8_e4m3", ml_dtypes.float8_e4m3fn),
        ("fp8_e5m2", ml_dtypes.float8_e5m2),
    ],
)
def test_dtypes_and_byte_orders_hold_the_rounded_floats(
    served: Served, embed_dtype: str, kind: Any, endianness: str
) -> None:
    body: dict[str, Any] = {"input": ["a", "b c"], "embed_dtype": embed_dtype, "endianness": endianness}
    expected = np.float32(vectors(post(served, input=["a", "b c"]))).astype(kind)
    order = "big" if endianness == "big" else "little"
    plain = np.dtype(f"u{expected.itemsize}").newbyteorder(">" if order == "big" else "<")
    as_integers = expected.view(f"u{expected.itemsize}")
    in_base64 = decoded(post(served, encoding_format="base64", **body), plain)
    np.testing.assert_array_equal(in_base64, as_integers)
    raw = post(served, encoding_format="bytes_only", **body)
    np.testing.assert_array_equal(np.frombuffer(raw.content, plain).reshape(2, -1), as_integers)
    assert "metadata" not in raw.headers
    assert raw.headers["inlay-shape"] == f"2,{expected.shape[1]}"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling", "/embed"])
def test_bytes_metadata_locates_each_vector(served: Served, path: str) -> None:
    member = "inputs" if path == "/embed" else "input"
    response = post(served, path, **{member: ["a", "b c", "d"], "encoding_format": "bytes", "dimensions": 8})
    metadata = json.loads(response.headers["metadata"])
    assert response.headers["content-type"] == "application/octet-stream"
    assert set(metadata) == {"id", "created", "model", "data", "usage"}
    assert set(metadata["usage"]) == {"prompt_tokens", "total_tokens"}
    expected = vectors(post(served, input=["a", "b c", "d"], dimensions=8))
    for index, (entry, vector) in enumerate(zip(metadata["data"], expected, strict=True)):
        assert set(entry) == {"index", "embed_dtype", "endianness", "start", "end", "shape"}
        assert (entry["index"], entry["shape"], entry["embed_dtype"]) == (index, [8], "float32")
        values = np.frombuffer(response.content[entry["start"] : entry["end"]], np.float32)
        np.testing.assert_array_equal(values, np.float32(vector))


def test_rejects_metadata_header_longer_than_clients_read(tiny_store: Path) -> None:
    with serving(tiny_store, default_model="bert", max_inputs=1024) as service:
        many = {"input": [[1]] * 700}
        refused = post(service, encoding_format="bytes", **many)
        assert refused.status_code == 400
        assert "encoding_format bytes_only" in refused.json()["error"]["message"]
        assert post(service, encoding_format="bytes_only", **many).status_code == 200


def test_dimensions_keeps_leading_values_at_unit_length(minilm: Served) -> None:
    case = next(case for case in TEXTS if "dimensions_128" in case.arrays)
    short = np.float64(case.arrays["dimensions_128"])
    vector = vectors(post(minilm, input=case.input, dimensions=128))[0]
    np.testing.assert_allclose(vector, short / np.linalg.norm(short), atol=UNIT)


@pytest.mark.parametrize("member", ["normalize", "use_activation"])
def test_normalize_and_use_activation_false_keep_the_length(minilm: Served, member: str) -> None:
    case = TEXTS[0]
    vector = vectors(post(minilm, input=case.input, **{member: False}))[0]
    np.testing.assert_allclose(vector, case.arrays["pooled"], atol=3e-6)


def test_truncate_prompt_tokens_keeps_the_named_side(served: Served) -> None:
    ids = [5, 6, 7, 8, 9]
    for side, kept in (("right", ids[:3]), ("left", ids[-3:])):
        response = post(served, input=ids, truncate_prompt_tokens=3, truncation_side=side)
        assert response.json()["usage"]["prompt_tokens"] == 3
        np.testing.assert_array_equal(vectors(response), vectors(post(served, input=kept)))


def test_add_special_tokens_false_leaves_them_out(served: Served) -> None:
    counts = [
        post(served, input="a", add_special_tokens=flag).json()["usage"]["prompt_tokens"] for flag in (True, False)
    ]
    assert counts[0] == counts[1] + 2


def test_accepts_default_fields_of_infinity_client(served: Served) -> None:
    response = post(
        served, "/embeddings", input="a", model="default/not-specified", dimensions=0, modality="text", user=None
    )
    np.testing.assert_array_equal(vectors(response), vectors(post(served, input="a")))


def test_response_id_contains_the_request_id(served: Served) -> None:
    assert post(served, input="a", request_id="mine").json()["id"] == "embd-mine"
    assert post(served, "/pooling", input="a", request_id="mine").json()["id"] == "pooling-mine"


@pytest.mark.parametrize(("body", "status", "param", "code", "message"), ERRORS)
def test_error_is_openai_error_object(
    served: Served, body: dict[str, Any], status: int, param: str | None, code: str, message: str
) -> None:
    response = post(served, **body)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (status, param, code)
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith(message)
    assert set(error) == {"message", "type", "param", "code"}


def test_rejects_ids_of_another_vocabulary_with_a_remedy(minilm: Served) -> None:
    tiktokens = [[15339, 1917], [1234, 99999]]  # what langchain-openai sends of two texts
    error = post(minilm, input=tiktokens).json()["error"]
    assert error["message"].startswith("input[1] holds the token id 99999; the vocabulary of minilm ends at 30521")
    assert "check_embedding_ctx_length=False" in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/embeddings", 405), ("POST", "/v1/nothing", 404), ("GET", "/v1/models/berd", 404)],
)
def test_unknown_paths_and_verbs_get_openai_errors(served: Served, method: str, path: str, status: int) -> None:
    response = served.http.request(method, path)
    assert (response.status_code, set(response.json()["error"])) == (status, {"message", "type", "param", "code"})


def test_body_that_is_not_json_gets_openai_error(served: Served) -> None:
    headers = {"content-type": "application/json"}
    assert served.http.post("/v1/embeddings", content=b"{", headers=headers).json()["error"]["code"] == "invalid_json"
    assert served.http.post("/v1/embeddings", content=b"{}").json()["error"]["code"] == "unsupported_media"


def test_rejects_deeply_nested_body(served: Served) -> None:
    body = b'{"input": "a", "task": ' + b"[" * 300 + b"]" * 300 + b"}"
    refused = served.http.post("/v1/embeddings", content=body, headers={"content-type": "application/json"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "bad_request")


def test_pooling_returns_rows_of_models_without_vectors(served: Served) -> None:
    plain = served.post({"inputs": [[3, 4], [5]], "model": "llama", "outputs": ["input_embeddings"]}).json()
    document = post(served, "/pooling", input=[[3, 4], [5]], model="llama").json()
    assert [entry["data"] for entry in document["data"]] == plain["outputs"]["input_embeddings"]


def test_token_embed_is_last_hidden_state_at_unit_length(minilm: Served) -> None:
    case = next(case for case in TEXTS if case in BARE_IDS)
    rows = vectors(post(minilm, "/pooling", input=case.input_ids, task="token_embed"), "data")[0]
    expected = case.arrays["last_hidden_state"].astype(np.float64)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(rows[case.rows], expected, atol=5e-6)
    as_it_is = vectors(post(minilm, "/pooling", input=case.input_ids, task="token_embed", normalize=False), "data")[0]
    np.testing.assert_allclose(as_it_is[case.rows], case.arrays["last_hidden_state"], atol=5e-6)


def test_models_are_listed_for_openai_and_infinity_clients(served: Served) -> None:
    document = served.http.get("/v1/models").json()
    assert document["object"] == "list"
    for entry in document["data"]:
        assert (entry["object"], type(entry["created"]), entry["owned_by"]) == ("model", int, "inlay")
        assert served.http.get(f"/v1/models/{entry['id']}").json() == entry
    ours = served.http.get("/models").json()
    assert ours["object"] == "list"
    assert [entry["id"] for entry in ours["data"]] == [entry["id"] for entry in document["data"]]
    assert all(entry["owned_by"] == "infinity" and "queue_fraction" in entry["stats"] for entry in ours["data"])
    assert [model["name"] for model in ours["models"]] == [entry["id"] for entry in document["data"]]


def test_overloaded_error_tells_client_when_to_retry() -> None:
    response = render_error(Overloaded("the queue is full", 1.25))
    error = json.loads(b"".join(response.body))["error"]
    assert (response.status, error["type"], error["code"]) == (429, "rate_limit_exceeded", "rate_limit_exceeded")
    assert {(b"retry-after", b"2"), (b"retry-after-ms", b"1250")} <= set(response.headers)


def test_error_names_openai_fields_and_remedies() -> None:
    error = BadInput("has 62 tokens", field=("inputs", 3), allowed="bert reads 24", remedy=SHORTEN_OR_TRUNCATE)
    fault = json.loads(b"".join(render_error(error).body))["error"]
    expected = 'input[3] has 62 tokens; bert reads 24: shorten it or send "truncate_prompt_tokens": -1'
    assert (fault["message"], fault["param"]) == (expected, "input")
