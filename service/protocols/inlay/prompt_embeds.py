"""Responses that another server takes as its input: prompt_embeds for vLLM, input_embeds for sglang.

Both hold the rows that the model's own `embed_input_ids` gives there: without positions, segments or norms, and scaled
only where no later step scales (card.prompt_embeds_output). Over gRPC they are the same rows.

Source: vLLM 0.33, renderers/embed_utils.py; sglang, managers/io_struct.py, which takes [[float]] for one input.
"""

from typing import Any, NamedTuple

from models.artifacts.card import Card
from service.embedding.requests import DTYPES, EmbedRequest, EmbedResult
from service.embedding.tokenize.packing import split
from service.errors import BadRequest, ConflictingFields
from service.http.formats import array_response, count_values
from service.http.json_arrays import base64_text
from service.http.response import Response
from service.protocols.inlay.torch_file import torch_file

PROMPT_EMBEDS = "prompt_embeds"
INPUT_EMBEDS = "input_embeds"
COPIES = 2  # of the rows: each input's file holds its own
_DECIDED = ("outputs", "pooling", "dimensions", "normalize")


class PromptEmbeds(NamedTuple):
    """A torch-save file for each input, of the rows of `result`."""

    result: EmbedResult
    files: tuple[memoryview, ...]


def rows_request(card: Card, request: EmbedRequest, encoding: str, dtype_sent: bool) -> EmbedRequest:
    """Return the request for the rows that the other server takes, in the model's dtype unless one was sent.

    Raises:
        BadRequest: the model has no such rows, or the request asks for others.
    """
    if sent := next((name for name in _DECIDED if getattr(request.options, name)), None):
        allowed = f"{encoding} decides which rows those are"
        raise ConflictingFields("is sent", field=(sent,), allowed=allowed, remedy=f"leave out {sent}")
    if card.prompt_embeds_output is None:
        raise BadRequest(f"{card.name} has no rows for {encoding}", remedy=_why_none(card))
    dtype = request.options.dtype if dtype_sent else card.dtype if card.dtype in DTYPES else "float32"
    return request._replace(options=request.options._replace(outputs=(card.prompt_embeds_output,), dtype=dtype))


def _why_none(card: Card) -> str:
    if card.recipe:
        return "it was exported before cards said which they are; export it again"
    kind = "a static table of words" if card.static else "a graph that was adopted whole, or reads no text"
    return f"it is {kind}; export a transformer's checkpoint for them"


def prompt_embeds(result: EmbedResult) -> PromptEmbeds:
    """Return the file of each input."""
    output = result.outputs[0]
    return PromptEmbeds(result, tuple([torch_file(rows) for rows in split(output.rows, output.lengths)]))


def answer(result: EmbedResult, encoding: str, bare: bool) -> Response:
    """Return the JSON document of `encoding`; `bare`: the request held a single input and no list."""
    if encoding == PROMPT_EMBEDS:
        value: Any = [base64_text(file) for file in prompt_embeds(result).files]
    else:
        value = _rows(result)
        value = value[0] if bare else value
    document = {"model": result.model, encoding: value, "usage": {"tokens": result.tokens}}
    if result.truncated:
        document["truncated"] = result.truncated
    return array_response(document, count_values(result))


def _rows(result: EmbedResult) -> list[Any]:
    output = result.outputs[0]
    return list(split(output.rows, output.lengths))
