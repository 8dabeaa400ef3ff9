"""Messages that are written apart from protobuf, and their metadata, are the bytes that protobuf writes."""

import numpy as np
import pytest

from proto import tei_pb2 as pb
from service.embedding.requests import EmbedResult
from service.protocols.tei.answers import token_embeddings
from service.protocols.tei.rpc import Timed, timed_response
from service.request_context import StageTimes

RESULTS = (
    EmbedResult("m", (), 0, True),
    EmbedResult("m", (), 300, True, (300,), 127, StageTimes(0.0, 0.000_001, 1.5)),
    EmbedResult("m", (), 70_000, True, (70_000,), 2**21, StageTimes(3e-7, 12.0, 400.25)),
)


@pytest.mark.parametrize("shape", [(1, 1), (1, 31), (1, 32), (3, 384), (40, 16), (2, 5000)])
def test_token_vectors_are_the_bytes_that_protobuf_writes(shape: tuple[int, int]) -> None:
    rows = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
    rows[0, 0] = 0.0
    tokens = [pb.TokenEmbedding(embeddings=row.tolist()) for row in rows]
    assert token_embeddings(rows) == pb.EmbedAllResponse(token_embeddings=tokens).SerializeToString()


@pytest.mark.parametrize("result", RESULTS)
def test_entries_and_metadata_make_one_message(result: EmbedResult) -> None:
    rows = np.ones((2, 3), np.float32)
    written = timed_response(Timed(pb.EmbedAllResponse(), result, token_embeddings(rows), 0.5))
    answer = pb.EmbedAllResponse.FromString(written)
    assert [list(token.embeddings) for token in answer.token_embeddings] == rows.tolist()
    assert answer.HasField("metadata")
    stated = answer.metadata
    assert (stated.compute_chars, stated.compute_tokens) == (result.characters, result.tokens)
    assert stated.total_time_ns == 500_000_000
    times = (stated.tokenization_time_ns, stated.queue_time_ns, stated.inference_time_ns)
    assert times == tuple(int(seconds * 1e9) for seconds in result.times)
