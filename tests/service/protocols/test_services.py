"""Requests of services and databases that tests cannot run, as bytes: what each makes of the answers is asserted.

Each row says whose source code at which commit sends it and what that code reads of the answer; `docs/works-with` has
the settings of these services. Heads are those that the services' HTTP libraries write.
"""

import base64
import gzip
import http.client
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.score_models import EMBEDDER, RANKER
from tests.served import Served, serving

TEXTS = ["a b c", "d ü", "hello world"]
QUERY = "a b"
JINA = "jina-reranker-v2-base-multilingual"  # LibreChat names no other
OBSIDIAN = "app://obsidian.md"
ALIASES = (f"{JINA}={RANKER}",)
TOLERANCE = 1e-6
Reader = Callable[[Any], Any]

HEADS = {
    "requests": "User-Agent: python-requests/2.32.5\r\nAccept-Encoding: gzip, deflate, zstd\r\nAccept: */*\r\n",
    "aiohttp": "Accept: */*\r\nAccept-Encoding: gzip, deflate, br\r\nUser-Agent: Python/3.12 aiohttp/3.13.2\r\n",
    "httpx": "Accept: */*\r\nAccept-Encoding: gzip, deflate\r\nUser-Agent: python-httpx/0.28.1\r\n",
    "openai-python": "Accept-Encoding: gzip, deflate\r\nAccept: application/json\r\nUser-Agent: OpenAI/Python 2.9.0\r\n"
    "X-Stainless-Lang: python\r\nX-Stainless-Runtime: CPython\r\nX-Stainless-Retry-Count: 0\r\n",
    "ollama-python": "Accept: application/json\r\nAccept-Encoding: gzip, deflate\r\n"
    "User-Agent: ollama-python/0.6.1 (x86_64 linux) Python/3.12.12\r\n",
    "fetch": "accept: */*\r\naccept-language: *\r\nsec-fetch-mode: cors\r\nuser-agent: node\r\n"
    "accept-encoding: gzip, deflate\r\n",
    "openai-node": "accept: application/json\r\nuser-agent: langchainjs-openai/1.0.0 ((node/v22.21.1; linux; x64))\r\n"
    "x-stainless-lang: js\r\nx-stainless-runtime: node\r\nx-stainless-retry-count: 0\r\naccept-language: *\r\n"
    "sec-fetch-mode: cors\r\naccept-encoding: gzip, deflate\r\n",
    "ollama-js": "Accept: application/json\r\nUser-Agent: ollama-js/0.6.3 (x64 linux Node.js/v22.21.1)\r\n"
    "accept-language: *\r\nsec-fetch-mode: cors\r\naccept-encoding: gzip, deflate\r\n",
    "go": "User-Agent: Go-http-client/1.1\r\nAccept-Encoding: gzip\r\n",
    "java": "User-Agent: Apache-HttpAsyncClient/4.1.5 (Java/25)\r\n",
    "axios": "Accept: application/json, text/plain, */*\r\nUser-Agent: axios/1.16.0\r\n"
    "Accept-Encoding: gzip, compress, deflate, br\r\n",
}
SPACED = ("requests", "aiohttp")  # they send the text of json.dumps, others JSON without spaces


def floats(answer: Any) -> Any:
    return [item["embedding"] for item in answer["data"]]


def packed(answer: Any) -> Any:
    return [np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in answer["data"]]


def ollama(answer: Any) -> Any:
    return answer["embeddings"]


def whole(answer: Any) -> Any:
    return answer


def results(answer: Any) -> Any:
    return [each["relevance_score"] for each in sorted(answer["results"], key=lambda each: each["index"])]


def ranks(answer: Any) -> Any:
    return [each["score"] for each in sorted(answer, key=lambda each: each["index"])]


def scores_of_documents(answer: Any) -> Any:
    scores = {_text(each["document"]): each["relevance_score"] for each in answer["results"]}
    return [scores[text] for text in TEXTS]


def scores_of_texts(answer: Any) -> Any:
    return [{each["text"]: each["score"] for each in answer}[text] for text in TEXTS]


def _text(document: Any) -> str:
    return str(document["text"] if type(document) is dict else document)


class Sent(NamedTuple):
    """A request: the library that sends it, path, body, what its sender reads of the answer, and further headers."""

    library: str
    path: str
    body: dict[str, Any]
    reads: Reader
    headers: str = "Authorization: Bearer a-key\r\n"


INPUT: dict[str, Any] = {"model": EMBEDDER, "input": TEXTS}
RANKED: dict[str, Any] = {"model": RANKER, "query": QUERY, "documents": TEXTS}
USER = "Authorization: Bearer \r\nX-OpenWebUI-User-Name: J%C3%B6\r\nX-OpenWebUI-User-Id: 1\r\n"
NO_KEY = "Authorization: \r\n"

VECTORS = {
    # open-webui/open-webui@0013f5c backend/open_webui/retrieval/utils.py
    "Open WebUI, openai": Sent("aiohttp", "/v1/embeddings", INPUT, floats, USER),
    "Open WebUI, ollama": Sent("aiohttp", "/api/embed", INPUT | {"truncate": True}, ollama, USER),
    "Open WebUI, openai, prefix field": Sent(
        "aiohttp", "/v1/embeddings", INPUT | {"input_type": "document"}, floats, USER
    ),
    # langgenius/dify-official-plugins@7af2283 models/{openai_api_compatible,huggingface_tei,ollama}
    "Dify, OpenAI-API-compatible": Sent("requests", "/v1/embeddings", INPUT, floats, NO_KEY),
    "Dify, TEI": Sent("httpx", "/v1/embeddings", {"input": TEXTS}, floats),
    "Dify, Ollama": Sent(
        "requests", "/api/embed", INPUT | {"truncate": True, "options": {"use_mmap": True}}, ollama, ""
    ),
    # infiniflow/ragflow@b1b8cd6 rag/llm/embedding_model.py
    "RAGFlow, OpenAI-API-Compatible": Sent(
        "openai-python", "/v1/embeddings", INPUT | {"encoding_format": "float", "drop_params": True}, floats
    ),
    "RAGFlow, Xinference": Sent("openai-python", "/v1/embeddings", INPUT | {"encoding_format": "base64"}, packed),
    "RAGFlow, HuggingFace": Sent("requests", "/embed", {"inputs": TEXTS}, whole, ""),
    "RAGFlow, Ollama": Sent(
        "ollama-python",
        "/api/embed",
        INPUT | {"truncate": True, "options": {"use_mmap": True}, "keep_alive": -1},
        ollama,
    ),
    # n8n-io/n8n@0013714 packages/@n8n/nodes-langchain/nodes/embeddings, which uses @langchain/openai and ollama
    "n8n, OpenAI": Sent("openai-node", "/v1/embeddings", INPUT | {"encoding_format": "base64"}, packed),
    "n8n, Ollama": Sent("ollama-js", "/api/embed", INPUT | {"truncate": False}, ollama),
    # danny-avila/rag_api@4985b37 app/config.py, which uses LangChain's OpenAIEmbeddings, HuggingFaceEndpointEmbeddings
    "LibreChat, openai": Sent("openai-python", "/v1/embeddings", INPUT | {"encoding_format": "base64"}, packed),
    "LibreChat, huggingfacetei": Sent("httpx", "/", {"inputs": TEXTS}, whole),
    # Mintplex-Labs/anything-llm@72aabbd server/utils/EmbeddingEngines
    "AnythingLLM, generic-openai": Sent("openai-node", "/v1/embeddings", INPUT | {"encoding_format": "base64"}, packed),
    "AnythingLLM, localai": Sent("openai-node", "/v1/embeddings", INPUT | {"encoding_format": "float"}, floats),
    "AnythingLLM, ollama": Sent("ollama-js", "/api/embed", INPUT | {"options": {"num_ctx": 8192}}, ollama),
    # FlowiseAI/Flowise@ababf4c packages/components/nodes/embeddings
    "Flowise, Ollama": Sent("ollama-js", "/api/embed", INPUT | {"options": {"use_mmap": True}}, ollama),
    # continuedev/continue@d0a3c0b core/llm/llms
    "Continue, huggingface-tei": Sent("fetch", "/embed", {"inputs": TEXTS}, whole),
    "Continue, openai": Sent("fetch", "/v1/embeddings", INPUT, floats, "api-key: a-key\r\n"),
    "Continue, ollama": Sent("fetch", "/api/embed", INPUT, ollama, ""),
    # logancyang/obsidian-copilot@611831b src/LLMProviders/CustomOpenAIEmbeddings.ts
    "Obsidian Copilot, OpenAI format": Sent("fetch", "/v1/embeddings", INPUT | {"encoding_format": "float"}, floats),
    # weaviate/weaviate@adcffc5 usecases/modulecomponents/clients/openai, modules/text2vec-{huggingface,ollama}
    "Weaviate, text2vec-openai": Sent("go", "/v1/embeddings", INPUT, floats),
    "Weaviate, text2vec-huggingface": Sent(
        "go", "/", {"inputs": TEXTS, "options": {"wait_for_model": True, "use_cache": True}}, whole
    ),
    "Weaviate, text2vec-ollama": Sent("go", "/api/embed", INPUT, ollama, ""),
    # milvus-io/milvus@059bfd6 internal/util/function/models/{tei,openai}
    "Milvus, TEI": Sent("go", "/embed", {"inputs": TEXTS, "truncate": True, "truncation_direction": "Right"}, whole),
    "Milvus, openai": Sent("go", "/v1/embeddings", INPUT | {"encoding_format": "float"}, floats),
    # elastic/elasticsearch@4979002 x-pack/plugin/inference/.../services/openai, which reads both forms
    "Elasticsearch, openai": Sent("java", "/v1/embeddings", INPUT, floats),
    "Elasticsearch, openai in base64": Sent("java", "/v1/embeddings", INPUT | {"encoding_format": "base64"}, packed),
    # opensearch-project/ml-commons docs/remote_inference_blueprints/openai_connector_embedding_blueprint.md
    "OpenSearch, connector": Sent("java", "/v1/embeddings", INPUT, floats),
}
RANKINGS = {
    # open-webui/open-webui@0668cb7 backend/open_webui/retrieval/models/external.py
    "Open WebUI, external": Sent("requests", "/v1/rerank", RANKED | {"top_n": len(TEXTS)}, results),
    # langgenius/dify-plugin-sdks@28d1d22 openai_compatible/rerank.py; dify-official-plugins@7af2283
    "Dify, OpenAI-API-compatible": Sent(
        "requests", "/v1/rerank", RANKED | {"top_n": None, "return_documents": True}, scores_of_documents
    ),
    "Dify, TEI": Sent("httpx", "/rerank", {"query": QUERY, "texts": TEXTS, "return_text": True}, scores_of_texts, ""),
    # infiniflow/ragflow@b1b8cd6 rag/llm/rerank_model.py
    "RAGFlow, OpenAI-API-Compatible": Sent("requests", "/v1/rerank", RANKED | {"top_n": len(TEXTS)}, results),
    "RAGFlow, Xinference": Sent(
        "requests", "/v1/rerank", RANKED | {"return_documents": "true", "return_len": "true"}, results
    ),
    "RAGFlow, HuggingFace": Sent(
        "requests", "/rerank", {"query": QUERY, "texts": TEXTS, "raw_scores": False, "truncate": True}, ranks, ""
    ),
    # danny-avila/agents@28eab85 src/tools/search/rerankers.ts
    "LibreChat, jina": Sent(
        "axios",
        "/v1/rerank",
        RANKED | {"model": JINA, "top_n": len(TEXTS), "return_documents": True},
        scores_of_documents,
    ),
    # weaviate/weaviate@adcffc5 modules/reranker-cohere/clients/ranker.go
    "Weaviate, reranker-cohere": Sent(
        "go",
        "/v2/rerank",
        RANKED | {"return_documents": False},
        results,
        "Authorization: Bearer a\r\nRequest-Source: unspecified:weaviate\r\n",
    ),
    # milvus-io/milvus@059bfd6 internal/util/function/models/tei/tei.go
    "Milvus, TEI": Sent("go", "/rerank", {"query": QUERY, "texts": TEXTS, "truncate": True}, ranks),
    # continuedev/continue@d0a3c0b core/llm/llms/HuggingFaceTEI.ts
    "Continue, huggingface-tei": Sent(
        "fetch",
        "/rerank",
        {
            "query": QUERY,
            "return_text": False,
            "raw_scores": False,
            "texts": TEXTS,
            "truncation_direction": "Right",
            "truncate": True,
        },
        ranks,
    ),
}
# What else services ask before they embed: of which server, path, and what has to be true of the answer.
QUESTIONS: dict[str, tuple[str, str, Callable[[Any], bool]]] = {
    "AnythingLLM asks whether Ollama is alive": ("fetch", "/", lambda answer: True),
    "n8n lists the models of OpenAI": ("axios", "/v1/models", lambda answer: EMBEDDER in _names(answer["data"], "id")),
    "n8n lists the models of Ollama": ("axios", "/api/tags", lambda answer: EMBEDDER in _names(answer["models"])),
    "Open WebUI asks for the version of Ollama": ("aiohttp", "/api/version", lambda answer: bool(answer["version"])),
    "Dify asks TEI for the kind of model": (
        "requests",
        "/info",
        lambda answer: (
            next(iter(answer["model_type"])) == "embedding"
            and answer["max_input_length"] > 0
            and answer["max_client_batch_size"] > 0
        ),
    ),
    "Continue asks TEI for its limits": ("fetch", "/info", lambda answer: answer["model_id"] == EMBEDDER),
}


def _names(models: list[dict[str, Any]], name: str = "name") -> list[str]:
    return [model[name] for model in models]


@pytest.fixture(scope="module")
def served(score_store: Path) -> Iterator[Served]:
    with serving(score_store, default_model=EMBEDDER, aliases=ALIASES, cors_origins=OBSIDIAN) as running:
        yield running


def exchange(served: Served, sent: Sent, method: str = "POST") -> Any:
    """Send a request's bytes over a new connection; return the JSON of the answer, which has status 200."""
    separators = None if sent.library in SPACED else (",", ":")
    body = json.dumps(sent.body, ensure_ascii=sent.library in SPACED, separators=separators).encode()
    content = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if method == "POST" else ""
    head = f"{method} {sent.path} HTTP/1.1\r\nHost: {served.address[0]}:{served.address[1]}\r\n"
    head += f"{HEADS[sent.library]}Connection: keep-alive\r\n{sent.headers}{content}\r\n"
    with socket.create_connection(served.address, timeout=30) as connection:
        connection.sendall(head.encode() + (body if method == "POST" else b""))
        response = http.client.HTTPResponse(connection)
        response.begin()
        data = response.read()
    data = gzip.decompress(data) if response.headers["content-encoding"] == "gzip" else data
    assert response.status == 200, data
    return json.loads(data)


@pytest.mark.parametrize("service", VECTORS)
def test_service_reads_the_vectors_of_its_texts(served: Served, service: str) -> None:
    sent = VECTORS[service]
    expected = np.array(served.post({"inputs": TEXTS, "model": EMBEDDER}).json())
    np.testing.assert_allclose(sent.reads(exchange(served, sent)), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("service", RANKINGS)
def test_service_reads_the_scores_of_its_documents(served: Served, service: str) -> None:
    sent = RANKINGS[service]
    answer = served.http.post("/rerank", json={"query": QUERY, "texts": TEXTS, "model": RANKER}).json()
    np.testing.assert_allclose(sent.reads(exchange(served, sent)), ranks(answer), rtol=0, atol=TOLERANCE)


def test_obsidians_page_may_ask_where_its_origin_is_allowed(served: Served) -> None:
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    answer = served.http.options("/v1/embeddings", headers={"origin": OBSIDIAN} | asks)
    assert answer.headers["access-control-allow-origin"] == OBSIDIAN
    sent = VECTORS["Obsidian Copilot, OpenAI format"]
    assert len(sent.reads(exchange(served, sent._replace(headers=f"{sent.headers}Origin: {OBSIDIAN}\r\n")))) == 3


@pytest.mark.parametrize("question", QUESTIONS)
def test_service_gets_the_answers_it_asks_first(served: Served, question: str) -> None:
    library, path, holds = QUESTIONS[question]
    assert holds(exchange(served, Sent(library, path, {}, whole), "GET"))
