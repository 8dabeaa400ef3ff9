"""Reads the WordEmbeddings module of sentence-transformers: vectors of the words of a vocabulary, such as GloVe's.

Source: sentence-transformers 6.2, sentence_transformer.modules.word_embeddings and modules.tokenizer.whitespace.
"""

from pathlib import Path
from typing import Any, NamedTuple

from models.checkpoints.json_files import optional_count, read_object
from models.errors import BadCheckpoint
from models.recipes.static import WordRules

MODULE = "WordEmbeddings"
CONFIG = "wordembedding_config.json"
TOKENIZER = "whitespacetokenizer_config.json"
TABLE = "emb_layer.weight"
_CLASS = "WhitespaceTokenizer"


class WordFiles(NamedTuple):
    """The files of a WordEmbeddings module.

    Args:
        tokenizer: a tokenizer.json of its vocabulary.
        rules: how texts are split into words.
        max_tokens: the longest input in words; None: not stated.
    """

    tokenizer: dict[str, Any]
    rules: WordRules
    max_tokens: int | None


def read_words(place: Path) -> WordFiles:
    """Read the files of the module in `place`.

    Raises:
        BadCheckpoint: a file is missing or damaged, or texts are split by another tokenizer.
    """
    config = read_object(place / CONFIG)
    name = str(config.get("tokenizer_class")).rpartition(".")[2]
    if name != _CLASS:
        raise BadCheckpoint(
            f"{place / CONFIG}: tokenizer_class is {name!r}; word vectors are looked up by a {_CLASS} alone: save the "
            f"model with one of the same vocabulary ({name} may need another library, such as nltk, for each text)"
        )
    path = place / TOKENIZER
    held = read_object(path)
    vocabulary, stop_words = held.get("vocab"), held.get("stop_words", [])
    for key, words in (("vocab", vocabulary), ("stop_words", stop_words)):
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise BadCheckpoint(f"{path}: {key} must be a list of words; save the model anew")
    if not vocabulary:
        raise BadCheckpoint(f"{path}: vocab is empty, so no word has a vector; save the model anew")
    model = {
        "type": "WordLevel",
        "vocab": {word: row for row, word in enumerate(vocabulary)},
        "unk_token": vocabulary[0],
    }
    parts = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return WordFiles(
        {"version": "1.0", **parts, "added_tokens": [], "model": model},
        WordRules(tuple(stop_words), bool(held.get("do_lower_case"))),
        optional_count(place / CONFIG, config, "max_seq_length"),
    )
