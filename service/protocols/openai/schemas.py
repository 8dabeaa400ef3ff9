"""Bodies and responses of OpenAI's routes, and how a body becomes an EmbedRequest.

The fields are OpenAI's, vLLM's and infinity's, and those by which Jina, Voyage and NVIDIA NIM name types of vectors and
uses of texts; an unknown one is an error, because it is a typing mistake.

Source: Voyage's openapi (input_type, output_dtype); docs of Jina's API (embedding_type, task) and of NVIDIA NIM
(input_type query and passage); openai-python 3.52; vLLM 0.33, entrypoints/pooling/base/protocol.py; infinity-client
0.0.78.
"""

from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from service.embedding.images import Picture
from service.embedding.requests import EmbedOptions, EmbedRequest, Ids, Input, Spans, Text
from service.embedding.tokenize.prompts import SPELLINGS
from service.errors import ConflictingFields, EmptyInput, EmptyRequest, FieldPath, OutOfRange, WrongType
from service.http.validation_errors import CACHED_BYTES, json_bytes, parse_json, quoted, validated
from service.protocols.inlay import vllm_fields
from service.protocols.inlay.inputs import INPUT_TYPE_ABOUT, INPUT_TYPES
from service.protocols.inlay.openapi_parts import DATA
from service.protocols.inlay.pictures import EXAMPLE_IMAGE, decode_picture

FORMS = "a text, a list of token ids, or a list of either"
_FORMS = [DATA.parts["text"], DATA.parts["ids"]]
INPUT = {"anyOf": [*_FORMS, {"type": "array", "items": {"anyOf": _FORMS}}], "description": FORMS}
JOINED_BY = " "  # texts of late_chunking
TEXT_FIELDS = (
    *("truncate_prompt_tokens", "truncation_side", "add_special_tokens", "task"),
    *("input_type", "output_dtype", "embedding_type", "encoding_type", "truncation", "truncate", "late_chunking"),
)
ONLY_INT = {int}
JinaType = Literal["float", "base64", "int8", "uint8", "binary", "ubinary"]
Base64 = Annotated[
    str, Field(description="in embed_dtype and endianness", json_schema_extra={"contentEncoding": "base64"})
]

EXAMPLES: dict[str, dict[str, Any]] = {
    "text": {"input": "hello world", "model": "all-MiniLM-L6-v2"},
    "texts": {"input": ["hello world", "how are you"], "encoding_format": "base64"},
    "token_ids": {"input": [[101, 7592, 102], [101, 2088, 102]], "dimensions": 128},
    "query": {"input": "hello world", "input_type": "query"},
    "signs": {"input": ["hello world"], "output_dtype": "binary"},
    "image": {"input": [EXAMPLE_IMAGE], "modality": "image"},
    "late_chunking": {"input": ["Berlin is large.", "It has lakes."], "late_chunking": True},
    "bytes": {"input": ["hello world"], "encoding_format": "bytes", "embed_dtype": "float16"},
}


class EmbeddingsBody(BaseModel):
    """What to embed, and the form of the response: fields of OpenAI, vLLM and infinity."""

    model_config = ConfigDict(extra="forbid", strict=True)

    input: Annotated[Any, WithJsonSchema(INPUT)]
    model: vllm_fields.ModelName = None
    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] = Field(
        "float", description="float, base64, or the vectors' bytes with (bytes) or without (bytes_only) metadata"
    )
    dimensions: int | None = Field(None, ge=0, description="an integer from 1: leading values kept, then normalised")
    user: str | None = Field(None, description="a text; not used")
    embed_dtype: Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"] = Field(
        "float32", description="of base64 and bytes: float32, float16, bfloat16, fp8_e4m3 or fp8_e5m2"
    )
    endianness: Literal["native", "little", "big"] = Field(
        "native", description="of base64 and bytes: native (here: little), little, big"
    )
    truncate_prompt_tokens: int | None = Field(
        None, ge=-1, description="-1 cuts to what the model reads, an integer from 1 to so many tokens"
    )
    truncation_side: Literal["left", "right"] | None = Field(
        None, description="right keeps the beginning, left the end"
    )
    normalize: bool | None = Field(None, description="true scales vectors to unit length, false does not")
    use_activation: bool | None = Field(None, description="as normalize: vLLM's newer name for it")
    add_special_tokens: bool = Field(True, description="false: a text's bare pieces")
    priority: Literal[0] = Field(0, description="0: requests are answered as they come")
    padding: Literal["do_not_pad"] | None = Field(None, description="do_not_pad: nothing is padded here")
    cache_salt: str | None = Field(None, description="a text; not used: no prompt is cached")
    request_id: vllm_fields.RequestId = None
    modality: Literal["text", "image"] | None = Field(
        None, description="text, or image: data URLs as input. Where it is sent, 0 dimensions are all"
    )
    task: str | None = Field(
        None, description="one of the model's tasks, whose adapters and prompt are used (Jina's field)"
    )
    late_chunking: bool | None = Field(
        None, description="true: the texts are read as one, joined by spaces, and each gets its vector (Jina's field)"
    )
    normalized: bool | None = Field(None, description="as normalize: Jina's name for it")
    input_type: INPUT_TYPES | None = Field(None, description=INPUT_TYPE_ABOUT)
    output_dtype: Literal["float", "int8", "uint8", "binary", "ubinary"] | None = Field(
        None,
        description="float, int8 or uint8 (of a model that was calibrated), binary or ubinary (signs, eight to a "
        "byte): integers, or their bytes in base64 (Voyage's field)",
    )
    embedding_type: JinaType | None = Field(
        None, description="as output_dtype; base64 is as encoding_format (Jina's field)"
    )
    encoding_type: JinaType | None = Field(
        None, description="as embedding_type: what llama-index's client of Jina sends"
    )
    output_dimension: int | None = Field(None, ge=1, description="an integer from 1: as dimensions (Voyage's field)")
    truncation: bool | None = Field(
        None, description="true cuts to what the model reads, false refuses (Voyage's field)"
    )
    truncate: bool | Literal["NONE", "START", "END"] | None = Field(
        None,
        description="what is cut off a text that is too long: START, END, or NONE, which refuses (NIM's field); "
        "true cuts its end, false refuses (Jina's field)",
    )


class PoolingBody(EmbeddingsBody):
    """A body of /embeddings, and which rows to return."""

    task: Literal["embed", "token_embed"] | None = Field(
        None, description="embed: a vector an input; token_embed: last_hidden_state, a vector a token, of unit length"
    )
    output: str | None = Field(
        None, description="the name of one of the model's outputs, as it is; left out: as task says"
    )


class EmbeddingEntry(BaseModel):
    """The vector of one input of /embeddings."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | list[int] | Base64


class PoolingEntry(BaseModel):
    """The vector of one input of /pooling, or those of its tokens."""

    object: Literal["pooling"]
    index: int
    data: list[float] | list[int] | list[list[float]] | Base64


class _List(BaseModel):
    id: str
    object: Literal["list"]
    created: int
    model: str
    usage: vllm_fields.Usage
    truncated: list[int] | None = Field(
        None, description="numbers of the inputs that were cut, from 0; absent: none was cut"
    )


class EmbeddingList(_List):
    """The vectors, in the order of the inputs."""

    data: list[EmbeddingEntry]


class PoolingList(_List):
    """The vectors, in the order of the inputs."""

    data: list[PoolingEntry]


class OpenAIModel(BaseModel):
    """A loaded model, with vLLM's `max_model_len`."""

    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="when it was exported, in seconds since 1970")
    owned_by: Literal["inlay"] = "inlay"
    max_model_len: int | None = Field(description="longest text, in tokens")
    root: str = Field(description="what it was exported from")
    parent: None = None


class OpenAIModelList(BaseModel):
    """Every loaded model."""

    object: Literal["list"] = "list"
    data: list[OpenAIModel]


class AnswerForm(NamedTuple):
    """The form of a response.

    Args:
        encoding: `encoding_format`, or Jina's word for it.
        embed_dtype: dtype of values in base64 and bytes.
        endianness: byte order of values in base64 and bytes.
        rows: embed or token_embed, where the body of /pooling says which rows to return.
        images: whether the inputs are images.
        late_chunking: whether all texts are read as one.
    """

    encoding: str
    embed_dtype: str
    endianness: str
    rows: str | None
    images: bool
    late_chunking: bool


class Decoded(NamedTuple):
    """A body, decoded.

    Args:
        request: the request; for images it has no inputs yet.
        form: form of the response.
        caller_id: the caller's own id of the request.
        pictures: the images to embed; empty: `request` has texts or token ids.
    """

    request: EmbedRequest
    form: AnswerForm
    caller_id: str | None
    pictures: list[Picture]


class Decoder:
    """Decodes the bodies of one path; options are validated once and cached, since callers repeat them."""

    def __init__(self, model: type[EmbeddingsBody]) -> None:
        self._model = model
        self._cached_options = lru_cache(maxsize=256)(self._options)

    def __call__(self, body: bytes) -> Decoded:
        """Return the decoded body.

        Raises:
            BadRequest: the body is not JSON, or a field cannot be read.
        """
        data = parse_json(body)
        if type(data) is not dict or "input" not in data:
            validated(self._model, data)
        inputs = data.pop("input")
        user, request_id = data.pop("user", None), data.pop("request_id", None)
        if type(user) not in (str, type(None)) or type(request_id) not in (str, type(None)):
            validated(self._model, {"input": inputs, "user": user, "request_id": request_id})
        rest = json_bytes(data)
        model, options, form = self._cached_options(rest) if len(rest) <= CACHED_BYTES else self._options(rest)
        if form.images:
            return Decoded(EmbedRequest((), model, options), form, request_id, decode_pictures(inputs))
        request = EmbedRequest(decode_inputs(inputs), model, options)
        return Decoded(late_chunked(request) if form.late_chunking else request, form, request_id, [])

    def _options(self, rest: bytes) -> tuple[str | None, EmbedOptions, AnswerForm]:
        """Return the model's name, the options and the form of the response that a body's other fields set."""
        fields = validated(self._model, {"input": None} | orjson.loads(rest))
        pooling = fields if isinstance(fields, PoolingBody) else None
        _check_numbers(fields)
        form = _form(fields, pooling)
        if form.images:
            _check_image_fields(fields)
        precision, read = _precision(fields), _cut(fields)
        _check_same(fields, "dimensions", "output_dimension")
        if form.late_chunking and pooling:
            _check_late_chunking(pooling)
        scaled = (fields.normalize, fields.use_activation, fields.normalized)
        options = EmbedOptions(
            outputs=(pooling.output,) if pooling and pooling.output else (),
            truncate=bool(read.truncate) if form.late_chunking else read.truncate,
            truncation_direction=read.direction,
            normalize=next((each for each in scaled if each is not None), None),
            dimensions=fields.dimensions or fields.output_dimension or None,
            dtype=precision,
            task=None if pooling else fields.task,
            max_tokens=read.max_tokens,
            special_tokens=fields.add_special_tokens,
            input_type=SPELLINGS[fields.input_type] if fields.input_type else None,
        )
        return vllm_fields.named(fields.model), options, form


def _form(fields: EmbeddingsBody, pooling: PoolingBody | None) -> AnswerForm:
    return AnswerForm(
        "base64" if fields.embedding_type == "base64" else fields.encoding_format,
        fields.embed_dtype,
        fields.endianness,
        pooling.task if pooling else None,
        fields.modality == "image",
        bool(fields.late_chunking),
    )


def late_chunked(request: EmbedRequest) -> EmbedRequest:
    """Return the request for the vectors of texts that are read as one document.

    The first vector counts the tokens before its text too and the last those behind, as in Jina's own code (tests/
    test_api.py of jina-ai/late-chunking, which compares it with the API).

    Raises:
        ConflictingFields: an input is token ids.
    """
    texts = [item.text for item in request.inputs if isinstance(item, Text)]
    if not request.inputs:
        return request
    if len(texts) < len(request.inputs):
        raise ConflictingFields("joins texts, and token ids came", field=("late_chunking",), remedy="send texts")
    stops = np.cumsum([len(text) + len(JOINED_BY) for text in texts]) - len(JOINED_BY)
    starts = stops - [len(text) for text in texts]
    return request._replace(
        inputs=[Text(JOINED_BY.join(texts))],
        late_chunking=Spans(np.stack([starts, stops], axis=1), (len(texts),), joined=True),
    )


def _cut(fields: EmbeddingsBody) -> vllm_fields.Cut:
    """Return how texts are cut, by the fields of vLLM, Voyage or NIM."""
    sent = [name for name in ("truncate_prompt_tokens", "truncation", "truncate") if getattr(fields, name) is not None]
    if len(sent) > 1:
        raise ConflictingFields(f"is sent, and so is {sent[0]}", field=(sent[1],), remedy="send one of them")
    if isinstance(fields.truncate, str):
        return vllm_fields.Cut(fields.truncate != "NONE", "left" if fields.truncate == "START" else "right", None)
    otherwise = fields.truncation if fields.truncate is None else fields.truncate
    return vllm_fields.cut(fields.truncate_prompt_tokens, fields.truncation_side, otherwise)


def _precision(fields: EmbeddingsBody) -> str:
    """Return the dtype of the vectors; raise ConflictingFields if fields contradict each other."""
    _check_same(fields, "embedding_type", "encoding_type")
    jina: str | None = fields.embedding_type or fields.encoding_type
    voyage, jina = fields.output_dtype, None if jina == "base64" else jina
    if voyage and jina and voyage != jina:
        raise ConflictingFields(f"is {voyage}, and embedding_type {jina}", field=("output_dtype",), remedy="send one")
    precision = voyage or jina
    if precision in (None, "float"):
        return "float32"
    for name, allowed in (("encoding_format", ("float", "base64")), ("embed_dtype", ("float32",))):
        if (value := getattr(fields, name)) not in allowed:
            remedy = f"leave out {name}, or the type of the vectors"
            raise ConflictingFields(f"is {value}, which has no {precision}", field=(name,), remedy=remedy)
    return precision


def _check_numbers(fields: EmbeddingsBody) -> None:
    """Raise OutOfRange for 0 dimensions, except with infinity's `modality`, and for 0 tokens of a text."""
    for name in ("truncate_prompt_tokens",) if fields.modality else ("dimensions", "truncate_prompt_tokens"):
        if getattr(fields, name) == 0:
            raise OutOfRange("is 0", field=(name,), allowed=f"allowed: {type(fields).model_fields[name].description}")


def _check_same(fields: EmbeddingsBody, one: str, other: str) -> None:
    """Raise ConflictingFields if two fields of one meaning differ."""
    values = [value for value in (getattr(fields, one), getattr(fields, other)) if value]
    if len(set(values)) > 1:
        raise ConflictingFields(f"is {values[1]}, and {one} {values[0]}", field=(other,), remedy="send one")


def _check_late_chunking(fields: PoolingBody) -> None:
    """Raise ConflictingFields for a field that late chunking does not support."""
    for name in ("task", "output"):
        if getattr(fields, name) not in (None, "embed"):
            raise ConflictingFields("is sent, and so is late_chunking", field=(name,), remedy="send one of them")


def _check_image_fields(fields: EmbeddingsBody) -> None:
    """Raise ConflictingFields for a field that applies only to texts."""
    for name in TEXT_FIELDS:
        if name in fields.model_fields_set and getattr(fields, name) is not None:
            raise ConflictingFields("is of texts, and modality is image", field=(name,), remedy="leave it out")


def decode_pictures(value: Any) -> list[Picture]:
    """Return every image of a body, in order, as infinity's clients send them.

    Raises:
        BadInput, BadRequest: an image, or the whole value, is no data URL or base64.
    """
    if type(value) is str:
        return [decode_picture(value, ("inputs",))]
    if type(value) is not list or not all(type(item) is str for item in value):
        raise WrongType(f"is {quoted(value)}", field=("inputs",), allowed="send a data URL or a list of them")
    if not value:
        raise EmptyRequest("is empty", field=("inputs",), remedy="send one image at least")
    return [decode_picture(item, ("inputs", index)) for index, item in enumerate(value)]


def decode_inputs(value: Any) -> list[Input]:
    """Return every input of a body, in order.

    Raises:
        BadInput, BadRequest: an input, or the whole value, has none of FORMS.
    """
    if type(value) is str:
        return [_decode_input(value, ("inputs",), 0)]
    if type(value) is not list:
        raise WrongType(f"is {quoted(value)}", field=("inputs",), allowed=f"send {FORMS}")
    if value and type(value[0]) is int:
        return [_decode_ids(value, ("inputs",), 0)]
    return [_decode_input(item, ("inputs", index), index) for index, item in enumerate(value)]


def _decode_input(value: Any, field: FieldPath, index: int) -> Input:
    if type(value) is str:
        if not value:
            raise EmptyInput(
                "is an empty string, which OpenAI's embeddings refuse", index, field=field, remedy="send some text"
            )
        return Text(value)
    if type(value) is list:
        return _decode_ids(value, field, index)
    raise WrongType(f"is {quoted(value)}", index, field=field, allowed=f"send {FORMS}")


def _decode_ids(values: list[Any], field: FieldPath, index: int) -> Ids:
    if not set(map(type, values)) <= ONLY_INT:  # numpy would read true as 1
        place, value = next((place, value) for place, value in enumerate(values) if type(value) is not int)
        allowed = "a list of token ids holds integers from 0"
        raise WrongType(f"is {quoted(value)}", index, field=(*field, place), allowed=allowed)
    try:
        return Ids(np.array(values, np.int64))
    except OverflowError:
        allowed = "a token id is in the vocabulary"
        raise OutOfRange("holds an integer beyond 64 bits", index, field=field, allowed=allowed) from None
