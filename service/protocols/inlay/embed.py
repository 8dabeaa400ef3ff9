"""POST /embed, and the headers that say what its response took."""

from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from service.context import ServiceContext
from service.embedding.requests import EmbedRequest, EmbedResult, Ids
from service.errors import InlayError
from service.http.formats import Encode, check_json, count_values, encoder
from service.http.response import Response
from service.http.routes import Handler, Head, Request
from service.http.worker_threads import inline_or_in_thread
from service.protocols.inlay import pooled_bytes, prompt_embeds
from service.protocols.inlay.embed_body import AnswerForm, read
from service.protocols.inlay.openapi_parts import DATA
from service.request_context import RequestContext

if TYPE_CHECKING:
    from service.registry.registry import ModelRegistry

ROWS_FORMATS = ("float", "base64")
PROMPT_EMBEDS_FORMATS = (prompt_embeds.PROMPT_EMBEDS, prompt_embeds.INPUT_EMBEDS)
POOLED_BYTES_FORMATS = (pooled_bytes.BYTES, pooled_bytes.BYTES_ONLY)
DEVICES = {"cpu": b"cpu+optimized", "cuda": b"gpu+optimized"}  # TEI sends gpu+optimized on every device
UNLOADED = b"cpu"  # of a model that was unloaded meanwhile
TIMING_HEADERS = DATA.descriptions["timing headers"]
"""What a response took, as text-embeddings-inference sends it: descriptions by name, in the order of the lines."""
_LINES = b"x-compute-type: %b\r\n" + b"".join([name.encode() + b": %d\r\n" for name in list(TIMING_HEADERS)[1:]])


class EmbedHandler:
    """Answers requests for /embed."""

    def __init__(self, context: ServiceContext) -> None:
        self._registry = context.registry
        self._embedder = context.embedder
        self._lookup = context.lookup
        self._max_inputs = context.settings.max_inputs

    async def __call__(self, request: Request) -> Response:
        """Return the vectors in the accepted format."""
        return await self.answer(request, request.body, _format_of(request.head))

    async def answer(self, request: Request, body: bytes, encode: Encode) -> Response:
        """Return the answer to a body of /embed in one of FORMATS."""
        embed_request, form = await inline_or_in_thread(len(body), read, body, self._max_inputs)
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
        entries: list[tuple[EmbedRequest, RequestContext] | None] = [None] * len(requests)
        forms: dict[int, tuple[AnswerForm, Encode]] = {}
        for number, request in enumerate(requests):
            try:
                encode = request.head.memo or _format_of(request.head)
                embed_request, form = read(request.body, self._max_inputs)
            except InlayError as error:
                answers.append(error.without_frames())
                continue
            answers.append(partial(self._embed, embed_request, form, encode))
            if form.encoding in ROWS_FORMATS and embed_request.inputs and type(embed_request.inputs[0]) is Ids:
                entries[number], forms[number] = (embed_request, request.context), (form, encode)
        for number, result in enumerate(self._lookup.answer(entries) if forms else ()):
            if result is not None:
                answers[number] = self._response(requests[number], result, *forms[number])
        return answers

    def _response(
        self, request: Request, result: EmbedResult, form: AnswerForm, encode: Encode
    ) -> Response | InlayError | Handler:
        try:
            response = encode(result, form.encoding == "base64")
        except InlayError as error:
            return error.without_frames()
        response = Response(*response[:4], timing_lines(result, self._registry, request.arrived))
        return response if response.stream is None else partial(_stream, response)


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
    total = int((perf_counter() - started) * 1e3)
    tokenization, queue, inference = result.times
    model = registry.models.get(result.model)
    return _LINES % (
        UNLOADED if model is None else DEVICES.get(model.engine.device, UNLOADED),
        total,
        result.characters,
        result.tokens,
        total,
        int(tokenization * 1e3),
        int(queue * 1e3),
        int(inference * 1e3),
    )


def timing_metadata(result: EmbedResult, registry: "ModelRegistry", started: float) -> tuple[tuple[str, str], ...]:
    """Return TIMING_HEADERS as gRPC metadata."""
    values = [line.partition(": ")[2] for line in timing_lines(result, registry, started).decode().splitlines()]
    return tuple(zip(TIMING_HEADERS, values, strict=True))
