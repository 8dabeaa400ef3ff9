"""`Sparse`: how a model makes the sparse vector of a text, as data. Its columns are the ids of the vocabulary.

    splade   v[j] = the max, or the sum, over the tokens of log1p(relu(logit[j])), to which log1p may be applied again
    lexical  v[id] = the max over the tokens of that id of relu(linear(hidden)); 0 for the `unused` ids
    table    v[id] = table[id] for each id of the text, however often it occurs

Source: sentence-transformers 6.2 (SpladePooling, SparseStaticEmbedding); FlagEmbedding's BGEM3FlagModel (lexical).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from models.recipes import sentence_modules
from models.recipes.sentence_modules import SentenceModules

SpladePooling = Literal["max", "sum"]
SpladeActivation = Literal["relu", "log1p_relu"]
InputType = Literal["query", "document"]


@dataclass(frozen=True, slots=True)
class Splade:
    """Sparse vectors of the logits of a masked language model, whose head is the card's.

    Attributes:
        pooling: over the tokens.
        activation: relu: log1p(relu(logit)); log1p_relu: log1p of that.
    """

    pooling: SpladePooling = "max"
    activation: SpladeActivation = "relu"


@dataclass(frozen=True, slots=True)
class Lexical:
    """A weight for each token, from its hidden state (BGE-M3).

    Attributes:
        modules: one linear layer with relu.
        unused: ids that have no weight: special and unknown tokens.
    """

    modules: SentenceModules
    unused: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sparse:
    """How a model makes sparse vectors: by one of `splade` and `lexical`, by a table, or documents and queries apart.

    Attributes:
        width: columns of the vectors.
        splade, lexical: None: it is not made so.
        table: name of a tensor float32 [width]; None: there is none.
        default_input_type: of texts whose requests do not say what they are, where queries alone are looked up.
    """

    width: int
    splade: Splade | None = None
    lexical: Lexical | None = None
    table: str | None = None
    default_input_type: InputType = "document"

    def looks_up(self, input_type: str | None) -> bool:
        """Return whether vectors of such texts are looked up in the table."""
        if self.table is None:
            return False
        return self.splade is None or (input_type or self.default_input_type) == "query"


def to_json(sparse: Sparse) -> dict[str, Any]:
    """Return it as JSON."""
    data = asdict(sparse)
    if sparse.lexical:
        data["lexical"]["modules"] = sentence_modules.to_json(sparse.lexical.modules)
    return data


def from_json(data: Mapping[str, Any] | None) -> Sparse | None:
    """Return what `to_json` wrote, None of None; KeyError or TypeError if the data is no such object."""
    if data is None:
        return None
    splade, lexical = data["splade"], data["lexical"]
    if lexical is not None:
        modules = sentence_modules.from_json(lexical["modules"])
        if modules is None:
            raise TypeError("lexical weights have a linear layer")
        lexical = Lexical(modules, tuple(lexical["unused"]))
    return Sparse(**{**data, "splade": splade and Splade(**splade), "lexical": lexical})
