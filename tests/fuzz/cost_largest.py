"""The largest requests that are valid: what the limits allow, for each operation that computes."""

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson

from proto import embed_pb2 as pb
from proto import open_inference_pb2 as oip
from proto import tei_pb2 as tei
from service.settings import Settings
from tests.fuzz.cost_pictures import PICTURES
from tests.score_models import CLASSIFIER, RANKER

INPUTS = Settings.model_fields["max_inputs"].default
TOKENS = Settings.model_fields["max_request_tokens"].default
CHARACTERS = 1 << 20  # what servers of every size take by default
WORD = "hello "
BITS = 12  # words or ids by which inputs differ, since equal ones are computed once
LISTED = 200_000  # numbers or positions in lists


def _texts() -> list[str]:
    words = CHARACTERS // len(WORD) // INPUTS
    return ["".join([("world ", WORD)[id_ - 5] for id_ in _different(number, words)]) for number in range(INPUTS)]


def _different(number: int, length: int) -> list[int]:
    """Return ids 5 and 6, in an order that belongs to the number."""
    return [5 + (number >> bit & 1) for bit in range(min(BITS, length))] + [5] * (length - BITS)


def _ids(length: int = 64, most: int = INPUTS) -> list[list[int]]:
    return [_different(number, length) for number in range(min(most, TOKENS // length))]


def _tensor(rows: int, columns: int) -> dict[str, Any]:
    data = np.full((rows, columns), 0.5, np.float32).tobytes()
    return {"dtype": "float32", "shape": [rows, columns], "data": base64.b64encode(data).decode()}


def _listed(rows: int, columns: int) -> list[list[float]]:
    return [[0.125] * columns] * rows


def _tensors(**named: tuple[str, list[int], list[Any]]) -> dict[str, Any]:
    return {
        "inputs": [
            {"name": name, "datatype": kind, "shape": shape, "data": data}
            for name, (kind, shape, data) in named.items()
        ]
    }


def _similarity() -> dict[str, Any]:
    return {"inputs": {"source_sentence": "a", "sentences": _texts()[:-1]}}


def _cohere() -> dict[str, Any]:
    types = ["float", "binary", "ubinary", "base64"]
    return {"model": "bert", "input_type": "search_query", "texts": _texts(), "embedding_types": types}


def _cohere_inputs() -> dict[str, Any]:
    inputs = [{"content": [{"type": "text", "text": text}]} for text in _texts()]
    return {"model": "bert", "input_type": "search_query", "inputs": inputs}


def _documents(texts: list[str], **fields: int) -> dict[str, Any]:
    return {"query": WORD, "documents": texts, "model": RANKER} | fields


BODIES: dict[str, dict[str, Callable[[], Any]]] = {
    "/embed": {
        "texts": lambda: {"inputs": _texts()},
        "one text": lambda: {"inputs": WORD * (CHARACTERS // len(WORD))},
        "ids": lambda: {"inputs": _ids(), "outputs": ["input_embeddings"]},
        "ids to be cut": lambda: {"inputs": [_different(number, 7_500) for number in range(256)], "truncate": True},
        "rows of ids": lambda: {"inputs": _ids(), "outputs": "last_hidden_state", "encoding_format": "base64"},
        "repeated outputs": lambda: {"inputs": "a", "outputs": ["sentence_embedding"] * LISTED},
        "chunks of texts": lambda: {"inputs": _texts(), "chunking": {"size": 1_000}},
        "spans of texts": lambda: {"inputs": _texts(), "spans": [[[0, CHARACTERS // INPUTS - len(WORD)]]] * INPUTS},
        "spans of one text": lambda: {"inputs": WORD * 500, "spans": [[0, 700]] * INPUTS},
    },
    "/embed_all": {"texts": lambda: {"inputs": _texts()}},
    "/similarity": {"texts": _similarity},
    "/rerank": {
        "texts": lambda: {"query": WORD, "texts": _texts(), "model": RANKER},
        "a long query": lambda: {"query": WORD * 2_000, "texts": _texts(), "model": RANKER},
        "documents": lambda: _documents(_texts()),
    },
    "/predict": {"pairs": lambda: {"inputs": [[WORD, text] for text in _texts()], "model": RANKER}},
    "/v1/rerank": {
        "chunks": lambda: {"query": WORD, "documents": _texts()[:64], "max_chunks_per_doc": 16, "model": RANKER}
    },
    "/v2/rerank": {"tokens": lambda: {"query": WORD, "documents": _texts(), "max_tokens_per_doc": 64, "model": RANKER}},
    "/score": {"pairs": lambda: {"text_1": _texts(), "text_2": _texts(), "model": RANKER}},
    "/v1/score": {"cosines": lambda: {"text_1": WORD, "text_2": _texts()[1:]}},
    "/classify": {"texts": lambda: {"input": _texts(), "model": CLASSIFIER}},
    "/tokenize": {"texts": lambda: {"inputs": _texts()}},
    "/decode": {"ids": lambda: {"ids": [[5] * 1_900] * INPUTS}, "one list": lambda: {"ids": [5] * 1_900_000}},
    "/v1/embeddings": {
        "texts": lambda: {"input": _texts()},
        "ids": lambda: {"input": _ids()},
        "late chunking": lambda: {"input": ["a"] * INPUTS, "late_chunking": True, "truncate_prompt_tokens": -1},
    },
    "/v1/embed": {"texts": _cohere},
    "/api/embed": {"texts": lambda: {"model": "bert", "input": _texts()}},
    "/v2/embed": {"texts": _cohere, "inputs": _cohere_inputs},
    "/pooling": {"texts": lambda: {"input": _texts(), "task": "token_embed"}},
    "/v2/models/{name}/infer": {
        "texts": lambda: _tensors(text=("BYTES", [INPUTS], _texts())),
        "ids": lambda: _tensors(input_ids=("INT64", [TOKENS // 64, 64], [5] * (TOKENS // 64 * 64))),
        "columns": lambda: _tensors(input_ids=("INT64", [TOKENS, 1], [[5]] * TOKENS)),
    },
    "/positions/learned": {
        "bytes": lambda: {"weights": _tensor(4_000, 700)},
        "lists": lambda: {"weights": _listed(1_000, 700)},
    },
    "/positions/rope": {"positions": lambda: {"head_dim": 64, "positions": list(range(0, 2 * LISTED, 2))}},
    "/positions/mask": {"padding": lambda: {"query_length": 512, "attention_mask": [[1] * 512] * 1_024}},
    "/models/{name}/similar": {"ids": lambda: {"positive": [5] * LISTED}, "texts": lambda: {"positive": _texts()}},
    "/models/{name}/gradient": {
        "ids": lambda: {"input_ids": _ids(), "gradient": [_listed(64, 4)] * INPUTS},
    },
}
"""JSON of POST routes by path."""


def _embed(count: int, **fields: Any) -> bytes:
    ids = [pb.Input(ids=pb.TokenIds(input_ids=_different(number, 64))) for number in range(count)]
    return pb.EmbedRequest(inputs=ids, **fields).SerializeToString()


def _infer() -> bytes:
    raw = np.array(_ids(most=TOKENS)).tobytes()
    request = oip.ModelInferRequest(model_name="bert", raw_input_contents=[raw])
    request.inputs.add(name="input_ids", datatype="INT64", shape=[TOKENS // 64, 64])
    return request.SerializeToString()


def _positions() -> bytes:
    request = pb.PositionsRequest(scheme="rope")
    request.parameters.update({"head_dim": 64, "positions": list(range(0, LISTED // 2, 2))})
    return request.SerializeToString()


def _spans() -> bytes:
    texts = [pb.Input(text=text) for text in _texts()]
    spans = [pb.InputSpans(spans=[pb.Span(start=0, stop=100)])] * INPUTS
    return pb.EmbedRequest(inputs=texts, spans=spans).SerializeToString()


def _logits(rows: int, **fields: Any) -> bytes:
    data = np.full((rows, 32), 0.5, np.float32).tobytes()
    hidden = pb.Tensor(dtype=pb.FLOAT32, shape=[rows, 32], data=data)
    return pb.LogitsRequest(hidden=hidden, **fields).SerializeToString()


def _similar(count: int) -> bytes:
    return pb.SimilarRequest(positive=[pb.SimilarItem(id=5)] * count).SerializeToString()


MESSAGES: dict[str, dict[str, Callable[[], bytes]]] = {
    "/inlay.v1.Embedder/Embed": {
        "ids": lambda: _embed(INPUTS, outputs=["input_embeddings"]),
        "texts": lambda: pb.EmbedRequest(inputs=[pb.Input(text=text) for text in _texts()]).SerializeToString(),
        "repeated outputs": lambda: _embed(1, outputs=["sentence_embedding"] * LISTED),
        "spans": _spans,
    },
    "/inlay.v1.Embedder/Logits": {"whole": lambda: _logits(100_000), "top": lambda: _logits(100_000, top_k=5)},
    "/inlay.v1.Embedder/Similar": {"ids": lambda: _similar(100_000)},
    "/inlay.v1.Embedder/EmbedStream": {"ids": lambda: _embed(INPUTS)},
    "/inlay.v1.Embedder/Positions": {"positions": _positions},
    "/inference.GRPCInferenceService/ModelInfer": {"ids": _infer},
    "/tei.v1.Tokenize/Tokenize": {
        "text": lambda: tei.EncodeRequest(inputs=WORD * (CHARACTERS // len(WORD))).SerializeToString()
    },
    "/tei.v1.Tokenize/Decode": {"ids": lambda: tei.DecodeRequest(ids=[5] * 4_000_000).SerializeToString()},
}
"""Messages of gRPC methods by path."""


def _positions_of(scheme: str, **parameters: Any) -> Callable[[], bytes]:
    def make() -> bytes:
        request = pb.PositionsRequest(scheme=scheme)
        request.parameters.update({name: value() if callable(value) else value for name, value in parameters.items()})
        return request.SerializeToString()

    return make


def _embed_text(text: str, **fields: Any) -> bytes:
    return pb.EmbedRequest(inputs=[pb.Input(text=text)], **fields).SerializeToString()


def _picture(kind: str, size: int) -> dict[str, str]:
    return {"inputs": base64.b64encode(PICTURES[kind](size)).decode()}


MARKS, HANGUL, BLANKS = "!" * 16_000, "각!" * CHARACTERS, " " * 2 * CHARACTERS
FACTORS = {"head_dim": 64, "length": 8, "rope_type": "longrope"}
DIMENSIONS = [2**31 - 1] * 50_000
FOUND: dict[str, dict[str, Callable[[], Any]]] = {
    "/embed": {
        "a pair of marks": lambda: {"inputs": [[MARKS, MARKS]]},
        "Hangul": lambda: {"inputs": HANGUL, "truncate": True},
        "chunks of Hangul": lambda: {"inputs": HANGUL, "chunking": {"size": 64}},
        "blanks": lambda: {"inputs": BLANKS},
    },
    "/rerank": {
        "marks": lambda: {"query": MARKS, "texts": [MARKS], "model": RANKER},
        "a list as text": lambda: {"query": "[" + "1," * (CHARACTERS // 4) + "1]", "texts": ["a"], "model": RANKER},
    },
    "/pooling": {"a list as text": lambda: {"input": "1," * (CHARACTERS // 2), "task": "embed"}},
    "/v1/embeddings": {"unknown fields": lambda: {"input": "a"} | {f"zz{number}": 1 for number in range(60_000)}},
    "/tokenize": {"thirty thousand words": lambda: {"inputs": WORD * 30_000}},
    "/models/{name}/similar": {"Hangul": lambda: {"positive": [HANGUL]}},
    "/positions/mask": {
        "lists in a string": lambda: {
            "query_length": 8,
            "attention_mask": "[" + "[1]," * (4 * CHARACTERS - 9) + "[1]]",
        },
        "rows in a string": lambda: {"query_length": 8, "position_ids": "1;" * CHARACTERS},
    },
    "/positions/rope": {
        "factors": lambda: FACTORS | {"long_factor": [1.5] * 2 * CHARACTERS, "short_factor": [1.5] * CHARACTERS},
        "factors in a string": lambda: FACTORS | {"long_factor": "1.5," * 2 * CHARACTERS},
    },
    "/models/{name}/images": {
        "many scans": lambda: _picture("JPEG of many scans", 100_000),
        "empty segments": lambda: _picture("JPEG of empty segments", 11 << 20),
        "EXIF": lambda: _picture("PNG of EXIF", 1 << 20),
    },
    "/models/{name}/gradient": {
        "a config as lengths": lambda: {"input_ids": [1], "lengths": "[" * (16 * CHARACTERS - 64)}
    },
}
"""Bodies that once took all of a small container's memory or held up others for seconds, by path."""

FOUND_MESSAGES: dict[str, dict[str, Callable[[], bytes]]] = {
    "/inlay.v1.Embedder/Embed": {"spans of Hangul": lambda: _embed_text(HANGUL, spans=[pb.InputSpans()])},
    "/inlay.v1.Embedder/Positions": {
        "mask": _positions_of("mask", query_length=8, attention_mask=lambda: [1] * CHARACTERS),
        "factors": _positions_of("rope", **FACTORS, long_factor=lambda: [1.5] * (CHARACTERS // 3)),
        "axial": _positions_of("axial", kind="pixtral", head_dim=64, positions=lambda: [1] * (CHARACTERS // 2)),
    },
    "/inlay.v1.Embedder/Similar": {
        "dimensions": lambda: pb.SimilarRequest(vector=pb.Tensor(shape=DIMENSIONS)).SerializeToString()
    },
    "/tei.v1.Tokenize/Tokenize": {
        "wide blanks": lambda: tei.EncodeRequest(inputs="\u3000" * CHARACTERS).SerializeToString()
    },
    "/tei.v1.Tokenize/Decode": {
        "unknown ids": lambda: tei.DecodeRequest(ids=[2**31 - 1] * 2 * CHARACTERS).SerializeToString()
    },
    "/tei.v1.Rerank/Rerank": {
        "a long query": lambda: tei.RerankRequest(query=BLANKS, texts=["a"] * INPUTS).SerializeToString()
    },
    "/tei.v1.Embed/EmbedStream": {"Hangul": lambda: tei.EmbedRequest(inputs=HANGUL, truncate=True).SerializeToString()},
}
"""Messages that once did, by path."""


def json_bodies(path: str) -> dict[str, Callable[[], bytes]]:
    """Return what makes the largest bodies of a route, by name."""
    return {name: _dumped(make) for name, make in BODIES.get(path, {}).items()}


def found_bodies(path: str) -> dict[str, Callable[[], bytes]]:
    """Return what makes the bodies of a route that once cost others too much, by name."""
    return {name: _dumped(make) for name, make in FOUND.get(path, {}).items()}


def _dumped(make: Callable[[], Any]) -> Callable[[], bytes]:
    return lambda: orjson.dumps(make())
