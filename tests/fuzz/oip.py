"""Decoders of the Open Inference Protocol: the binary tensor extension, raw tensors, ModelInfer messages."""

import json
from contextlib import suppress
from typing import Any

from google.protobuf.message import DecodeError

from proto import open_inference_pb2 as pb
from service.protocols.oip import bodies
from service.protocols.oip.messages import BYTES, CONTENTS, Answer, Inference, OutputTensor, dtype_of, from_raw
from service.protocols.oip.rpc import inference_of, response
from tests.fuzz.judging import Target
from tests.oip_bodies import LENGTH, entry, listed, raw_bytes
from tests.oip_bodies import binary as made

NO_HEADER = 0xFFFF
WORDS = (
    *[f'"{name}"'.encode() for name in ("inputs", "outputs", "parameters", "data", "shape", "datatype", "name", "id")],
    *[f'"{name}":'.encode() for name in ("binary_data_size", "binary_data", "binary_data_output", "classification")],
    b'"shared_memory_region":',
    *[f'"{name}"'.encode() for name in CONTENTS],
    *(b"9223372036854775807", b"18446744073709551616", b"-1", b"1e400", b"null", b"[]", b"{}", b"\xff\xff\xff\xff"),
)


def _answer(inference: Inference) -> Answer:
    """Return an answer of the numbers that came."""
    arrays = [OutputTensor(each.name, each.values) for each in inference.inputs if not isinstance(each.values, list)]
    return Answer("m", inference, arrays, ())


def _binary(data: bytes) -> None:
    """2 bytes: what the header claims (0xFFFF: it is not sent); then the body."""
    length = int.from_bytes(data[:2], "little")
    header = None if length == NO_HEADER else b"%d" % length
    inference = bodies.read(data[2:], header)
    with suppress(StopIteration):  # small enough to be answered without waiting
        bodies.respond(_answer(inference), lambda size: None).send(None)


def _binary_seeds() -> list[bytes]:
    tensors: list[tuple[str, str, Any]] = [
        ("input_ids", "INT64", [[5, 6, 7], [8, 9, 10]]),
        ("attention_mask", "BOOL", [[1, 1, 0], [1, 1, 1]]),
    ]
    bodies = [
        made(tensors, id="1", parameters={"binary_data_output": True}),
        made([("text", "BYTES", [b"hello", b"", "grün".encode()])], outputs=[{"name": "lengths"}]),
        made([("x", "FP32", [0.5, -1.0])], outputs=[{"name": "y", "parameters": {"binary_data": False}}]),
    ]
    lent = [entry("input_ids", "INT64", [2], parameters={"shared_memory_region": "r"})]
    plain = [{"inputs": lent}, {"inputs": [listed("input_ids", [[1, 2], [3, 4]])]}]
    seeds = [int(headers[LENGTH]).to_bytes(2, "little") + body for body, headers in bodies]
    seeds += [NO_HEADER.to_bytes(2, "little") + json.dumps(each).encode() for each in plain]
    return seeds


def _tensor(data: bytes) -> None:
    """1 byte of datatype, 1 of dimensions, as many each, then raw bytes. Numbers that are taken are those that came."""
    kind, count, rest = data[:1] or b"\0", (data[1:2] or b"\0")[0] % 10, data[2:]
    datatype, shape, raw = list(CONTENTS)[kind[0] % len(CONTENTS)], list(rest[:count]), rest[count:]
    values = from_raw("t", datatype, shape, raw).values
    if not isinstance(values, list):
        assert values.astype(dtype_of(datatype)).tobytes() == raw


def _tensor_seeds() -> list[bytes]:
    texts = raw_bytes([b"ab", b"", b"\xff"], BYTES)
    rows = [
        (BYTES, [3], texts),
        ("INT64", [1, 2], bytes(16)),
        ("BOOL", [2], b"\0\1"),
        ("UINT16", [2, 1], b"\0\x7f\0\0"),
    ]
    return [bytes([list(CONTENTS).index(kind), len(shape), *shape]) + raw for kind, shape, raw in rows]


def _message(data: bytes) -> None:
    response(_answer(inference_of(pb.ModelInferRequest.FromString(data))))


def _message_seeds() -> list[bytes]:
    tensor, contents = pb.ModelInferRequest.InferInputTensor, pb.InferTensorContents
    ids = tensor(name="input_ids", datatype="INT64", shape=[2, 2])
    typed = tensor(name="input_ids", datatype="INT32", shape=[2], contents=contents(int_contents=[1, 2]))
    texts = tensor(name="text", datatype="BYTES", shape=[2], contents=contents(bytes_contents=[b"a", b""]))
    small = tensor(name="mask", datatype="UINT8", shape=[1], contents=contents(uint_contents=[1]))
    lent = tensor(name="x", datatype="FP32", shape=[1])
    lent.parameters["shared_memory_region"].string_param = "r"
    output = pb.ModelInferRequest.InferRequestedOutputTensor(name="y")
    output.parameters["classification"].int64_param = 0
    parameters = {"normalize": pb.InferParameter(bool_param=True), "dimensions": pb.InferParameter(int64_param=4)}
    messages = (
        pb.ModelInferRequest(model_name="m", id="1", inputs=[ids], raw_input_contents=[bytes(32)]),
        pb.ModelInferRequest(inputs=[typed, texts, small], outputs=[output], parameters=parameters),
        pb.ModelInferRequest(inputs=[lent]),
    )
    return [bytes(each.SerializeToString()) for each in messages]


TARGETS = {
    "oip binary request": Target(_binary, _binary_seeds, words=WORDS),
    "oip raw tensor": Target(_tensor, _tensor_seeds),
    "oip ModelInferRequest": Target(_message, _message_seeds, (DecodeError,)),
}
