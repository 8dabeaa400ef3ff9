"""What a newcomer would write around the same .onnx: FastAPI, a pydantic model, session.run. Batches nothing.

PLAIN_MODEL names the exported folder that holds embedding.onnx and, for texts, encoder.onnx and tokenizer.json.
Only for comparison: it truncates and mean-pools as the demo model wants it, and refuses nothing.
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

FOLDER = Path(os.environ["PLAIN_MODEL"])
LONGEST = 256  # tokens that the demo model reads
options = ort.SessionOptions()
options.intra_op_num_threads = 1
session = ort.InferenceSession(FOLDER / "embedding.onnx", options, ["CPUExecutionProvider"])
NAMES = [graph_input.name for graph_input in session.get_inputs()]
app = FastAPI()


class Ask(BaseModel):
    """One sequence of ids."""

    inputs: list[list[int]]


@app.post("/embed")
async def embed(ask: Ask) -> Response:
    """Input embeddings of the first sequence, float32 bytes."""
    ids = np.array(ask.inputs[0], dtype=np.int64)
    zeros = np.zeros_like(ids)
    values = {"ids": ids, "positions": np.arange(len(ids), dtype=np.int64), "types": zeros}
    [rows] = session.run(None, {name: values[name] for name in NAMES})
    return Response(rows.tobytes(), media_type="application/octet-stream")


class TextAsk(BaseModel):
    """One text."""

    inputs: str


@cache
def reader() -> tuple[Any, ort.InferenceSession]:
    """Tokenizer and encoder, loaded with the first text."""
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST)
    return tokenizer, ort.InferenceSession(FOLDER / "encoder.onnx", options, ["CPUExecutionProvider"])


@app.post("/embed_text")
async def embed_text(ask: TextAsk) -> Response:
    """The text's unit vector, float32 bytes."""
    tokenizer, encoder = reader()
    ids = np.array(tokenizer.encode(ask.inputs).ids, np.int64)
    feeds = {
        "ids": ids,
        "positions": np.arange(len(ids)),
        "types": np.zeros_like(ids),
        "mask": np.ones(len(ids), bool),
        "lengths": np.array([len(ids)]),
    }
    [rows] = encoder.run(None, feeds)
    mean = rows.mean(axis=0)
    return Response((mean / np.linalg.norm(mean)).tobytes(), media_type="application/octet-stream")
