"""The fields of a JSON request that ask for late chunking, as Spans or Chunking; the core checks them."""

from collections.abc import Sequence, Sized
from typing import Any

import numpy as np

from service.embedding.requests import Chunking, Spans, SpanUnit
from service.errors import ConflictingFields, FieldPath, MissingField, OutOfRange, TooManyInputs, WrongType
from service.http.validation_errors import quoted

FORM = "a span is two integers, [start, stop]"


def read_spans(
    spans: Any, unit: SpanUnit, chunking: Chunking | None, *, bare: bool, max_inputs: int | None = None
) -> Spans | Chunking:
    """Return what a request asks for.

    Args:
        spans: as the body has them; None: it has none.
        unit: that they count.
        bare: whether the request has a single input and no list, so that `spans` is one list of spans.
        max_inputs: the limit of spans, checked before any is read.

    Raises:
        BadRequest: they are not lists of spans, or both were sent, or neither.
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
    for index, own in enumerate(lists):
        if type(own) is not list:
            raise WrongType(f"is {quoted(own)}", field=("spans", index), allowed=f"send a list of spans; {FORM}")
    check_count(lists, max_inputs)
    for index, own in enumerate(lists):
        for number, span in enumerate(own):
            if not _is_span(span):
                path: FieldPath = ("spans", number) if bare else ("spans", index, number)
                raise WrongType(f"is {quoted(span)}", field=path, allowed=FORM)
    try:
        bounds = np.array([span for own in lists for span in own], np.int64).reshape(-1, 2)
    except OverflowError:
        raise OutOfRange("holds an integer beyond 64 bits", field=("spans",), allowed=FORM) from None
    return Spans(bounds, tuple(map(len, lists)), unit)


def _is_span(value: Any) -> bool:
    return type(value) is list and len(value) == 2 and type(value[0]) is type(value[1]) is int


def check_count(lists: Sequence[Sized], max_inputs: int | None) -> None:
    """Raise TooManyInputs for more spans of all inputs together than the limit; None: there is none."""
    if max_inputs is not None and (count := max(len(lists), sum(map(len, lists)))) > max_inputs:
        raise too_many_spans(count, max_inputs)


def too_many_spans(count: int, most: int) -> TooManyInputs:
    """Return the error for a request of more spans, or lists of spans, than this server takes."""
    return TooManyInputs(f"{count} spans", allowed=f"this server takes {most} a request", remedy="send fewer")
