"""POST /embed."""

from collections.abc import Sequence

from service.context import ServiceContext
from service.embedding.requests import EmbedRequest, EmbedResult, Text
from service.errors import InlayError
from service.http import formats
from service.http.formats import FORMATS, JSON, Body, Encode, Headers, check_json, negotiate
from service.http.json_arrays import INLINE_VALUES, JsonPieces, count
from service.http.response import Response
from service.http.routes import Request
from service.http.worker_threads import in_thread, inline_or_in_thread
from service.protocols.inlay import pooled_bytes, prompt_embeds, timing_headers
from service.protocols.inlay.embed_body import AnswerForm, read
from service.request_context import RequestContext

PROMPT_EMBEDS_FORMATS = (prompt_embeds.PROMPT_EMBEDS, prompt_embeds.INPUT_EMBEDS)
POOLED_BYTES_FORMATS = (pooled_bytes.BYTES, pooled_bytes.BYTES_ONLY)


class EmbedHandler:
    """Answers bodies of /embed."""

    def __init__(self, context: ServiceContext) -> None:
        self._registry = context.registry
        self._embedder = context.embedder
        self._lookup = context.lookup
        self._max_inputs = context.settings.max_inputs

    async def __call__(self, request: Request) -> Response:
        """Return the vectors in the accepted format."""
        headers = request.headers
        encode = FORMATS[negotiate(headers.get(b"accept"))]
        check_json(headers.get(b"content-type"))
        return await self.answer(request, request.body, encode)

    async def answer(self, request: Request, body: bytes, encode: Encode) -> Response:
        """Return the answer to a body of /embed in one of FORMATS."""
        embed_request, form = await inline_or_in_thread(len(body), read, body, self._max_inputs)
        if form.encoding in PROMPT_EMBEDS_FORMATS:
            card = self._registry.get(embed_request.model).card
            embed_request = prompt_embeds.rows_request(card, embed_request, form.encoding, form.dtype_sent)
            request.context.copies = prompt_embeds.COPIES
        result = await self._embedder.embed(embed_request, request.context)
        if count(result) <= INLINE_VALUES:
            headers, encoded = _encoded(result, form, encode, embed_request.options.dtype)
        else:
            headers, encoded = await in_thread(_encoded, result, form, encode, embed_request.options.dtype)
        return formats.response(headers, encoded, timing_headers.lines(result, self._registry, request.arrived))

    def answer_batch(self, requests: Sequence[Request]) -> list[Response | InlayError | None]:
        """Return responses to requests for rows of plain token ids, errors of refused ones, and None for all others.

        A refused text ends here, without a task: 26 instead of 45 µs where many are refused (`make overload`).
        """
        entries: list[tuple[EmbedRequest, RequestContext] | None] = []
        forms: list[tuple[Encode, AnswerForm] | None] = []
        answers: list[Response | InlayError | None] = []
        for request in requests:
            entry = form = answer = None
            head = request.head
            try:
                encode = head.memo
                if encode is None:
                    check_json(head.headers.get(b"content-type"))
                    encode = head.memo = FORMATS[negotiate(head.headers.get(b"accept"))]
                embed_request, answer_form = read(request.body, self._max_inputs)
                if answer_form.encoding in ("float", "base64"):
                    if isinstance(next(iter(embed_request.inputs), None), Text):
                        self._embedder.check(embed_request, request.context)
                    entry, form = (embed_request, request.context), (encode, answer_form)
            except InlayError as error:
                answer = error.without_frames()
            entries.append(entry)
            forms.append(form)
            answers.append(answer)
        for number, (form, result) in enumerate(zip(forms, self._lookup.answer(entries), strict=True)):
            if result is not None and form is not None:
                answers[number] = self._response(requests[number], result, *form)
        return answers

    def _response(self, request: Request, result: EmbedResult, encode: Encode, form: AnswerForm) -> Response | None:
        try:
            headers, body = encode(result, form.encoding == "base64")
        except InlayError:
            return None
        if isinstance(body, JsonPieces):  # some milliseconds' worth: row lookups are small
            headers, body = formats.sized(JSON, [b"".join(body)])
        return formats.response(headers, body, timing_headers.lines(result, self._registry, request.arrived))


def _encoded(result: EmbedResult, form: AnswerForm, encode: Encode, dtype: str) -> tuple[Headers, Body]:
    """Return headers and body in the request's encoding_format, by default in the format of `encode`."""
    if form.encoding in PROMPT_EMBEDS_FORMATS:
        return prompt_embeds.answer(result, form.encoding, form.bare)
    if form.encoding in POOLED_BYTES_FORMATS:
        return pooled_bytes.answer(result, form.encoding, dtype)
    return encode(result, form.encoding == "base64")
