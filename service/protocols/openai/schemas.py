"""Bodies of OpenAI's routes for vectors, and the options that their fields set.

The fields are OpenAI's, vLLM's and infinity's, and those by which Jina, Voyage and NVIDIA NIM name types of vectors and
uses of texts.

Source: Voyage's openapi (input_type, output_dtype); docs of Jina's API (embedding_type, task) and of NVIDIA NIM
(input_type query and passage); openai-python 3.52; vLLM 0.33, entrypoints/pooling/base/protocol.py; infinity-client
0.0.78.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, WithJsonSchema

from service.embedding.requests import EmbedOptions
from service.embedding.tokenize.prompts import SPELLINGS
from service.errors import ConflictingFields, OutOfRange
from service.protocols.inlay import DATA, vllm_fields
from service.protocols.inlay.options import INPUT_TYPE_ABOUT, INPUT_TYPES, INSTRUCTION_ABOUT

FORMS = "a text, a list of token ids, or a list of either"
_FORMS = [DATA.parts["text"], DATA.parts["ids"]]
INPUT = {"anyOf": [*_FORMS, {"type": "array", "items": {"anyOf": _FORMS}}], "description": FORMS}
TEXT_FIELDS = (
    *("truncate_prompt_tokens", "truncation_side", "add_special_tokens", "task", "instruction"),
    *("input_type", "output_dtype", "embedding_type", "encoding_type", "truncation", "truncate", "late_chunking"),
)
JinaType = Literal["float", "base64", "int8", "uint8", "binary", "ubinary"]


class EmbeddingsBody(vllm_fields.PromptBody):
    """What to embed, and the form of the response: fields of OpenAI, vLLM and infinity."""

    id_prefix: ClassVar = "embd-"
    entry: ClassVar = "embedding", "embedding"
    """The `object` of an entry of the answer, and the entry's field that holds the vector."""

    input: Annotated[Any, WithJsonSchema(INPUT)]
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
    normalize: bool | None = Field(None, description="true scales vectors to unit length, false does not")
    use_activation: bool | None = Field(None, description="as normalize: vLLM's newer name for it")
    add_special_tokens: bool = Field(True, description="false: a text's bare pieces")
    priority: vllm_fields.Priority = 0
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = Field(
        None, description="auto, default, flex, scale or priority; flex: bulk, which gives way to other requests"
    )
    padding: Literal["do_not_pad"] | None = Field(None, description="do_not_pad: nothing is padded here")
    cache_salt: str | None = Field(None, description="a text; not used: no prompt is cached")
    request_id: vllm_fields.RequestId = None
    modality: Literal["text", "image"] | None = Field(
        None, description="text, or image: data URLs as input. Where it is sent, 0 dimensions are all"
    )
    task: str | None = Field(
        None, description="one of the model's tasks, whose adapters and prompt are used (Jina's field)"
    )
    instruction: str | None = Field(None, description=INSTRUCTION_ABOUT)
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

    id_prefix: ClassVar = "pooling-"
    entry: ClassVar = "pooling", "data"

    task: Literal["embed", "token_embed"] | None = Field(
        None, description="embed: a vector an input; token_embed: last_hidden_state, a vector a token, of unit length"
    )


def options_of(fields: EmbeddingsBody) -> EmbedOptions:
    """Return the options that a body's fields set."""
    pooling = fields if isinstance(fields, PoolingBody) else None
    _check_numbers(fields)
    if fields.modality == "image":
        _check_image_fields(fields)
    precision, cut = _precision(fields), _cut(fields)
    _check_same(fields, "dimensions", "output_dimension")
    if fields.late_chunking and pooling and pooling.task == "token_embed":
        raise ConflictingFields("is sent, and so is late_chunking", field=("task",), remedy="send one of them")
    scaled = (fields.normalize, fields.use_activation, fields.normalized)
    return cut._replace(
        truncate=bool(cut.truncate) if fields.late_chunking else cut.truncate,
        normalize=next((each for each in scaled if each is not None), None),
        dimensions=fields.dimensions or fields.output_dimension or None,
        dtype=precision,
        task=None if pooling else fields.task,
        special_tokens=fields.add_special_tokens,
        instruction=fields.instruction,
        input_type=SPELLINGS[fields.input_type] if fields.input_type else None,
    )


def _cut(fields: EmbeddingsBody) -> EmbedOptions:
    """Return how texts are cut, by the fields of vLLM, Voyage or NIM."""
    sent = [name for name in ("truncate_prompt_tokens", "truncation", "truncate") if getattr(fields, name) is not None]
    if len(sent) > 1:
        raise ConflictingFields(f"is sent, and so is {sent[0]}", field=(sent[1],), remedy="send one of them")
    if isinstance(fields.truncate, str):
        return vllm_fields.cut(None, "left" if fields.truncate == "START" else "right", fields.truncate != "NONE")
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


def _check_image_fields(fields: EmbeddingsBody) -> None:
    """Raise ConflictingFields for a field that applies only to texts."""
    for name in TEXT_FIELDS:
        if name in fields.model_fields_set and getattr(fields, name) is not None:
            raise ConflictingFields("is of texts, and modality is image", field=(name,), remedy="leave it out")
