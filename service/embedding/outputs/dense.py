"""Sentence vectors: hidden states pooled, sent through the model's modules, cut, scaled and cast."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import MODULES, Card
from models.checkpoints.sentence_transformers import EOS
from service.embedding.outputs.kind import HIDDEN, POOLED, HeadGraph, Job, OutputKind, Planning, Ranges
from service.embedding.pooling import end_row, normalize, pool
from service.embedding.quantization import PRECISIONS, RANGED
from service.embedding.requests import EmbedOptions
from service.embedding.tokenize.packing import Rows
from service.errors import ConflictingFields

AS_THE_MODEL_GIVES = "leave out pooling, normalize and dimensions, or ask for binary or ubinary"


class Recipe(NamedTuple):
    """How sentence vectors are made.

    Args:
        mode: how token rows are pooled; None: the graph pools them.
        modules: whether pooled vectors go through the card's modules.
        normalize: whether vectors are scaled to unit length.
        scaled: values that are scaled together.
        width: values that are left.
    """

    mode: str | None
    modules: bool
    normalize: bool
    scaled: int
    width: int

    def gives_first_values_of(self, other: "Recipe") -> bool:
        """Return whether these vectors are the first values of others."""
        alike = self[:3] == other[:3] and self.width <= other.width
        return alike and (not self.normalize or self.scaled == other.scaled)


class SentenceVector(OutputKind):
    """One vector for each input.

    Attributes:
        mode: how to pool, one or several of POOLINGS; None: the graph gives the pooled vector.
        dimensions: leading values to keep before the vector is scaled; None: all.
        kept: leading values to keep after it is scaled; None: all.
    """

    fields: tuple[str, ...] = ("pooling", "dimensions", "normalize")
    pooled: bool = True

    def __init__(self, planning: Planning, name: str) -> None:
        card, options, mode = planning.card, planning.options, _mode(planning)
        as_trained = options.pooling in (None, own_pooling(card))
        super().__init__(planning, name, HIDDEN if mode else POOLED)
        self.mode = self.row_pooling = mode
        self.completes = card.modules is not None and as_trained
        if card.modules is not None and as_trained:
            inner, width = card.modules.inner, card.modules.width
            self.head = HeadGraph(MODULES, "vectors", inner, width, "a sentence_embedding that is")
        self.dimensions = options.dimensions
        self.kept = card.pooling.dimensions if card.pooling and as_trained and self.dimensions is None else None
        if options.normalize is not None:  # by the caller: as sentence-transformers, of what is left after the cut
            self.normalize, self.dimensions, self.kept = options.normalize, self.dimensions or self.kept, None
        else:  # TEI normalises unless told otherwise
            self.normalize = card.pooling.normalize if card.pooling else True
        vector_width = card.sentence_width if as_trained else card.token_width
        self.input_bytes = 4 * vector_width
        scaled = self.dimensions or vector_width
        self.recipe = Recipe(mode, self.completes, self.normalize, scaled, self.dimensions or self.kept or scaled)
        self.width = self.recipe.width
        self.cache_form = (mode,)
        self.ranges = {precision: self._ranges(planning, precision) for precision in precisions(options)}
        self.finishes_in_thread = bool(self.ranges)

    @classmethod
    def makes(cls, planning: Planning, name: str) -> bool:
        """Return whether this is the sentence vector, which is pooled if the model has none of its own."""
        card, options = planning.card, planning.options
        pooled = (options.pooling or own_pooling(card)) and HIDDEN in card.outputs
        return name == POOLED and not planning.spans and (POOLED in card.outputs or bool(pooled))

    def reduce(self, job: Job, index: int, rows: Rows) -> Rows:
        """Return the pooled vector of one input, [1, d]; a vector from the graph is returned as it is."""
        if self.mode is None:
            return super().reduce(job, index, rows)
        sequence, hidden = job.ids[index], rows[HIDDEN]
        end = end_row(sequence.ids, self.card.pooling.end_id if self.card.pooling else None) if self.mode == EOS else 0
        first, last = job.prompts.get(index, 0), len(hidden)
        if index in job.images and (spec := self.card.image_tokens):
            first, last = spec.outside[0], last - spec.outside[1]
        return {self.name: pool(self.mode, hidden[:last], sequence.mask, first, end)[None]}

    def shaped(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the vectors cut, scaled and cut again."""
        vectors = np.ascontiguousarray(rows[:, : self.dimensions])
        return (normalize(vectors) if self.normalize else vectors)[:, : self.kept]

    def _ranges(self, planning: Planning, dtype: str) -> Ranges | None:
        """Return the ranges of int8 and uint8 vectors; None for binary vectors, which need none.

        Raises:
            ConflictingFields: the card has none, or has those of other vectors.
        """
        card = self.card
        if dtype not in RANGED:
            return None
        if card.calibration is None:
            raise ConflictingFields(
                f"is {dtype}, and {card.name} has no ranges for it",
                field=("dtype",),
                allowed="binary and ubinary need none",
                remedy=f"run `inlay calibrate {card.name} TEXTS`, which finds them in texts like those it will get",
            )
        calibrated = SentenceVector(planning._replace(options=EmbedOptions()), POOLED).recipe
        if not self.recipe.gives_first_values_of(calibrated):
            raise ConflictingFields(
                f"is {dtype}, and the ranges of {card.name} are of its vectors as it gives them, with its own pooling, "
                "scaling and width",
                field=("dtype",),
                remedy=AS_THE_MODEL_GIVES,
            )
        ranges = np.array([card.calibration.least, card.calibration.largest], np.float32)
        return np.ascontiguousarray(ranges[:, : self.recipe.width])


def _mode(planning: Planning) -> str | None:
    """Return how a request's hidden states are pooled; None: its graph does it."""
    card, asked = planning.card, planning.options.pooling
    if HIDDEN in card.outputs:
        return asked or own_pooling(card)
    if asked:
        raise ConflictingFields(
            f"is {asked}",
            field=("pooling",),
            allowed=f"{card.name} gives sentence vectors as they are",
            remedy="leave it out",
        )
    return None


def own_pooling(card: Card) -> str | None:
    """Return how a model's hidden states are pooled; None if its graph does it, or nothing is pooled."""
    return card.pooling.mode if card.pooling and not card.pooling.in_graph else None


def precisions(options: EmbedOptions) -> tuple[str, ...]:
    """Return the precisions that a request asks for its sentence vectors."""
    return (options.dtype, *options.precisions) if options.dtype in PRECISIONS else options.precisions
