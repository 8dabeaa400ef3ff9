"""The texts that causal rerankers read: a template of the model around an instruction, a query and a document.

Source: sentence-transformers 6.2, base.modules.Transformer: a text that is too long keeps the template's ending.
"""

from collections.abc import Sequence

from models.recipes.heads import PairTemplate
from service.embedding.limits import too_many_characters
from service.embedding.requests import Text
from service.embedding.tokenize.tokenizer import Tokenizer

_FILLERS = ("0", "1 2 3 4")  # that tokenize differently: tokens that both texts end in are the template's


def texts_of(
    template: PairTemplate, tokenizer: Tokenizer | None, pairs: Sequence[Text], instruction: str | None, most: int
) -> list[Text]:
    """Return the texts that a causal reranker reads of pairs of a query and a document.

    Args:
        template: template of the model.
        tokenizer: tokenizer of the model; None: it has none, which the pipeline refuses.
        pairs: pairs of the request.
        instruction: None: the template's own.
        most: characters of all texts together.

    Raises:
        TooManyCharacters: there are more; a query of 2 Mi before each of 1024 documents would be 2 GB.
    """
    ending = tokenizer.ending(*(_filled(template, filler) for filler in _FILLERS)) if tokenizer else ()
    before = _before_query(template, instruction)
    size = len(pairs) * len(f"{before}{template.before_document}{template.ending}")
    size += sum([len(query) + len(document or "") for query, document, _ in pairs])
    if size > most:
        raise too_many_characters(size, most)
    return [
        Text(f"{before}{query}{template.before_document}{document}{template.ending}", None, ending)
        for query, document, _ in pairs
    ]


def added_tokens(template: PairTemplate, tokenizer: Tokenizer) -> int:
    """Return how many tokens a template adds to those of a query and a document."""
    return len(tokenizer.pieces(_filled(template, "")))


def _before_query(template: PairTemplate, instruction: str | None) -> str:
    told = template.instruction or "" if instruction is None else instruction
    return f"{template.before_instruction}{told}{template.before_query}"


def _filled(template: PairTemplate, filler: str) -> str:
    return f"{_before_query(template, None)}{filler}{template.before_document}{filler}{template.ending}"
