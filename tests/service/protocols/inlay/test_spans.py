"""Late chunking on the wires: the same vectors in every format and over gRPC, the places of chunks, and errors."""

import base64
import io
import json
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load

from proto import embed_pb2 as pb
from service.errors import TooManyInputs
from service.protocols.inlay import late_chunking, rpc_requests
from tests.served import Served, array_of

TEXT, OTHER = "hello world, a b c d e hello", "world é"
SPANS = [[[0, 11], [13, 28]], [[0, 5]]]
PLACES = [
    [{"characters": [0, 11], "tokens": [0, 2]}, {"characters": [13, 28], "tokens": [3, 9]}],
    [{"characters": [0, 5], "tokens": [0, 1]}],
]
BODY: dict[str, Any] = {"inputs": [TEXT, OTHER], "spans": SPANS}
NAMED = "sentence_embedding"


def inputs(*texts: str) -> list[pb.Input]:
    return [pb.Input(text=text) for text in texts]


def spans(*lists: list[list[int]]) -> list[pb.InputSpans]:
    return [pb.InputSpans(spans=[pb.Span(start=start, stop=stop) for start, stop in own]) for own in lists]


@pytest.fixture(scope="module")
def vectors(served: Served) -> list[NDArray[np.float32]]:
    """The vectors of BODY's spans, as JSON has them; a span of token ids gives the same as its text's."""
    answer = [np.array(own, np.float32) for own in served.post(BODY).raise_for_status().json()]
    assert [own.shape for own in answer] == [(2, 32), (1, 32)]
    document = served.post({"inputs": TEXT, "outputs": "last_hidden_state"}).json()["outputs"]["last_hidden_state"][0]
    mean = np.array(document)[1:3].mean(axis=0)
    np.testing.assert_allclose(answer[0][0], mean / np.linalg.norm(mean), atol=1e-6)
    return answer


def test_named_outputs_say_where_chunks_lie(served: Served, vectors: Any) -> None:
    document = served.post(BODY | {"outputs": NAMED}).json()
    for own, wanted in zip(document["outputs"][NAMED], vectors, strict=True):
        np.testing.assert_array_equal(np.array(own, np.float32), wanted)
    assert document["chunks"] == PLACES
    assert "chunks" not in served.post({"inputs": TEXT, "outputs": NAMED}).json()


def test_every_format_has_the_same_vectors(served: Served, vectors: Any, tmp_path: Any) -> None:
    joined = np.concatenate(vectors)
    raw = served.post(BODY, "application/octet-stream")
    np.testing.assert_array_equal(np.frombuffer(raw.content, np.float32).reshape(3, 32), joined)
    assert raw.headers["inlay-lengths"] == "2,1"
    np.testing.assert_array_equal(np.load(io.BytesIO(served.post(BODY, "application/x-npy").content)), joined)
    tensors = served.post(BODY, "application/vnd.safetensors").content
    for index, wanted in enumerate(vectors):
        np.testing.assert_array_equal(load(tensors)[f"{index}/{NAMED}"], wanted)
    (tmp_path / "x").write_bytes(tensors)
    with safe_open(tmp_path / "x", "np") as file:
        assert json.loads(file.metadata()["chunks"]) == PLACES
    (first, _) = served.post(BODY | {"encoding_format": "base64"}).json()
    assert first["shape"] == [2, 32]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(first["data"]), np.float32), vectors[0].ravel())


def test_a_bare_input_has_one_list_of_spans(served: Served, vectors: Any) -> None:
    (own,) = served.post({"inputs": TEXT, "spans": SPANS[0]}).json()
    np.testing.assert_array_equal(np.array(own, np.float32), vectors[0])
    by_tokens = {"inputs": TEXT, "spans": [[0, 2], [3, 9]], "span_unit": "tokens"}
    np.testing.assert_array_equal(np.array(served.post(by_tokens).json()[0], np.float32), vectors[0])
    ids = [entry["id"] for entry in served.http.post("/tokenize", json={"inputs": TEXT}).json()[0]]
    of_ids = {"inputs": ids, "spans": [[1, 3], [4, 10]], "span_unit": "tokens"}
    np.testing.assert_array_equal(np.array(served.post(of_ids).json()[0], np.float32), vectors[0])
    assert served.post(of_ids | {"outputs": NAMED}).json()["chunks"] == [[{"tokens": [1, 3]}, {"tokens": [4, 10]}]]


def test_grpc_gives_the_same_bits(served: Served, vectors: Any) -> None:
    answer = served.stub.Embed(pb.EmbedRequest(inputs=inputs(TEXT, OTHER), spans=spans(*SPANS)))
    (output,) = answer.outputs
    np.testing.assert_array_equal(array_of(output.tensor), np.concatenate(vectors))
    assert list(output.lengths) == [2, 1]
    places = [
        [{"characters": [each.start, each.stop], "tokens": [each.first_token, each.end_token]} for each in own.chunks]
        for own in answer.chunks
    ]
    assert places == PLACES
    of_tokens = pb.EmbedRequest(inputs=inputs(TEXT), spans=spans([[0, 2], [3, 9]]), span_unit=pb.TOKENS)
    np.testing.assert_array_equal(array_of(served.stub.Embed(of_tokens).outputs[0].tensor), vectors[0])


@pytest.mark.parametrize("chunking", [{"size": 4}, {"size": 4, "overlap": 2}])
def test_grpc_and_http_make_the_same_chunks(served: Served, chunking: dict[str, int]) -> None:
    rest = served.post({"inputs": TEXT, "chunking": chunking, "outputs": NAMED}).json()
    request = pb.EmbedRequest(inputs=inputs(TEXT), chunking=pb.Chunking(**chunking))
    for answer in (served.stub.Embed(request), next(served.stub.EmbedStream(iter([request]))).response):
        rows = array_of(answer.outputs[0].tensor)
        np.testing.assert_array_equal(rows, np.array(rest["outputs"][NAMED][0], np.float32))
        assert [each.first_token for each in answer.chunks[0].chunks] == [
            each["tokens"][0] for each in rest["chunks"][0]
        ]


ERRORS: list[tuple[dict[str, Any], str, str]] = [
    ({"inputs": TEXT, "spans": "x"}, "wrong_type", 'spans is "x"; send a list of spans for each input'),
    ({"inputs": TEXT, "spans": [0, 5]}, "wrong_type", "spans[0] is 0; a span is two integers, [start, stop]"),
    ({"inputs": TEXT, "spans": [[0, 1.5]]}, "wrong_type", "spans[0] is a list of 2; a span is two integers"),
    ({"inputs": TEXT, "spans": [[False, True]]}, "wrong_type", "spans[0] is a list of 2"),
    ({"inputs": TEXT, "spans": [[0, 1, 2]]}, "wrong_type", "spans[0] is a list of 3"),
    ({"inputs": TEXT, "spans": [[0, 2**63]]}, "out_of_range", "spans holds an integer beyond 64 bits"),
    ({"inputs": [TEXT], "spans": [[0, 5]]}, "wrong_type", "spans[0][0] is 0"),
    ({"inputs": [TEXT], "spans": [5]}, "wrong_type", "spans[0] is 5; send a list of spans"),
    ({"inputs": [TEXT, TEXT], "spans": [[[0, 5]]]}, "wrong_shape", "spans has lists for 1 inputs, and 2 came"),
    ({"inputs": TEXT, "spans": [[0, 99]]}, "out_of_range", "spans[0][0] is [0, 99]; it ends behind the input's last"),
    ({"inputs": TEXT, "spans": [[0, 1]] * 65}, "too_many_inputs", "65 spans; this server takes 64"),
    ({"inputs": TEXT, "span_unit": "tokens"}, "missing_field", "spans is missing"),
    ({"inputs": TEXT, "spans": [[0, 1]], "span_unit": "words"}, "unknown_value", 'span_unit is "words"'),
    ({"inputs": TEXT, "spans": [[0, 1]], "chunking": {"size": 1}}, "conflicting_fields", "spans is sent, and so is"),
    ({"inputs": TEXT, "chunking": {"size": 0}}, "out_of_range", "chunking.size is 0; allowed: an integer from 1"),
    ({"inputs": TEXT, "chunking": {"size": 2, "overlap": 2}}, "out_of_range", "chunking.overlap is 2; it is 0 to 1"),
    (
        {"inputs": TEXT, "chunking": {"sice": 2}},
        "unknown_field",
        'chunking.sice is not known here; did you mean "size"',
    ),
    ({"inputs": TEXT, "chunking": 3}, "wrong_type", "chunking is 3"),
    ({"inputs": [5], "chunking": {"size": 2}, "model": "llama"}, "conflicting_fields", "chunking applies to"),
    ({"inputs": TEXT, "spans": [[0, 1]], "encoding_format": "prompt_embeds"}, "conflicting_fields", "spans applies to"),
]


@pytest.mark.parametrize(("body", "code", "said"), ERRORS)
def test_errors_name_the_span(served: Served, body: dict[str, Any], code: str, said: str) -> None:
    answer = served.post(body)
    assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text
    assert said in answer.json()["detail"]


def test_null_asks_for_no_spans(served: Served) -> None:
    plain = served.post({"inputs": TEXT}).json()
    assert served.post({"inputs": TEXT, "spans": None, "span_unit": None, "chunking": None}).json() == plain


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"spans": spans([[0, 99]])}, "out_of_range", "spans[0][0] is [0, 99]; it ends behind the input's last"),
    ({"spans": spans([[0, 1]] * 65)}, "too_many_inputs", "65 spans; this server takes 64"),
    ({"spans": [pb.InputSpans()] * 65}, "too_many_inputs", "65 spans"),
    ({"spans": spans([[0, 1]]), "span_unit": 7}, "unknown_value", "span_unit is 7; allowed: CHARACTERS, TOKENS"),
    ({"span_unit": pb.TOKENS}, "missing_field", "spans is missing"),
    ({"spans": spans([[0, 1]]), "chunking": pb.Chunking(size=1)}, "conflicting_fields", "send one of them"),
    ({"chunking": pb.Chunking()}, "out_of_range", "chunking.size is 0"),
]


@pytest.mark.parametrize(("fields", "code", "said"), REFUSED)
def test_grpc_refuses_with_the_same_codes(served: Served, fields: dict[str, Any], code: str, said: str) -> None:
    with pytest.raises(grpc.RpcError) as refusal:
        served.stub.Embed(pb.EmbedRequest(inputs=inputs(TEXT), **fields))
    metadata = {each.key: each.value for each in refusal.value.trailing_metadata()}
    assert (refusal.value.code().name, metadata["inlay-code"]) == ("INVALID_ARGUMENT", code)
    assert said in refusal.value.details()


def test_lists_of_spans_over_limit_are_counted_and_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    message = pb.EmbedRequest(inputs=inputs(TEXT), spans=[pb.InputSpans()] * 65)
    monkeypatch.setattr(late_chunking, "check_count", pytest.fail)  # what counts the spans of each list
    with pytest.raises(TooManyInputs, match="65 spans"):
        rpc_requests.decode(message, 64)
