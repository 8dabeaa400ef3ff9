"""POST /embed."""

from service.context import ServiceContext
from service.embedding.requests import EmbedResult
from service.http.formats import FORMATS, Encode, check_json, negotiate
from service.http.json_arrays import INLINE_VALUES, count
from service.http.request import Request
from service.http.response import Body, Headers, Response
from service.http.worker_threads import in_thread
from service.protocols.inlay import pooled_bytes, prompt_embeds
from service.protocols.inlay.embed_body import AnswerForm, read
from service.protocols.tei import timing_headers

HANDED_OVER = (prompt_embeds.PROMPT_EMBEDS, prompt_embeds.INPUT_EMBEDS)
POOLED_BYTES = (pooled_bytes.BYTES, pooled_bytes.BYTES_ONLY)


class EmbedHandler:
    """Answers bodies of /embed."""

    def __init__(self, context: ServiceContext) -> None:
        self._registry = context.registry
        self._embedder = context.embedder
        self._max_inputs = context.settings.max_inputs

    async def __call__(self, request: Request) -> Response:
        """Return the vectors in the accepted format."""
        headers = request.headers
        encode = FORMATS[negotiate(headers.get(b"accept"))]
        check_json(headers.get(b"content-type"))
        return await self.answer(request, request.body, encode)

    async def answer(self, request: Request, body: bytes, encode: Encode) -> Response:
        """Return the answer to a body of /embed in one of FORMATS."""
        wanted, form = read(body, self._max_inputs)
        if form.encoding in HANDED_OVER:
            card = self._registry.get(wanted.model).card
            wanted = prompt_embeds.asked(card, wanted, form.encoding, form.dtype_sent)
        result = await self._embedder.embed(wanted, request.context)
        if count(result) <= INLINE_VALUES:
            headers, encoded = _encoded(result, form, encode, wanted.dtype)
        else:
            headers, encoded = await in_thread(_encoded, result, form, encode, wanted.dtype)
        return Response(encoded, headers, 200, None, timing_headers.lines(result, self._registry, request.arrived))


def _encoded(result: EmbedResult, form: AnswerForm, encode: Encode, dtype: str) -> tuple[Headers, Body]:
    """Return headers and body in the encoding_format that was sent, else as `encode` has it."""
    if form.encoding in HANDED_OVER:
        return prompt_embeds.answer(result, form.encoding, form.bare)
    if form.encoding in POOLED_BYTES:
        return pooled_bytes.answer(result, form.encoding, dtype)
    return encode(result, form.encoding == "base64")
