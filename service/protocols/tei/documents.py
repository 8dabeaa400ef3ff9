"""text-embeddings-inference's routes in the OpenAPI document, from the models that validate them. Serves nothing."""

from typing import Any

from pydantic import BaseModel, TypeAdapter

from service.http.formats import JSON
from service.protocols.inlay.embed_body import EmbedBody
from service.protocols.tei import bodies
from service.protocols.tei import timing_headers as spent
from service.protocols.tei.info import Info

TAG = {"name": "tei", "description": "The rest of text-embeddings-inference's contract; /embed is its superset."}
MODELS: tuple[type[BaseModel], ...] = (
    bodies.TokenVectorsBody,
    bodies.SimilarityBody,
    bodies.TokenizeBody,
    bodies.DecodeBody,
    bodies.PredictBody,
    bodies.RerankBody,
    bodies.VertexBody,
)
NUMBERS = {"type": "array", "items": {"type": "number"}}
VECTORS = {"type": "array", "items": NUMBERS}
TOKEN = {
    "type": "object",
    "required": ["id", "text", "special", "start", "stop"],
    "properties": {
        "id": {"type": "integer"},
        "text": {"type": "string"},
        "special": {"type": "boolean"},
        "start": {"type": ["integer", "null"], "description": "in UTF-8 bytes; null: a special token"},
        "stop": {"type": ["integer", "null"]},
    },
}
COMPARED = {"inputs": {"source_sentence": "a text", "sentences": ["another", "a third"]}}
EITHER = {"anyOf": [{"$ref": f"#/components/schemas/{each.__name__}"} for each in (EmbedBody, bodies.SimilarityBody)]}
WHOLE = "whole milliseconds from the request's arrival to its answer"
SPENT = {
    "x-compute-type": "what the model ran on: cpu+optimized, gpu+optimized, or cpu of a model that is gone by now",
    "x-compute-time": WHOLE,
    "x-compute-characters": "characters of the texts, prompts not counted",
    "x-compute-tokens": "tokens that were read, special ones included",
    "x-total-time": WHOLE,
    "x-tokenization-time": "whole milliseconds that tokenising all texts took",
    "x-queue-time": "whole milliseconds that an input waited, the mean over the inputs",
    "x-inference-time": "whole milliseconds that the run of an input took, the mean over the inputs",
}
STRANGER = {
    "description": "no key, or not one of this server's; the body is empty",
    "headers": {"www-authenticate": {"schema": {"type": "string"}, "description": "Bearer"}},
}
Content = dict[str, Any]
Model = type[BaseModel]

PREDICTIONS = {"type": "array", "description": "the answers of /embed in JSON, in the order of the instances"}

# path → what it does, its body, an example, its answer (None: only refusals)
POSTS: dict[str, tuple[str, Model | None, Any, Any]] = {
    "/": ("/embed or /similarity, by the form of its inputs", None, COMPARED, NUMBERS),
    "/invocations": ("/embed or /similarity, as SageMaker calls them", None, COMPARED, NUMBERS),
    "/embed_all": (
        "A vector a token, special ones included, never normalised",
        bodies.TokenVectorsBody,
        {"inputs": ["hello world"]},
        {"type": "array", "items": VECTORS},
    ),
    "/similarity": ("The cosine of a text with others", bodies.SimilarityBody, COMPARED, NUMBERS),
    "/tokenize": (
        "The tokens of texts",
        bodies.TokenizeBody,
        {"inputs": ["hello world"]},
        {"type": "array", "items": {"type": "array", "items": TOKEN}},
    ),
    "/decode": (
        "The texts of token ids",
        bodies.DecodeBody,
        {"ids": [[101, 7592, 102]]},
        {"type": "array", "items": {"type": "string"}},
    ),
    "/vertex": (
        "Several bodies of /embed, as Vertex AI sends them",
        bodies.VertexBody,
        {"instances": [{"inputs": "hello world"}]},
        PREDICTIONS,
    ),
    "/embed_sparse": ("Refused: no model here is sparse", bodies.TokenVectorsBody, {"inputs": "a"}, None),
    "/predict": ("Refused: no model here classifies", bodies.PredictBody, {"inputs": "a"}, None),
    "/rerank": ("Refused: no model here ranks", bodies.RerankBody, {"query": "a", "texts": ["b"]}, None),
}
COUNTED = ("/", "/invocations", "/embed_all", "/similarity")
EITHER_ANSWER = ("/", "/invocations")  # that of /embed, or scores
NEGOTIATED = (*EITHER_ANSWER, "/embed_all")  # in the formats of /embed


def headers() -> dict[str, Any]:
    """What an answer took, for every route that embeds."""
    return {name: {"schema": {"type": "string"}, "description": SPENT[name]} for name in spent.NAMES}


def paths(refusal: dict[str, Any], embedded: Content) -> dict[str, Any]:
    """Every path; `refusal` describes a problem, `embedded` what /embed answers, by media type."""
    model = {"name": "model", "in": "query", "schema": {"type": "string"}, "description": "left out: the default"}
    told = TypeAdapter(Info).json_schema()
    got = _operation("/info", "What is served, and its limits") | {"parameters": [model]}
    posts = {path: {"post": _post(path, *row, refusal, embedded)} for path, row in POSTS.items()}
    return posts | {"/info": {"get": got | {"responses": _responses({JSON: {"schema": told}}, {}, refusal)}}}


def _post(
    path: str,
    summary: str,
    model: Model | None,
    example: Any,
    schema: Any,
    refusal: dict[str, Any],
    embedded: Content,
) -> dict[str, Any]:
    body = {"$ref": f"#/components/schemas/{model.__name__}"} if model else EITHER
    content = {JSON: {"schema": body, "examples": {"example": {"value": example}}}}
    told = headers() if path in COUNTED else {}
    answers = (
        _responses(_content(path, schema, embedded), told, refusal)
        if schema
        else {"401": STRANGER, "424": refusal, "default": refusal}
    )
    return _operation(path, summary) | {
        "requestBody": {"required": True, "content": content},
        "responses": answers,
    }


def _content(path: str, schema: Any, embedded: Content) -> Content:
    """The answer by media type."""
    one = embedded[JSON]["schema"]
    if path in EITHER_ANSWER:
        schema = {"anyOf": [schema, one]}
    elif path == "/vertex":
        items = {"predictions": schema | {"items": one}}
        schema = {"type": "object", "required": ["predictions"], "properties": items}
    return (embedded if path in NEGOTIATED else {}) | {JSON: {"schema": schema}}


def _operation(path: str, summary: str) -> dict[str, Any]:
    return {"tags": [TAG["name"]], "summary": summary, "operationId": f"tei_{path[1:] or 'root'}"}


def _responses(content: Content, told: dict[str, Any], refusal: dict[str, Any]) -> dict[str, Any]:
    return {
        "200": {"description": "The answer.", "headers": told, "content": content},
        "401": STRANGER,
        "default": refusal,
    }
