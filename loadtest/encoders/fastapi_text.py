"""What an engineer would write first: FastAPI around sentence-transformers, or around the plain graph in ONNX Runtime.

PEER_LIBRARY is "sentence-transformers" or "ORT", PEER_CHECKPOINT the folder of the weights, PEER_GRAPH the graph that
torch exported. Threads are those that each library chooses by itself.
"""

import importlib
import os
from typing import Any

from fastapi import FastAPI, Response
from pydantic import BaseModel

from loadtest.encoders import peer_engines

CHECKPOINT = os.environ["PEER_CHECKPOINT"]
app = FastAPI()


class TextRequest(BaseModel):
    """One text."""

    inputs: str


def load() -> Any:
    """Return what embeds a list of texts."""
    if os.environ["PEER_LIBRARY"] == "sentence-transformers":
        model = importlib.import_module("sentence_transformers").SentenceTransformer(CHECKPOINT, device="cpu")
        return lambda texts: model.encode(texts, normalize_embeddings=True, show_progress_bar=False)
    encoder = peer_engines.OnnxRuntime(CHECKPOINT, os.environ["PEER_GRAPH"], threads=0)
    return lambda texts: encoder.embed(encoder.prepare(texts))


embed_texts = load()


@app.post("/embed")
def embed(request: TextRequest) -> Response:
    """Return the text's unit vector as float32 bytes; FastAPI runs this in one of its threads."""
    return Response(embed_texts([request.inputs]).tobytes(), media_type="application/octet-stream")
