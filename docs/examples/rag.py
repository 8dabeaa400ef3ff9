"""Find the passages that answer a question: texts → vectors (Inlay) → a store on disk (Qdrant) → the best, reranked."""

import argparse
import atexit
from pathlib import Path

import httpx
from qdrant_client import QdrantClient
from qdrant_client.models import Distance, VectorParams

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("question")
options.add_argument("--add", nargs="+", type=Path, metavar="FILE", help="index these texts first, in place of older")
options.add_argument("--store", default="rag-store", help="the folder of the index (default: %(default)s)")
options.add_argument("--inlay", default="http://localhost:8080", help="address of Inlay (default: %(default)s)")
options.add_argument("--model", help="a model of sentence vectors (default: the server's default model)")
options.add_argument("--reranker", help="a cross-encoder that orders the 20 nearest anew (default: their cosines do)")
args = options.parse_args()


def ask(route: str, **body: object) -> list:
    """Return what Inlay answers; end with its message where it refuses."""
    response = httpx.post(f"{args.inlay}{route}", json=body, timeout=300)
    return response.json() if response.is_success else options.error(f"{route}: {response.json()['error']}")


def embed(texts: list[str], input_type: str) -> list:
    """Return a vector of each text; the model may have a prompt for queries and one for documents."""
    return ask("/embed", inputs=texts, input_type=input_type, model=args.model)


store = QdrantClient(path=args.store)
atexit.register(store.close)
if args.add:
    paragraphs = [text.strip() for file in args.add for text in file.read_text(encoding="utf-8").split("\n\n")]
    passages = [text for text in paragraphs if text] or options.error("the files of --add hold no text")
    vectors = [each for at in range(0, len(passages), 256) for each in embed(passages[at : at + 256], "document")]
    store.delete_collection("passages")
    store.create_collection("passages", VectorParams(size=len(vectors[0]), distance=Distance.COSINE))
    store.upload_collection("passages", vectors, [{"text": text} for text in passages])
if not store.collection_exists("passages"):
    options.error(f"{args.store} holds no passages: name texts with --add")

points = store.query_points("passages", query=embed([args.question], "query")[0], limit=20).points
found = [(f"cosine {point.score:.3f}", point.payload["text"]) for point in points]
if args.reranker:
    ranks = ask("/rerank", query=args.question, texts=[text for _, text in found], model=args.reranker)
    found = [(f"rank score {rank['score']:.3f}", found[rank["index"]][1]) for rank in ranks]
for score, text in found[:3]:
    print(f"[{score}] {text}\n")
