"""Cohere's own client: vectors of several types, by both versions of its API."""

import base64
import subprocess
from collections.abc import Iterator
from pathlib import Path

import cohere
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.clients.conftest import PYTHON, ROOT, SECONDS, Server, serving
from tests.clients.judged import INPUTS, MODEL, TEXTS, TOKENS, assert_vectors
from tests.golden_cases import write_json, write_tiny_bert

CLIENT = "cohere"
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # the library's own

ALL = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
WORDS = ["a b c", "hello world", "d e f g"]


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A tiny encoder with prompts, calibrated by the command."""
    folder = tmp_path_factory.mktemp("cohere")
    checkpoint = write_tiny_bert(folder / "tiny", pooling="mean")
    write_json(checkpoint / "config_sentence_transformers.json", {"prompts": {"query": "hello "}})
    (folder / "texts.txt").write_text("\n".join([*WORDS, "e", "f g h"]))
    run(folder, "export", checkpoint, folder / "store/tiny")
    run(folder, "calibrate", folder / "store/tiny", folder / "texts.txt")
    with serving(folder / "store") as running:
        yield running


def run(folder: Path, *words: str | Path) -> None:
    command = [PYTHON.with_name("inlay"), *words]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=SECONDS)


def clients(server: Server) -> tuple[cohere.Client, cohere.ClientV2]:
    return cohere.Client("any", base_url=server.url), cohere.ClientV2("any", base_url=server.url)


def test_floats_by_both_versions(server: Server) -> None:
    first, second = clients(server)
    old = first.embed(texts=INPUTS, model=MODEL, input_type="search_document")
    assert old.response_type == "embeddings_floats"
    assert_vectors(old.embeddings)
    assert old.meta.billed_units.input_tokens == TOKENS
    new = second.embed(texts=INPUTS, model=MODEL, input_type="search_document", embedding_types=["float", "base64"])
    assert_vectors(new.embeddings.float_)
    assert_vectors([np.frombuffer(base64.b64decode(text), "<f4") for text in new.embeddings.base64])
    inputs = [{"content": [{"type": "text", "text": text}]} for text in INPUTS[:1]]
    other = second.embed(inputs=inputs, model=MODEL, input_type="classification", embedding_types=["float"])
    assert_vectors(other.embeddings.float_, TEXTS[:1])


def test_every_type_of_a_calibrated_model(calibrated: Server) -> None:
    for client in clients(calibrated):
        answer = client.embed(texts=WORDS, model="tiny", input_type="clustering", embedding_types=ALL)
        floats: NDArray[np.float32] = np.float32(answer.embeddings.float_)
        bits = np.packbits(floats > 0, axis=1)
        assert (np.array(answer.embeddings.ubinary) == bits).all()
        assert (np.array(answer.embeddings.binary) == bits.astype(int) - 128).all()
        assert (np.array(answer.embeddings.int8) + 128 == np.array(answer.embeddings.uint8)).all()
        assert len(set(np.array(answer.embeddings.uint8).ravel().tolist())) > 20
        assert answer.texts == WORDS


def test_a_long_list_comes_in_batches(server: Server) -> None:
    client, _ = clients(server)
    texts = [INPUTS[number % 2] for number in range(200)]
    answer = client.embed(texts=texts, model=MODEL, embedding_types=["ubinary", "float"])
    assert_vectors(answer.embeddings.float_[198:])
    assert len(answer.embeddings.ubinary) == 200
    assert answer.meta.billed_units.input_tokens == 100 * TOKENS


def test_the_input_type_brings_the_models_prompt(calibrated: Server) -> None:
    _, client = clients(calibrated)

    def vector(text: str, use: str) -> NDArray[np.float32]:
        answer = client.embed(texts=[text], model="tiny", input_type=use, embedding_types=["float"])
        return np.float32(answer.embeddings.float_)

    assert (vector("world", "search_query") == vector("hello world", "search_document")).all()
    assert (vector("world", "search_query") != vector("world", "search_document")).any()


def test_errors_arrive_as_its_errors(server: Server) -> None:
    _, client = clients(server)
    with pytest.raises(cohere.errors.NotFoundError) as missing:
        client.embed(texts=["a"], model="nobody", input_type="search_query")
    assert "nobody" in missing.value.body["message"]
    with pytest.raises(cohere.errors.BadRequestError) as refused:
        client.embed(texts=["a"], model=MODEL, input_type="search_query", embedding_types=["int8"])
    assert f"inlay calibrate {MODEL} TEXTS" in refused.value.body["message"]


async def test_the_async_clients(server: Server) -> None:
    for made in (cohere.AsyncClient, cohere.AsyncClientV2):
        client = made("any", base_url=server.url)
        answer = await client.embed(texts=INPUTS, model=MODEL, input_type="search_query", embedding_types=["float"])
        assert_vectors(answer.embeddings.float_)
