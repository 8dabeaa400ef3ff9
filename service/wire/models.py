"""What is said of a model, over REST and gRPC alike. Reads the card; computes nothing."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from models.card import Card
from service.catalog import Catalog, Model
from service.wire.parts import Parts

MODEL = ConfigDict(from_attributes=True)


class PoolingSummary(BaseModel):
    """How token rows become one vector when the caller does not say."""

    model_config = MODEL
    mode: str
    normalize: bool
    include_prompt: Annotated[bool, Field(description="false: the prompt's tokens do not count")]


class RopeSummary(BaseModel):
    """The cos/sin table behind `GET /models/{name}/rope`."""

    model_config = MODEL
    rope_type: str
    theta: float
    rotary_dim: int
    head_dim: int
    layout: Annotated[str, Field(description="half pairs channels (i, i + r/2), interleaved (2i, 2i + 1)")]
    arithmetic: Annotated[str, Field(description="exact: the angle in float64, rounded once")]
    attention_factor: float
    trained_positions: int


class GraphSummary(BaseModel):
    """One ONNX file."""

    model_config = MODEL
    file: str
    inputs: list[str]
    outputs: list[str]
    layout: str


class FileSummary(BaseModel):
    """Size and hash of one file."""

    model_config = MODEL
    bytes: int
    sha256: str


class ModelSummary(BaseModel):
    """An exported model and what it costs."""

    name: str
    default: Annotated[bool, Field(description="answers requests that name no model")]
    family: str
    device: Annotated[str, Field(description="what it runs on")]
    hidden_size: int
    vocab_size: int
    max_tokens: Annotated[
        int | None, Field(description="longest input, special tokens included; null: no limit of its own")
    ]
    type_rows: Annotated[int, Field(description="rows of the segment table; 0: none")]
    outputs: Annotated[list[str], Field(description="what `outputs` may name")]
    default_output: Annotated[str, Field(description="what an answer holds when the caller names no outputs")]
    reads_text: Annotated[bool, Field(description="false: it has no tokenizer, send ids")]
    pooling: PoolingSummary | None
    prompts: list[str]
    default_prompt: str | None
    rope: RopeSummary | None
    dtype: Annotated[str, Field(description="of the weights")]
    parameters: int
    bytes: Annotated[int, Field(description="of the weights")]
    flops_per_token: Annotated[dict[str, int], Field(description="by graph; a multiply and an add count as two")]
    flops_per_token_and_key: Annotated[
        int, Field(description="on top, times the tokens of the sequence: attention scores")
    ]
    largest_difference: Annotated[
        dict[str, float], Field(description="by output: ONNX Runtime against the float64 reference, at export")
    ]
    tolerance: float
    graphs: dict[str, GraphSummary]
    files: dict[str, FileSummary]
    source: str
    tool: str


class ModelList(BaseModel):
    """Every loaded model."""

    models: list[ModelSummary]


def summary(model: Model, catalog: Catalog) -> ModelSummary:
    """The card of a loaded model and where it runs."""
    card = model.card
    own = {name: getattr(card, name) for name in ModelSummary.model_fields if hasattr(card, name)}
    nested = {
        "pooling": card.pooling and PoolingSummary.model_validate(card.pooling),
        "rope": card.rope and RopeSummary.model_validate(card.rope),
        "graphs": {name: GraphSummary.model_validate(graph) for name, graph in card.graphs.items()},
        "files": {name: FileSummary.model_validate(file) for name, file in card.files.items()},
        "prompts": list(card.prompts),
    }
    return ModelSummary(
        **own | nested,
        default=model is catalog.default,
        device=model.engine.device,
        reads_text=model.tokenizer is not None,
    )


def default_flops_per_token(card: Card) -> int:
    """FLOPs of a token in the graph behind the default output."""
    graph = card.graph_for(card.default_output, False) or card.graph_for("last_hidden_state", False)
    return card.flops_per_token.get(graph or "", 0)


def routes(parts: Parts) -> APIRouter:
    """GET /models and GET /models/{name}."""
    router, catalog = APIRouter(tags=["models"]), parts.catalog

    @router.get("/models", summary="Every loaded model")
    async def list_models() -> ModelList:
        return ModelList(models=[summary(model, catalog) for model in catalog.models.values()])

    @router.get("/models/{name}", summary="One model")
    async def get_model(name: str) -> ModelSummary:
        return summary(catalog.get(name), catalog)

    return router
