"""Writes what the other libraries need, from the checkpoint; it runs in the environment .venv/encoders.

    .venv/encoders/bin/python -m loadtest.encoders.prepare CHECKPOINT FOLDER

FOLDER then holds padded.onnx, the graph that torch exports, and static/, a Model2Vec model of the
encoder's vectors. What is there already stays.
"""

import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OPSET = 17
RARE = 1e-4  # the share of a text above which a token counts for less: Model2Vec's coefficient


def export_graph(checkpoint: Path, target: Path) -> None:
    """Write the encoder as ONNX, batch and length free, as the converters of most projects do."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    model = transformers.AutoModel.from_pretrained(checkpoint, attn_implementation="eager").eval()

    class LastHiddenState(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, mask: Any, types: Any) -> Any:
            return self.model(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state

    example = torch.ones((2, 8), dtype=torch.int64)
    free = {0: "batch", 1: "sequence"}
    torch.onnx.export(
        LastHiddenState(),
        (example, example, example * 0),
        str(target),
        input_names=list(INPUTS),
        output_names=["last_hidden_state"],
        dynamic_axes=dict.fromkeys((*INPUTS, "last_hidden_state"), free),
        opset_version=OPSET,
        dynamo=False,
    )


def distill(checkpoint: Path, target: Path) -> None:
    """Write a static model: the encoder's vector of each token alone, weighted by its rank as Model2Vec does.

    Model2Vec's own distillation wants an older transformers; its principal components are left out, so that the vectors
    can be compared with the encoder's.
    """
    sentences, model2vec = importlib.import_module("sentence_transformers"), importlib.import_module("model2vec")
    tokenizer = importlib.import_module("tokenizers").Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokens = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])]
    encoder = sentences.SentenceTransformer(str(checkpoint), device="cpu")
    vectors = encoder.encode(tokens, batch_size=256, show_progress_bar=False)
    share = 1 / np.arange(2, len(tokens) + 2)
    weights = RARE / (RARE + share / share.sum())
    model2vec.StaticModel(vectors * weights[:, None].astype(np.float32), tokenizer).save_pretrained(target)


def main() -> None:
    """Write what is missing."""
    warnings.simplefilter("ignore")
    checkpoint, folder = map(Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    for name, write in (("padded.onnx", export_graph), ("static", distill)):
        target = folder / name
        if not target.exists():
            unfinished = folder / f"unfinished-{name}"
            write(checkpoint, unfinished)
            unfinished.rename(target)


if __name__ == "__main__":
    main()
