"""The binary tensor extension: its header, its sizes, what leaves raw, and bodies that were tampered with."""

import gzip
import json
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.oip_bodies import LENGTH, arrays, binary, entry, infer, listed
from tests.served import Served

INFER = "/v2/models/bert/infer"
IDS = [("input_ids", "INT64", [[5, 6, 7], [8, 9, 10]])]
OFFSET = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


def test_outputs_are_raw_where_requested_else_json(served: Served) -> None:
    names = ["input_embeddings", "sentence_embedding"]
    requested = [{"name": names[0], "parameters": {"binary_data": False}}, {"name": names[1]}]
    body, headers = binary(IDS, outputs=requested, parameters={"binary_data_output": True})
    answer = served.http.post(INFER, content=body, headers=headers)
    head = json.loads(answer.content[: int(answer.headers[LENGTH])])
    assert ["data" in output for output in head["outputs"]] == [True, False]
    assert head["outputs"][1]["parameters"] == {"binary_data_size": 2 * 32 * 4}
    assert answer.headers["content-type"] == "application/octet-stream"
    assert list(arrays(answer)) == names


def test_raw_and_listed_inputs_may_be_mixed(served: Served) -> None:
    raw = np.array([[1, 1, 0], [1, 1, 1]], np.int64).tobytes()
    inputs = [
        listed("input_ids", IDS[0][2]),
        entry("attention_mask", "INT64", [2, 3], parameters={"binary_data_size": len(raw)}),
    ]
    head = json.dumps({"inputs": inputs}).encode()
    answer = served.http.post(INFER, content=head + raw, headers={LENGTH: str(len(head))})
    mask = ("attention_mask", "INT64", [[1, 1, 0], [1, 1, 1]])
    expected = infer(served.http, [*IDS, mask])["sentence_embedding"]
    assert np.array_equal(arrays(answer)["sentence_embedding"], expected)


def test_batch_equals_its_items_alone(served: Served) -> None:
    options = {"outputs": [{"name": "input_embeddings"}]}
    batch = infer(served.http, IDS, **options)["input_embeddings"]
    for row, own in zip(IDS[0][2], batch, strict=True):
        one = infer(served.http, [("input_ids", "INT64", [row])], **options)["input_embeddings"]
        assert one[0].tobytes() == own.tobytes()


@pytest.mark.parametrize("length", ["0", "-1", "+5", "ten", "", "5.0", "99999", "9" * 30, "0x10", "²"])
def test_rejects_a_header_that_is_no_length_of_the_body(served: Served, length: str) -> None:
    body, _ = binary(IDS)
    answer = served.http.post(INFER, content=body, headers={LENGTH: length.encode()})
    assert answer.status_code == 400
    assert "Inference-Header-Content-Length" in answer.json()["error"]


def tampered(parameters: Any, tail: bytes = b"\0" * 48, **members: Any) -> tuple[bytes, dict[str, str]]:
    head = json.dumps({"inputs": [entry("input_ids", "INT64", [2, 3], parameters=parameters, **members)]}).encode()
    return head + tail, {LENGTH: str(len(head))}


TAMPERED: list[tuple[Any, bytes, dict[str, Any], str]] = [
    ({"binary_data_size": 40}, b"\0" * 40, {}, "has 40 bytes; INT64 [2, 3] takes 6 x 8 = 48"),
    ({"binary_data_size": 56}, b"\0" * 56, {}, "has 56 bytes"),
    ({"binary_data_size": 48}, b"\0" * 47, {}, "has binary_data_size 48; 47 bytes are left"),
    ({"binary_data_size": 48}, b"\0" * 49, {}, "1 bytes behind the JSON belong to no input"),
    ({"binary_data_size": -48}, b"", {}, "binary_data_size is -48; allowed"),
    ({"binary_data_size": True}, b"\0", {}, "binary_data_size is true"),
    ({"binary_data_size": "48"}, b"\0" * 48, {}, 'binary_data_size is "48"'),
    ({"binary_data_size": 2**70}, b"", {}, "inputs.input_ids.parameters.binary_data_size is"),
    (
        {"binary_data_size": 48},
        b"\0" * 48,
        {"data": [[1, 2, 3], [4, 5, 6]]},
        "has data and binary_data_size: send exactly one",
    ),
    ({"shared_memory_region": "r", "shared_memory_byte_size": 48}, b"", {}, "shared_memory_region is not supported"),
    (5, b"", {}, "inputs.input_ids.parameters is 5"),
]


@pytest.mark.parametrize(("parameters", "tail", "members", "said"), TAMPERED)
def test_sizes_that_do_not_fit_are_refused(
    served: Served, parameters: Any, tail: bytes, members: dict[str, Any], said: str
) -> None:
    body, headers = tampered(parameters, tail, **members)
    answer = served.http.post(INFER, content=body, headers=headers)
    assert answer.status_code in (400, 501)
    assert said in answer.json()["error"]


@pytest.mark.parametrize(("coding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_the_header_counts_bytes_before_compression(served: Served, coding: str, compress: Any) -> None:
    body, headers = binary(IDS, parameters={"binary_data_output": True})
    answer = served.http.post(INFER, content=compress(body), headers=headers | {"content-encoding": coding})
    expected = infer(served.http, IDS)["sentence_embedding"]
    assert np.array_equal(arrays(answer)["sentence_embedding"], expected)


@settings(max_examples=150, **OFFSET)  # type: ignore[arg-type]
@given(st.data())
def test_a_tampered_body_is_answered_or_rejected(served: Served, data: Any) -> None:
    body, headers = binary([*IDS, ("attention_mask", "BOOL", [[1, 1, 0], [0, 1, 1]])], id="x")
    at = data.draw(st.integers(0, len(body) - 1))
    cut = data.draw(st.integers(0, 3))
    changed = body[:at] + data.draw(st.binary(max_size=4)) + body[at + cut :]
    length = data.draw(st.one_of(st.just(int(headers[LENGTH])), st.integers(-1, len(body) + 2)))
    answer = served.http.post(INFER, content=changed, headers={LENGTH: str(length)})
    assert answer.status_code in (200, 400, 404, 501)
    if answer.status_code != 200:
        assert list(answer.json()) == ["error"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, **OFFSET)  # type: ignore[arg-type]
@given(
    st.sampled_from(["name", "datatype", "shape", "data", "parameters"]),
    st.sampled_from(["input_ids", "attention_mask", "token_type_ids", "text"]),
    JSON,
)
def test_any_json_in_a_tensor_is_answered_or_rejected(served: Served, member: str, name: str, value: Any) -> None:
    tensor = listed(name, ["a"], "BYTES") if name == "text" else listed(name, [[1, 1]])
    inputs = [tensor | {member: value}, *([] if name in ("input_ids", "text") else [listed("input_ids", [[5, 6]])])]
    answer = served.http.post(INFER, content=json.dumps({"inputs": inputs}).encode())
    assert answer.status_code in (200, 400, 404, 501)
