from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[DType]
    FLOAT32: _ClassVar[DType]
    FLOAT16: _ClassVar[DType]
    BFLOAT16: _ClassVar[DType]
    FLOAT64: _ClassVar[DType]
    INT64: _ClassVar[DType]
    BOOL: _ClassVar[DType]
    INT32: _ClassVar[DType]
    INT8: _ClassVar[DType]
    UINT8: _ClassVar[DType]
    BINARY: _ClassVar[DType]
    UBINARY: _ClassVar[DType]

class TruncationDirection(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RIGHT: _ClassVar[TruncationDirection]
    LEFT: _ClassVar[TruncationDirection]

class Pooling(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POOLING_UNSPECIFIED: _ClassVar[Pooling]
    CLS: _ClassVar[Pooling]
    MEAN: _ClassVar[Pooling]
    MAX: _ClassVar[Pooling]
    LAST_TOKEN: _ClassVar[Pooling]
    MEAN_SQRT_LEN: _ClassVar[Pooling]
    WEIGHTED_MEAN: _ClassVar[Pooling]

class Encoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENCODING_UNSPECIFIED: _ClassVar[Encoding]
    PROMPT_EMBEDS: _ClassVar[Encoding]
    INPUT_EMBEDS: _ClassVar[Encoding]

class SpanUnit(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHARACTERS: _ClassVar[SpanUnit]
    TOKENS: _ClassVar[SpanUnit]
DTYPE_UNSPECIFIED: DType
FLOAT32: DType
FLOAT16: DType
BFLOAT16: DType
FLOAT64: DType
INT64: DType
BOOL: DType
INT32: DType
INT8: DType
UINT8: DType
BINARY: DType
UBINARY: DType
RIGHT: TruncationDirection
LEFT: TruncationDirection
POOLING_UNSPECIFIED: Pooling
CLS: Pooling
MEAN: Pooling
MAX: Pooling
LAST_TOKEN: Pooling
MEAN_SQRT_LEN: Pooling
WEIGHTED_MEAN: Pooling
ENCODING_UNSPECIFIED: Encoding
PROMPT_EMBEDS: Encoding
INPUT_EMBEDS: Encoding
CHARACTERS: SpanUnit
TOKENS: SpanUnit

class Tensor(_message.Message):
    __slots__ = ("dtype", "shape", "data")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    dtype: DType
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, dtype: _Optional[_Union[DType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class TextPair(_message.Message):
    __slots__ = ("first", "second")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SECOND_FIELD_NUMBER: _ClassVar[int]
    first: str
    second: str
    def __init__(self, first: _Optional[str] = ..., second: _Optional[str] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "task_type_ids", "langs", "bbox")
    INPUT_IDS_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_MASK_FIELD_NUMBER: _ClassVar[int]
    TOKEN_TYPE_IDS_FIELD_NUMBER: _ClassVar[int]
    POSITION_IDS_FIELD_NUMBER: _ClassVar[int]
    TASK_TYPE_IDS_FIELD_NUMBER: _ClassVar[int]
    LANGS_FIELD_NUMBER: _ClassVar[int]
    BBOX_FIELD_NUMBER: _ClassVar[int]
    input_ids: _containers.RepeatedScalarFieldContainer[int]
    attention_mask: _containers.RepeatedScalarFieldContainer[int]
    token_type_ids: _containers.RepeatedScalarFieldContainer[int]
    position_ids: _containers.RepeatedScalarFieldContainer[int]
    task_type_ids: _containers.RepeatedScalarFieldContainer[int]
    langs: _containers.RepeatedScalarFieldContainer[int]
    bbox: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, input_ids: _Optional[_Iterable[int]] = ..., attention_mask: _Optional[_Iterable[int]] = ..., token_type_ids: _Optional[_Iterable[int]] = ..., position_ids: _Optional[_Iterable[int]] = ..., task_type_ids: _Optional[_Iterable[int]] = ..., langs: _Optional[_Iterable[int]] = ..., bbox: _Optional[_Iterable[int]] = ...) -> None: ...

class Input(_message.Message):
    __slots__ = ("text", "pair", "ids")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PAIR_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    text: str
    pair: TextPair
    ids: TokenIds
    def __init__(self, text: _Optional[str] = ..., pair: _Optional[_Union[TextPair, _Mapping]] = ..., ids: _Optional[_Union[TokenIds, _Mapping]] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("start", "stop")
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    start: int
    stop: int
    def __init__(self, start: _Optional[int] = ..., stop: _Optional[int] = ...) -> None: ...

class InputSpans(_message.Message):
    __slots__ = ("spans",)
    SPANS_FIELD_NUMBER: _ClassVar[int]
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    def __init__(self, spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ...) -> None: ...

class Chunking(_message.Message):
    __slots__ = ("size", "overlap")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    size: int
    overlap: int
    def __init__(self, size: _Optional[int] = ..., overlap: _Optional[int] = ...) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ("inputs", "model", "outputs", "truncate", "truncation_direction", "normalize", "dimensions", "pooling", "dtype", "prompt_name", "encoding", "task", "input_type", "max_active_dims", "spans", "span_unit", "chunking", "instruction")
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_DIRECTION_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    INPUT_TYPE_FIELD_NUMBER: _ClassVar[int]
    MAX_ACTIVE_DIMS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    SPAN_UNIT_FIELD_NUMBER: _ClassVar[int]
    CHUNKING_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    inputs: _containers.RepeatedCompositeFieldContainer[Input]
    model: str
    outputs: _containers.RepeatedScalarFieldContainer[str]
    truncate: bool
    truncation_direction: TruncationDirection
    normalize: bool
    dimensions: int
    pooling: Pooling
    dtype: DType
    prompt_name: str
    encoding: Encoding
    task: str
    input_type: str
    max_active_dims: int
    spans: _containers.RepeatedCompositeFieldContainer[InputSpans]
    span_unit: SpanUnit
    chunking: Chunking
    instruction: str
    def __init__(self, inputs: _Optional[_Iterable[_Union[Input, _Mapping]]] = ..., model: _Optional[str] = ..., outputs: _Optional[_Iterable[str]] = ..., truncate: _Optional[bool] = ..., truncation_direction: _Optional[_Union[TruncationDirection, str]] = ..., normalize: _Optional[bool] = ..., dimensions: _Optional[int] = ..., pooling: _Optional[_Union[Pooling, str]] = ..., dtype: _Optional[_Union[DType, str]] = ..., prompt_name: _Optional[str] = ..., encoding: _Optional[_Union[Encoding, str]] = ..., task: _Optional[str] = ..., input_type: _Optional[str] = ..., max_active_dims: _Optional[int] = ..., spans: _Optional[_Iterable[_Union[InputSpans, _Mapping]]] = ..., span_unit: _Optional[_Union[SpanUnit, str]] = ..., chunking: _Optional[_Union[Chunking, _Mapping]] = ..., instruction: _Optional[str] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("name", "tensor", "lengths", "indices")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    name: str
    tensor: Tensor
    lengths: _containers.RepeatedScalarFieldContainer[int]
    indices: Tensor
    def __init__(self, name: _Optional[str] = ..., tensor: _Optional[_Union[Tensor, _Mapping]] = ..., lengths: _Optional[_Iterable[int]] = ..., indices: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("start", "stop", "first_token", "end_token")
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_FIELD_NUMBER: _ClassVar[int]
    start: int
    stop: int
    first_token: int
    end_token: int
    def __init__(self, start: _Optional[int] = ..., stop: _Optional[int] = ..., first_token: _Optional[int] = ..., end_token: _Optional[int] = ...) -> None: ...

class InputChunks(_message.Message):
    __slots__ = ("chunks",)
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    chunks: _containers.RepeatedCompositeFieldContainer[Chunk]
    def __init__(self, chunks: _Optional[_Iterable[_Union[Chunk, _Mapping]]] = ...) -> None: ...

class EmbedResponse(_message.Message):
    __slots__ = ("model", "outputs", "tokens", "prompt_embeds", "truncated", "chunks")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_EMBEDS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    model: str
    outputs: _containers.RepeatedCompositeFieldContainer[Output]
    tokens: int
    prompt_embeds: _containers.RepeatedScalarFieldContainer[bytes]
    truncated: _containers.RepeatedScalarFieldContainer[int]
    chunks: _containers.RepeatedCompositeFieldContainer[InputChunks]
    def __init__(self, model: _Optional[str] = ..., outputs: _Optional[_Iterable[_Union[Output, _Mapping]]] = ..., tokens: _Optional[int] = ..., prompt_embeds: _Optional[_Iterable[bytes]] = ..., truncated: _Optional[_Iterable[int]] = ..., chunks: _Optional[_Iterable[_Union[InputChunks, _Mapping]]] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message", "index", "retry_after_ms")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    index: int
    retry_after_ms: int
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., index: _Optional[int] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class EmbedStreamResponse(_message.Message):
    __slots__ = ("response", "error")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    response: EmbedResponse
    error: Error
    def __init__(self, response: _Optional[_Union[EmbedResponse, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class PositionsRequest(_message.Message):
    __slots__ = ("scheme", "model", "parameters", "tensors", "dtype")
    class TensorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Tensor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    scheme: str
    model: str
    parameters: _struct_pb2.Struct
    tensors: _containers.MessageMap[str, Tensor]
    dtype: DType
    def __init__(self, scheme: _Optional[str] = ..., model: _Optional[str] = ..., parameters: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., tensors: _Optional[_Mapping[str, Tensor]] = ..., dtype: _Optional[_Union[DType, str]] = ...) -> None: ...

class OutputShape(_message.Message):
    __slots__ = ("name", "dtype", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: DType
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[DType, str]] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class PositionsChunk(_message.Message):
    __slots__ = ("facts_json", "outputs", "output", "offset", "data")
    FACTS_JSON_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    facts_json: str
    outputs: _containers.RepeatedCompositeFieldContainer[OutputShape]
    output: str
    offset: int
    data: bytes
    def __init__(self, facts_json: _Optional[str] = ..., outputs: _Optional[_Iterable[_Union[OutputShape, _Mapping]]] = ..., output: _Optional[str] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class ListPresetsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPresetsResponse(_message.Message):
    __slots__ = ("presets",)
    PRESETS_FIELD_NUMBER: _ClassVar[int]
    presets: _containers.RepeatedCompositeFieldContainer[Preset]
    def __init__(self, presets: _Optional[_Iterable[_Union[Preset, _Mapping]]] = ...) -> None: ...

class Preset(_message.Message):
    __slots__ = ("name", "title", "source", "config_json")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    title: str
    source: str
    config_json: str
    def __init__(self, name: _Optional[str] = ..., title: _Optional[str] = ..., source: _Optional[str] = ..., config_json: _Optional[str] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "family", "hidden_size", "vocab_size", "max_tokens", "outputs", "default_output", "parameters", "bytes", "flops_per_token", "device", "default", "card_json", "sentence_width", "default_width")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    FLOPS_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    CARD_JSON_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_WIDTH_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_WIDTH_FIELD_NUMBER: _ClassVar[int]
    name: str
    family: str
    hidden_size: int
    vocab_size: int
    max_tokens: int
    outputs: _containers.RepeatedScalarFieldContainer[str]
    default_output: str
    parameters: int
    bytes: int
    flops_per_token: int
    device: str
    default: bool
    card_json: str
    sentence_width: int
    default_width: int
    def __init__(self, name: _Optional[str] = ..., family: _Optional[str] = ..., hidden_size: _Optional[int] = ..., vocab_size: _Optional[int] = ..., max_tokens: _Optional[int] = ..., outputs: _Optional[_Iterable[str]] = ..., default_output: _Optional[str] = ..., parameters: _Optional[int] = ..., bytes: _Optional[int] = ..., flops_per_token: _Optional[int] = ..., device: _Optional[str] = ..., default: _Optional[bool] = ..., card_json: _Optional[str] = ..., sentence_width: _Optional[int] = ..., default_width: _Optional[int] = ...) -> None: ...

class Image(_message.Message):
    __slots__ = ("picture", "pixel_values", "input_features", "grid")
    PICTURE_FIELD_NUMBER: _ClassVar[int]
    PIXEL_VALUES_FIELD_NUMBER: _ClassVar[int]
    INPUT_FEATURES_FIELD_NUMBER: _ClassVar[int]
    GRID_FIELD_NUMBER: _ClassVar[int]
    picture: bytes
    pixel_values: Tensor
    input_features: Tensor
    grid: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, picture: _Optional[bytes] = ..., pixel_values: _Optional[_Union[Tensor, _Mapping]] = ..., input_features: _Optional[_Union[Tensor, _Mapping]] = ..., grid: _Optional[_Iterable[int]] = ...) -> None: ...

class ImagesRequest(_message.Message):
    __slots__ = ("model", "inputs", "outputs", "dtype", "normalize", "dimensions")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    model: str
    inputs: _containers.RepeatedCompositeFieldContainer[Image]
    outputs: _containers.RepeatedScalarFieldContainer[str]
    dtype: DType
    normalize: bool
    dimensions: int
    def __init__(self, model: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Image, _Mapping]]] = ..., outputs: _Optional[_Iterable[str]] = ..., dtype: _Optional[_Union[DType, str]] = ..., normalize: _Optional[bool] = ..., dimensions: _Optional[int] = ...) -> None: ...

class LogitsRequest(_message.Message):
    __slots__ = ("model", "hidden", "top_k", "temperature", "output", "dtype")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    model: str
    hidden: Tensor
    top_k: int
    temperature: float
    output: str
    dtype: DType
    def __init__(self, model: _Optional[str] = ..., hidden: _Optional[_Union[Tensor, _Mapping]] = ..., top_k: _Optional[int] = ..., temperature: _Optional[float] = ..., output: _Optional[str] = ..., dtype: _Optional[_Union[DType, str]] = ...) -> None: ...

class SimilarItem(_message.Message):
    __slots__ = ("id", "text", "vector")
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    id: int
    text: str
    vector: Tensor
    def __init__(self, id: _Optional[int] = ..., text: _Optional[str] = ..., vector: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class SimilarRequest(_message.Message):
    __slots__ = ("model", "token_id", "token", "text", "vector", "positive", "negative", "normalize", "measure", "top_k", "exclude_inputs")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    POSITIVE_FIELD_NUMBER: _ClassVar[int]
    NEGATIVE_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    MEASURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_INPUTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    token_id: int
    token: str
    text: str
    vector: Tensor
    positive: _containers.RepeatedCompositeFieldContainer[SimilarItem]
    negative: _containers.RepeatedCompositeFieldContainer[SimilarItem]
    normalize: bool
    measure: str
    top_k: int
    exclude_inputs: bool
    def __init__(self, model: _Optional[str] = ..., token_id: _Optional[int] = ..., token: _Optional[str] = ..., text: _Optional[str] = ..., vector: _Optional[_Union[Tensor, _Mapping]] = ..., positive: _Optional[_Iterable[_Union[SimilarItem, _Mapping]]] = ..., negative: _Optional[_Iterable[_Union[SimilarItem, _Mapping]]] = ..., normalize: _Optional[bool] = ..., measure: _Optional[str] = ..., top_k: _Optional[int] = ..., exclude_inputs: _Optional[bool] = ...) -> None: ...

class SimilarToken(_message.Message):
    __slots__ = ("id", "token", "score")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    id: int
    token: str
    score: float
    def __init__(self, id: _Optional[int] = ..., token: _Optional[str] = ..., score: _Optional[float] = ...) -> None: ...

class SimilarResponse(_message.Message):
    __slots__ = ("model", "table", "table_shape", "table_dtype", "measure", "inputs", "results")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_SHAPE_FIELD_NUMBER: _ClassVar[int]
    TABLE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    MEASURE_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    table: str
    table_shape: _containers.RepeatedScalarFieldContainer[int]
    table_dtype: str
    measure: str
    inputs: _containers.RepeatedCompositeFieldContainer[SimilarToken]
    results: _containers.RepeatedCompositeFieldContainer[SimilarToken]
    def __init__(self, model: _Optional[str] = ..., table: _Optional[str] = ..., table_shape: _Optional[_Iterable[int]] = ..., table_dtype: _Optional[str] = ..., measure: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[SimilarToken, _Mapping]]] = ..., results: _Optional[_Iterable[_Union[SimilarToken, _Mapping]]] = ...) -> None: ...

class AnalysisRequest(_message.Message):
    __slots__ = ("model", "spectrum")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SPECTRUM_FIELD_NUMBER: _ClassVar[int]
    model: str
    spectrum: bool
    def __init__(self, model: _Optional[str] = ..., spectrum: _Optional[bool] = ...) -> None: ...

class AnalysisResponse(_message.Message):
    __slots__ = ("analysis_json", "singular_values")
    ANALYSIS_JSON_FIELD_NUMBER: _ClassVar[int]
    SINGULAR_VALUES_FIELD_NUMBER: _ClassVar[int]
    analysis_json: str
    singular_values: Tensor
    def __init__(self, analysis_json: _Optional[str] = ..., singular_values: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...
