"""A tiny causal reranker: a random Qwen3, a tokenizer of words, a chat template, files of sentence-transformers."""

import json
from pathlib import Path
from typing import Any

from models.artifacts.random_checkpoint import create
from tests.classifier_models import SIZES
from tests.golden_cases import write_json

VOCABULARY = ("[UNK]", "<|im_start|>", "<|im_end|>", "yes", "no", *"abcdefghijklmnop01234:", "system", "judge")
IDS = {word: number for number, word in enumerate(VOCABULARY)}
TEMPLATE = (
    "{% set ns = namespace(told='a b') %}"
    "{% for message in messages %}{% if message.role == 'system' %}{% set ns.told = message.content %}{% endif %}"
    "{% endfor %}"
    "<|im_start|> judge {{ ns.told }} : {{ messages|selectattr('role', 'eq', 'query')|map(attribute='content')|first }}"
    " : {{ messages|selectattr('role', 'eq', 'document')|map(attribute='content')|first }} <|im_end|> system"
)


def write_reranker(
    folder: Path,
    template: str | None = TEMPLATE,
    score: dict[str, Any] | None = None,
    longest: int = 20,
    model_type: str = "qwen3",
    **keys: Any,
) -> Path:
    """Write the checkpoint; `score`: the config of its LogitScore, without which it is a language model alone."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    sizes = folder.parent / f"{folder.name}-sizes.json"
    own = {"vocab_size": len(VOCABULARY), "num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": True}
    write_json(sizes, SIZES | own | keys)
    create(folder, model_type=model_type, config=sizes, whole=True, init="scaled")
    tokenizer = Tokenizer(models.WordLevel(dict(IDS), unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(VOCABULARY[:3]))
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"model_max_length": longest, "bos_token": {"content": "a"}})
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    if score is not None:
        kinds = {"": "Transformer", "1_LogitScore": "LogitScore"}
        modules = [{"idx": 0, "name": kind, "path": path, "type": f"own.{kind}"} for path, kind in kinds.items()]
        write_json(folder / "modules.json", modules)
        write_json(folder / "1_LogitScore/config.json", score)
    return folder


def configure_modules(folder: Path, **keys: Any) -> None:
    """Write config_sentence_transformers.json."""
    (folder / "config_sentence_transformers.json").write_text(json.dumps(keys))
