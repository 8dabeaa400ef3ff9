"""Pooling against sentence-transformers' own Pooling module, prompts left out and not."""

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Pooling

from service.embedding.pooling import POOLINGS, pool

pytestmark = pytest.mark.parity

MASKS = {"all": [1, 1, 1, 1, 1, 1], "right": [1, 1, 1, 1, 0, 0], "left": [0, 0, 1, 1, 1, 1]}


@pytest.mark.parametrize("mode", POOLINGS)
@pytest.mark.parametrize("padding", MASKS)
@pytest.mark.parametrize("prompt_tokens", [0, 1, 3])
def test_pooled_vector_is_sentence_transformers(mode: str, padding: str, prompt_tokens: int) -> None:
    rows = np.random.default_rng(prompt_tokens).normal(size=(6, 8)).astype(np.float32)
    mask = np.array(MASKS[padding])
    features = {"token_embeddings": torch.from_numpy(rows)[None], "attention_mask": torch.from_numpy(mask)[None]}
    if prompt_tokens:
        features["prompt_length"] = prompt_tokens
    theirs = Pooling(8, mode, include_prompt=False)(features)["sentence_embedding"][0].numpy()
    np.testing.assert_allclose(pool(mode, rows, mask.astype(bool), prompt_tokens), theirs, atol=3e-7)
