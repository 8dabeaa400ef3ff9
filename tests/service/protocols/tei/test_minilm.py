"""The demo model over TEI's contract, compared with transformers and sentence-transformers."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from proto import tei_pb2 as pb
from proto import tei_pb2_grpc as stubs
from tests.minilm_golden import Case, cases
from tests.served import Served, serving
from tests.sweeps import sampled

HIDDEN, UNIT = 5e-6, 1e-6
TEXTS = [case for case in cases() if isinstance(case.input, str) and case.name != "empty"]
each_text = pytest.mark.parametrize("case", sampled(TEXTS, 5), ids=lambda case: case.name)


@pytest.fixture(scope="module")
def served(minilm_store: Path) -> Iterator[Served]:
    with serving(minilm_store) as running:
        yield running


@pytest.fixture(scope="module")
def embed(served: Served) -> Iterator[stubs.EmbedStub]:
    with grpc.insecure_channel(served.rpc_address) as channel:
        yield stubs.EmbedStub(channel)


@each_text
def test_embed_all_matches_transformers_last_hidden_state(served: Served, case: Case) -> None:
    body = {"inputs": case.input, "truncation_direction": case.direction}
    (rows,) = served.http.post("/embed_all", json=body).json()
    assert len(rows) == len(case.input_ids)
    np.testing.assert_allclose(np.array(rows)[case.rows], case.arrays["last_hidden_state"], atol=HIDDEN)


@each_text
def test_grpc_vectors_match_sentence_transformers(embed: stubs.EmbedStub, case: Case) -> None:
    side = pb.TRUNCATION_DIRECTION_LEFT if case.direction == "left" else pb.TRUNCATION_DIRECTION_RIGHT
    request = pb.EmbedRequest(inputs=case.input, truncate=True, truncation_direction=side)
    np.testing.assert_allclose(embed.Embed(request).embeddings, case.unit, atol=UNIT)


def test_similarity_matches_sentence_transformers(served: Served) -> None:
    source, *others = [case for case in TEXTS if case.direction == "right"]
    for path in ("/similarity", "/"):
        inputs = {"source_sentence": source.input, "sentences": [case.input for case in others]}
        similarities = served.http.post(path, json={"inputs": inputs, "parameters": {}}).json()
        np.testing.assert_allclose(similarities, [case.unit @ source.unit for case in others], atol=2 * UNIT)


@each_text
def test_tokens_match_transformers(served: Served, case: Case) -> None:
    (tokens,) = served.http.post("/tokenize", json={"inputs": case.input}).json()
    if len(case.input_ids) < 256:
        assert [token["id"] for token in tokens] == case.input_ids
    raw = case.input.encode()
    assert all(
        raw[token["start"] : token["stop"]].decode() == token["text"] for token in tokens if not token["special"]
    )
