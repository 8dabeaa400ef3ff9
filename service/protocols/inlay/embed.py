"""POST /embed, a superset of text-embeddings-inference's, and the headers that say what its response took.

An unknown field of the body is an error, because it is a typing mistake.
"""

from collections.abc import Sequence
from functools import lru_cache, partial
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import orjson
from pydantic import BaseModel, Field, WithJsonSchema

from service.context import ServiceContext
from service.embedding.requests import Chunking, EmbedOptions, EmbedRequest, EmbedResult, Ids, Spans
from service.errors import InlayError, UnsupportedMedia
from service.http.formats import Encode, check_json, count_values, encoder
from service.http.response import Response
from service.http.routes import Handler, Head, Request
from service.http.validation_errors import CACHED_BYTES, json_bytes, parse_json, validated, without_ignored
from service.http.worker_threads import in_thread, inline_or_in_thread
from service.protocols.inlay import DATA, pooled_bytes, prompt_embeds
from service.protocols.inlay.forms import is_form, read_form
from service.protocols.inlay.inputs import decode
from service.protocols.inlay.late_chunking import read_spans
from service.protocols.inlay.options import OptionFields
from service.request_context import RequestContext

if TYPE_CHECKING:
    from service.registry.registry import ModelRegistry

LATE_CHUNKING = ("spans", "span_unit", "chunking")
ROWS_FORMATS = ("float", "base64")
PROMPT_EMBEDS_FORMATS = (prompt_embeds.PROMPT_EMBEDS, prompt_embeds.INPUT_EMBEDS)
DEVICES = {"cpu": b"cpu+optimized", "cuda": b"gpu+optimized"}  # TEI sends gpu+optimized on every device
UNLOADED = b"cpu"  # of a model that was unloaded meanwhile
TIMING_HEADERS = DATA.parts["timing headers"]
"""What a response took, as text-embeddings-inference sends it: descriptions by name, in the order of the lines."""
_LINES = b"x-compute-type: %b\r\n" + b"".join([name.encode() + b": %d\r\n" for name in list(TIMING_HEADERS)[1:]])


class ChunkingBody(BaseModel, extra="forbid", strict=True):
    """Splits each text into chunks of so many tokens."""

    size: int = Field(ge=1, lt=2**31, description="an integer from 1: tokens of a chunk")
    overlap: int = Field(
        0, ge=0, lt=2**31, description="an integer below size: tokens that a chunk shares with the next"
    )


class InputFields(BaseModel):
    """The inputs of a body, their model and its outputs."""

    inputs: Annotated[Any, WithJsonSchema(DATA.parts["inputs"])]
    model: str | None = Field(None, description="a model's name; left out: the server's default")
    outputs: Annotated[list[str], Field(min_length=1, fail_fast=True)] | str | None = Field(
        None, description="one name or a list of names from the model's outputs; left out: a bare list of vectors"
    )


class EmbedBody(OptionFields, InputFields, extra="forbid"):
    """What to embed, and the form of the response."""

    dtype: Literal["float32", "float16", "bfloat16", "int8", "uint8", "binary", "ubinary"] = Field(
        "float32",
        description="float32, float16 or bfloat16; of sentence vectors also int8 or uint8 (of a model that was "
        "calibrated), binary or ubinary (signs, eight to a byte)",
    )
    spans: Annotated[Any, WithJsonSchema(DATA.parts["spans"])] = Field(
        None, description="a vector of each span [start, stop] instead of one of the whole text, which is encoded whole"
    )
    span_unit: Literal["characters", "tokens"] = Field(
        "characters",
        description="characters: code points of the text; tokens: of the text itself, or all that were sent",
    )
    chunking: Annotated[Any, WithJsonSchema(ChunkingBody.model_json_schema())] = Field(
        None, description="an object of size and overlap: spans of so many tokens"
    )
    encoding_format: Literal["float", "base64", "prompt_embeds", "input_embeds", "bytes", "bytes_only"] = Field(
        "float",
        description="float or base64 (vectors in JSON responses; little-endian, in `dtype`); whatever Accept says: "
        "prompt_embeds (base64 of torch-save files, for vLLM) or input_embeds (for sglang), rows before positions "
        "in the model's dtype unless `dtype` is sent; bytes (vLLM's pooled bytes, header `metadata`) or bytes_only",
    )


class AnswerForm(NamedTuple):
    """The form of the response.

    Args:
        encoding: the encoding_format.
        dtype_sent: whether the body has a dtype.
        bare: whether `inputs` is a single input instead of a list.
    """

    encoding: str = "float"
    dtype_sent: bool = False
    bare: bool = False


def read(body: bytes, max_inputs: int | None = None, ignores_fields: bool = False) -> tuple[EmbedRequest, AnswerForm]:
    """Return the request and the form of its response.

    Args:
        ignores_fields: unknown fields are ignored, as text-embeddings-inference does.

    Raises:
        BadRequest: the body cannot be served.
    """
    data = parse_json(body)
    if type(data) is not dict or "inputs" not in data:
        validated(EmbedBody, data)
    if ignores_fields:
        data = without_ignored(EmbedBody, data)
    inputs = data.pop("inputs")
    late_chunking: dict[str, Any] = {}
    if not data.keys().isdisjoint(LATE_CHUNKING):
        late_chunking = {name: data.pop(name) for name in LATE_CHUNKING if name in data}
    rest = json_bytes(data)
    bare = type(inputs) is not list or (len(inputs) > 0 and type(inputs[0]) is int)
    known = _known_options if len(rest) <= CACHED_BYTES else _known_options.__wrapped__
    model, options, form = known(rest, bare)
    decoded = decode(inputs, max_inputs)
    spans = _spans(late_chunking, bare, max_inputs) if late_chunking else None
    return EmbedRequest(decoded, model, options, spans), form


def _spans(sent: dict[str, Any], bare: bool, max_inputs: int | None) -> Spans | Chunking | None:
    """Return the spans of a request, None if the fields are null; not cached, since few requests have the same."""
    sent = {name: value for name, value in sent.items() if value is not None}
    if not sent:
        return None
    fields = validated(EmbedBody, {"inputs": None} | sent)
    chunking = None
    if fields.chunking is not None:
        chunked = validated(ChunkingBody, fields.chunking, ("chunking",))
        chunking = Chunking(chunked.size, chunked.overlap)
    return read_spans(sent.get("spans"), fields.span_unit, chunking, bare=bare, max_inputs=max_inputs)


@lru_cache(maxsize=256)
def _known_options(rest: bytes, bare: bool) -> tuple[str | None, EmbedOptions, AnswerForm]:
    """Return the model, the options and the form of the response; cached, because callers repeat their options."""
    fields = validated(EmbedBody, {"inputs": None} | orjson.loads(rest))
    outputs = (fields.outputs,) if isinstance(fields.outputs, str) else tuple(fields.outputs or ())
    options = fields.options(outputs, fields.dtype)
    return fields.model, options, AnswerForm(fields.encoding_format, "dtype" in fields.model_fields_set, bare)


class EmbedHandler:
    """Answers requests for /embed, or for routes of others, which ignore unknown fields."""

    def __init__(self, context: ServiceContext, *, ignores_fields: bool = False) -> None:
        self._ignores_fields = ignores_fields
        self._registry = context.registry
        self._embedder = context.embedder
        self._lookup = context.lookup
        self._max_inputs = context.settings.max_inputs

    async def __call__(self, request: Request) -> Response:
        """Return the vectors in the accepted format."""
        return await self.answer(request, request.body, _format_of(request.head))

    async def _of_form(self, request: Request) -> Response:
        """Return the answer to a form."""
        headers = request.head.headers
        encode = encoder(headers.get(b"accept"))
        form = await in_thread(read_form, headers[b"content-type"], request.body, self._max_inputs)
        rest = json_bytes({"inputs": []} | form.fields)
        embed_request, answer_form = read(rest, self._max_inputs, self._ignores_fields)
        return await self._embed(embed_request._replace(inputs=form.inputs), answer_form, encode, request)

    async def answer(self, request: Request, body: bytes, encode: Encode) -> Response:
        """Return the answer to a body of /embed in one of FORMATS."""
        embed_request, form = await inline_or_in_thread(len(body), read, body, self._max_inputs, self._ignores_fields)
        return await self._embed(embed_request, form, encode, request)

    async def _embed(self, embed_request: EmbedRequest, form: AnswerForm, encode: Encode, request: Request) -> Response:
        if form.encoding in PROMPT_EMBEDS_FORMATS:
            card = self._registry.get(embed_request.model).card
            embed_request = prompt_embeds.rows_request(card, embed_request, form.encoding, form.dtype_sent)
            request.context.copies = prompt_embeds.COPIES
        result = await self._embedder.embed(embed_request, request.context)
        if form.encoding in ROWS_FORMATS:
            response = encode(result, form.encoding == "base64")
        elif form.encoding in PROMPT_EMBEDS_FORMATS:
            arguments = result, form.encoding, form.bare
            response = await inline_or_in_thread(count_values(result), prompt_embeds.answer, *arguments)
        else:
            described = result, form.encoding, embed_request.options.dtype
            response = await inline_or_in_thread(count_values(result), pooled_bytes.answer, *described)
        return Response(*response[:4], timing_lines(result, self._registry, request.arrived))

    def answer_batch(self, requests: Sequence[Request]) -> list[Response | InlayError | Handler]:
        """Return for each request the rows of its plain token ids, its error, or a handler that continues with what was
        read."""
        answers: list[Response | InlayError | Handler] = []
        to_look_up: list[tuple[EmbedRequest, RequestContext]] = []
        looked_up: list[tuple[int, AnswerForm, Encode]] = []
        for request in requests:
            try:
                encode = request.head.memo or _format_of(request.head)
                embed_request, form = read(request.body, self._max_inputs)
            except InlayError as error:
                of_form = isinstance(error, UnsupportedMedia) and is_form(request.head.headers.get(b"content-type"))
                answers.append(self._of_form if of_form else error.without_frames())
                continue
            if form.encoding in ROWS_FORMATS and embed_request.inputs and type(embed_request.inputs[0]) is Ids:
                looked_up.append((len(answers), form, encode))
                to_look_up.append((embed_request, request.context))
                answers.append(self)  # until it is looked up
            else:
                answers.append(partial(self._embed, embed_request, form, encode))
        results = self._lookup.answer(to_look_up) if to_look_up else ()
        for (number, form, encode), (embed_request, _), result in zip(looked_up, to_look_up, results, strict=True):
            if result is None:
                answers[number] = partial(self._embed, embed_request, form, encode)
            else:
                answers[number] = self._response(requests[number], result, form, encode)
        return answers

    def _response(
        self, request: Request, result: EmbedResult, form: AnswerForm, encode: Encode
    ) -> Response | InlayError | Handler:
        try:
            body, headers, status, stream, _ = encode(result, form.encoding == "base64")
        except InlayError as error:
            return error.without_frames()
        response = Response(body, headers, status, stream, timing_lines(result, self._registry, request.arrived))
        return response if stream is None else partial(_stream, response)


def _format_of(head: Head) -> Encode:
    """Return the function that encodes in the format that a head accepts, and remember it with the head.

    Raises:
        NotAcceptable: the head accepts none of FORMATS.
        UnsupportedMedia: the body is not declared to be JSON.
    """
    if head.memo is None:
        encode = encoder(head.headers.get(b"accept"))
        check_json(head.headers.get(b"content-type"))
        head.memo = encode
    known: Encode = head.memo
    return known


async def _stream(response: Response, request: Request) -> Response:
    """Return a response that is made while it is sent, for which a request needs a task."""
    return response


def timing_lines(result: EmbedResult, registry: "ModelRegistry", started: float) -> bytes:
    """Return TIMING_HEADERS as lines for `Response.lines`.

    Args:
        started: when the request arrived, on `time.perf_counter`.
    """
    total = (perf_counter() - started) * 1e3
    tokenization, queue, inference = result.times
    model = registry.models.get(result.model)
    device = UNLOADED if model is None else DEVICES.get(model.engine.device, UNLOADED)
    counted = result.characters, result.tokens
    return _LINES % (device, total, *counted, total, tokenization * 1e3, queue * 1e3, inference * 1e3)


def timing_metadata(result: EmbedResult, registry: "ModelRegistry", started: float) -> tuple[tuple[str, str], ...]:
    """Return TIMING_HEADERS as gRPC metadata."""
    values = [line.partition(": ")[2] for line in timing_lines(result, registry, started).decode().splitlines()]
    return tuple(zip(TIMING_HEADERS, values, strict=True))
