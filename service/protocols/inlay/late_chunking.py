"""Reads the fields of late chunking, over REST and gRPC, as Spans or Chunking; the core checks them."""

from collections.abc import Sequence, Sized
from typing import Any

import numpy as np

from proto import embed_pb2 as pb
from service.embedding.limits import check_inputs
from service.embedding.requests import Chunking, Spans, SpanUnit
from service.errors import ConflictingFields, FieldPath, MissingField, OutOfRange, UnknownValue, WrongType
from service.http.validation_errors import quoted

UNITS: dict[int, SpanUnit] = {pb.CHARACTERS: "characters", pb.TOKENS: "tokens"}
FORM = "a span is two integers, [start, stop]"


def read_spans(
    spans: Any, unit: SpanUnit, chunking: Chunking | None, *, bare: bool, max_inputs: int | None = None
) -> Spans | Chunking:
    """Return the spans or the chunking of a request.

    Args:
        spans: the spans that the body holds; None: it holds none.
        unit: the unit of the spans' numbers.
        bare: whether the request has a single input instead of a list, so that `spans` is one list of spans.
        max_inputs: the limit of spans, checked before any is read.

    Raises:
        BadRequest: these are not lists of spans, or both fields were sent, or neither.
    """
    if chunking is not None:
        if spans is not None:
            raise ConflictingFields("is sent, and so is chunking", field=("spans",), remedy="send one of them")
        return chunking
    if spans is None:
        raise MissingField("is missing", field=("spans",), allowed="span_unit says what spans count")
    if type(spans) is not list:
        raise WrongType(f"is {quoted(spans)}", field=("spans",), allowed="send a list of spans for each input")
    lists = [spans] if bare else spans
    for index, listed in enumerate(lists):
        if type(listed) is not list:
            raise WrongType(f"is {quoted(listed)}", field=("spans", index), allowed=f"send a list of spans; {FORM}")
    check_count(lists, max_inputs)
    for index, listed in enumerate(lists):
        for number, span in enumerate(listed):
            if type(span) is not list or list(map(type, span)) != [int, int]:
                path: FieldPath = ("spans", number) if bare else ("spans", index, number)
                raise WrongType(f"is {quoted(span)}", field=path, allowed=FORM)
    try:
        bounds = np.array([span for listed in lists for span in listed], np.int64).reshape(-1, 2)
    except OverflowError:
        raise OutOfRange("holds an integer beyond 64 bits", field=("spans",), allowed=FORM) from None
    return Spans(bounds, tuple(map(len, lists)), unit)


def check_count(lists: Sequence[Sized], max_inputs: int | None) -> None:
    """Raise TooManyInputs if all inputs together have more spans than the limit; None: no limit."""
    check_inputs(max(len(lists), sum(map(len, lists))), max_inputs, "spans")


def read_message(message: pb.EmbedRequest, max_inputs: int | None) -> Spans | Chunking | None:
    """Return the spans or the chunking of a message, and clear their fields; None if it has neither."""
    chunked = message.HasField("chunking")
    if not (message.spans or message.span_unit or chunked):
        return None
    if message.span_unit not in UNITS:
        allowed = f"allowed: {', '.join(pb.SpanUnit.keys())}"
        raise UnknownValue(f"is {message.span_unit}", field=("span_unit",), allowed=allowed)
    check_inputs(len(message.spans), max_inputs, "spans")  # each one read costs a microsecond
    check_count([each.spans for each in message.spans], max_inputs)
    lists = [[[span.start, span.stop] for span in each.spans] for each in message.spans]
    chunking = Chunking(message.chunking.size, message.chunking.overlap) if chunked else None
    spans = read_spans(lists or None, UNITS[message.span_unit], chunking, bare=False)
    for name in ("spans", "span_unit", "chunking"):
        message.ClearField(name)
    return spans
