"""MultiVector: how a late-interaction model makes several vectors of a text, as data on the card.

A row of hidden states becomes a vector by modules: a linear layer, and the scaling to unit length. Which rows do, and
how a text is read before, differs between queries and documents.

Source: sentence-transformers 6.2, MultiVectorEncoder; FlagEmbedding 1.3, BGEM3FlagModel.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from models.recipes import sentence_modules
from models.recipes.sentence_modules import SentenceModules


@dataclass(frozen=True, slots=True)
class Side:
    """How texts of one kind, queries or documents, are read.

    Attributes:
        prompt: the name of the prompt before them, which holds the kind's marker token; None: the model's default.
        max_tokens: the longest text, special tokens included; None: the model's own limit.
        skipped: ids of tokens that get no vector.
    """

    prompt: str | None = None
    max_tokens: int | None = None
    skipped: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Expansion:
    """The tokens that short queries are filled up with; each gets a vector.

    Attributes:
        tokens: that a query has at least.
        token_id: of those added.
        attended: whether the other tokens attend to them.
    """

    tokens: int
    token_id: int
    attended: bool


@dataclass(frozen=True, slots=True)
class MultiVector:
    """How hidden states become the vectors of a text.

    Attributes:
        modules: of every row that gets a vector.
        query, document: how texts are read.
        expansion: of queries; None: they are not filled up.
        first: the first token that gets a vector: 1 where the first is left out.
        mean: whether a score is divided by the number of the query's vectors.
    """

    modules: SentenceModules
    query: Side = Side()
    document: Side = Side()
    expansion: Expansion | None = None
    first: int = 0
    mean: bool = False


def to_json(multi_vector: MultiVector) -> dict[str, Any]:
    """Return it as JSON."""
    return asdict(multi_vector) | {"modules": sentence_modules.to_json(multi_vector.modules)}


def from_json(data: Mapping[str, Any] | None) -> MultiVector | None:
    """Return what `to_json` wrote, None of None; KeyError or TypeError if the data is no such object."""
    if data is None:
        return None
    modules, expansion = sentence_modules.from_json(data["modules"]), data["expansion"]
    if modules is None:
        raise TypeError("vectors of a text are made by modules")
    return MultiVector(
        modules,
        _side(data["query"]),
        _side(data["document"]),
        expansion and Expansion(**expansion),
        data["first"],
        data["mean"],
    )


def _side(data: Mapping[str, Any]) -> Side:
    return Side(**{**data, "skipped": tuple(data["skipped"])})
