"""The protocol's routes: health, metadata, statistics, JSON bodies, and errors in the protocol's format."""

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from service.protocols.oip.routes import DATA
from tests.oip_bodies import arrays, binary, entry, infer, listed
from tests.served import Served, serving

BERT = "/v2/models/bert"
INFER = f"{BERT}/infer"
IDS = listed("input_ids", [[5, 6], [7, 8]])


def post(served: Served, *inputs: dict[str, Any], **members: Any) -> Any:
    return served.http.post(INFER, content=orjson.dumps({"inputs": inputs} | members))


def test_server_metadata_lists_enabled_extensions(served: Served) -> None:
    metadata = served.http.get("/v2").json()
    assert metadata["name"] == "inlay"
    assert "binary_tensor_data" in metadata["extensions"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        (f"{BERT}/ready", {"name": "bert", "ready": True}),
        (f"{BERT}/versions/1/ready", {"name": "bert", "ready": True}),
    ],
)
def test_health_is_200_and_kserves_document(served: Served, path: str, said: dict[str, Any]) -> None:
    answer = served.http.get(path)
    assert (answer.status_code, answer.json()) == (200, said)


@pytest.mark.parametrize("path", [BERT, f"{BERT}/versions/1"])
def test_metadata_names_tensors_the_model_takes_and_gives(served: Served, path: str) -> None:
    metadata = served.http.get(path).json()
    assert (metadata["name"], metadata["versions"]) == ("bert", ["1"])
    assert metadata["inputs"][0] == {"name": "text", "datatype": "BYTES", "shape": [-1]}
    assert {"name": "input_ids", "datatype": "INT64", "shape": [-1, -1]} in metadata["inputs"]
    assert {"name": "sentence_embedding", "datatype": "FP32", "shape": [-1, 32]} in metadata["outputs"]
    llama = served.http.get("/v2/models/llama").json()
    assert "text" not in [tensor["name"] for tensor in llama["inputs"]]


@pytest.mark.parametrize("model", ["bert", "llama"])
def test_every_output_of_the_metadata_has_the_shape_it_promises(served: Served, model: str) -> None:
    promised = {each["name"]: each for each in served.http.get(f"/v2/models/{model}").json()["outputs"]}
    requested = [{"name": name} for name in promised]
    inputs = [("input_ids", "INT64", [[5, 6, 7]]), ("token_type_ids", "INT64", [[0, 0, 0]])]
    outputs = infer(served.http, inputs, model, outputs=requested)
    assert list(outputs) == list(promised)
    for name, array in outputs.items():
        shape = promised[name]["shape"]
        assert len(array.shape) == len(shape), name
        assert all(size in (-1, actual) for size, actual in zip(shape, array.shape, strict=True)), name


def test_the_configuration_has_the_metadatas_tensors(served: Served) -> None:
    config, metadata = served.http.get(f"{BERT}/config").json(), served.http.get(BERT).json()
    assert [each["dims"] for each in config["input"]] == [each["shape"] for each in metadata["inputs"]]
    kinds = {each["name"]: each["data_type"] for each in config["input"]}
    assert (kinds["text"], kinds["input_ids"]) == ("TYPE_STRING", "TYPE_INT64")
    assert config["output"][0]["data_type"] == "TYPE_FP32"


def test_statistics_count_answers_sequences_and_refusals(served: Served) -> None:
    def counted() -> tuple[int, ...]:
        (entry,) = served.http.get(f"{BERT}/stats").json()["model_stats"]
        stages = entry["inference_stats"]
        return entry["inference_count"], entry["execution_count"], stages["success"]["count"], stages["fail"]["count"]

    before = counted()
    assert post(served, IDS).status_code == 200
    assert post(served, listed("input_ids", [[99]])).status_code == 400
    assert [after - then for after, then in zip(counted(), before, strict=True)] == [2, 1, 1, 1]
    names = [each["name"] for each in served.http.get("/v2/models/stats").json()["model_stats"]]
    assert names == ["bert", "llama"]


def test_json_data_may_be_nested_or_flat(served: Served) -> None:
    nested = post(served, IDS)
    flat = post(served, entry("input_ids", "INT64", [2, 2], data=[5, 6, 7, 8]))
    assert nested.headers["content-type"] == "application/json"
    assert nested.json() == flat.json()
    (output,) = nested.json()["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("sentence_embedding", "FP32", [2, 32])
    raw = infer(served.http, [("input_ids", "INT64", [[5, 6], [7, 8]])])["sentence_embedding"]
    assert np.array_equal(arrays(nested)["sentence_embedding"], raw)


def test_texts_are_strings_in_json(served: Served) -> None:
    answer = post(served, listed("text", ["a b", "c"], "BYTES"), id="one")
    assert answer.json()["id"] == "one"
    assert (answer.json()["model_name"], answer.json()["model_version"]) == ("bert", "1")
    np.testing.assert_allclose(
        arrays(answer)["sentence_embedding"], served.post({"inputs": ["a b", "c"]}).json(), rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("content_type", ["", "application/octet-stream", "application/json", "text/html"])
def test_content_type_is_not_checked(served: Served, content_type: str) -> None:
    headers = {"content-type": content_type} if content_type else {}
    body = orjson.dumps({"inputs": [IDS]})
    assert served.http.post(INFER, content=body, headers=headers).status_code == 200


EXAMPLES = DATA.operations["POST /v2/models/{name}/infer"]["examples"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_documented_examples_are_answered(served: Served, name: str) -> None:
    assert served.http.post(INFER, json=EXAMPLES[name]).status_code == 200


MASK = listed("attention_mask", [[1, 1], [1, 0]])
REFUSED: list[tuple[list[dict[str, Any]], dict[str, Any], str]] = [
    ([], {}, '"input_ids" or "text" is missing; no inputs came'),
    ([listed("attention_mask", [[1]])], {}, "is missing; 'attention_mask' came"),
    ([listed("ids", [[1]])], {}, "bert has no input 'ids'; allowed: text, input_ids, attention_mask"),
    ([IDS, IDS], {}, "inputs names a tensor twice"),
    ([IDS, listed("text", ["a"], "BYTES")], {}, "send texts or token ids, not both"),
    ([IDS, listed("attention_mask", [1, 1])], {}, "has shape [2]; allowed: that of input_ids, [2, 2]"),
    ([IDS, listed("attention_mask", [[1, 2], [1, 1]])], {}, "holds 2; allowed: 0 and 1"),
    (
        [IDS, listed("attention_mask", [[1, 1], [0, 0]])],
        {},
        "inputs.attention_mask[1] is all 0: leave the sequence out",
    ),
    ([listed("input_ids", [5, 6])], {}, "has shape [2]; allowed: [B, T]"),
    ([listed("input_ids", [[[5]]])], {}, "has shape [1, 1, 1]; allowed: [B, T]"),
    ([entry("input_ids", "INT64", [10**12, 0], data=[])], {}, "send one token id at least"),
    ([entry("text", "BYTES", [0], data=[])], {}, "inputs is empty"),
    ([listed("input_ids", [[99]])], {}, "inputs[0].input_ids[0] is 99; the vocabulary holds 0 to 26"),
    ([listed("input_ids", [[-1]])], {}, "input_ids[0] is -1"),
    ([listed("input_ids", [[2**63]], "UINT64")], {}, "holds 9223372036854775808; allowed: below 2**63"),
    ([listed("input_ids", [[2**63]])], {}, "a number outside INT64"),
    ([listed("input_ids", [[1.5]])], {}, "holds 1.5 as element 0; allowed: whole numbers"),
    ([listed("input_ids", [[1.5]], "FP32")], {}, "has datatype 'FP32'; allowed: BOOL, UINT8"),
    ([listed("input_ids", [[True]])], {}, "holds true as element 0"),
    ([listed("input_ids", [["5"]], "BYTES")], {}, "has datatype BYTES"),
    ([listed("input_ids", [[5]], "INT63")], {}, "inputs.input_ids has datatype 'INT63'; allowed: BOOL"),
    ([listed("text", [["a", "b"]], "BYTES")], {}, "has shape [1, 2]; allowed: [B] or [B, 1]"),
    ([listed("text", [5])], {}, "has datatype INT64; allowed: BYTES"),
    ([listed("text", [5], "BYTES")], {}, "holds 5 as element 0; allowed: strings"),
    ([entry("input_ids", "INT64", [2, 2], data=[5, 6, 7])], {}, "has 3 elements; shape [2, 2] takes 4"),
    ([entry("input_ids", "INT64", [2, 2], data=[[5, 6, 7], [8]])], {}, "not 2 long at depth 1"),
    ([entry("input_ids", "INT64", [2, 2], data=[[5, 6], 7])], {}, "not 2 long at depth 1"),
    ([entry("input_ids", "INT64", [1, 1], data=5)], {}, "has data 5; allowed: a list"),
    ([entry("input_ids", "INT64", [1, -1], data=[5])], {}, "has shape [1, -1]"),
    ([entry("input_ids", "INT64", [1, 1])], {}, "has neither data nor binary_data_size: send exactly one"),
    ([{"name": "input_ids", "datatype": "INT64"}], {}, "inputs[0].shape is missing: send it"),
    ([{"datatype": "INT64"}], {}, "inputs[0].name and shape are missing: send them"),
    ([5], {}, "inputs[0] is 5"),  # type: ignore[list-item]
    ([IDS], {"outputs": [{"name": "nothing"}]}, "bert has no output 'nothing'; it has"),
    ([IDS], {"outputs": [{"name": "lengths"}, {"name": "lengths"}]}, "outputs names a tensor twice"),
    ([IDS], {"outputs": {}}, "outputs is an object"),
    ([IDS], {"parameters": {"normalize": 1}}, "parameters.normalize is 1; allowed: true scales"),
    ([IDS], {"parameters": {"dimensions": True}}, "parameters.dimensions is true"),
    ([IDS], {"parameters": {"dimensions": 33}}, "dimensions is 33; send 1 to 32"),
    ([IDS], {"parameters": {"pooling": "best"}}, 'parameters.pooling is "best"; allowed: one of cls'),
    ([IDS], {"parameters": {"dtype": "int4"}}, 'parameters.dtype is "int4"; allowed: float32'),
    ([IDS], {"parameters": {"truncation_direction": []}}, "parameters.truncation_direction is a list of 0"),
    (
        [listed("text", ["a"], "BYTES")],
        {"parameters": {"prompt_name": "x"}},
        "prompt_name is 'x'; bert has the prompts none",
    ),
    ([IDS], {"parameters": {"prompt_name": 5}}, "parameters.prompt_name is 5"),
    ([IDS], {"parameters": []}, "parameters is a list of 0"),
    ([IDS], {"parameters": {"binary_data_output": 1}}, "parameters.binary_data_output is 1"),
    ([IDS], {"parameters": {"dtype": "float16"}}, "sending FP16 data via JSON is not supported"),
    ([IDS], {"id": 5}, "id is 5; allowed: a string"),
    (
        [listed("input_ids", [[5] * 41]), listed("attention_mask", [[1] * 41])],
        {"parameters": {"truncate": False}},
        "41",
    ),
]


@pytest.mark.parametrize(("inputs", "members", "said"), REFUSED, ids=[said for _, _, said in REFUSED])
def test_invalid_requests_are_400_and_say_what_came(
    served: Served, inputs: list[dict[str, Any]], members: dict[str, Any], said: str
) -> None:
    answer = post(served, *inputs, **members)
    assert answer.status_code == 400, answer.text
    assert list(answer.json()) == ["error"]
    assert said in answer.json()["error"]
    assert answer.headers["content-type"] == "application/json"


def test_text_that_is_not_utf8_is_refused(served: Served) -> None:
    body, headers = binary([("text", "BYTES", [b"fine", b"\xff\xfe"])])
    answer = served.http.post(INFER, content=body, headers=headers)
    assert answer.status_code == 400
    assert "inputs.text[1] is not UTF-8" in answer.json()["error"]


ELSEWHERE: list[tuple[str, str, bytes, int, str]] = [
    ("GET", "/v2/models/bort", b"", 404, "did you mean 'bert'"),
    ("GET", "/v2/models/bort/ready", b"", 404, "no model 'bort'"),
    ("POST", "/v2/models/bort/infer", b"{", 404, "no model 'bort'"),
    ("GET", f"{BERT}/versions/2", b"", 404, "bert has no version '2'; it has '1'"),
    ("POST", f"{BERT}/versions/2/infer", b"{}", 404, "no version '2'"),
    ("POST", INFER, b"{", 400, "the body is not JSON"),
    ("POST", INFER, b"", 400, "the body is not JSON"),
    ("POST", INFER, b"[]", 400, "the body is a list of 0"),
    ("POST", INFER, b"{}", 400, "inputs is missing"),
    ("POST", INFER, b" " * 100_001, 400, "this server takes 100000"),
    ("GET", INFER, b"", 405, "answers POST, not GET"),
    ("POST", BERT, b"", 405, "answers GET"),
    ("GET", "/v2/nothing", b"", 404, "there is no /v2/nothing"),
    ("POST", "/v2/systemsharedmemory/region/x/register", b"{}", 404, "there is no /v2/systemsharedmemory"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "said"), ELSEWHERE)
def test_every_path_under_v2_renders_errors_as_the_protocol(
    served: Served, method: str, path: str, body: bytes, status: int, said: str
) -> None:
    answer = served.http.request(method, path, content=body)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert said in answer.json()["error"]


def test_rejects_answers_that_padding_makes_too_large(tiny_store: Path) -> None:
    with serving(tiny_store, default_model="bert", max_answer_bytes=10_000) as small:
        ids, mask = np.full((20, 20), 5), np.zeros((20, 20), np.int64)
        mask[:, 0] = 1
        inputs = [listed("input_ids", ids.tolist()), listed("attention_mask", mask.tolist())]
        answer = post(small, *inputs, outputs=[{"name": "input_embeddings"}])
        assert answer.status_code == 400
        assert "padded, the outputs are 51200 bytes" in answer.json()["error"]
        assert post(small, *inputs).status_code == 200
