"""Reads the JSON body of POST /embed, a superset of text-embeddings-inference's, as an EmbedRequest.

An unknown field is an error, because it is a typing mistake.
"""

from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, get_args

import orjson
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from service.embedding.requests import Chunking, EmbedOptions, EmbedRequest, Spans
from service.embedding.tokenize.prompts import SPELLINGS as SPELLINGS_OF_USES
from service.http.validation_errors import CACHED_BYTES, json_bytes, parse_json, validated
from service.protocols.inlay.inputs import INPUT_TYPE_ABOUT, INPUT_TYPES, decode
from service.protocols.inlay.late_chunking import read_spans
from service.protocols.inlay.openapi_parts import DATA

POOLING_NAMES = Literal["cls", "mean", "max", "lasttoken", "mean_sqrt_len_tokens", "weightedmean", "last-token"]
OPTIONS = ("truncate", "normalize", "dimensions", "dtype", "prompt_name", "task", "max_active_dims")
"""Fields that are options of the core by the same names and values."""
LATE_CHUNKING = ("spans", "span_unit", "chunking")
SPELLINGS = {"last-token": "lasttoken"}  # text-embeddings-inference's name


class ChunkingBody(BaseModel):
    """Splits each text into chunks of so many tokens."""

    model_config = ConfigDict(extra="forbid", strict=True)

    size: int = Field(ge=1, lt=2**31, description="an integer from 1: tokens of a chunk")
    overlap: int = Field(
        0, ge=0, lt=2**31, description="an integer below size: tokens that a chunk shares with the next"
    )


class EmbedBody(BaseModel):
    """What to embed, and the form of the response."""

    model_config = ConfigDict(extra="forbid", strict=True)

    inputs: Annotated[Any, WithJsonSchema(DATA.parts["inputs"])]
    model: str | None = Field(None, description="a model's name; left out: the server's default")
    outputs: Annotated[list[str], Field(min_length=1, fail_fast=True)] | str | None = Field(
        None, description="one name or a list of names from the model's outputs; left out: a bare list of vectors"
    )
    truncate: bool | None = Field(None, description="true cuts inputs that are too long, false refuses them")
    truncation_direction: Literal["Right", "right", "Left", "left"] = Field(
        "Right", description="Right keeps the beginning, Left the end"
    )
    normalize: bool | None = Field(None, description="true scales pooled vectors to unit length, false does not")
    dimensions: int | None = Field(None, gt=0, description="an integer from 1: leading values kept, then normalised")
    pooling: POOLING_NAMES | None = Field(None, description=f"one of {', '.join(get_args(POOLING_NAMES))}")
    dtype: Literal["float32", "float16", "bfloat16", "int8", "uint8", "binary", "ubinary"] = Field(
        "float32",
        description="float32, float16 or bfloat16; of sentence vectors also int8 or uint8 (of a model that was "
        "calibrated), binary or ubinary (signs, eight to a byte)",
    )
    prompt_name: str | None = Field(None, description="the name of one of the model's prompts")
    task: str | None = Field(None, description="one of the model's tasks, whose adapters and prompt are used")
    max_active_dims: int | None = Field(
        None, gt=0, description="an integer from 1: the largest values kept of a sparse vector"
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
    input_type: INPUT_TYPES | None = Field(None, description=INPUT_TYPE_ABOUT)
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


def read(body: bytes, max_inputs: int | None = None) -> tuple[EmbedRequest, AnswerForm]:
    """Return the request and the form of its response.

    Raises:
        BadRequest: the body cannot be served.
    """
    data = parse_json(body)
    if type(data) is not dict or "inputs" not in data:
        validated(EmbedBody, data)
    inputs = data.pop("inputs")
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
    outputs, pooling = fields.outputs, fields.pooling
    options = EmbedOptions(
        outputs=() if outputs is None else (outputs,) if isinstance(outputs, str) else tuple(outputs),
        truncation_direction="left" if fields.truncation_direction in ("Left", "left") else "right",
        pooling=SPELLINGS.get(pooling, pooling) if pooling else None,
        input_type=SPELLINGS_OF_USES[fields.input_type] if fields.input_type else None,
        **{name: getattr(fields, name) for name in OPTIONS},
    )
    return fields.model, options, AnswerForm(fields.encoding_format, "dtype" in fields.model_fields_set, bare)
