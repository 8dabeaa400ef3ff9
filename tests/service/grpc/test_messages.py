"""Messages of too many fields or numbers are refused before they are parsed."""

from typing import Any

import pytest
from google.protobuf import struct_pb2

from proto import embed_pb2 as pb
from proto import open_inference_pb2 as oip
from proto import tei_pb2 as tei
from service.errors import Malformed, TooLarge
from service.grpc.messages import MAX_FIELDS, MAX_NUMBERS, check_structure, decode


def ids(count: int) -> bytes:
    return pb.EmbedRequest(inputs=[pb.Input(ids=pb.TokenIds(input_ids=[1] * count))]).SerializeToString()


@pytest.mark.parametrize(
    ("request_class", "data"),
    [
        (pb.EmbedRequest, b"\x0a\x00" * (MAX_FIELDS + 1)),
        (pb.EmbedRequest, b"\x1a\x01a" * (MAX_FIELDS + 1)),
        (pb.EmbedRequest, b"\xf8\x7f\x00" * (MAX_FIELDS + 1)),
        (pb.EmbedRequest, b"\x7b\x7c" * (MAX_FIELDS // 2 + 1)),
        (oip.ModelInferRequest, b"\x22\x00" * (MAX_FIELDS + 1)),
        (tei.DecodeRequest, b"\x08\x01" * (MAX_FIELDS + 1)),
        (pb.EmbedRequest, ids(MAX_NUMBERS + 1)),
    ],
    ids=["messages", "strings", "unknown", "groups", "map", "unpacked", "packed"],
)
async def test_refuses_more_parts_than_allowed(request_class: Any, data: bytes) -> None:
    with pytest.raises(TooLarge, match="this server reads no more"):
        await decode(request_class, data)


async def test_refuses_parts_of_inner_messages() -> None:
    values = struct_pb2.ListValue(values=[struct_pb2.Value(number_value=1)] * MAX_FIELDS)
    message = pb.PositionsRequest(scheme="rope")
    message.parameters.fields["positions"].list_value.CopyFrom(values)
    with pytest.raises(TooLarge):
        await decode(pb.PositionsRequest, message.SerializeToString())


async def test_reads_long_texts_and_many_numbers() -> None:
    numbers = await decode(pb.EmbedRequest, ids(MAX_NUMBERS))
    assert len(numbers.inputs[0].ids.input_ids) == MAX_NUMBERS
    text = pb.EmbedRequest(inputs=[pb.Input(text="\x0a" * (MAX_FIELDS * 4))])
    assert await decode(pb.EmbedRequest, text.SerializeToString()) == text


@pytest.mark.parametrize("data", [b"\x0a\xff\xff\xff\x7f" + b"a" * 600_000, b"\x80" * 600_000, b"\x0f" * 600_000])
async def test_leaves_bytes_that_are_no_message_to_the_parser(data: bytes) -> None:
    check_structure(data, pb.EmbedRequest.DESCRIPTOR)
    with pytest.raises(Malformed):
        await decode(pb.EmbedRequest, data)


def test_message_nested_too_deeply_is_left_to_the_parser() -> None:
    data = b""
    for number in range(400):
        data = tagged(6 if number % 2 else 1, data)  # Value.list_value, ListValue.values
    data = tagged(3, tagged(1, tagged(2, data))) + tagged(1, b"a" * 600_000)
    check_structure(data, pb.PositionsRequest.DESCRIPTOR)


def tagged(number: int, data: bytes) -> bytes:
    """A field of bytes."""
    size, sizes = len(data), bytearray()
    while size > 127:
        sizes.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2, *sizes, size]) + data
