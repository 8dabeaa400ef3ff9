"""POST /embed."""

from collections.abc import Sequence
from functools import partial

from service.context import ServiceContext
from service.embedding.requests import EmbedRequest, EmbedResult
from service.errors import InlayError
from service.http.formats import Encode, check_json, count_values, encoder
from service.http.response import Response
from service.http.routes import Handler, Head, Request
from service.http.worker_threads import inline_or_in_thread
from service.protocols.inlay import pooled_bytes, prompt_embeds, timing_headers
from service.protocols.inlay.embed_body import AnswerForm, read
from service.request_context import RequestContext

ROWS_FORMATS = ("float", "base64")
PROMPT_EMBEDS_FORMATS = (prompt_embeds.PROMPT_EMBEDS, prompt_embeds.INPUT_EMBEDS)
POOLED_BYTES_FORMATS = (pooled_bytes.BYTES, pooled_bytes.BYTES_ONLY)


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
        values, dtype = count_values(result), embed_request.options.dtype
        if form.encoding in PROMPT_EMBEDS_FORMATS:
            answering = inline_or_in_thread(values, prompt_embeds.answer, result, form.encoding, form.bare)
        elif form.encoding in POOLED_BYTES_FORMATS:
            answering = inline_or_in_thread(values, pooled_bytes.answer, result, form.encoding, dtype)
        else:
            answering = inline_or_in_thread(values, encode, result, form.encoding == "base64")
        response = await answering
        return response._replace(lines=timing_headers.lines(result, self._registry, request.arrived))

    def answer_batch(self, requests: Sequence[Request]) -> list[Response | InlayError | Handler]:
        """Return for each request the rows of its plain token ids, its error, or a handler that continues with what was
        read."""
        answers: list[Response | InlayError | Handler] = []
        entries: list[tuple[EmbedRequest, RequestContext] | None] = [None] * len(requests)
        forms: dict[int, tuple[AnswerForm, Encode]] = {}
        for number, request in enumerate(requests):
            try:
                encode = _format_of(request.head)
                embed_request, form = read(request.body, self._max_inputs)
            except InlayError as error:
                answers.append(error.without_frames())
                continue
            answers.append(partial(self._embed, embed_request, form, encode))
            if form.encoding in ROWS_FORMATS:
                entries[number], forms[number] = (embed_request, request.context), (form, encode)
        for number, result in enumerate(self._lookup.answer(entries)):
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
        response = response._replace(lines=timing_headers.lines(result, self._registry, request.arrived))
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
