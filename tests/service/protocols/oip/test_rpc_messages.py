"""Tensors in protobuf messages: hand-written answers equal protobuf's bytes, and inputs are decoded as sent."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto import open_inference_pb2 as pb
from service.errors import BadRequest, Unsupported
from service.protocols.oip.messages import Answer, Inference, OutputTensor, parameters_of
from service.protocols.oip.rpc import inference_of, response, stream_response, values_of

FINAL = {"triton_enable_empty_final_response": True}
NUMPY: dict[str, Any] = {"FP32": np.float32, "FP16": np.float16, "BF16": ml_dtypes.bfloat16, "INT64": np.int64}
Input = pb.ModelInferRequest.InferInputTensor


def parameter(value: Any) -> pb.InferParameter:
    names = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    return pb.InferParameter(**{names[type(value)]: value})


@st.composite
def tensors(draw: st.DrawFn) -> OutputTensor:
    kind, shape = NUMPY[draw(st.sampled_from(sorted(NUMPY)))], tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
    return OutputTensor(draw(st.text(max_size=150)), np.arange(int(np.prod(shape))).reshape(shape).astype(kind))


@st.composite
def replies(draw: st.DrawFn) -> Answer:
    drawn = draw(st.lists(tensors(), max_size=3, unique_by=lambda tensor: tensor.name))
    parameters = parameters_of(FINAL if draw(st.booleans()) else None)
    inference = Inference([], [], parameters, draw(st.text(max_size=200)))
    return Answer(draw(st.text(max_size=200)), inference, drawn, ())


def by_protobuf(reply: Answer) -> pb.ModelInferResponse:
    final = reply.inference.parameters.triton_enable_empty_final_response
    return pb.ModelInferResponse(
        model_name=reply.model,
        model_version="1",
        id=reply.inference.id,
        parameters={"triton_final_response": parameter(True)} if final else {},
        outputs=[
            pb.ModelInferResponse.InferOutputTensor(name=each.name, datatype=each.datatype, shape=each.array.shape)
            for each in reply.outputs
        ],
        raw_output_contents=[each.array.tobytes() for each in reply.outputs],
    )


@given(replies())
def test_answer_equals_protobufs_bytes(reply: Answer) -> None:
    message = by_protobuf(reply)
    assert response(reply) == message.SerializeToString()
    streamed = pb.ModelStreamInferResponse(infer_response=message)
    assert stream_response(reply) == streamed.SerializeToString()


TYPED: list[tuple[str, str, list[Any], Any]] = [
    ("BOOL", "bool_contents", [True, False], np.bool_),
    ("INT8", "int_contents", [-128, 127], np.int8),
    ("INT16", "int_contents", [-32768, 32767], np.int16),
    ("INT32", "int_contents", [-(2**31), 2**31 - 1], np.int32),
    ("INT64", "int64_contents", [-(2**63), 2**63 - 1], np.int64),
    ("UINT8", "uint_contents", [0, 255], np.uint8),
    ("UINT16", "uint_contents", [0, 65535], np.uint16),
    ("UINT32", "uint_contents", [0, 2**32 - 1], np.uint32),
    ("UINT64", "uint64_contents", [0, 2**63 - 1], np.uint64),
]


@pytest.mark.parametrize(("datatype", "field", "values", "dtype"), TYPED)
def test_typed_and_raw_contents_mean_the_same(datatype: str, field: str, values: list[Any], dtype: Any) -> None:
    named = {"name": "x", "datatype": datatype, "shape": [2]}
    typed = pb.ModelInferRequest(inputs=[Input(contents={field: values}, **named)])
    raw = pb.ModelInferRequest(inputs=[Input(**named)], raw_input_contents=[np.array(values, dtype).tobytes()])
    for message in (typed, raw):
        (tensor,) = inference_of(message).inputs
        assert (tensor.name, tensor.datatype, tensor.shape) == ("x", datatype, (2,))
        assert isinstance(tensor.values, np.ndarray)
        assert tensor.values.tolist() == values


def test_texts_are_typed_or_raw() -> None:
    named = {"name": "text", "datatype": "BYTES", "shape": [2]}
    typed = pb.ModelInferRequest(inputs=[Input(contents={"bytes_contents": [b"a", b"bcd"]}, **named)])
    raw = pb.ModelInferRequest(inputs=[Input(**named)], raw_input_contents=[b"\1\0\0\0a\3\0\0\0bcd"])
    assert [inference_of(message).inputs[0].values for message in (typed, raw)] == [["a", "bcd"]] * 2


def test_raw_contents_are_not_copied() -> None:
    ids = np.arange(512, dtype=np.int64)
    message = pb.ModelInferRequest(
        inputs=[Input(name="x", datatype="INT64", shape=[2, 256])], raw_input_contents=[ids.tobytes()]
    )
    owner: Any = inference_of(message).inputs[0].values
    while isinstance(owner, np.ndarray):
        owner = owner.base
    assert isinstance(owner, bytes)  # what protobuf hands out


SOME = {"name": "x", "datatype": "INT64", "shape": [1]}
# inputs, raw contents, what the refusal says
REFUSED: list[tuple[list[dict[str, Any]], list[bytes], str]] = [
    ([SOME | {"contents": {"int64_contents": [1]}}], [bytes(8)], "contents beside raw_input_contents"),
    ([SOME], [bytes(8), bytes(8)], "raw_input_contents has 2 tensors for 1 inputs"),
    ([SOME, SOME | {"name": "y"}], [bytes(8)], "raw_input_contents has 1 tensors for 2 inputs"),
    ([SOME], [bytes(7)], "inputs.x has 7 bytes; INT64 .1. takes 1 x 8 = 8"),
    ([SOME | {"shape": [-1]}], [bytes(8)], "inputs.x has shape"),
    ([SOME | {"datatype": "FP8"}], [bytes(8)], "inputs.x has datatype 'FP8'"),
    ([SOME | {"datatype": "FP8"}], [], "inputs.x has datatype 'FP8'"),
    ([SOME], [], "inputs.x has 0 elements"),
    ([SOME | {"contents": {"int64_contents": [1, 2]}}], [], "inputs.x has 2 elements"),
    ([SOME | {"contents": {"int_contents": [1]}}], [], "inputs.x has datatype INT64 and int_contents: send int64_co"),
    ([SOME | {"datatype": "FP16"}], [], "inputs.x has datatype 'FP16'"),
    ([SOME | {"datatype": "INT8", "contents": {"int_contents": [128]}}], [], "outside INT8; it goes from -128 to 127"),
    (
        [SOME | {"datatype": "UINT16", "contents": {"uint_contents": [65536]}}],
        [],
        "outside UINT16; it goes from 0 to 65535",
    ),
]


@pytest.mark.parametrize(("inputs", "raws", "message"), REFUSED)
def test_rejects_contents_that_do_not_fit(inputs: list[dict[str, Any]], raws: list[bytes], message: str) -> None:
    request = pb.ModelInferRequest(inputs=[Input(**each) for each in inputs], raw_input_contents=raws)
    with pytest.raises(BadRequest, match=message):
        inference_of(request)


def test_classification_is_refused() -> None:
    output = pb.ModelInferRequest.InferRequestedOutputTensor(name="y", parameters={"classification": parameter(3)})
    with pytest.raises(Unsupported, match=r"outputs\.y\.parameters\.classification is not supported"):
        inference_of(pb.ModelInferRequest(outputs=[output]))


def test_tensors_in_shared_memory_are_refused() -> None:
    lent = {"parameters": {"shared_memory_region": parameter("region")}}
    output = pb.ModelInferRequest.InferRequestedOutputTensor(name="y", **lent)
    for message in (pb.ModelInferRequest(inputs=[Input(**SOME, **lent)]), pb.ModelInferRequest(outputs=[output])):
        with pytest.raises(Unsupported, match=r"puts\.[xy]\.parameters\.shared_memory_region is not supported"):
            inference_of(message)


def test_parameters_are_read_as_json_has_them() -> None:
    sent = {"a": True, "b": 7, "c": "x", "d": 0.5}
    message = pb.ModelInferRequest(parameters={name: parameter(value) for name, value in sent.items()})
    message.parameters["e"].uint64_param = 9
    message.parameters["unset"].Clear()
    assert values_of(message.parameters) == sent | {"e": 9}
