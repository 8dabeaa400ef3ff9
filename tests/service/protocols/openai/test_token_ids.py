"""Token ids and empty texts of /v1/embeddings, as INLAY_OPENAI_TOKEN_IDS and INLAY_EMPTY_INPUTS say."""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from service.errors import StartError
from service.protocols.openai.token_ids import TokenIds
from tests.served import Served, serving

HEADER = "inlay-token-ids"
WORDS = {7: "hello", 100000: " world"}


class Encoding:
    """An encoding of two words, whose ids no model here has."""

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(WORDS[token] for token in tokens)


def get_encoding(name: str) -> Encoding:
    if name == "unfetched":
        raise ConnectionError
    if name != "cl100k_base":
        raise ValueError(name)
    return Encoding()


@pytest.fixture(autouse=True)
def tiktoken(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(get_encoding=get_encoding, list_encoding_names=lambda: ["cl100k_base"])
    monkeypatch.setitem(sys.modules, "tiktoken", module)


def post(served: Served, given: Any) -> Any:
    return served.http.post("/v1/embeddings", json={"input": given, "model": "minilm"})


def vectors(served: Served, given: Any) -> list[Any]:
    return [entry["embedding"] for entry in post(served, given).json()["data"]]


def test_ids_are_the_models_by_default_and_the_header_says_so(minilm_store: Path) -> None:
    with serving(minilm_store) as served:
        assert post(served, [101, 7592, 102]).headers[HEADER] == "model"
        assert vectors(served, [101, 7592, 102]) == vectors(served, "hello")
        assert HEADER not in post(served, "hello").headers


def test_ids_of_an_encoding_are_its_text(minilm_store: Path) -> None:
    with serving(minilm_store, openai_token_ids="cl100k_base", max_request_tokens=600) as served:
        answer = post(served, [[7, 100000], [7]])
        assert answer.headers[HEADER] == "cl100k_base"
        assert vectors(served, [[7, 100000], [7]]) == vectors(served, ["hello world", "hello"])
        unknown = post(served, [[7], [8]]).json()["error"]
        assert (unknown["code"], unknown["param"]) == ("out_of_range", "input")
        assert "input[1] holds an unknown token id" in unknown["message"]
        assert post(served, [7] * 601).json()["error"]["code"] == "too_many_tokens"


def test_ids_are_refused_where_the_server_says_so(minilm_store: Path) -> None:
    with serving(minilm_store, openai_token_ids="refuse") as served:
        refused = post(served, ["hello", [101, 102]])
        assert refused.status_code == 400
        assert "input[1] holds token ids" in refused.json()["error"]["message"]
        assert post(served, "hello").status_code == 200


@pytest.mark.parametrize(
    ("name", "says"), [("gpt", "allowed: model, refuse, cl100k_base"), ("unfetched", "TIKTOKEN_CACHE_DIR")]
)
def test_unknown_or_missing_encoding_stops_the_start(name: str, says: str) -> None:
    with pytest.raises(StartError, match=says):
        TokenIds(name, 1)


def test_missing_tiktoken_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(StartError, match="pip install"):
        TokenIds("cl100k_base", 1)


def test_empty_text_has_a_vector_where_the_server_says_so(minilm_store: Path) -> None:
    with serving(minilm_store, empty_inputs="vector") as served:
        first, empty = vectors(served, ["hello", ""])
        assert [first] == vectors(served, "hello")
        assert [empty] == vectors(served, "")
        assert empty == served.post({"inputs": "", "model": "minilm"}).json()[0]
