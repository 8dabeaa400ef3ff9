"""Other libraries as rerankers, for loadtest.rerank; this module runs in the environment .venv/encoders.

    .venv/encoders/bin/python -m loadtest.rerank_peers CHECKPOINT GRAPH

writes the plain graph that torch exports of the checkpoint's class, batch and length free.
"""

import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BATCH = 32  # pairs: the default of sentence-transformers
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
Pairs = list[tuple[str, str]]


def pairs_of(texts: list[str]) -> Pairs:
    """Return the first text with each of the others."""
    query, *documents = texts
    return [(query, document) for document in documents]


class SentenceTransformers:
    """CrossEncoder.predict of sentence-transformers, on as many threads as asked for."""

    def __init__(self, checkpoint: str, threads: int) -> None:
        importlib.import_module("torch").set_num_threads(threads)
        self._model = importlib.import_module("sentence_transformers").CrossEncoder(checkpoint, device="cpu")

    def prepare(self, texts: list[str]) -> Pairs:
        """Return the pairs."""
        return pairs_of(texts)

    def embed(self, prepared: Pairs) -> NDArray[np.float32]:
        """Return the scores, float32 (pairs, 1)."""
        scores = self._model.predict(prepared, batch_size=BATCH, show_progress_bar=False)
        return np.asarray(scores, np.float32)[:, None]


class OnnxRuntime:
    """The plain graph in ONNX Runtime: batches of pairs of like length, padded; tokenizing included."""

    def __init__(self, checkpoint: str, graph: str, threads: int) -> None:
        ort = importlib.import_module("onnxruntime")
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = ort.InferenceSession(graph, options, ["CPUExecutionProvider"])
        self._tokenizer = importlib.import_module("tokenizers").Tokenizer.from_file(
            str(Path(checkpoint, "tokenizer.json"))
        )
        self._tokenizer.enable_truncation(512)
        self._tokenizer.no_padding()

    def prepare(self, texts: list[str]) -> Pairs:
        """Return the pairs."""
        return pairs_of(texts)

    def embed(self, prepared: Pairs) -> NDArray[np.float32]:
        """Return the scores, float32 (pairs, 1)."""
        encoded = self._tokenizer.encode_batch(prepared)
        order = sorted(range(len(encoded)), key=lambda number: len(encoded[number].ids))
        scores = np.empty((len(encoded), 1), np.float32)
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            inputs = self._padded([encoded[number] for number in chosen])
            scores[chosen] = 1 / (1 + np.exp(-self._session.run(None, inputs)[0]))
        return scores

    @staticmethod
    def _padded(encoded: list[Any]) -> dict[str, NDArray[np.int64]]:
        shape = len(encoded), max(len(one.ids) for one in encoded)
        inputs = {name: np.zeros(shape, np.int64) for name in INPUTS}
        for row, one in enumerate(encoded):
            length = len(one.ids)
            inputs["input_ids"][row, :length] = one.ids
            inputs["attention_mask"][row, :length] = 1
            inputs["token_type_ids"][row, :length] = one.type_ids
        return inputs


def export_graph(checkpoint: Path, target: Path) -> None:
    """Write the class that the checkpoint names as ONNX, as the converters of most projects do."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        checkpoint, attn_implementation="eager"
    ).eval()

    class Logits(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, mask: Any, types: Any) -> Any:
            return self.model(input_ids=ids, attention_mask=mask, token_type_ids=types).logits

    example = torch.ones((2, 8), dtype=torch.int64)
    free = {name: {0: "batch", 1: "sequence"} for name in INPUTS} | {"logits": {0: "batch"}}
    torch.onnx.export(
        Logits(),
        (example, example, example * 0),
        str(target),
        input_names=list(INPUTS),
        output_names=["logits"],
        dynamic_axes=free,
        opset_version=17,
        dynamo=False,
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    export_graph(Path(sys.argv[1]), Path(sys.argv[2]))
