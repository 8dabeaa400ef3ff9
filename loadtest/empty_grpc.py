"""A grpc.aio server that answers Embed with 16 rows of 384 float32 zeros and decodes nothing.

python -m loadtest.empty_grpc PORT
"""

import sys

import grpc
import uvloop

from proto import embed_pb2

ROWS, WIDTH = 16, 384


def _response() -> bytes:
    tensor = embed_pb2.Tensor(dtype=embed_pb2.FLOAT32, shape=[ROWS, WIDTH], data=bytes(ROWS * WIDTH * 4))
    output = embed_pb2.Output(name="input_embeddings", tensor=tensor, lengths=[ROWS])
    return embed_pb2.EmbedResponse(model="empty", outputs=[output], tokens=ROWS).SerializeToString()


RESPONSE = _response()


async def embed(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    """Return the same bytes for every request."""
    return RESPONSE


async def serve(port: int) -> None:
    """Serve on the loopback interface until the process is ended."""
    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(embed)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("inlay.v1.Embedder", {"Embed": handler}),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
