"""The JSON bodies of /v1/embeddings and /pooling → EmbedRequest. The models validate them and describe them in OpenAPI.

OpenAI's members, vLLM's and infinity's. A member nobody knows is refused: it is a typing error.
source  openai-python 3.52; vLLM 0.33: entrypoints/pooling/base/protocol.py; infinity-client 0.0.78
"""

from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, WithJsonSchema

from service.embedding.requests import (
    EmbedRequest,
    Ids,
    Input,
    Text,
)
from service.errors import BadInput, BadRequest, Malformed
from service.protocols.inlay.embed_body import (
    CACHED_BYTES,
    IDS,
    TEXT,
    explain,
    packed,
)
from service.protocols.inlay.inputs import show

FORMS = "a text, a list of token ids, or a list of either"
INPUT = {"anyOf": [TEXT, IDS, {"type": "array", "items": {"anyOf": [TEXT, IDS]}}], "description": FORMS}
UNNAMED = "default/not-specified"  # what infinity-client calls a model that was not named
JUST_INT = {int}

EXAMPLES: dict[str, dict[str, Any]] = {
    "text": {"input": "hello world", "model": "all-MiniLM-L6-v2"},
    "texts": {"input": ["hello world", "how are you"], "encoding_format": "base64"},
    "token_ids": {"input": [[101, 7592, 102], [101, 2088, 102]], "dimensions": 128},
    "bytes": {"input": ["hello world"], "encoding_format": "bytes", "embed_dtype": "float16"},
}


class EmbeddingsBody(BaseModel):
    """What to embed, and how the answer is wanted: OpenAI's members, vLLM's and infinity's."""

    model_config = ConfigDict(extra="forbid", strict=True)

    input: Annotated[Any, WithJsonSchema(INPUT)]
    model: Annotated[str | None, Field(description="a model's name; left out: the server's default")] = None
    encoding_format: Annotated[
        Literal["float", "base64", "bytes", "bytes_only"],
        Field(description="float, base64, or the vectors' bytes with (bytes) or without (bytes_only) metadata"),
    ] = "float"
    dimensions: Annotated[
        int | None, Field(ge=0, description="an integer from 1: leading values kept, then normalised")
    ] = None
    user: Annotated[str | None, Field(description="a text; not used")] = None
    embed_dtype: Annotated[
        Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"],
        Field(description="of base64 and bytes: float32, float16, bfloat16, fp8_e4m3 or fp8_e5m2"),
    ] = "float32"
    endianness: Annotated[
        Literal["native", "little", "big"], Field(description="of base64 and bytes: native (here: little), little, big")
    ] = "native"
    truncate_prompt_tokens: Annotated[
        int | None,
        Field(ge=-1, description="-1 cuts to what the model reads, an integer from 1 to so many tokens"),
    ] = None
    truncation_side: Annotated[
        Literal["left", "right"] | None, Field(description="right keeps the beginning, left the end")
    ] = None
    normalize: Annotated[bool | None, Field(description="true scales vectors to unit length, false does not")] = None
    use_activation: Annotated[bool | None, Field(description="as normalize: vLLM's newer name for it")] = None
    add_special_tokens: Annotated[bool, Field(description="false: a text's bare pieces")] = True
    priority: Annotated[Literal[0], Field(description="0: requests are answered as they come")] = 0
    padding: Annotated[Literal["do_not_pad"] | None, Field(description="do_not_pad: nothing is padded here")] = None
    cache_salt: Annotated[str | None, Field(description="a text; not used, for no prompt is remembered")] = None
    request_id: Annotated[str | None, Field(description="a text: becomes part of the answer's id")] = None
    modality: Annotated[
        Literal["text"] | None,
        Field(description="text; images go to /models/{name}/images. Where it is sent, 0 dimensions are all"),
    ] = None


class PoolingBody(EmbeddingsBody):
    """The same, and which rows are wanted."""

    task: Annotated[
        Literal["embed", "token_embed"] | None,
        Field(description="embed: a vector an input; token_embed: last_hidden_state, a vector a token, of unit length"),
    ] = None
    output: Annotated[
        str | None, Field(description="the name of one of the model's outputs, as it is; left out: as task says")
    ] = None


class Wanted(NamedTuple):
    """What the encoder is not told: how the answer is wanted, and with whose tokens."""

    encoding: str
    embed_dtype: str
    endianness: str
    task: str | None
    longest: int | None


class Reader:
    """Reads one path's bodies."""

    def __init__(self, kind: type[EmbeddingsBody]) -> None:
        self._kind = kind
        self._adapter = TypeAdapter(kind)
        self._fresh = self._read_options
        self._options = lru_cache(maxsize=256)(self._read_options)  # callers repeat themselves

    def __call__(self, body: bytes) -> tuple[EmbedRequest, Wanted, str | None]:
        """The request, how its answer is wanted, and the id its caller gave it.

        raises   Malformed, BadRequest or BadInput
        """
        try:
            data = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise Malformed(f"the body is not JSON: {error}") from None
        if type(data) is not dict or "input" not in data:
            self._validated(data)
        given = data.pop("input")
        user = data.pop("user", None)
        id_ = data.pop("request_id", None)
        if not (_is_text(user) and _is_text(id_)):
            self._validated({"input": given, "user": user, "request_id": id_})
        rest = packed(data)
        options, wanted = self._options(rest) if len(rest) <= CACHED_BYTES else self._fresh(rest)
        return options._replace(inputs=inputs_of(given)), wanted, id_

    def _read_options(self, rest: bytes) -> tuple[EmbedRequest, Wanted]:
        fields = self._validated({"input": None} | orjson.loads(rest))
        if (fields.dimensions == 0 and fields.modality is None) or fields.truncate_prompt_tokens == 0:
            name = "dimensions" if fields.dimensions == 0 else "truncate_prompt_tokens"
            raise BadRequest(f"{name} is 0; allowed: {type(fields).model_fields[name].description}")
        longest = fields.truncate_prompt_tokens
        task, output = getattr(fields, "task", None), getattr(fields, "output", None)
        request = EmbedRequest(
            (),
            model=None if fields.model == UNNAMED else fields.model,
            outputs=(output,) if output else (),
            truncate=None if longest is None else True,
            truncation_direction=fields.truncation_side or "right",
            normalize=fields.use_activation if fields.normalize is None else fields.normalize,
            dimensions=fields.dimensions or None,
            max_tokens=longest if longest and longest > 0 else None,
            special_tokens=fields.add_special_tokens,
        )
        return request, Wanted(fields.encoding_format, fields.embed_dtype, fields.endianness, task, request.max_tokens)

    def _validated(self, data: Any) -> EmbeddingsBody:
        try:
            return self._adapter.validate_python(data)
        except ValidationError as error:
            raise BadRequest(explain(error, self._kind)) from None


def _is_text(value: Any) -> bool:
    return value is None or type(value) is str


def inputs_of(given: Any) -> list[Input]:
    """Every input, in order.

    raises   BadInput with the index of the first that has no form of FORMS; BadRequest where none has
    """
    if type(given) is str:
        return [_one(given, "input", 0)]
    if type(given) is not list:
        raise BadRequest(f"input is {show(given)}; send {FORMS}")
    if given and type(given[0]) is int:
        return [_ids(given, "input", 0)]
    return [_one(value, f"input[{index}]", index) for index, value in enumerate(given)]


def _one(value: Any, path: str, index: int) -> Input:
    if type(value) is str:
        if not value:
            raise BadInput(f"{path} is an empty string, which OpenAI's embeddings refuse: send some text", index)
        return Text(value)
    if type(value) is list:
        return _ids(value, path, index)
    raise BadInput(f"{path} is {show(value)}; send {FORMS}", index)


def _ids(values: list[Any], path: str, index: int) -> Ids:
    if not set(map(type, values)) <= JUST_INT:  # numpy would take true for 1
        place, value = next((place, value) for place, value in enumerate(values) if type(value) is not int)
        raise BadInput(f"{path}[{place}] is {show(value)}; a list of token ids holds integers from 0", index)
    try:
        return Ids(np.array(values, np.int64))
    except OverflowError:
        raise BadInput(f"{path} holds an integer beyond 64 bits; a token id is in the vocabulary", index) from None
