"""The hand-written answers are, byte for byte, what protobuf writes."""

from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from proto import embed_pb2 as pb
from service.embedding.requests import EmbedResult, Output
from service.protocols.inlay.rpc_messages import (
    DTYPES,
    embed_response,
    stream_response,
    varint,
)

NUMPY: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@st.composite
def outputs(draw: st.DrawFn) -> Output:
    lengths = tuple(draw(st.lists(st.integers(0, 300), max_size=5)))
    width, dtype = draw(st.integers(0, 40)), draw(st.sampled_from(sorted(NUMPY)))
    rows = np.arange(sum(lengths) * width).reshape(sum(lengths), width).astype(NUMPY[dtype])
    return Output(draw(st.text(max_size=200)), rows, lengths, draw(st.booleans()))


@st.composite
def results(draw: st.DrawFn) -> EmbedResult:
    some = tuple(draw(st.lists(outputs(), max_size=3)))
    cut = tuple(draw(st.lists(st.integers(0, 2**32 - 1), max_size=5)))
    tokens = draw(st.integers(0, 2**64 - 1))
    return EmbedResult(draw(st.text(max_size=200)), some, tokens, draw(st.booleans()), truncated=cut)


def by_protobuf(result: EmbedResult) -> pb.EmbedResponse:
    return pb.EmbedResponse(
        model=result.model,
        outputs=[
            pb.Output(
                name=output.name,
                tensor=pb.Tensor(
                    dtype=pb.DType.Name(DTYPES[output.rows.dtype.name]),
                    shape=output.rows.shape,
                    data=output.rows.tobytes(),
                ),
                lengths=output.lengths,
            )
            for output in result.outputs
        ],
        tokens=result.tokens,
        truncated=result.truncated,
    )


@given(results())
def test_answer_equals_protobufs_bytes(result: EmbedResult) -> None:
    assert embed_response(result) == by_protobuf(result).SerializeToString(deterministic=True)


@given(results())
def test_streamed_answer_equals_protobufs_bytes(result: EmbedResult) -> None:
    expected = pb.EmbedStreamResponse(response=by_protobuf(result))
    assert stream_response(result) == expected.SerializeToString(deterministic=True)


@given(st.integers(0, 2**64 - 1))
def test_varint_equals_protobufs_bytes(value: int) -> None:
    assert b"\x18" + varint(value) == (pb.EmbedResponse(tokens=value).SerializeToString() or b"\x18\x00")


def test_the_dtype_numbers_are_those_of_the_contract() -> None:
    assert DTYPES.items() <= {name.lower(): number for name, number in pb.DType.items()}.items()
