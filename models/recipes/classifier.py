"""`Classifier`: how hidden states become logits of labels, as data."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from models.recipes import sentence_modules
from models.recipes.sentence_modules import SentenceModules

ScoreActivation = Literal["identity", "sigmoid", "softmax"]
ProblemType = Literal["regression", "single_label_classification", "multi_label_classification"]


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """The one text that a causal reranker reads of an instruction, a query and a document.

    Attributes:
        before_instruction, before_query, before_document, ending: the texts around them; the ending is kept where the
            document is cut.
        instruction: the usual one; None: the model reads none, and before_instruction is empty.
    """

    before_instruction: str
    before_query: str
    before_document: str
    ending: str
    instruction: str | None = None


@dataclass(frozen=True, slots=True)
class Classifier:
    """The classification head of a model: logits = modules(pooled); of each token where nothing is pooled.

    Attributes:
        pooling: one of the service's poolings, or "graph"; None: every token has logits.
        modules: the layers of the head; its width is the number of labels. None: an adopted graph gives the logits.
        labels: their names, in the order of the logits.
        activation: that sentence-transformers applies to the logits.
        problem_type: what config.json says; None: it does not.
        late: the logits of all tokens are pooled, instead of their hidden states.
        pad_id: of the pooling lasttoken: the last token that has another id counts, attended to or not; None: the last
            that is attended to.
        template: of a causal reranker; None: pairs are read as the tokenizer joins them.
    """

    pooling: str | None
    modules: SentenceModules | None
    labels: tuple[str, ...]
    activation: ScoreActivation
    problem_type: ProblemType | None = None
    late: bool = False
    pad_id: int | None = None
    template: PairTemplate | None = None

    @property
    def ranks(self) -> bool:
        """Whether it gives a text or pair one score."""
        return self.pooling is not None and len(self.labels) == 1


def to_json(classifier: Classifier) -> dict[str, Any]:
    """Return a classifier as JSON."""
    return asdict(classifier) | {"modules": classifier.modules and sentence_modules.to_json(classifier.modules)}


def from_json(data: Mapping[str, Any] | None) -> Classifier | None:
    """Return the classifier of `to_json`'s object, None of None; KeyError or TypeError if it is no such object."""
    if data is None:
        return None
    template = data.get("template")
    own = {
        "modules": sentence_modules.from_json(data["modules"]),
        "labels": tuple(data["labels"]),
        "template": template and PairTemplate(**template),
    }
    return Classifier(**{**data, **own})
