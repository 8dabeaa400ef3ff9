"""Vector messages are written as the bytes that protobuf writes."""

import numpy as np
import pytest
from numpy.typing import NDArray

from proto import tei_pb2 as pb
from service.embedding.requests import EmbedResult
from service.protocols.tei.rpc import Vectors, embed_all_response, embed_response
from service.request_context import StageTimes

SHAPES = ((1, 1), (1, 31), (1, 32), (3, 384), (40, 16), (2, 5000))
RESULTS = (
    EmbedResult("m", (), 0, True),
    EmbedResult("m", (), 300, True, (300,), 127, StageTimes(0.0, 0.000_001, 1.5)),
    EmbedResult("m", (), 70_000, True, (70_000,), 2**21, StageTimes(3e-7, 12.0, 400.25)),
)


def rows(shape: tuple[int, int]) -> NDArray[np.float32]:
    values = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
    values[0, 0] = 0.0
    return values


def metadata(answer: Vectors) -> pb.Metadata:
    result = answer.result
    tokenization, queue, inference = (int(seconds * 1e9) for seconds in result.times)
    return pb.Metadata(
        compute_chars=result.characters,
        compute_tokens=result.tokens,
        total_time_ns=int(answer.seconds * 1e9),
        tokenization_time_ns=tokenization,
        queue_time_ns=queue,
        inference_time_ns=inference,
    )


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_messages_are_the_bytes_that_protobuf_writes(shape: tuple[int, int], result: EmbedResult) -> None:
    answer = Vectors(rows(shape), result, 0.123456789)
    one = Vectors(answer.rows[:1], result, 0.0)
    expected = pb.EmbedResponse(embeddings=one.rows[0].tolist(), metadata=metadata(one))
    assert embed_response(one) == expected.SerializeToString()
    tokens = [pb.TokenEmbedding(embeddings=row.tolist()) for row in answer.rows]
    expected_all = pb.EmbedAllResponse(token_embeddings=tokens, metadata=metadata(answer))
    assert embed_all_response(answer) == expected_all.SerializeToString()
