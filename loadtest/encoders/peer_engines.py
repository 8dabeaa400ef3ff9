"""The other libraries around the same weights; this module runs in the environment .venv/encoders.

All but sentence-transformers, which has its own way, get the same padded batches of token ids, of texts of like length,
and their rows are pooled and normalised here.
"""

import importlib
from abc import abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtest.encoders.cases import LONGEST, padded_batches

Floats = NDArray[np.float32]
Prepared = tuple[int, list[tuple[list[int], dict[str, NDArray[np.int64]]]]]
"""How many texts there are, and each batch: their indices, and the inputs int64 [B, S] by name."""


def unit_vectors(rows: Floats, mask: NDArray[np.int64]) -> Floats:
    """Return the normalised means of the rows that are not padding.

    Args:
        rows: float32 [B, S, d].
        mask: 1 or 0, [B, S].
    """
    sums = np.einsum("bsd,bs->bd", rows, mask.astype(np.float32))
    vectors: Floats = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    return vectors


def tokenizer_of(checkpoint: str) -> Any:
    """Return the tokenizer of a checkpoint, cutting at what the model can read, without padding of its own."""
    tokenizer = importlib.import_module("tokenizers").Tokenizer.from_file(str(Path(checkpoint, "tokenizer.json")))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST)
    return tokenizer


class Padded:
    """An engine that takes padded batches.

    Args:
        checkpoint: folder of the weights.
    """

    def __init__(self, checkpoint: str) -> None:
        self._tokenizer = tokenizer_of(checkpoint)

    def prepare(self, texts: list[str]) -> Prepared:
        """Return the batches."""
        encoded = [encoding.ids for encoding in self._tokenizer.encode_batch(texts)]
        batches = [
            (batch, self._inputs([encoded[index] for index in batch])) for batch in padded_batches([*map(len, encoded)])
        ]
        return len(texts), batches

    def embed(self, prepared: Prepared) -> Floats:
        """Return the vectors in the order of the texts."""
        count, batches = prepared
        vectors = [self.run(inputs) for _, inputs in batches]
        rows = np.empty((count, vectors[0].shape[1]), np.float32)
        for (batch, _), vector in zip(batches, vectors, strict=True):
            rows[batch] = vector
        return rows

    @abstractmethod
    def run(self, inputs: dict[str, NDArray[np.int64]]) -> Floats:
        """Return the vectors of one batch."""

    @staticmethod
    def _inputs(encoded: list[list[int]]) -> dict[str, NDArray[np.int64]]:
        ids = np.zeros((len(encoded), max(map(len, encoded))), np.int64)
        mask = np.zeros_like(ids)
        for row, one in enumerate(encoded):
            ids[row, : len(one)], mask[row, : len(one)] = one, 1
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


class OnnxRuntime(Padded):
    """The plain graph that torch exports, in ONNX Runtime."""

    def __init__(self, checkpoint: str, graph: str, threads: int = 1) -> None:
        super().__init__(checkpoint)
        ort = importlib.import_module("onnxruntime")
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = ort.InferenceSession(graph, options, ["CPUExecutionProvider"])

    def run(self, inputs: dict[str, NDArray[np.int64]]) -> Floats:
        """Return the vectors of one batch."""
        return unit_vectors(self._session.run(None, inputs)[0], inputs["attention_mask"])


class OpenVino(Padded):
    """The plain graph in OpenVINO, one stream; `precision` is f32 or bf16."""

    def __init__(self, checkpoint: str, graph: str, precision: str) -> None:
        super().__init__(checkpoint)
        core = importlib.import_module("openvino").Core()
        options = {"INFERENCE_PRECISION_HINT": precision, "NUM_STREAMS": "1", "INFERENCE_NUM_THREADS": "1"}
        self._request = core.compile_model(graph, "CPU", options).create_infer_request()

    def run(self, inputs: dict[str, NDArray[np.int64]]) -> Floats:
        """Return the vectors of one batch."""
        return unit_vectors(self._request.infer(inputs)[0], inputs["attention_mask"])


class Torch(Padded):
    """transformers' model with torch's scaled_dot_product_attention, its weights in `dtype`."""

    def __init__(self, checkpoint: str, dtype: str) -> None:
        super().__init__(checkpoint)
        self._torch = importlib.import_module("torch")
        self._torch.set_num_threads(1)
        loader = importlib.import_module("transformers").AutoModel
        dtype = getattr(self._torch, dtype)
        self._model = loader.from_pretrained(checkpoint, dtype=dtype, attn_implementation="sdpa").eval()

    def run(self, inputs: dict[str, NDArray[np.int64]]) -> Floats:
        """Return the vectors of one batch."""
        with self._torch.inference_mode():
            tensors = {name: self._torch.from_numpy(array) for name, array in inputs.items()}
            rows = self._model(**tensors).last_hidden_state.float().numpy()
        return unit_vectors(rows, inputs["attention_mask"])


class SentenceTransformers:
    """encode() of sentence-transformers: batches of 32 texts, tokenizing included."""

    def __init__(self, checkpoint: str) -> None:
        importlib.import_module("torch").set_num_threads(1)
        library = importlib.import_module("sentence_transformers")
        self._model = library.SentenceTransformer(checkpoint, device="cpu")
        self._model.max_seq_length = LONGEST

    def prepare(self, texts: list[str]) -> list[str]:
        """Return the texts."""
        return texts

    def embed(self, prepared: list[str]) -> Floats:
        """Return the vectors."""
        vectors: Floats = self._model.encode(prepared, normalize_embeddings=True, show_progress_bar=False)
        return vectors


class Static:
    """model2vec: a mean of stored vectors, one a token, without an encoder; tokenizing included."""

    def __init__(self, folder: str) -> None:
        self._model = importlib.import_module("model2vec").StaticModel.from_pretrained(folder)

    def prepare(self, texts: list[str]) -> list[str]:
        """Return the texts."""
        return texts

    def embed(self, prepared: list[str]) -> Floats:
        """Return the vectors."""
        vectors = self._model.encode(prepared, max_length=None)
        return np.ascontiguousarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)
