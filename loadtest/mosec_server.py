"""A mosec server around the same graphs, with or without dynamic batching; it runs in the environment .venv/peers.

    .venv/peers/bin/python -m loadtest.mosec_server --address 127.0.0.1 --port PORT

PEER_MODEL names the exported folder, PEER_BATCH the most requests of one batch (1: no batching), PEER_THREADS the ONNX
Runtime threads of one run (0: ONNX Runtime's choice). Requests are parsed with msgspec, which mosec installs, and
answers are raw float32 bytes. A batch is packed into one flat sequence, as the graphs take it.
"""

# mypy: disallow-subclassing-any=False
import os
from abc import abstractmethod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime as ort
from mosec import Server, Worker
from tokenizers import Tokenizer

FOLDER = Path(os.environ["PEER_MODEL"])
MAX_BATCH = int(os.environ.get("PEER_BATCH", "1"))
MAX_WAIT_MS = 1  # the least that mosec takes; 0 means its default of 10
MAX_TOKENS = 256  # of one text of the demo model


class IdsRequest(msgspec.Struct):
    """One sequence of token ids."""

    inputs: list[list[int]]


class TextRequest(msgspec.Struct):
    """One text."""

    inputs: str


def packed(sequences: list[Any]) -> dict[str, Any]:
    """Return the graph inputs of several sequences of ids, one below the other: int64 (tokens,) each."""
    ids = np.concatenate([np.array(ids, np.int64) for ids in sequences])
    positions = np.concatenate([np.arange(len(ids)) for ids in sequences])
    return {"ids": ids, "positions": positions, "types": np.zeros_like(ids)}


class BytesWorker(Worker):
    """A worker that takes JSON of one schema and returns bytes."""

    resp_mime_type = "application/octet-stream"
    graph: str
    schema: type[msgspec.Struct]

    def __init__(self) -> None:
        super().__init__()
        self.decoder = msgspec.json.Decoder(self.schema)
        options = ort.SessionOptions()
        options.intra_op_num_threads = int(os.environ.get("PEER_THREADS", "0"))
        self.session = ort.InferenceSession(FOLDER / self.graph, options, ["CPUExecutionProvider"])

    def deserialize(self, data: bytes) -> Any:
        """Return the request's `inputs`."""
        return self.decoder.decode(data).inputs

    def serialize(self, data: bytes) -> bytes:
        """Return the bytes unchanged."""
        return data

    def forward(self, data: Any) -> Any:
        """Return the answers of a batch, or the answer of one request where mosec does not batch."""
        return self.run_batch(data) if MAX_BATCH > 1 else self.run_batch([data])[0]

    @abstractmethod
    def run_batch(self, batch: list[Any]) -> list[bytes]:
        """Return one answer for each request."""


class IdsWorker(BytesWorker):
    """Input embeddings of token ids."""

    graph, schema = "embedding.onnx", IdsRequest

    def run_batch(self, batch: list[Any]) -> list[bytes]:
        """Run all sequences at once and split the rows."""
        sequences = [inputs[0] for inputs in batch]
        [rows] = self.session.run(None, packed(sequences))
        ends = np.cumsum([len(ids) for ids in sequences])[:-1]
        return [part.tobytes() for part in np.split(rows, ends)]


class TextWorker(BytesWorker):
    """Unit vectors of texts."""

    graph, schema = "encoder.onnx", TextRequest

    def __init__(self) -> None:
        super().__init__()
        self.tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(MAX_TOKENS)

    def run_batch(self, batch: list[Any]) -> list[bytes]:
        """Tokenize, run all texts at once, mean-pool and normalise."""
        sequences = [encoding.ids for encoding in self.tokenizer.encode_batch(batch)]
        feeds = packed(sequences)
        lengths = np.array([len(ids) for ids in sequences])
        [rows] = self.session.run(None, feeds | {"mask": np.ones(len(feeds["ids"]), bool), "lengths": lengths})
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        means = np.add.reduceat(rows, starts, axis=0) / lengths[:, None].astype(np.float32)
        vectors = means / np.linalg.norm(means, axis=1, keepdims=True)
        return [vector.tobytes() for vector in vectors]


if __name__ == "__main__":
    server = Server()
    server.append_worker(IdsWorker, max_batch_size=MAX_BATCH, max_wait_time=MAX_WAIT_MS, route="/embed")
    server.append_worker(TextWorker, max_batch_size=MAX_BATCH, max_wait_time=MAX_WAIT_MS, route="/embed_text")
    server.run()
