"""transformers' model in torch; it runs in the environment of the other libraries."""

import importlib
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtest.encoders.cases import padded_batches
from loadtest.encoders.peer_engines import unit_vectors

torch = importlib.import_module("torch")
transformers = importlib.import_module("transformers")
Batch = tuple[list[int], NDArray[np.int64], NDArray[np.int64]]
"""Indices of texts, their ids and their mask, int64 [B, S]."""


class Torch:
    """A checkpoint.

    Args:
        checkpoint: its folder.
        threads: of torch.
        attention: transformers' name of the implementation: sdpa, eager.
        batch_tokens: padded tokens of a batch, of texts of like length; 0: all texts are one batch.
        device: cpu or cuda.
        dtype: of the weights, by torch's name.

    Attributes:
        load_seconds: what the model took, once its modules were imported.
    """

    def __init__(
        self,
        checkpoint: str,
        threads: str,
        attention: str,
        batch_tokens: str,
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        torch.set_num_threads(int(threads))
        self._batch_tokens, self._device = int(batch_tokens), device
        loader = transformers.AutoModel
        with torch.device("meta"):  # imports what the model needs
            loader.from_config(transformers.AutoConfig.from_pretrained(checkpoint))
        begun = time.perf_counter()
        kind = getattr(torch, dtype)
        self._model = loader.from_pretrained(checkpoint, dtype=kind, attn_implementation=attention).eval().to(device)
        self.load_seconds = time.perf_counter() - begun
        self._model.config.use_cache = False  # of decoders: nothing is generated
        self._pad = self._model.config.pad_token_id or 0

    def prepare(self, texts: list[str]) -> list[Batch]:
        """Return padded batches."""
        ids = [[int(word) for word in text.split()] for text in texts]
        everything = [list(range(len(ids)))]
        batches = padded_batches([*map(len, ids)], self._batch_tokens) if self._batch_tokens else everything
        return [(batch, *self._padded([ids[index] for index in batch])) for batch in batches]

    def _padded(self, ids: list[list[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        padded = np.full((len(ids), max(map(len, ids))), self._pad, np.int64)
        mask = np.zeros_like(padded)
        for row, one in enumerate(ids):
            padded[row, : len(one)], mask[row, : len(one)] = one, 1
        return padded, mask

    def embed(self, prepared: list[Batch]) -> NDArray[np.float32]:
        """Return the normalised means of each text's rows."""
        vectors: dict[int, Any] = {}
        with torch.inference_mode():
            for batch, ids, mask in prepared:
                arrays = {"input_ids": ids, "attention_mask": mask}
                inputs = {name: torch.from_numpy(array).to(self._device) for name, array in arrays.items()}
                rows = self._model(**inputs).last_hidden_state.float().cpu().numpy()
                vectors |= dict(zip(batch, unit_vectors(rows, mask), strict=True))
        return np.stack([vectors[index] for index in range(len(vectors))])
