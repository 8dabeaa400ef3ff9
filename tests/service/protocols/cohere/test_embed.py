"""POST /v1/embed and /v2/embed: what Cohere's clients send and read."""

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from models.artifacts.export import export
from service.embedding.quantization import quantized
from tests.golden_cases import case, write_checkpoint, write_json, write_tiny_bert
from tests.served import Served, serving
from tests.service.embedding.test_output_types import RANGES, WIDTH, calibrate

TEXTS = ["a b c", "hello world"]
LONG = "a b c d e " * 8


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("cohere")
    checkpoint = write_tiny_bert(folder / "tiny", pooling="mean")
    write_json(checkpoint / "config_sentence_transformers.json", {"prompts": {"search_query": "hello "}})
    export(checkpoint, folder / "store/tiny")
    export(checkpoint, folder / "store/bare")
    export(write_checkpoint(case("input_gpt2"), folder / "gpt2"), folder / "store/gpt2")
    calibrate(folder / "store/tiny")
    with serving(folder / "store", default_model="tiny", max_inputs=4) as running:
        yield running


def post(served: Served, path: str, **fields: Any) -> Any:
    answer = served.http.post(path, json={"model": "tiny", "input_type": "search_document", "texts": TEXTS} | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(served: Served, path: str = "/v2/embed", **fields: Any) -> tuple[int, str]:
    body = {"model": "tiny", "input_type": "search_document", "texts": TEXTS} | fields
    answer = served.http.post(path, json={name: value for name, value in body.items() if value is not ...})
    document = answer.json()
    assert document["id"] == answer.headers["x-request-id"]
    return answer.status_code, document["message"]


def vectors(served: Served, texts: list[str]) -> np.ndarray:
    return np.float32(served.post({"inputs": texts, "model": "tiny"}).json())


def test_v2_answers_by_type(served):
    types = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    document = post(served, "/v2/embed", embedding_types=types)
    assert list(document["embeddings"]) == types
    floats = vectors(served, TEXTS)
    np.testing.assert_array_equal(np.float32(document["embeddings"]["float"]), floats)
    for precision in types[1:5]:
        expected = quantized(floats, precision, RANGES).tolist()
        assert document["embeddings"][precision] == expected
    raw = [np.frombuffer(base64.b64decode(text), "<f4") for text in document["embeddings"]["base64"]]
    np.testing.assert_array_equal(np.stack(raw), floats)
    assert document["texts"] == TEXTS
    assert document["response_type"] == "embeddings_by_type"
    assert document["meta"] == {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 9}}


def test_v2_answers_floats_by_type_where_none_is_named(served):
    assert list(post(served, "/v2/embed")["embeddings"]) == ["float"]


def test_v1_answers_a_list_where_no_type_is_named(served):
    document = post(served, "/v1/embed", model=None, input_type=None)
    np.testing.assert_array_equal(np.float32(document["embeddings"]), vectors(served, TEXTS))
    assert (document["response_type"], document["meta"]["api_version"]) == ("embeddings_floats", {"version": "1"})
    assert list(post(served, "/v1/embed", embedding_types=["int8"])["embeddings"]) == ["int8"]


def test_the_input_type_brings_the_prompt(served):
    document = post(served, "/v2/embed", texts=["world"], input_type="search_query")
    np.testing.assert_array_equal(np.float32(document["embeddings"]["float"]), vectors(served, ["hello world"]))
    plain = post(served, "/v2/embed", texts=["world"], input_type="clustering")
    np.testing.assert_array_equal(np.float32(plain["embeddings"]["float"]), vectors(served, ["world"]))


def test_inputs_of_texts(served):
    inputs = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]
    body = {"model": "tiny", "input_type": "classification", "inputs": inputs}
    assert served.http.post("/v2/embed", json=body).json()["embeddings"] == post(served, "/v2/embed")["embeddings"]


def test_output_dimension_cuts_and_scales(served):
    short = np.float32(post(served, "/v2/embed", output_dimension=8)["embeddings"]["float"])
    assert short.shape == (2, 8)
    np.testing.assert_allclose(np.linalg.norm(short, axis=1), 1, atol=1e-6)
    assert (
        len(post(served, "/v2/embed", output_dimension=8, embedding_types=["binary"])["embeddings"]["binary"][0]) == 1
    )


def test_truncation(served):
    start, end = (post(served, "/v2/embed", texts=[LONG], truncate=side)["embeddings"] for side in ("START", "END"))
    assert post(served, "/v2/embed", texts=[LONG])["embeddings"] == end != start
    for fields in ({"texts": [LONG]}, {"texts": ["a b c d e"], "max_tokens": 4}):
        status, message = refused(served, truncate="NONE", **fields)
        assert status == 400
        assert message.startswith("texts[0] has")
        assert '"truncate": "END"' in message
    cut = post(served, "/v2/embed", texts=["a b c d e"], max_tokens=4)
    assert cut["embeddings"] == post(served, "/v2/embed", texts=["a b"])["embeddings"]
    assert cut["meta"]["billed_units"] == {"input_tokens": 4}


def test_fields_that_are_not_used_are_named(served):
    body = {"model": "tiny", "input_type": "search_query", "texts": TEXTS, "priority": 3, "x y": 1}
    assert served.http.post("/v2/embed", json=body).headers["inlay-ignored-fields"] == "priority,?"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"texts": ...}, "texts is missing"),
        ({"texts": []}, "texts is empty"),
        ({"texts": "a"}, "texts is"),
        ({"texts": [1]}, "texts[0] is 1"),
        ({"texts": TEXTS * 3}, "texts holds 6; this server takes 4"),
        ({"inputs": []}, "inputs is sent, and so is texts"),
        ({"texts": ..., "inputs": [{"content": []}]}, "inputs[0] has 0 contents"),
        ({"texts": ..., "inputs": ["a"]}, "inputs[0] is"),
        ({"texts": ..., "inputs": [{"content": [{"type": "text"}]}]}, "inputs[0].content[0] has neither"),
        ({"texts": ..., "images": ["data:image/png;base64,AAAA"]}, "reads no images"),
        ({"texts": ..., "images": ["ftp://example.com/a.png"]}, "images[0] is"),
        ({"model": ...}, "model is missing"),
        ({"input_type": ...}, "input_type is missing"),
        ({"input_type": "question"}, "input_type is"),
        ({"embedding_types": ["int4"]}, "embedding_types[0] is"),
        ({"model": "bare", "embedding_types": ["uint8"]}, "inlay calibrate bare TEXTS"),
        ({"embedding_types": ["int8"], "output_dimension": 8}, "leave out output_dimension"),
        ({"output_dimension": WIDTH + 1}, f"output_dimension is {WIDTH + 1}; send 1 to {WIDTH}"),
        ({"truncate": "MIDDLE"}, "truncate is"),
        ({"model": "gpt2"}, "gives no vector of a text"),
    ],
)
def test_what_cannot_be_served_is_refused(fields, says, served):
    status, message = refused(served, **fields)
    assert (status, says) == (400, says if says in message else message)


def test_other_statuses(served):
    assert refused(served, model="nobody")[0] == 404
    assert served.http.post("/v2/embed", content=b"{", headers={"content-type": "application/json"}).status_code == 400
    assert served.http.get("/v2/embed").status_code == 405
