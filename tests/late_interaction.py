"""Tiny late-interaction models in the layouts of the libraries that write them: sentence-transformers, PyLate,
Stanford's ColBERT, BGE-M3."""

import json
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from tests.golden_cases import tiny_bert, tiny_config, write_folder, write_json, write_sentence_files

BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = ("[unused0]", "[unused1]", *".,!?-", "hello", "world", "query", ":", *string.ascii_lowercase)
VOCABULARY = (*BERT, *WORDS)
MASK, QUERY_MARKER, DOCUMENT_MARKER = (VOCABULARY.index(word) for word in ("[MASK]", "[unused0]", "[unused1]"))
TEXTS = ("hello world", "a", "hello, world! a b c - d.", "b c d e f g h i j k l m n o p " * 3, "", "? a: z", "Q x y!")
DIMENSIONS = 16
IDENTITY = "torch.nn.modules.linear.Identity"
MODULES = "sentence_transformers.base.modules."


def write_bert(folder: Path, seed: int = 7, **changes: Any) -> Path:
    """A tiny BERT with a tokenizer of VOCABULARY."""
    weights = tiny_bert(vocab=len(VOCABULARY), seed=seed)
    write_folder(folder, tiny_config(weights, **changes), weights)
    return write_tokenizer(folder, VOCABULARY, *BERT)


def write_tokenizer(
    folder: Path, vocabulary: tuple[str, ...], pad: str, unk: str, cls: str, sep: str, mask: str
) -> Path:
    """A tokenizer of these words, and what names its special tokens."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    ids = {word: number for number, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=unk))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing((sep, ids[sep]), (cls, ids[cls]))
    tokenizer.add_special_tokens([pad, unk, cls, sep, mask])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"pad_token": pad, "unk_token": unk, "cls_token": cls, "sep_token": sep, "mask_token": mask}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 38, **names}
    write_json(folder / "tokenizer_config.json", config)
    return folder


def dense(folder: Path, inner: int, width: int = DIMENSIONS, **config: Any) -> NDArray[np.float32]:
    """Write the projection of token vectors, without bias; return its weight."""
    weight = projection(inner, width)
    own = {"in_features": inner, "out_features": width, "bias": False, "activation_function": IDENTITY}
    write_json(folder / "config.json", own | config)
    save_file({"linear.weight": weight}, folder / "model.safetensors")
    return weight


def projection(inner: int, width: int = DIMENSIONS) -> NDArray[np.float32]:
    """The weight of a projection."""
    return np.random.default_rng([inner, width]).normal(0, inner**-0.5, (width, inner)).astype(np.float32)


def write_chain(folder: Path, kinds: Mapping[str, str]) -> None:
    """Write modules.json: the class of each module by its folder."""
    entries = [{"idx": n, "name": str(n), "path": path, "type": kind} for n, (path, kind) in enumerate(kinds.items())]
    write_json(folder / "modules.json", entries)


def write_native(folder: Path, inner: int = 32, mask: Mapping[str, Any] | None = None, **transformer: Any) -> Path:
    """What sentence-transformers 6.2 writes beside a checkpoint; `transformer` goes into the Transformer's config."""
    masks = "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"
    kinds = {"": "transformer.Transformer", "1_Dense": "dense.Dense", "3_Normalize": "normalize.Normalize"}
    chain = {path: MODULES + kind for path, kind in kinds.items()}
    write_chain(folder, {**chain, "2_MultiVectorMask": masks})
    dense(folder / "1_Dense", inner, module_input_name="token_embeddings", module_output_name="token_embeddings")
    write_json(folder / "2_MultiVectorMask/config.json", mask or {})
    write_json(folder / "3_Normalize/config.json", {"module_input_name": "token_embeddings"})
    write_json(folder / "sentence_bert_config.json", transformer)
    config = {"model_type": "MultiVectorEncoder", "prompts": {"query": "query: ", "document": ""}}
    write_json(folder / "config_sentence_transformers.json", config | {"similarity_fn_name": "maxsim"})
    return folder


def write_pylate(folder: Path, inner: int = 32, **changes: Any) -> Path:
    """What PyLate writes beside a checkpoint; changes of config_sentence_transformers.json."""
    write_chain(folder, {"": "sentence_transformers.models.Transformer", "1_Dense": "pylate.models.Dense.Dense"})
    dense(folder / "1_Dense", inner)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 23, "do_lower_case": False})
    config = {
        "model_type": "ColBERT",
        "query_prefix": "[unused0]",
        "document_prefix": "[unused1]",
        "query_length": 12,
        "document_length": 24,
        "attend_to_expansion_tokens": False,
        "skiplist_words": list(string.punctuation),
        "do_query_expansion": True,
        "similarity_fn_name": "MaxSim",
    }
    write_json(folder / "config_sentence_transformers.json", config | changes)
    return folder


def write_stanford(folder: Path, metadata: Mapping[str, Any] | None = None, prefix: str = "bert.") -> Path:
    """Turn a checkpoint into what Stanford's ColBERT writes."""
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | {"architectures": ["HF_ColBERT"]})
    weights = {prefix + name: array for name, array in load_file(folder / "model.safetensors").items()}
    weights["linear.weight"] = projection(config["dim"] if "dim" in config else config["hidden_size"])
    save_file(weights, folder / "model.safetensors")
    if metadata is not None:
        write_json(folder / "artifact.metadata", metadata)
    return folder


def bge_head(inner: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weight and bias of a colbert_linear."""
    random = np.random.default_rng(inner)
    weight = random.normal(0, inner**-0.5, (inner, inner)).astype(np.float32)
    return weight, random.normal(0, 0.3, inner).astype(np.float32)


def write_bge(folder: Path, inner: int = 32, pickled: bool = True) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Put BGE-M3's files beside a checkpoint; return weight and bias of colbert_linear."""
    from tests.torch_files import write_torch

    write_sentence_files(folder, "cls", max_tokens=None)
    weight, bias = bge_head(inner)
    if pickled:
        write_torch(folder / "colbert_linear.pt", {"weight": weight, "bias": bias})
    else:
        save_file({"weight": weight, "bias": bias}, folder / "colbert_linear.safetensors")
    return weight, bias
