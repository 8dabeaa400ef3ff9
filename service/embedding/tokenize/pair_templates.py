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
    size = len(pairs) * len(template.text("", "", instruction))
    size += sum([len(query) + len(document or "") for query, document, _ in pairs])
    if size > most:
        raise too_many_characters(size, most)

    def ending_of(query: str) -> tuple[int, ...]:
        """Return the last tokens, which are kept where the document is cut."""
        texts = [template.text(query or filler, filler, instruction) for filler in _FILLERS]
        return tokenizer.ending(*texts) if tokenizer else ()

    endings = {query: ending_of(query) for query in {pair.text if template.document_first else "" for pair in pairs}}
    return [
        Text(
            template.text(query, document or "", instruction),
            None,
            endings[query if template.document_first else ""],
        )
        for query, document, _ in pairs
    ]


def added_tokens(template: PairTemplate, tokenizer: Tokenizer) -> int:
    """Return how many tokens a template adds to those of a query and a document."""
    return len(tokenizer.pieces(template.text("", "")))
