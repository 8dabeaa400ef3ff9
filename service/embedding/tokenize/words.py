"""Splits texts into the words of a vocabulary, as models of word vectors (GloVe) were trained with.

Source: sentence-transformers 6.2, sentence_transformer.modules.tokenizer.whitespace.
"""

import re
from string import punctuation
from typing import Any

from models.recipes.static import WordRules

_WORD = re.compile(r"\S+")


class Words:
    """A pre-tokenizer of the tokenizers library: the words of a text that have a vector, and no others.

    A word is looked up as it is, else without the punctuation around it, else in lower case; a stop word is left out.

    Args:
        vocabulary: the words that have a vector.
        rules: stop words, and whether texts are lowercased first.
    """

    def __init__(self, vocabulary: frozenset[str], rules: WordRules) -> None:
        self._vocabulary, self._stop_words = vocabulary, frozenset(rules.stop_words)
        self._lowercase = rules.lowercase

    def pre_tokenize(self, text: Any) -> None:
        """Split a text of the library, in place."""
        text.split(self._words)

    def _words(self, number: int, text: Any) -> list[Any]:
        words = []
        for match in _WORD.finditer(str(text)):
            whole = match[0]
            bare = whole.strip(punctuation)
            start = match.start() + whole.find(bare)
            spelled = whole.lower() if self._lowercase else whole
            for word, first, length in (
                (spelled, match.start(), len(whole)),
                (spelled.strip(punctuation), start, len(bare)),
                (bare.lower(), start, len(bare)),
            ):
                if word in self._stop_words:
                    break
                if word in self._vocabulary:
                    words.append(_respelled(text[first : first + length], word))
                    break
        return words


def _respelled(piece: Any, word: str) -> Any:
    """Return a piece of the library's text spelled as in the vocabulary, with the places of its letters kept."""
    if str(piece) != word:
        piece.lowercase()
    if str(piece) != word:
        piece.replace(str(piece), word)
    return piece
