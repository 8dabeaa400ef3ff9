"""What an engineer would write first around the same graphs: FastAPI, a pydantic model and session.run, no batching.

PEER_MODEL names the exported folder that holds embedding.onnx and, for texts, encoder.onnx and tokenizer.json.
PEER_THREADS is the number of ONNX Runtime threads of one run; 0 leaves it to ONNX Runtime. It serves the demo model
alone: texts are truncated, mean-pooled and normalised as that model is meant to be used.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from fastapi import FastAPI, Response
from pydantic import BaseModel
from tokenizers import Tokenizer

FOLDER = Path(os.environ["PEER_MODEL"])
MAX_TOKENS = 256  # of one text of the demo model
options = ort.SessionOptions()
options.intra_op_num_threads = int(os.environ.get("PEER_THREADS", "0"))
session = ort.InferenceSession(FOLDER / "embedding.onnx", options, ["CPUExecutionProvider"])
NAMES = [graph_input.name for graph_input in session.get_inputs()]
app = FastAPI()


class IdsRequest(BaseModel):
    """One sequence of token ids."""

    inputs: list[list[int]]


@app.post("/embed")
async def embed(request: IdsRequest) -> Response:
    """Return the input embeddings of the first sequence as float32 bytes."""
    ids = np.array(request.inputs[0], dtype=np.int64)
    values = {"ids": ids, "positions": np.arange(len(ids), dtype=np.int64), "types": np.zeros_like(ids)}
    [rows] = session.run(None, {name: values[name] for name in NAMES})
    return Response(rows.tobytes(), media_type="application/octet-stream")


class TextRequest(BaseModel):
    """One text."""

    inputs: str


@cache
def encoder() -> tuple[Any, ort.InferenceSession]:
    """Return the tokenizer and the encoder, loaded at the first text."""
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    return tokenizer, ort.InferenceSession(FOLDER / "encoder.onnx", options, ["CPUExecutionProvider"])


@app.post("/embed_text")
async def embed_text(request: TextRequest) -> Response:
    """Return the text's unit vector as float32 bytes."""
    tokenizer, graph = encoder()
    ids = np.array(tokenizer.encode(request.inputs).ids, np.int64)
    feeds = {
        "ids": ids,
        "positions": np.arange(len(ids)),
        "types": np.zeros_like(ids),
        "mask": np.ones(len(ids), bool),
        "lengths": np.array([len(ids)]),
    }
    [rows] = graph.run(None, feeds)
    mean = rows.mean(axis=0)
    return Response((mean / np.linalg.norm(mean)).tobytes(), media_type="application/octet-stream")
