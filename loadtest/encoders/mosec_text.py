"""A mosec server around the plain graph in ONNX Runtime; it runs in the environment .venv/encoders.

    .venv/encoders/bin/python -m loadtest.encoders.mosec_text --address 127.0.0.1 --port PORT

PEER_CHECKPOINT is the folder of the weights, PEER_GRAPH the graph that torch exported, PEER_BATCH the most requests of
one batch (1: no batching), PEER_PROCESSES how many processes embed, PEER_THREADS the threads of each (0: ONNX Runtime's
choice).
"""

# mypy: disallow-subclassing-any=False
import os
from typing import Any

import msgspec
from mosec import Server, Worker

from loadtest.encoders.peer_engines import OnnxRuntime

MAX_BATCH = int(os.environ.get("PEER_BATCH", "1"))
MAX_WAIT_MS = 1  # the least that mosec takes; 0 means its default of 10


class TextRequest(msgspec.Struct):
    """One text."""

    inputs: str


class TextWorker(Worker):
    """Takes JSON with one text and returns its unit vector as float32 bytes."""

    resp_mime_type = "application/octet-stream"

    def __init__(self) -> None:
        super().__init__()
        self.decoder = msgspec.json.Decoder(TextRequest)
        threads = int(os.environ.get("PEER_THREADS", "0"))
        self.encoder = OnnxRuntime(os.environ["PEER_CHECKPOINT"], os.environ["PEER_GRAPH"], threads)

    def deserialize(self, data: bytes) -> Any:
        """Return the request's text."""
        return self.decoder.decode(data).inputs

    def serialize(self, data: bytes) -> bytes:
        """Return the bytes unchanged."""
        return data

    def forward(self, data: Any) -> Any:
        """Return the answers of a batch, or the answer of one request where mosec does not batch."""
        texts = data if MAX_BATCH > 1 else [data]
        vectors = [vector.tobytes() for vector in self.encoder.embed(self.encoder.prepare(texts))]
        return vectors if MAX_BATCH > 1 else vectors[0]


if __name__ == "__main__":
    server = Server()
    processes = int(os.environ.get("PEER_PROCESSES", "1"))
    server.append_worker(TextWorker, num=processes, max_batch_size=MAX_BATCH, max_wait_time=MAX_WAIT_MS, route="/embed")
    server.run()
