"""What a newcomer would write around the same .onnx: FastAPI, a pydantic model, session.run. Batches nothing.

PLAIN_MODEL names the exported folder that holds embedding.onnx. Only for comparison; it reads ids, and text not at all.
"""

import os
from pathlib import Path

import numpy as np
import onnxruntime as ort
from fastapi import FastAPI, Response
from pydantic import BaseModel

options = ort.SessionOptions()
options.intra_op_num_threads = 1
session = ort.InferenceSession(Path(os.environ["PLAIN_MODEL"]) / "embedding.onnx", options, ["CPUExecutionProvider"])
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
