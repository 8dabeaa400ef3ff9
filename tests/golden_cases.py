"""Golden cases as test data, and checkpoints made of them; also tiny random encoders in Hugging Face's layout.

The numbers in golden/ come from transformers 5.23.0 + torch 2.13.0 (float32, CPU) and mpmath 1.3.0 (60 digits): every
case names its source and tolerance in golden/manifest.json.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

GOLDEN = Path(__file__).parent / "golden"
WORDS = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abcdefghij",
    *(f"##{letter}" for letter in "abcdefghij"),
    "hello",
    "world",
)


@dataclass(frozen=True)
class Case:
    """One golden case: parameters, named arrays, and how far from them is right."""

    name: str
    kind: str
    params: dict[str, Any]
    tolerance: dict[str, dict[str, Any]]
    arrays: dict[str, NDArray[Any]]

    def __repr__(self) -> str:
        return self.name

    @property
    def weights(self) -> dict[str, NDArray[Any]]:
        """The checkpoint's tensors under their names on disk."""
        return {name[2:]: array for name, array in self.arrays.items() if name.startswith("w:")}

    @property
    def stored_weights(self) -> dict[str, NDArray[Any]]:
        """The same in the checkpoint's own dtype: golden/ holds bfloat16 widened to float32."""
        dtype = ml_dtypes.bfloat16 if self.params["dtype"] == "bfloat16" else None
        return {name: array.astype(dtype) if dtype else array for name, array in self.weights.items()}

    @property
    def rope_layers(self) -> str | None:
        """The layers whose table the case recorded; None: all rotate alike."""
        return {"modernbert": "full_attention", "gemma4_text": "sliding_attention"}.get(self.params["model_type"])

    @property
    def side(self) -> str | None:
        """Which half of the model the case shows, where it has two that read text; None: it has one."""
        if self.arrays.get("decoder_input_ids") is not None:
            return "decoder"
        return "encoder" if self.name.endswith("_encoder") else None

    @property
    def ids(self) -> NDArray[np.int64]:
        """The ids this half was fed."""
        return self.arrays["decoder_input_ids" if self.side == "decoder" else "input_ids"]

    @property
    def mask(self) -> NDArray[np.int64]:
        """The mask of these ids; transformers feeds a decoder none."""
        return np.ones_like(self.ids) if self.side == "decoder" else self.arrays["attention_mask"]

    @property
    def config(self) -> dict[str, Any]:
        """The checkpoint's config.json."""
        return self.params["config"] | {"model_type": self.params["model_type"], "dtype": self.params["dtype"]}


@cache
def manifest() -> dict[str, Any]:
    """What golden/ holds and where it comes from."""
    document: dict[str, Any] = json.loads((GOLDEN / "manifest.json").read_text(encoding="utf-8"))
    return document


@cache
def cases(kind: str) -> tuple[Case, ...]:
    """All cases of a kind: input_layer of ids, rope or rope_reference (mpmath; a value is its _hi plus its _lo)."""
    entries = (entry for entry in manifest()["cases"] if entry["kind"] == kind)
    heard = "w:model.encoder.conv1.weight"  # of a spectrogram: tests/vision_cases.py's
    return tuple(_case(entry) for entry in entries if heard not in entry.get("arrays", ()))


def case(name: str) -> Case:
    """One case by name."""
    return _case(next(entry for entry in manifest()["cases"] if entry["name"] == name))


def _case(entry: dict[str, Any]) -> Case:
    path = GOLDEN / entry["file"]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"], (
        f"{path} is not the file its manifest names"
    )
    with np.load(path) as arrays:
        return Case(entry["name"], entry["kind"], entry["params"], entry["tolerance"], dict(arrays))


def write_checkpoint(case: Case, folder: Path) -> Path:
    """An input-layer case as a Hugging Face folder: config.json and model.safetensors."""
    return write_folder(folder, case.config, case.stored_weights)


def write_folder(folder: Path, config: dict[str, Any], weights: dict[str, NDArray[Any]]) -> Path:
    """A checkpoint folder of a config and tensors, written by the safetensors library."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    save_file({name: np.ascontiguousarray(array) for name, array in weights.items()}, folder / "model.safetensors")
    return folder


def write_json(path: Path, data: Any) -> None:
    """A JSON file, its folder made as needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")


def tiny_bert(
    layers: int = 2, hidden: int = 32, vocab: int = len(WORDS), positions: int = 40, seed: int = 7
) -> dict[str, NDArray[Any]]:
    """Random tensors of a BertModel, under its own names."""
    random = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (vocab, hidden),
        "embeddings.position_embeddings.weight": (positions, hidden),
        "embeddings.token_type_embeddings.weight": (2, hidden),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(layers):
        stem = f"encoder.layer.{layer}"
        square = [f"{stem}.attention.self.{name}" for name in ("query", "key", "value")]
        for name in [*square, f"{stem}.attention.output.dense"]:
            shapes |= {f"{name}.weight": (hidden, hidden), f"{name}.bias": (hidden,)}
        shapes |= {
            f"{stem}.intermediate.dense.weight": (2 * hidden, hidden),
            f"{stem}.intermediate.dense.bias": (2 * hidden,),
        }
        shapes |= {f"{stem}.output.dense.weight": (hidden, 2 * hidden), f"{stem}.output.dense.bias": (hidden,)}
        norms += [f"{stem}.attention.output.LayerNorm", f"{stem}.output.LayerNorm"]
    tensors = {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    for norm in norms:
        tensors[f"{norm}.weight"] = random.normal(1, 0.1, hidden).astype(np.float32)
        tensors[f"{norm}.bias"] = random.normal(0, 0.1, hidden).astype(np.float32)
    return tensors


def tiny_config(weights: dict[str, NDArray[Any]], **changes: Any) -> dict[str, Any]:
    """The config.json of `tiny_bert` tensors, with changes."""
    vocab, hidden = weights["embeddings.word_embeddings.weight"].shape
    return {
        "model_type": "bert",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": len({name.split(".")[2] for name in weights if name.startswith("encoder.layer.")}),
        "num_attention_heads": 4,
        "intermediate_size": 2 * hidden,
        "max_position_embeddings": len(weights["embeddings.position_embeddings.weight"]),
        "type_vocab_size": 2,
        "pad_token_id": 0,
    } | changes


def write_tiny_bert(
    folder: Path, *, layers: int = 2, seed: int = 7, pooling: str | None = None, tokenizer: bool = True, **changes: Any
) -> Path:
    """A whole tiny encoder: checkpoint, a WordPiece tokenizer of the letters a to j, and sentence-transformers files.

    seed     of the weights
    pooling  a mode; with it come mean-length files: modules.json, 1_Pooling, 2_Normalize, max_seq_length 24
    changes  of config.json
    """
    weights = tiny_bert(layers, seed=seed)
    write_folder(folder, tiny_config(weights, **changes), weights)
    if tokenizer:
        write_tokenizer(folder / "tokenizer.json")
    if pooling:
        write_sentence_files(folder, pooling)
    return folder


def write_tokenizer(path: Path) -> None:
    """A BERT WordPiece tokenizer of WORDS whose file says, as real ones do, to cut at 8 tokens and to pad to 16."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordPiece({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(list(WORDS[:5]))
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(path))


def write_sentence_files(folder: Path, mode: str, *, normalize: bool = True, max_tokens: int | None = 24) -> None:
    """The files sentence-transformers 2 writes beside a checkpoint."""
    kinds = ["Transformer", "Pooling"] + (["Normalize"] if normalize else [])
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": number, "name": str(number), "path": paths[number], "type": f"sentence_transformers.models.{kind}"}
        for number, kind in enumerate(kinds)
    ]
    write_json(folder / "modules.json", modules)
    switch = {"cls": "cls_token", "lasttoken": "lasttoken"}.get(
        mode, f"{mode}_tokens" if "tokens" not in mode else mode
    )
    write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": 32, f"pooling_mode_{switch}": True})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_tokens, "do_lower_case": False})
