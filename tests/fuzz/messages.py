"""Decoders of protobuf messages before any model is asked: inlay.v1's requests and its positional ones."""

import numpy as np
from google.protobuf.message import DecodeError

from proto import embed_pb2 as pb
from service.protocols.inlay import rpc_requests as requests
from service.protocols.inlay.rpc_fields import fields_of, parameters_of
from tests.fuzz.judging import Target


def _embed(data: bytes) -> None:
    message = pb.EmbedRequest.FromString(data)
    sent, count = message.ByteSize(), len(message.inputs)
    request, _ = requests.decode(message)
    assert len(request.inputs) == count
    assert sum(each.ids.size for each in request.inputs if hasattr(each, "ids")) <= sent


def _embed_seeds() -> list[bytes]:
    ids = pb.TokenIds(
        input_ids=range(100), attention_mask=[1] * 100, position_ids=range(100), langs=[0], bbox=[0, 0, 1, 1]
    )
    inputs = [pb.Input(text="hello"), pb.Input(pair=pb.TextPair(first="a", second="b")), pb.Input(ids=ids)]
    full = pb.EmbedRequest(
        model="m", inputs=inputs, outputs=["a", "b"], truncate=True, truncation_direction=pb.LEFT, pooling=pb.MEAN
    )
    options = pb.EmbedRequest(
        normalize=False, dimensions=3, dtype=pb.BFLOAT16, prompt_name="q", task="t", encoding=pb.INPUT_EMBEDS
    )
    spans = [pb.InputSpans(spans=[pb.Span(start=0, stop=3), pb.Span(start=2, stop=4)])]
    late = [pb.EmbedRequest(inputs=inputs[:1], spans=spans), pb.EmbedRequest(chunking=pb.Chunking(size=3, overlap=1))]
    bare = pb.EmbedRequest(inputs=inputs[:1])
    return [bytes(each.SerializeToString()) for each in (full, options, bare, *late)]


def _parameters(data: bytes) -> None:
    parameters_of(pb.PositionsRequest.FromString(data))


def _parameter_seeds() -> list[bytes]:
    data = np.ones((2, 2), np.float16).tobytes()
    tensors = pb.PositionsRequest(tensors={"weights": pb.Tensor(dtype=pb.FLOAT16, shape=[2, 2], data=data)})
    tensors.parameters.update({"rotary_dim": 2, "theta": 1e4, "config": {"a": [1, None, "b", True]}})
    request = pb.PositionsRequest(scheme="rope", dtype=pb.FLOAT32)
    request.parameters.update({"positions": [1, 2, 3]})
    return [tensors.SerializeToString(), request.SerializeToString()]


def _fields(data: bytes) -> None:
    """1 byte of kind, then the message."""
    kind = KINDS[(data[:1] or b"\0")[0] % len(KINDS)]
    fields_of(kind.FromString(data[1:]))


def _field_seeds() -> list[bytes]:
    tensor = pb.Tensor(dtype=pb.FLOAT16, shape=[2], data=np.ones(2, np.float16).tobytes())
    logits = pb.LogitsRequest(hidden=tensor, top_k=3, temperature=0.5, output="ids", dtype=pb.FLOAT64)
    items = [pb.SimilarItem(id=5), pb.SimilarItem(text="a"), pb.SimilarItem(vector=tensor)]
    similar = pb.SimilarRequest(positive=items, negative=items[:1], normalize=True, measure="dot", top_k=3)
    messages = (logits, similar, pb.AnalysisRequest(spectrum=False))
    return [bytes([KINDS.index(type(each))]) + each.SerializeToString() for each in messages]


KINDS = (pb.LogitsRequest, pb.SimilarRequest, pb.AnalysisRequest)
TARGETS = {
    "inlay.v1 EmbedRequest": Target(_embed, _embed_seeds, (DecodeError,)),
    "inlay.v1 fields": Target(_fields, _field_seeds, (DecodeError,)),
    "inlay.v1 parameters": Target(_parameters, _parameter_seeds, (DecodeError,)),
}
