"""Jina's late_chunking on /v1/embeddings and its like: texts read as one, a vector each."""

import base64
from typing import Any

import numpy as np
import pytest

from tests.served import Served

TEXTS = ["hello world,", "a b c", "d e hello"]
JOINED = " ".join(TEXTS)
SPANS = {"first": (0, 4), "second": (4, 7), "third": (7, 11)}  # rows: [CLS] goes with the first, [SEP] with the last


def vectors(served: Served, path: str = "/v1/embeddings", **body: Any) -> Any:
    answer = served.http.post(path, json={"late_chunking": True} | body)
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert [each["index"] for each in data] == list(range(len(data)))
    return np.array([each.get("embedding", each.get("data")) for each in data])


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings", "/pooling"])
def test_each_text_gets_the_mean_of_its_tokens_in_all(served: Served, path: str) -> None:
    body = {"inputs": JOINED, "outputs": "last_hidden_state"}
    rows = np.array(served.post(body).json()["outputs"]["last_hidden_state"][0])
    means = np.stack([rows[first:end].mean(axis=0) for first, end in SPANS.values()])
    np.testing.assert_allclose(
        vectors(served, path, input=TEXTS), means / np.linalg.norm(means, axis=1)[:, None], atol=1e-6
    )
    for name in ("normalize", "normalized"):
        np.testing.assert_allclose(vectors(served, path, input=TEXTS, **{name: False}), means, atol=1e-6)


def test_one_text_has_its_usual_vector(served: Served) -> None:
    plain = served.http.post("/v1/embeddings", json={"input": JOINED}).json()["data"][0]["embedding"]
    assert vectors(served, input=JOINED).tolist() == [plain]
    assert vectors(served, input=[JOINED], late_chunking=False).tolist() == [plain]


def test_usage_counts_joined_text_and_base64_has_the_same_bits(served: Served) -> None:
    body = {"input": TEXTS, "late_chunking": True}
    document = served.http.post("/v1/embeddings", json=body | {"encoding_format": "base64"}).json()
    assert document["usage"] == {"prompt_tokens": 11, "total_tokens": 11}
    coded = [np.frombuffer(base64.b64decode(each["embedding"]), np.float32) for each in document["data"]]
    np.testing.assert_array_equal(np.stack(coded), vectors(served, input=TEXTS).astype(np.float32))


def test_jinas_truncate_cuts_or_refuses(served: Served) -> None:
    body = {"input": [*TEXTS, "a b c d e f g h i j " * 4]}
    assert served.http.post("/v1/embeddings", json=body).json()["truncated"] == [3]
    assert served.http.post("/v1/embeddings", json=body | {"truncate": False}).status_code == 400
    assert len(vectors(served, **body, truncate=True)) == 4
    assert served.http.post("/v1/embeddings", json=body | {"late_chunking": True}).status_code == 400


LONG = ["a b c d e f g h i j"] * 4
ERRORS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"input": [[5, 6], [7]]}, "late_chunking", "conflicting_fields", "joins texts, and token ids came"),
    ({"input": []}, "input", "empty", "input is empty"),
    ({"input": ["a", ""]}, "input", "empty_input", "input[1] is an empty string"),
    ({"input": ["a", "  "]}, "input", "bad_input", "input[1] has no token"),
    ({"input": ["a"] * 65}, "", "too_many_inputs", "65 spans; this server takes 64"),
    ({"input": LONG}, "input", "too_long", "has 42 tokens; this model reads 24"),
    (
        {"input": LONG, "truncate_prompt_tokens": -1},
        "input",
        "bad_input",
        "input[3] has no token that is read, since the input was cut",
    ),
    ({"input": "a", "late_chunking": "yes"}, "late_chunking", "wrong_type", 'late_chunking is "yes"'),
    ({"input": "a", "modality": "image"}, "late_chunking", "conflicting_fields", "modality is image"),
]


@pytest.mark.parametrize(("body", "param", "code", "said"), ERRORS)
def test_errors_name_the_text(served: Served, body: dict[str, Any], param: str, code: str, said: str) -> None:
    answer = served.http.post("/v1/embeddings", json={"late_chunking": True} | body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"] or "", error["code"]) == (400, param, code), error
    assert said in error["message"]


def test_pooling_makes_no_rows_of_joined_texts(served: Served) -> None:
    answer = served.http.post("/pooling", json={"input": TEXTS, "late_chunking": True, "task": "token_embed"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "conflicting_fields")
