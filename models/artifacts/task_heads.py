"""The task heads of an exported model, which read its hidden states beside the sentence vector."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from models.artifacts import rerankers, sentence_vectors
from models.artifacts.card import CLASS_LOGITS, MULTI_VECTOR, SPARSE, TOKEN_CLASS_LOGITS
from models.artifacts.known_rerankers import KnownReranker
from models.artifacts.multi_vectors import MultiVectorHead
from models.artifacts.sparse_vectors import SparseHead
from models.checkpoints import sentence_transformers
from models.checkpoints.checkpoint import Checkpoint
from models.checkpoints.late_interaction import LISTWISE
from models.checkpoints.provenance import Setting
from models.checkpoints.sentence_modules import StoredModules
from models.checkpoints.sentence_transformers import SentenceFiles
from models.errors import BadCheckpoint
from models.families import classifier_fitting
from models.families.fitting import FittedModel
from models.families.head_fitting import MissingHead
from models.recipes.heads import Classifier


@dataclass(frozen=True, slots=True)
class TaskHeads:
    """The task heads of a checkpoint.

    Attributes:
        classifier: None: it does not classify.
        layers: layers of the classifier, with their tensors.
        multi_vector: None: it gives no several vectors of a text.
        computed: function that makes those of its tensors that no file holds; None: all are in files.
        no_classifier_reason: why it has no classifier though its config names a class that has one; None: it does not.
        sparse: None: it gives no sparse vectors.
        read_from: where the settings of the classifier were read.
    """

    classifier: Classifier | None = None
    layers: StoredModules = field(default_factory=StoredModules)
    computed: rerankers.Computed | None = None
    no_classifier_reason: str | None = None
    multi_vector: MultiVectorHead | None = None
    sparse: SparseHead | None = None
    read_from: tuple[Setting, ...] = ()

    @property
    def provenance(self) -> tuple[Setting, ...]:
        """Where the settings of all heads were read."""
        return self.read_from + (self.sparse.read_from if self.sparse else ())

    def __bool__(self) -> bool:
        return any((self.classifier, self.multi_vector, self.sparse))

    @property
    def default_output(self) -> str:
        """The output of a model that pools no vectors."""
        if self.classifier:
            return CLASS_LOGITS if self.classifier.pooling else TOKEN_CLASS_LOGITS
        return MULTI_VECTOR if self.multi_vector else SPARSE


def find(
    source: Checkpoint, fitted: FittedModel, folder: Path, sentence: SentenceFiles, reranker: str | None = None
) -> TaskHeads:
    """Return the task heads of a checkpoint, or why it has none.

    Args:
        source: the checkpoint.
        fitted: fitted to it.
        folder: folder of the sentence-transformers files.
        sentence: what these files say.
        reranker: entries of the vocabulary whose logits make a score, instead of what the files say.

    Raises:
        BadCheckpoint: a head is there in other shapes, or `reranker` is given for a model that does not rank so.
    """
    row = rerankers.known(folder, source, reranker)
    tokens = rerankers.token_ids(folder, source, reranker, row)
    named = [str(name) for name in source.config.get("architectures") or ()]
    ranking = [name for name in named if name.endswith("ForRanking") and name != LISTWISE and tokens is None]
    if tokens is None and not ranking and not classifier_fitting.is_classifier(source.config):
        return TaskHeads()
    try:
        if ranking:
            raise MissingHead(f"how {ranking[0]} ranks is not known here")
        if not fitted.encoder:
            raise MissingHead(f"its blocks are not exported: {fitted.no_blocks_reason}")
        if tokens is not None:
            heads = _reranker(source, fitted, folder, sentence, tokens, row)
            origin = "--reranker" if reranker else f"the card of {row.card}" if row else rerankers.LOGIT_SCORE
            score = f"logit of {' minus that of '.join(rerankers.entries(source, tokens))}"
            return replace(heads, read_from=(Setting("head", score, origin), *heads.read_from))
        return _classifier(source, fitted, folder)
    except MissingHead as missing:
        if reranker is not None:
            raise BadCheckpoint(f"{source.name} does not rank by --reranker {reranker}: {missing}") from missing
        return TaskHeads(no_classifier_reason=str(missing))


def _classifier(source: Checkpoint, fitted: FittedModel, folder: Path) -> TaskHeads:
    found = classifier_fitting.find(source, fitted.model_type, fitted.token_width)
    if fitted.side and not classifier_fitting.of_tokens(source.config):
        raise MissingHead(f"it classifies its decoder's rows, and the {fitted.side} alone is exported")
    modules = sentence_vectors.described(found.layers)
    if modules is None:
        raise MissingHead("its head has no layers")
    stated = sentence_transformers.activation(folder)
    activation, origin = classifier_fitting.activation(source.config, modules.width, stated)
    classifier = Classifier(
        found.pooling,
        modules,
        classifier_fitting.labels(source.config, modules.width),
        activation,
        classifier_fitting.problem_type(source.config),
        found.late,
        fitted.pad_id if found.pooling == "lasttoken" and fitted.family.causal is True else None,
    )
    named = next(iter(source.config["architectures"]))
    read_from = (Setting("head", named, "config.json: architectures"), Setting("activation", activation, origin))
    return TaskHeads(classifier, found.layers, read_from=read_from)


def _reranker(
    source: Checkpoint,
    fitted: FittedModel,
    folder: Path,
    sentence: SentenceFiles,
    tokens: tuple[int, ...],
    row: KnownReranker | None,
) -> TaskHeads:
    layers, computed = rerankers.layer(source, fitted, tokens, row.divisor if row else 1.0)
    modules = sentence_vectors.described(layers)
    if modules is None:
        raise MissingHead("its head has no layers")
    activation, activation_origin = classifier_fitting.activation(
        source.config, 1, sentence_transformers.activation(folder)
    )
    template, origin = rerankers.template(folder, source, sentence, row)
    classifier = Classifier("lasttoken", modules, ("score",), activation, template=template)
    pair = Setting("template", repr(template.text("QUERY", "DOCUMENT")), origin)
    if row is not None:
        pair = pair.against(f"the card of {row.card}", repr(row.template.text("QUERY", "DOCUMENT")))
    read_from = (Setting("activation", activation, activation_origin), pair)
    return TaskHeads(classifier, layers, computed, read_from=read_from)


def arrays(found: TaskHeads) -> dict[str, NDArray[Any]]:
    """Return the heads' own tensors by name."""
    held = found.computed() if found.computed else sentence_vectors.arrays(found.layers)
    heads = (found.multi_vector, found.sparse)
    return held | {name: array for head in heads if head for name, array in head.arrays.items()}
