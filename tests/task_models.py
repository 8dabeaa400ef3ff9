"""A tiny Jina v3 with adapters of three tasks, as its published files hold it, and the plain model of each task."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.golden_cases import write_folder, write_json, write_sentence_files
from tests.last_token import LONGEST, WORDS, write_tokenizer

TASKS = ("query", "passage", "clustering")
PROMPTS = {"query": "Query : ", "passage": "", "clustering": "Given "}
RANK, ALPHA, LAYERS, HIDDEN, INNER = 2, 3, 2, 16, 32
CONFIG: dict[str, Any] = {
    "model_type": "xlm-roberta",
    "position_embedding_type": "rotary",
    "rotary_emb_base": 20000.0,
    "vocab_size": 40,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": INNER,
    "max_position_embeddings": 700,
    "type_vocab_size": 1,
    "pad_token_id": 1,
}
ADAPTED: dict[str, Any] = {"lora_adaptations": list(TASKS), "lora_rank": RANK, "lora_alpha": ALPHA}
TABLES = {"embeddings.word_embeddings": (40, HIDDEN), "embeddings.token_type_embeddings": (1, HIDDEN)}
LINEARS = {
    f"encoder.layers.{layer}.{name}": shape
    for layer in range(LAYERS)
    for name, shape in {
        "mixer.Wqkv": (3 * HIDDEN, HIDDEN),
        "mixer.out_proj": (HIDDEN, HIDDEN),
        "mlp.fc1": (INNER, HIDDEN),
        "mlp.fc2": (HIDDEN, INNER),
    }.items()
}
NORMS = ("emb_ln", *(f"encoder.layers.{layer}.norm{number}" for layer in range(LAYERS) for number in (1, 2)))
Tensors = dict[str, NDArray[np.float32]]


def draw(seed: int = 5) -> tuple[Tensors, Tensors, Tensors]:
    """The tensors of the plain model, and lora_A and lora_B by the stems of their modules."""
    random = np.random.default_rng(seed)

    def drawn(*shape: int, spread: float = 1.0) -> NDArray[np.float32]:
        return (spread * random.normal(size=shape)).astype(np.float32)

    plain = {f"{stem}.weight": drawn(*shape) for stem, shape in TABLES.items()}
    plain |= {f"{stem}.weight": drawn(*shape, spread=0.7 / shape[1] ** 0.5) for stem, shape in LINEARS.items()}
    plain |= {f"{stem}.bias": drawn(shape[0], spread=0.3) for stem, shape in LINEARS.items()}
    plain |= {f"{stem}.weight": 1 + drawn(HIDDEN, spread=0.1) for stem in NORMS}
    plain |= {f"{stem}.bias": drawn(HIDDEN, spread=0.1) for stem in NORMS}
    count = len(TASKS)
    lora_a = {stem: drawn(count, RANK, columns, spread=0.5) for stem, (_, columns) in LINEARS.items()}
    lora_b = {stem: drawn(count, rows, RANK, spread=0.3) for stem, (rows, _) in LINEARS.items()}
    lora_a |= {stem: drawn(count, rows, RANK, spread=0.7) for stem, (rows, _) in TABLES.items()}  # roles are swapped
    lora_b |= {stem: drawn(count, RANK, columns, spread=0.7) for stem, (_, columns) in TABLES.items()}
    return plain, lora_a, lora_b


def adapted() -> Tensors:
    """The tensors of the model with adapters, by the names of published files."""
    plain, lora_a, lora_b = draw()
    stored = {name: own for name, own in plain.items() if name.removesuffix(".weight") not in lora_a}
    for stem in lora_a:
        place = f"{stem}.parametrizations.weight"
        stored |= {f"{place}.original": plain[f"{stem}.weight"]}
        stored |= {f"{place}.0.lora_A": lora_a[stem], f"{place}.0.lora_B": lora_b[stem]}
    return {f"roberta.{name}": own for name, own in stored.items()}


def merged(task: str) -> Tensors:
    """The tensors of the plain model that is equal to one task's."""
    plain, lora_a, lora_b = draw()
    number = TASKS.index(task)
    for stem in lora_a:
        pair = (lora_a, lora_b) if stem in TABLES else (lora_b, lora_a)
        left, right = (own[stem][number].astype(np.float64) for own in pair)
        plain[f"{stem}.weight"] = (plain[f"{stem}.weight"] + ALPHA / RANK * (left @ right)).astype(np.float32)
    return {f"roberta.{name}": own for name, own in plain.items()}


def write(folder: Path, task: str | None = None, *, changes: dict[str, Any] | None = None) -> Path:
    """A checkpoint: of the plain model of a task; None: of the model with adapters, with `changes` of its config."""
    config = CONFIG | ({} if task else ADAPTED | {"task_instructions": PROMPTS}) | (changes or {})
    write_folder(folder, config, merged(task) if task else adapted())
    write_sentence_files(folder, "mean", max_tokens=LONGEST)
    write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": HIDDEN, "pooling_mode_mean_tokens": True})
    modules = json.loads((folder / "modules.json").read_text())
    modules[0] |= {"type": "custom_st.Transformer", "kwargs": ["task"]}
    write_json(folder / "modules.json", modules)
    write_tokenizer(folder / "tokenizer.json")
    return folder


assert CONFIG["vocab_size"] >= len(WORDS)
