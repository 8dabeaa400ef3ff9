"""Writes the files beside a model from a GGUF header: tokenizer.json and sentence-transformers' pooling files.

A tokenizer.json beside the .gguf wins, then one that the header holds whole (tokenizer.huggingface.json), then its
vocabulary. Pooled vectors are scaled to unit length, as llama.cpp's server does: the header does not say.

Source: llama.h (pooling types), common.h (embd_normalize).
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from models.checkpoints import safetensors
from models.checkpoints.checkpoint import WEIGHTS, Checkpoint, read_tensors
from models.checkpoints.gguf import Gguf
from models.checkpoints.safetensors import Tensor, TensorSource
from models.checkpoints.tokenizers import gguf
from models.checkpoints.tokenizers.files import CONFIG, MAP, TOKENIZER

_POOLING = {1: "mean", 2: "cls", 3: "lasttoken"}


def write(folder: Path, path: Path, file: Gguf, whole: bool) -> None:
    """Write tokenizer.json, modules.json and the files that it names into `folder`, as far as there are any.

    Args:
        path: the .gguf.
        whole: whether the blocks of the model's family are computed: vectors of others are not pooled.
    """
    metadata = file.metadata
    beside = [name for name in (TOKENIZER, CONFIG, MAP) if (path.parent / name).is_file()]
    complete = metadata.get("tokenizer.huggingface.json")
    if TOKENIZER in beside:
        for name in beside:
            shutil.copyfile(path.parent / name, folder / name)
    elif isinstance(complete, str):
        (folder / TOKENIZER).write_text(complete, encoding="utf-8")
    elif tokenizer := gguf.build(metadata):
        tokenizer.save(str(folder / TOKENIZER))
    pooling = metadata.get(f"{metadata.get('general.architecture')}.pooling_type")
    if whole and isinstance(pooling, int) and pooling in _POOLING:
        _write_modules(folder, _POOLING[pooling], file.tensors)


def _write_modules(folder: Path, mode: str, tensors: Mapping[str, Tensor]) -> None:
    dense = [number for number in (2, 3) if f"dense_{number}.weight" in tensors]
    chain = [("Transformer", ""), ("Pooling", "1_Pooling"), *(("Dense", f"{number}_Dense") for number in dense)]
    chain.append(("Normalize", "4_Normalize"))
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in chain]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode": mode}), encoding="utf-8")
    for number in dense:
        _write_dense(folder / f"{number}_Dense", tensors, f"dense_{number}.weight")


def _write_dense(folder: Path, tensors: Mapping[str, Tensor], name: str) -> None:
    """Write the projection after the pooling of an EmbeddingGemma, which has no bias and no activation."""
    folder.mkdir()
    held = read_tensors(Checkpoint(folder, {}, dict(tensors)), [name])[name]
    weight = np.asarray(held[:], np.float32)
    sizes = {"out_features": weight.shape[0], "in_features": weight.shape[-1]}
    config = {**sizes, "bias": False, "activation_function": "torch.nn.modules.linear.Identity"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    safetensors.write(folder / WEIGHTS, [TensorSource("linear.weight", "F32", weight.shape, [weight])])
