"""The positional methods over gRPC: bit for bit what HTTP gives, refused with the same codes."""

import json
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.struct_pb2 import Struct

from proto import embed_pb2 as pb
from tests.golden_cases import case
from tests.served import Served

BIAS = case("t5_bias_encoder_bi")
WEIGHTS = BIAS.weights["relative_attention_bias.weight"]
MASK = [[1, 1, 1, 0], [1, 0, 0, 0]]
QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("rope", {"head_dim": 64, "length": 100, "start": 3}),
    ("rope", {"head_dim": 64, "positions": [0, 5, 1_000_000], "dtype": "float64"}),
    ("rope", {"preset": "llama-3.1-8b", "length": 9000, "arithmetic": "parity"}),
    ("rope", {"config": case("input_llama").config, "length": 3, "output": "sin"}),
    ("mrope", {"head_dim": 8, "positions": [[0, 1], [0, 1], [1, 1]], "sections": [2, 1, 1]}),
    ("axial", {"kind": "dinov3", "head_dim": 16, "grid": [3, 4]}),
    ("sinusoidal", {"dim": 9, "length": 30, "dtype": "float16"}),
    ("sinusoidal-2d", {"dim": 8, "grid": "3x4", "cls_rows": 1}),
    ("learned", {"weights": [[1, 2], [3, 4.5]], "length": 2}),
    ("alibi", {"heads": 12, "form": "bloom", "query_length": 4, "attention_mask": MASK}),
    ("t5", {"query_length": 6, "bidirectional": False}),
    ("deberta", {"query_length": 6, "max_relative_positions": 64, "position_buckets": 16}),
    ("mask", {"query_length": 4, "attention_mask": MASK, "form": "boolean"}),
    ("mask", {"query_length": 1500, "dtype": "bfloat16"}),
]
REFUSED: list[tuple[dict[str, Any], str, str, str]] = [
    ({"scheme": "rotary"}, "NOT_FOUND", "not_found", "there is no scheme 'rotary'"),
    ({"scheme": "alibi", "model": "llama"}, "NOT_FOUND", "not_found", "llama has no alibi"),
    ({"scheme": "mrope", "model": "llama"}, "NOT_FOUND", "not_found", "there is no scheme 'mrope'"),
    ({"scheme": "rope", "model": "lama"}, "NOT_FOUND", "unknown_model", "did you mean 'llama'"),
    ({"scheme": "rope", "parameters": {"head_dim": 8}}, "INVALID_ARGUMENT", "bad_parameters", "send length"),
    ({"scheme": "rope", "parameters": {"head_dim": 8.5}}, "INVALID_ARGUMENT", "wrong_type", "head_dim is 8.5"),
    ({"scheme": "rope", "parameters": {"head_dim": "8"}}, "INVALID_ARGUMENT", "wrong_type", 'head_dim is "8"'),
    ({"scheme": "rope", "parameters": {"lenght": 8}}, "INVALID_ARGUMENT", "unknown_field", 'did you mean "length"'),
    ({"scheme": "rope", "dtype": 99}, "INVALID_ARGUMENT", "unknown_value", "dtype is 99; allowed: FLOAT32"),
    (
        {"scheme": "rope", "dtype": pb.INT64},
        "INVALID_ARGUMENT",
        "unknown_value",
        "dtype is INT64; allowed: FLOAT32, FLOAT16, BFLOAT16, FLOAT64",
    ),
    (
        {"scheme": "rope", "dtype": pb.FLOAT16, "parameters": {"dtype": "float16"}},
        "INVALID_ARGUMENT",
        "conflicting_fields",
        "dtype came in parameters and beside them",
    ),
    (
        {"scheme": "t5", "tensors": {"weights": pb.Tensor(shape=[2, 2], data=b"123")}},
        "INVALID_ARGUMENT",
        "wrong_type",
        "weights cannot be read: data has 3 bytes",
    ),
]


def struct(values: dict[str, Any]) -> Struct:
    message = Struct()
    message.update(values)
    return message


def request(scheme: str, parameters: dict[str, Any], **more: Any) -> pb.PositionsRequest:
    return pb.PositionsRequest(scheme=scheme, parameters=struct(parameters), **more)


def bodies(chunks: list[pb.PositionsChunk]) -> dict[str, bytes]:
    """The outputs by name; each chunk must begin where the last one of its output ended."""
    data = {output.name: b"" for output in chunks[0].outputs}
    for chunk in chunks[1:]:
        assert chunk.offset == len(data[chunk.output])
        data[chunk.output] += chunk.data
    return data


@pytest.mark.parametrize(("scheme", "parameters"), QUESTIONS)
def test_grpc_and_http_send_the_same_bytes(served: Served, scheme: str, parameters: dict[str, Any]) -> None:
    chunks = list(served.stub.Positions(request(scheme, parameters)))
    assert max(chunk.ByteSize() for chunk in chunks) < 2**20
    facts = json.loads(chunks[0].facts_json)
    for output in chunks[0].outputs:
        query = parameters | {"format": "raw", "output": output.name}
        rest = served.http.post(f"/positions/{scheme}", json=query).raise_for_status()
        assert bodies(chunks)[output.name] == rest.content
        assert rest.headers["inlay-shape"] == ",".join(map(str, output.shape))
        assert rest.headers["inlay-dtype"] == pb.DType.Name(output.dtype).lower()
        assert rest.headers["inlay-arithmetic"] == facts["arithmetic"]
    assert facts["shapes"] == {output.name: list(output.shape) for output in chunks[0].outputs}


def test_grpc_and_http_agree_on_encodings_of_a_model(served: Served) -> None:
    chunks = list(served.stub.Positions(request("rope", {"length": 7}, model="llama")))
    rest = served.http.get("/models/llama/rope", params={"length": 7, "format": "raw"}).content
    assert bodies(chunks)["cos"] + bodies(chunks)["sin"] == rest
    assert json.loads(chunks[0].facts_json)["model"] == "llama"


def test_splits_rows_wider_than_a_message(served: Served) -> None:
    parameters = {"heads": 1, "form": "mpt", "query_length": 1, "key_length": 300_000}
    chunks = list(served.stub.Positions(request("alibi", parameters)))
    assert max(chunk.ByteSize() for chunk in chunks) < 2**20
    np.testing.assert_array_equal(
        np.frombuffer(bodies(chunks)["bias"], np.float32), (np.arange(300_000) - 299_999) * np.float32(2**-8)
    )


@pytest.mark.parametrize("dtype", [pb.DTYPE_UNSPECIFIED, pb.FLOAT64])
def test_reads_tensors_beside_the_parameters(served: Served, dtype: Any) -> None:
    tensor = pb.Tensor(dtype=pb.FLOAT32, shape=WEIGHTS.shape, data=WEIGHTS.tobytes())
    message = request("t5", {"query_length": 20, "arithmetic": "parity"}, tensors={"weights": tensor}, dtype=dtype)
    values = bodies(list(served.stub.Positions(message)))["bias"]
    bias = np.frombuffer(values, np.float64 if dtype == pb.FLOAT64 else np.float32)
    np.testing.assert_array_equal(bias, BIAS.arrays["bias"].ravel())


@pytest.mark.parametrize(("fields", "status", "code", "said"), REFUSED)
def test_errors_have_a_status_and_a_code(
    served: Served, fields: dict[str, Any], status: str, code: str, said: str
) -> None:
    message_fields = fields | ({"parameters": struct(fields["parameters"])} if "parameters" in fields else {})
    with pytest.raises(grpc.RpcError) as refusal:
        list(served.stub.Positions(pb.PositionsRequest(**message_fields)))
    metadata = {each.key: each.value for each in refusal.value.trailing_metadata()}
    assert (refusal.value.code().name, metadata["inlay-code"]) == (status, code)
    assert said in refusal.value.details()


def test_presets_match_http(served: Served) -> None:
    rest = served.http.get("/positions/presets").json()["presets"]
    presets = served.stub.ListPresets(pb.ListPresetsRequest()).presets
    assert [(each.name, each.title, each.source, json.loads(each.config_json)) for each in presets] == [
        (each["name"], each["title"], each["source"], each["config"]) for each in rest
    ]


def test_stops_a_stream_that_is_cancelled(served: Served) -> None:
    chunks = served.stub.Positions(request("rope", {"head_dim": 1024, "length": 2**24}))
    assert next(chunks).outputs[0].shape[0] == 2**24
    assert next(chunks).data
    chunks.cancel()
    with pytest.raises(grpc.RpcError, match="CANCELLED"):
        list(chunks)
    assert served.stub.ListPresets(pb.ListPresetsRequest()).presets
