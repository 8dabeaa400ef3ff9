"""A tiny Qwen 3 embedder as sentence-transformers writes it: last-token pooling, prompts, a closing token."""

from pathlib import Path
from typing import Any

from tests.golden_cases import write_json, write_sentence_files
from tests.whole_models import write_whole

END = "<|endoftext|>"  # closes a text, and is the padding too
LETTERS = [chr(ord("a") + number) for number in range(26)]
WORDS = [END, "<unk>", "Instruct", ":", "Given", "search", "query", "Query", *LETTERS]
PROMPT = "Instruct : Given a search query Query : "
LONGEST = 16
TEXTS = ("", "a", "b c d", "n o p q a a x", "y z " * 6 + "h", " ".join(LETTERS), "Z unknown words")


def write_embedder(folder: Path, **changes: Any) -> Path:
    """A checkpoint of it; changes of config.json."""
    write_whole(folder, "qwen3", num_hidden_layers=3, **changes)
    write_sentence_files(folder, "lasttoken", max_tokens=LONGEST)
    write_json(
        folder / "1_Pooling/config.json",
        {"word_embedding_dimension": 16, "pooling_mode_lasttoken": True, "include_prompt": True},
    )
    write_json(
        folder / "config_sentence_transformers.json",
        {"prompts": {"query": PROMPT, "document": ""}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
    )
    write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": END, "padding_side": "left"},
    )
    write_tokenizer(folder / "tokenizer.json")
    return folder


def write_tokenizer(path: Path) -> None:
    """The tokenizer of WORDS, which closes every text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 0)])
    tokenizer.add_special_tokens([END])
    tokenizer.save(str(path))


def ids_of(text: str) -> list[int]:
    """The ids of a text, its closing token among them, cut as sentence-transformers cuts."""
    known = [WORDS.index(word) if word in WORDS else WORDS.index("<unk>") for word in text.split()]
    return [*known[: LONGEST - 1], WORDS.index(END)]
