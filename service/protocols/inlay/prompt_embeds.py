"""Answers that another inference server takes as input: prompt_embeds for vLLM, input_embeds for sglang.

Both hold the rows that the model's own `embed_input_ids` gives there: without positions, segments or norms, and scaled
only where no later step scales (card.prompt_embeds_output). Over gRPC they are the same rows.

Source: vLLM 0.33, renderers/embed_utils.py; sglang, managers/io_struct.py, which takes [[float]] for one input; torch
2.13, serialization._save, and _weights_only_unpickler for what weights_only accepts.
"""

import io
import zipfile
from functools import lru_cache
from typing import Any, NamedTuple

from numpy.typing import NDArray

from models.artifacts.card import Card
from service.embedding.requests import DTYPES, EmbedRequest, EmbedResult
from service.embedding.tokenize.packing import split
from service.errors import BadRequest, ConflictingFields
from service.http.formats import array_response, buffer, count_values
from service.http.json_arrays import base64_text
from service.http.response import Response

PROMPT_EMBEDS = "prompt_embeds"
INPUT_EMBEDS = "input_embeds"
COPIES = 2  # of the rows: each input's file holds its own
_DECIDED = ("outputs", "pooling", "dimensions", "normalize")
STORAGES = {"float32": b"FloatStorage", "float16": b"HalfStorage", "bfloat16": b"BFloat16Storage"}
ALIGNMENT = 64  # of the values, so that torch.load(mmap=True) can map them
VALUES = "archive/data/0"
LOCAL_HEADER_BYTES = 30  # before the name (APPNOTE 4.3.7)


class PromptEmbeds(NamedTuple):
    """The rows of `result`, with one torch-save file for each input."""

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


# ---- the file that torch.save writes


def torch_file(rows: NDArray[Any]) -> memoryview:
    """Return the file that `torch.save` writes of a tensor, made without torch.

    It is a zip of stored entries: a pickle that describes the tensor, its byte order, its values, the layout's version.

    Args:
        rows: [n, width] of float32, float16 or bfloat16, C-contiguous.
    """
    dtype = rows.dtype.name
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo("archive/data.pkl"), _pickled(STORAGES[dtype], *rows.shape))
        archive.writestr(zipfile.ZipInfo("archive/byteorder"), b"little")
        values = zipfile.ZipInfo(VALUES)
        values.extra = _padding(file.tell())
        archive.writestr(values, buffer(rows))
        archive.writestr(zipfile.ZipInfo("archive/version"), b"3\n")
    return file.getbuffer()


@lru_cache(maxsize=1024)
def _pickled(storage: bytes, rows: int, width: int) -> bytes:
    """Return torch._utils._rebuild_tensor_v2(storage, offset, shape, stride, requires_grad, hooks), as pickle 2.

    The storage is a persistent id: ("storage", its class, its entry in the zip, the device, its elements).
    """
    return b"".join(
        [
            b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(",
            b"(" + _text(b"storage") + b"ctorch\n" + storage + b"\n" + _text(b"0") + _text(b"cpu"),
            _integer(rows * width) + b"tQ",
            _integer(0),
            _integer(rows) + _integer(width) + b"\x86",
            _integer(width) + _integer(1) + b"\x86",
            b"\x89",  # False
            b"ccollections\nOrderedDict\n)R",
            b"tR.",
        ]
    )


def _text(value: bytes) -> bytes:
    return b"X" + len(value).to_bytes(4, "little") + value


def _integer(value: int) -> bytes:
    return b"J" + value.to_bytes(4, "little") if value < 1 << 31 else b"\x8a\x08" + value.to_bytes(8, "little")


def _padding(start: int) -> bytes:
    """Return an extra field that aligns the values after a local header at `start`."""
    size = -(start + LOCAL_HEADER_BYTES + len(VALUES) + 4) % ALIGNMENT
    return b"FB" + size.to_bytes(2, "little") + b"Z" * size
