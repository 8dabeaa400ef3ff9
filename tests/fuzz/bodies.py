"""Decoders of JSON bodies: /embed, those of other protocols, images' and positions'."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import orjson
from pydantic import BaseModel

from service.http.routes import Head, Request
from service.http.validation_errors import parse_json, validated
from service.protocols import inlay
from service.protocols.cohere import embed as cohere
from service.protocols.cohere import rerank
from service.protocols.inlay import embed as body
from service.protocols.inlay import images, parsing
from service.protocols.inlay.gradient import GradientParameters
from service.protocols.inlay.logits import LogitsParameters
from service.protocols.inlay.positions.schemes import SCHEMES
from service.protocols.inlay.similar import SimilarParameters
from service.protocols.openai import embeddings, scoring
from service.protocols.openai import routes as openai
from service.protocols.openai.schemas import EmbeddingsBody, PoolingBody
from service.protocols.tei import schemas as tei
from tests.fuzz.judging import Target

DEEP = b"[" * 300 + b"]" * 300  # orjson reads it and does not write it
VALUES = (
    DEEP,
    b"null",
    b"true",
    b"-1",
    b"0",
    b"1e400",
    b"9223372036854775808",
    b"[[]]",
    b"{}",
    b'""',
    b'"\\ud800"',
    b"[1,true]",
)
EXAMPLES = {
    operation: described["examples"]
    for data in (inlay.DATA, openai.DATA, cohere.DATA)
    for operation, described in data.operations.items()
    if "examples" in described
}
EMBED, EMBEDDINGS = list(EXAMPLES["POST /embed"].values()), list(EXAMPLES["POST /v1/embeddings"].values())
COHERE_EMBED = list(EXAMPLES["POST /v1/embed"].values())
TENSOR = {"dtype": "float32", "shape": [1, 2], "data": "AACAPwAAgD8="}
TEI: tuple[type[BaseModel], ...] = (
    tei.AllVectorsBody,
    tei.SimilarityBody,
    tei.TokenizeBody,
    tei.DecodeBody,
    tei.PredictBody,
    tei.RerankBody,
    tei.SparseBody,
)
SCORES: tuple[Callable[[bytes], Any], ...] = (
    lambda data: rerank.read(parse_json(data), 64),
    lambda data: scoring.read_pairs(data, 64),
    partial(scoring.read_classify, decode=embeddings.decode_inputs),
)
SCORE_SEEDS = (EXAMPLES["POST /v1/rerank"], EXAMPLES["POST /score"], EXAMPLES["POST /classify"])

TEI_SEEDS: tuple[dict[str, Any], ...] = (
    {"inputs": ["a", [1, 2]], "truncate": True, "truncation_direction": "Left", "prompt_name": "q", "task": "t"},
    {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "parameters": {"truncate": False}, "model": "m"},
    {"inputs": ["a", "b"], "add_special_tokens": False},
    {"ids": [[1, 2], [3]], "skip_special_tokens": False},
    {"inputs": [["a", "b"], ["c"]], "raw_scores": True},
    {"query": "a", "texts": ["b"], "return_text": True},
    {"inputs": ["a", [1, 2]], "input_type": "query", "max_active_dims": 3},
)
PARAMETERS: tuple[type[BaseModel], ...] = (
    *[row.parameters for row in SCHEMES.values()],
    GradientParameters,
    SimilarParameters,
    LogitsParameters,
)
PARAMETER_SEEDS: tuple[dict[str, Any], ...] = (
    {"rotary_dim": 8, "theta": 1e4, "positions": "0,5,100-110", "dtype": "bfloat16"},
    {"q": [[[1.0, 2.0]]], "k": TENSOR, "rotary_dim": 2, "length": 1, "skip": 0},
    {"input_ids": [[1, 2], [3, 4]], "gradient": TENSOR, "bbox": [[0, 0, 1, 1]], "rows": "all"},
    {"positive": ["king", 3, TENSOR], "negative": [[0.5]], "normalize": True, "top_k": 5},
    {"positions": [[0, 1], [0, 1], [0, 2]], "sections": [1, 1, 2], "grid": "14x14", "heads": 8},
    {"config": {"rope_theta": 1e4, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "length": 4},
)
QUERIES = (
    b"rotary_dim=8&positions=0,5-9",
    b"heads=8&length=4&dtype=float16",
    b"dim=8&grid=14x14&theta=1e4",
    b"dim=8&length=4",
    b"length=4&format=npy",
    b"q=[[1]]&rotary_dim=2",
)


def _members(*examples: Sequence[dict[str, Any]]) -> tuple[bytes, ...]:
    names = {name for group in examples for each in group for name in each}
    return (*sorted(f'"{name}":'.encode() for name in names), *VALUES)


def altered(example: dict[str, Any], values: Sequence[bytes] = VALUES) -> Iterator[bytes]:
    """Return the example, and copies with each member, or an added one, set to each value."""
    yield orjson.dumps(example)
    for name in (*example, "unknown"):
        others = b"".join([orjson.dumps({key: each})[1:-1] + b"," for key, each in example.items() if key != name])
        for value in values:
            yield b"{" + others + b'"%b":%b}' % (name.encode(), value)


def _written(examples: Sequence[Any]) -> list[bytes]:
    return [body for each in examples for body in altered(each)]


def _indexed(examples: Sequence[Any], kinds: int) -> list[bytes]:
    """Every example behind the byte that picks its reader."""
    return [bytes([index % kinds]) + body for index, each in enumerate(examples) for body in altered(each)]


def _openai(data: bytes) -> None:
    embeddings.read(data[1:], (EmbeddingsBody, PoolingBody)[(data[:1] or b"\0")[0] % 2])


def _cohere(data: bytes) -> None:
    kind = (cohere.CohereEmbedBody, cohere.CohereV2EmbedBody)[(data[:1] or b"\0")[0] % 2]
    cohere.read(data[1:], kind, 8)


def _tei(data: bytes) -> None:
    kind = TEI[(data[:1] or b"\0")[0] % len(TEI)]
    body = tei.similarity_body(data[1:])[0] if kind is tei.SimilarityBody else validated(kind, parse_json(data[1:]))
    if isinstance(body, tei.DecodeBody):
        tei.id_lists(body.ids, 1_000_000)


def _scores(data: bytes) -> None:
    SCORES[(data[:1] or b"\0")[0] % len(SCORES)](data[1:])


def _score_seeds() -> list[bytes]:
    return [
        bytes([kind]) + body
        for kind, examples in enumerate(SCORE_SEEDS)
        for example in examples.values()
        for body in altered(example)
    ]


def _parameters(data: bytes, read: Any) -> None:
    kind = PARAMETERS[(data[:1] or b"\0")[0] % len(PARAMETERS)]
    read(data[1:], kind)


def _query(text: bytes, kind: type[BaseModel]) -> None:
    parsing.from_query(kind, Request(Head("GET", b"/?" + text, {})))


def _images(data: bytes) -> None:
    fields = parsing.parse_json_fields(data, images.ImagesBody)
    inputs = fields.inputs if isinstance(fields.inputs, list) else [fields.inputs]
    for index, value in enumerate(inputs):
        images.read_input(value, index)


def _image_seeds() -> list[bytes]:
    values = ({"inputs": ["iVBORw0KGgo="]}, {"inputs": [{"image": "data:image/png;base64,iVBORw0KGgo="}]})
    tensors = ({"inputs": [{"pixel_values": [[[0.5]]], "grid": [1, 1]}]}, {"inputs": {"input_features": TENSOR}})
    return _written((*values, *tensors))


TARGETS = {
    "/embed body": Target(body.read, partial(_written, EMBED), words=_members(EMBED)),
    "OpenAI bodies": Target(
        _openai,
        partial(_indexed, EMBEDDINGS, 2),
        words=_members(EMBEDDINGS),
    ),
    "Cohere bodies": Target(_cohere, partial(_indexed, COHERE_EMBED, 2), words=_members(COHERE_EMBED)),
    "TEI bodies": Target(_tei, partial(_indexed, TEI_SEEDS, len(TEI)), words=_members(TEI_SEEDS)),
    "score bodies": Target(_scores, _score_seeds, words=_members(*[list(each.values()) for each in SCORE_SEEDS])),
    "image bodies": Target(_images, _image_seeds),
    "parameters in JSON": Target(
        partial(_parameters, read=parsing.parse_json_fields),
        partial(_indexed, PARAMETER_SEEDS * 3, len(PARAMETERS)),
        words=_members(PARAMETER_SEEDS),
    ),
    "parameters in a query": Target(
        partial(_parameters, read=_query),
        lambda: [bytes([kind]) + query for kind in range(len(PARAMETERS)) for query in QUERIES],
        words=(b"&length=", b"&theta=", b"&config=", b"inf", b"nan", b"%00", b"%ff", b"1e9", b"9" * 30, b"&factor="),
    ),
}
