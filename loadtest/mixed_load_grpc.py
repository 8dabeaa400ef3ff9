"""The gRPC rows of loadtest.mixed_load: inlay.v1, tei.v1 and the Open Inference Protocol. Only statuses are checked."""

import random
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import grpc

from loadtest import workload
from proto import embed_pb2, open_inference_pb2, tei_pb2

TIMEOUT_S = 60
LAYER = "input_embeddings"


class Stubs:
    """The called methods on one channel of their own.

    Args:
        authorities: of the server's certificate, PEM; None: the server speaks no TLS.
    """

    def __init__(self, address: str, authorities: bytes | None = None) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        self.channel = channel = (
            grpc.insecure_channel(address, options)
            if authorities is None
            else grpc.secure_channel(address, grpc.ssl_channel_credentials(authorities), options)
        )
        infer, tei = open_inference_pb2.ModelInferResponse, tei_pb2.EmbedResponse
        embed, streamed = embed_pb2.EmbedResponse.FromString, embed_pb2.EmbedStreamResponse.FromString
        service = "/inlay.v1.Embedder/"
        self.embed: Any = channel.unary_unary(f"{service}Embed", _serialize, embed)
        self.stream: Any = channel.stream_stream(f"{service}EmbedStream", _serialize, streamed)
        inference = "/inference.GRPCInferenceService/ModelInfer"
        self.infer: Any = channel.unary_unary(inference, _serialize, infer.FromString)
        self.tei: Any = channel.unary_unary("/tei.v1.Embed/Embed", _serialize, tei.FromString)
        self.tei_stream: Any = channel.stream_stream("/tei.v1.Embed/EmbedStream", _serialize, tei.FromString)

    def close(self) -> None:
        """Close the channel."""
        self.channel.close()


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


class Caller(Protocol):
    """What a row needs of a caller."""

    rng: random.Random
    stubs: Stubs

    def texts(self) -> list[str]:
        """Return some texts."""
        ...

    def ids(self) -> list[list[int]]:
        """Return some lists of ids."""
        ...


def texts_request(texts: list[str], **fields: Any) -> embed_pb2.EmbedRequest:
    """Return a request for the vectors of some texts, with further fields of the message."""
    return embed_pb2.EmbedRequest(inputs=[embed_pb2.Input(text=text) for text in texts], **fields)


def ids_request(batch: list[list[int]]) -> embed_pb2.EmbedRequest:
    """Return a request for the input embeddings of some lists of ids."""
    inputs = [embed_pb2.Input(ids=embed_pb2.TokenIds(input_ids=ids)) for ids in batch]
    return embed_pb2.EmbedRequest(inputs=inputs, outputs=[LAYER])


def _text(caller: Caller) -> str:
    caller.stubs.embed(texts_request([workload.mixed_text(caller.rng)]), timeout=TIMEOUT_S)
    return "OK"


def _ids(caller: Caller) -> str:
    caller.stubs.embed(ids_request(caller.ids()), timeout=TIMEOUT_S)
    return "OK"


def _stream(caller: Caller) -> str:
    requests: Iterator[embed_pb2.EmbedRequest] = iter([ids_request([ids]) for ids in caller.ids()])
    failed = [one for one in caller.stubs.stream(requests, timeout=TIMEOUT_S) if one.WhichOneof("result") == "error"]
    return failed[0].error.code if failed else "OK"


def _infer(caller: Caller) -> str:
    texts = [text.encode() for text in caller.texts()]
    contents = open_inference_pb2.InferTensorContents(bytes_contents=texts)
    tensor = open_inference_pb2.ModelInferRequest.InferInputTensor
    inputs = [tensor(name="text", datatype="BYTES", shape=[len(texts)], contents=contents)]
    caller.stubs.infer(open_inference_pb2.ModelInferRequest(inputs=inputs), timeout=TIMEOUT_S)
    return "OK"


def _tei(caller: Caller) -> str:
    caller.stubs.tei(tei_pb2.EmbedRequest(inputs=workload.mixed_text(caller.rng)), timeout=TIMEOUT_S)
    return "OK"


def _invalid_id(caller: Caller) -> str:
    caller.stubs.embed(ids_request([[101, 10**6]]), timeout=TIMEOUT_S)
    return "OK"


def _short_deadline(caller: Caller) -> str:
    texts = [workload.text(caller.rng, 100) for _ in range(16)]
    caller.stubs.embed(texts_request(texts), timeout=caller.rng.uniform(0.001, 0.05))
    return "OK"


def _cancelled(caller: Caller) -> str:
    texts = [workload.text(caller.rng, 100) for _ in range(16)]
    call = caller.stubs.embed.future(texts_request(texts), timeout=TIMEOUT_S)
    try:
        call.result(timeout=caller.rng.uniform(0, 0.05))
    except grpc.FutureTimeoutError:
        call.cancel()
        return "CANCELLED"
    return "OK"


GRPC: tuple[tuple[str, int, Callable[[Any], str], tuple[str, ...]], ...] = (
    ("grpc text", 6, _text, ("OK",)),
    ("grpc ids", 6, _ids, ("OK",)),
    ("grpc stream", 1, _stream, ("OK",)),
    ("grpc oip infer", 2, _infer, ("OK",)),
    ("grpc tei embed", 2, _tei, ("OK",)),
    ("grpc invalid: id", 1, _invalid_id, ("INVALID_ARGUMENT",)),
    ("grpc short deadline", 1, _short_deadline, ("OK", "DEADLINE_EXCEEDED")),
    ("grpc cancelled", 1, _cancelled, ("OK", "CANCELLED")),
)
"""Name, weight, call, expected outcomes."""
