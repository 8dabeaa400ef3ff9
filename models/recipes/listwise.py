"""`Listwise`: how a reranker reads a query and all its documents in one text, whose marks get a vector each.

Source: modeling.py beside jinaai/jina-reranker-v3 (JinaForRanking): its prompt, its lengths, its blocks of documents.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MOST_DOCUMENTS = 125  # of one text
QUERY_TOKENS, DOCUMENT_TOKENS = 512, 2048  # that are read of each
_BEGIN = (
    "<|im_start|>system\nYou are a search relevance expert who can determine a ranking of the passages based on how "
    "relevant they are to the query. If the query is a question, how relevant a passage is depends on how well it "
    "answers the question. If not, try to analyze the intent of the query and assess how well each passage satisfies "
    "the intent. If an instruction is provided, you should follow the instruction when determining the ranking."
    "<|im_end|>\n<|im_start|>user\nI will provide you with "
)
_ABOUT = " passages, each indicated by a numerical identifier. Rank the passages based on their relevance to query: "
_END = "\n</query><|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


@dataclass(frozen=True, slots=True)
class Listwise:
    """The marks of a listwise reranker.

    Attributes:
        document, query: the tokens behind each document and behind the query.
        ids: ids of both.
    """

    document: str
    query: str
    ids: tuple[int, ...]

    def unmarked(self, text: str) -> str:
        """Return a text without the marks; those that come of what is left around others become blanks."""
        text = text.replace(self.query, "").replace(self.document, "")
        return text.replace(self.query, " ").replace(self.document, " ")

    def text(self, query: str, documents: Sequence[str], instruction: str | None = None) -> str:
        """Return the one text of a query and documents, which hold no marks."""
        passages = [
            f'<passage id="{number}">\n{document}{self.document}\n</passage>\n'
            for number, document in enumerate(documents)
        ]
        told = f"<instruct>\n{instruction}\n</instruct>\n" if instruction else ""
        begin = f"{_BEGIN}{len(documents)}{_ABOUT}{query}\n{told}"
        return f"{begin}{''.join(passages)}<query>\n{query}{self.query}{_END}"
