"""Describes the loaded models, over HTTP and gRPC."""

import asyncio
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from models.artifacts.card import Card, File
from models.recipes.heads import MultiVector
from models.recipes.positional_encodings import Alibi, Mask, RopeTable
from models.recipes.sentence_modules import SentenceModules
from service import machine
from service.context import ServiceContext
from service.embedding.model import Model
from service.embedding.scores import function_of
from service.http.formats import JSON
from service.http.response import Response, json_response
from service.http.routes import Answer, Handler, Request, Route
from service.machine import Mappings
from service.protocols.inlay import needs
from service.protocols.inlay.positions.schemes import available
from service.protocols.inlay.tags import MODELS
from service.registry.registry import ModelRegistry
from service.registry.store import created
from service.settings import Settings


class _Summary(BaseModel):
    """A part of a description, read from the attributes of the described object."""

    model_config = ConfigDict(from_attributes=True)


class PoolingSummary(_Summary):
    """How token rows become one vector unless the request says otherwise."""

    mode: str = Field(description="of several, joined by +, the vectors follow one another")
    normalize: bool
    include_prompt: bool = Field(description="false: the prompt's tokens do not count")
    dimensions: int | None = Field(description="leading values kept, after scaling; null: all")


class MultiVectorSummary(_Summary):
    """How a late-interaction model makes several vectors of a text."""

    dimensions: int = Field(description="of a vector")
    query_tokens: int | None = Field(description="of the longest query; null: the model's own limit")
    document_tokens: int | None = Field(description="of the longest document; null: the model's own limit")
    expanded_tokens: int | None = Field(description="that short queries are filled up to; null: they are not")
    function: str = Field(description="that compares a query with a document: maxsim or meanmaxsim")

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, vectors: MultiVector) -> dict[str, Any]:
        return {
            "dimensions": vectors.modules.width,
            "query_tokens": vectors.query.max_tokens,
            "document_tokens": vectors.document.max_tokens,
            "expanded_tokens": vectors.expansion.tokens if vectors.expansion else None,
            "function": function_of(vectors),
        }


class RopeSummary(_Summary):
    """The cos/sin table behind `GET /models/{name}/rope`."""

    rope_type: str
    theta: float
    rotary_dim: int
    head_dim: int | None
    parameters: dict[str, Any] = Field(description="of the scaling, by the names of config.json")
    max_position_embeddings: int | None
    layout: str = Field(description="half pairs channels (i, i + r/2), interleaved (2i, 2i + 1)")
    sections: list[int] | None = Field(description="pairs of each axis (M-RoPE)")
    axes: str | None = Field(description="how the axes share the pairs (M-RoPE)")
    attention_factor: float = Field(description="cos and sin are multiplied by it")
    softmax_scale: float = Field(description="scores are multiplied by it besides; not in cos and sin")
    notes: list[str]

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, table: RopeTable) -> dict[str, Any]:
        return asdict(table.rope) | asdict(table) | {"parameters": dict(table.rope.parameters)}


class BucketSummary(_Summary):
    """The relative buckets behind `GET /models/{name}/t5` or `/deberta`."""

    kind: str
    buckets: int
    reach: int
    bidirectional: bool


class EncodingsSummary(_Summary):
    """The positional encodings of the attention."""

    ropes: dict[str, RopeSummary] = Field(description="by layer type; all: one table for every layer")
    layers: list[str | None] = Field(description="the table of each layer; null: it does not rotate")
    alibi: Alibi | None
    buckets: BucketSummary | None
    masks: dict[str, Mask]
    refused: dict[str, str] = Field(description="why the checkpoint allows no table of a scheme")


class HeadSummary(_Summary):
    """The output head behind `POST /models/{name}/logits`."""

    width: int = Field(description="of the hidden states it reads")
    vocab_size: int
    matrix: str
    tied: bool = Field(description="the matrix is the input layer's table")


class ClassifierSummary(_Summary):
    """The classification head behind the output class_logits, or token_class_logits."""

    labels: list[str] = Field(description="in the order of the logits")
    pooling: str | None = Field(description="null: each token has logits; graph: an adopted graph pools")
    activation: str = Field(description="what makes scores of logits: identity, sigmoid or softmax")
    problem_type: str | None = Field(description="as config.json says; null: it does not")
    ranks: bool = Field(description="it gives a text, or a pair of a query and a document, one score")


class GraphSummary(_Summary):
    """One ONNX file."""

    file: str
    inputs: list[str]
    outputs: list[str]
    layout: str
    one_by_one: bool = Field(description="a run takes one sequence, because another beside it would change its vectors")


class ImageSummary(_Summary):
    """The inputs of `POST /models/{name}/images`."""

    feed: str = Field(description="pixels [width, y, x], patches [rows, width] or features [width, frames]")
    width: int = Field(description="channels of a pixel, values of a flattened patch, bins of a frame")
    patch: int = Field(description="side of a patch, in pixels")
    frames: int | None = Field(description="of a spectrogram; null: it reads none")
    fixed: list[int] | None = Field(description="the one height and width it takes; null: any")
    takes_grid: bool = Field(description="flattened patches come with their rows and columns")
    reads_pictures: bool = Field(description="JPEG, PNG and WebP; false: tensors alone")
    vector_width: int = Field(description="width of image_embedding; 0: it gives none")
    normalize: bool = Field(description="image_embedding has unit length unless the caller says otherwise")


class QuantizedSummary(_Summary):
    """How the matrices of the encoder's blocks are stored, and how that changes the vectors."""

    dtype: Literal["int8"]
    min_cosine: float = Field(description="least cosine to the float32 encoder, of any compared text")
    mean_cosine: float
    texts: int = Field(description="how many texts were compared, at export")


class VectorComparisonSummary(_Summary):
    """How close an adopted model's vectors are to those of its float32 weights."""

    reference: str = Field(description="the file of the float32 weights, beside the adopted one")
    min_cosine: float = Field(description="least cosine to their vectors, of any compared text")
    mean_cosine: float
    texts: int = Field(description="how many texts were compared, at adoption")


class AdoptedSummary(_Summary):
    """The ONNX file that a model was adopted from."""

    path: str = Field(description="in the folder or repository that `source` names")
    comparison: VectorComparisonSummary | None
    uncompared: str | None = Field(
        description="why there is no comparison; null: there is one, or the file is the float32 one"
    )


class MemorySummary(_Summary):
    """The weights that this worker has mapped; workers share these pages."""

    mapped: int = Field(description="bytes that are addressed")
    resident: int = Field(description="bytes of them that it has touched and that are in memory")


class CalibrationSummary(_Summary):
    """The ranges that int8 and uint8 sentence vectors are quantized with."""

    texts: int = Field(description="whose vectors they are of")


class ClosenessSummary(_Summary):
    """Cosines of vectors to those of the float32 encoder, over 16 texts, measured when the model was loaded."""

    least: float
    mean: float


def _step_names(modules: SentenceModules | None) -> list[str]:
    return [type(step).__name__ for step in modules.steps] if modules else []


class ModelSummary(_Summary):
    """An exported model."""

    name: str
    default: bool = Field(description="answers requests that name no model")
    family: str
    device: str = Field(description="what it runs on")
    engine: str = Field(description="what runs its encoder: onnx, openvino or reference")
    precision: str = Field(description="of the encoder's matrix products")
    closeness: ClosenessSummary | None = Field(description="to the float32 encoder; null: it is float32 or better")
    hidden_size: int = Field(description="width of token vectors")
    sentence_width: int = Field(description="width of whole sentence vectors; `dimensions` goes up to it")
    default_width: int = Field(description="width of sentence vectors where no `dimensions` are sent")
    vocab_size: int
    max_tokens: int | None = Field(description="longest input, special tokens included; null: no limit of its own")
    type_rows: int = Field(description="rows of the segment table; 0: none")
    outputs: list[str] = Field(description="what `outputs` may name")
    default_output: str = Field(description="what an answer holds when the caller names no outputs")
    reads_text: bool = Field(description="false: it has no tokenizer, send ids")
    pooling: PoolingSummary | None
    modules: Annotated[list[str], BeforeValidator(_step_names)] = Field(
        description="what makes the sentence vector of the pooled one"
    )
    multi_vector: MultiVectorSummary | None = Field(description="null: a text has no several vectors")
    similarity_function: str | None = Field(description="that the model's files name for its vectors; null: none")
    prompts: Annotated[list[str], BeforeValidator(list)]
    default_prompt: str | None
    tasks: list[str] = Field(description="what `task` may name: the model has adapters of each")
    default_task: str | None = Field(description="of requests that name none; null: no adapter is used")
    encodings: EncodingsSummary
    positions: list[str] = Field(description="schemes of GET /models/{name}/{scheme} that it has")
    dtype: str = Field(description="of the weights")
    parameters: int
    bytes: int = Field(description="of the weights")
    flops_per_token: dict[str, int] = Field(description="by graph; a multiply and an add count as two")
    flops_per_text: int = Field(description="on top, once: of `modules`")
    flops_per_token_and_key: int = Field(description="on top, times the tokens of the sequence: attention scores")
    largest_difference: dict[str, float] = Field(
        description="by output: ONNX Runtime against the float64 reference, at export; of an adopted graph, a "
        "sequence alone against the same in a batch"
    )
    tolerance: float
    adopted: AdoptedSummary | None = Field(description="null: it was exported, or adopted by an older version")
    quantized: QuantizedSummary | None = Field(description="null: the encoder is float32, or there is none")
    calibration: CalibrationSummary | None = Field(
        description="null: it gives no int8 and uint8, see `inlay calibrate`"
    )
    graphs: dict[str, GraphSummary]
    files: dict[str, File]
    version: str = Field(description="sha256 of the card, which holds those of all files")
    memory: MemorySummary | None = Field(description="null: the system does not say, or the model maps no file")
    head: HeadSummary | None
    classifier: ClassifierSummary | None
    no_classifier_reason: str | None = Field(
        description="why there is no classifier though config.json names one; null: it names none"
    )
    prompt_embeds_output: str | None = Field(
        description="the output behind prompt_embeds and input_embeds; null: it has none"
    )
    no_head_reason: str | None = Field(description="why there is no head; null: there is one, or an older export")
    no_blocks_reason: str | None = Field(
        description="why the input layer alone was exported; null: the blocks were too, or an older export"
    )
    image: ImageSummary | None = Field(description="of a model that reads images or spectrograms")
    source: str
    tool: str


class ListedModel(BaseModel):
    """A loaded model as infinity lists it; its client accepts no other `owned_by`."""

    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="when it was exported, in seconds since 1970")
    owned_by: Literal["infinity"] = "infinity"
    backend: str = Field(description="the engine")
    capabilities: list[str] = Field(description="embed of texts, image_embed of pictures")
    stats: dict[str, float] = Field(description="what waits, in items, and as a share of what may")


class ModelList(BaseModel):
    """Every loaded model; clients of infinity and OpenAI read `object` and `data`."""

    object: Literal["list"] = "list"
    data: list[ListedModel]
    models: list[ModelSummary]


def summary(model: Model, registry: ModelRegistry, mappings: Mappings | None = None) -> ModelSummary:
    """Return the description of a loaded model: its card, its device, and its share of `mappings`."""
    card, choice, mapped = model.card, model.choice, machine.mapped_of(model.mapped, mappings or {})
    facts = {name: getattr(card, name) for name in ModelSummary.model_fields if hasattr(card, name)}
    facts |= {
        "default": model is registry.default,
        "device": model.engine.device,
        "engine": choice.engine,
        "precision": choice.precision,
        "closeness": choice.closeness,
        "flops_per_text": getattr(facts["modules"], "flops_per_text", 0),
        "memory": mapped if mapped.mapped else None,
        "positions": list(available(card)),
        "reads_text": model.tokenizer is not None,
        "version": model.version,
    }
    return ModelSummary.model_validate(facts)


def default_flops_per_token(card: Card) -> int:
    """Return the FLOPs per token of the graph behind the default output."""
    graph = card.graph_for(card.default_output, False) or card.graph_for("last_hidden_state", False)
    return card.flops_per_token.get(graph or "", 0)


def listed(model: Model, settings: Settings) -> ListedModel:
    """Return a loaded model as infinity lists it, with the length of its queue."""
    batchers = model.batchers.values()
    items = sum(batcher.waiting_items for batcher in batchers)
    share = sum(batcher.waiting_cost for batcher in batchers) / (settings.max_queue_tokens * max(1, len(batchers)))
    return ListedModel(
        id=model.card.name,
        created=created(settings.store, model.card.name),
        backend=model.choice.engine,
        capabilities=["image_embed" if needs.reads_images(model) else "embed"],
        stats={"queue_fraction": share, "queue_absolute": items, "results_pending": items},
    )


def routes(context: ServiceContext) -> list[Route]:
    """Return GET /models and GET /models/{name}."""
    registry, settings = context.registry, context.settings

    async def list_models(request: Request) -> Response:
        loaded = registry.models.values()
        mappings = await asyncio.to_thread(machine.mapped_files)
        data = [listed(model, settings) for model in loaded]
        summaries = [summary(model, registry, mappings) for model in loaded]
        return json_response(ModelList(data=data, models=summaries).model_dump(mode="json"))

    async def get_model(request: Request) -> Response:
        mappings = await asyncio.to_thread(machine.mapped_files)
        description = summary(registry.get(request.parameters["name"]), registry, mappings)
        return json_response(description.model_dump(mode="json"))

    rows: tuple[tuple[str, Handler, str, str, type[BaseModel]], ...] = (
        ("/models", list_models, "list_models", "Every loaded model", ModelList),
        ("/models/{name}", get_model, "get_model", "One model", ModelSummary),
    )
    return [
        Route("GET", path, handler, name, about, MODELS, answers={200: Answer(content={JSON: answer})}, admitted=False)
        for path, handler, name, about, answer in rows
    ]
