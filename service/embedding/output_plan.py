"""Plans: which graphs and steps answer the options of a request on one model, worked out once and kept."""

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import CLASS_LOGITS, MULTI_VECTOR, SPARSE, TOKEN_CLASS_LOGITS, Card
from models.recipes.graph_names import ONE_ROW
from service.embedding.output_types import Making, check_outputs, ranges_of
from service.embedding.pooling import POOLINGS
from service.embedding.quantization import PRECISIONS, RANGED
from service.embedding.requests import DTYPES
from service.errors import ConflictingFields, OutOfRange, UnknownValue

POOLED = "sentence_embedding"
HIDDEN = "last_hidden_state"
ROW_POOLINGS = {"first": "cls", "last": "lasttoken"}  # that take one row
HEAD_OUTPUTS = (CLASS_LOGITS, TOKEN_CLASS_LOGITS, MULTI_VECTOR)  # made of hidden states by task_heads.py
ROW_OF_EACH = (POOLED, CLASS_LOGITS)  # outputs with a row for each input
Graphs = dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a request is computed.

    Args:
        outputs: the names of the outputs to return, each once.
        plain: outputs to compute by graph, for sequences without segment ids.
        typed: the same for sequences with segment ids.
        whole: the request runs as one row of tokens; False: one item per sequence, since an encoder mixes its rows.
        mode: how to pool, one or several of POOLINGS; None: the graph gives the pooled vector, or nothing is pooled.
        normalize: scale the sentence vector to unit length.
        dimensions: leading values of the sentence vector to keep before it is scaled; None: all.
        dtype: of the returned arrays, one of DTYPES or PRECISIONS.
        lookup: the graph whose rows for plain token ids are the answer as they are; None: there is no such graph.
        modules: whether the card's modules make the sentence vector of the pooled one.
        kept: leading values of the sentence vector to keep after it is scaled; None: all.
        vector_width: of the sentence vector before it is cut.
        end_id: of the mode EOS: the card's.
        heads: those of the outputs that task heads make of hidden states.
        reads_rows: whether one of these reads the hidden states of all tokens, which are then kept until it has run.
        ranges: of int8 and uint8 sentence vectors, float32 [2, width].
        sparse_width: the most values of a sparse vector; 0: it has as many as its text has tokens at most.
    """

    outputs: tuple[str, ...]
    plain: Graphs
    typed: Graphs
    whole: bool
    mode: str | None
    normalize: bool
    dimensions: int | None
    dtype: str
    lookup: str | None = None
    modules: bool = False
    kept: int | None = None
    vector_width: int = 0
    end_id: int | None = None
    heads: tuple[str, ...] = ()
    reads_rows: bool = False
    ranges: NDArray[np.float32] | None = dataclasses.field(default=None, compare=False)

    sparse_width: int = 0

    @property
    def making(self) -> Making:
        """How its sentence vectors are made."""
        scaled = self.dimensions or self.vector_width
        return Making(self.mode, self.modules, self.normalize, scaled, self.dimensions or self.kept or scaled)

    def without_graphs(self) -> "Plan":
        """Return the plan of outputs that no graph is run for."""
        return dataclasses.replace(self, plain={}, typed={}, whole=True, sparse_width=0)


def make(
    card: Card,
    outputs: tuple[str, ...],
    pooling: str | None,
    normalize: bool | None,
    dimensions: int | None,
    dtype: str,
) -> Plan:
    """Return the plan of a request; the arguments are fields of EmbedOptions.

    Raises:
        BadRequest: the model cannot serve a field's value.
    """
    own = card.pooling.mode if card.pooling and not card.pooling.in_graph else None
    as_trained = pooling is None or pooling == own
    width = card.sentence_width if as_trained else card.token_width
    _check_fields(None if as_trained else pooling, dimensions, dtype, width)
    mode = pooling or own
    default = POOLED if pooling else card.default_output
    outputs = tuple(dict.fromkeys(outputs)) or (default,)
    for name in outputs:
        if name not in card.outputs and not (name == POOLED and mode and HIDDEN in card.outputs):
            raise UnknownValue(f"{card.name} has no output {name[:40]!r}", allowed=f"it has {', '.join(card.outputs)}")
    if POOLED not in outputs:
        _check_pooled_fields(card, outputs, {"pooling": pooling, "dimensions": dimensions, "normalize": normalize})
        mode = None
    elif mode and HIDDEN not in card.outputs:
        if pooling:
            raise ConflictingFields(
                f"is {pooling}",
                field=("pooling",),
                allowed=f"{card.name} gives sentence vectors as they are",
                remedy="leave it out",
            )
        mode = None
    kept = card.pooling.dimensions if card.pooling and as_trained and dimensions is None else None
    if normalize is not None:  # by the caller: as sentence-transformers, of what is left after the cut
        dimensions, kept = dimensions or kept, None
    else:
        normalize = card.pooling.normalize if card.pooling else True  # TEI normalises unless told otherwise
    heads = tuple(name for name in outputs if name in HEAD_OUTPUTS and card.graph_for(name, False) is None)
    rows = ONE_ROW if _pools_one_row(card, outputs, mode) else HIDDEN
    computed = tuple(dict.fromkeys(rows if name in heads or (name == POOLED and mode) else name for name in outputs))
    plain, typed = _by_graph(card, computed, False), _by_graph(card, computed, True)
    whole = all(not card.graphs[graph].attends for graph in plain)
    lookup = _lookup(card, typed) if whole and dtype == "float32" and POOLED not in outputs else None
    modules = card.modules is not None and as_trained and POOLED in outputs
    end_id = card.pooling.end_id if card.pooling else None
    late = card.classifier is not None and card.classifier.late and CLASS_LOGITS in heads
    reads_rows = late or TOKEN_CLASS_LOGITS in heads  # several vectors are made as the rows come
    sparse_width = card.sparse.width if card.sparse and card.sparse.splade and SPARSE in outputs else 0
    options = mode, normalize, dimensions, dtype, lookup, modules, kept, width, end_id, heads, reads_rows
    plan = Plan(outputs, plain, typed, whole, *options, sparse_width=sparse_width)
    if dtype in PRECISIONS:
        check_outputs(card, outputs, dtype, POOLED)
    if dtype in RANGED:
        as_given = make(card, (POOLED,), None, None, None, "float32").making
        plan = dataclasses.replace(plan, ranges=ranges_of(card, plan.making, as_given, dtype))
    return plan


def _pools_one_row(card: Card, outputs: tuple[str, ...], mode: str | None) -> bool:
    """Return whether all that is made of hidden states is made of the row that the card's row_graphs give."""
    if card.row_graphs is None or not set(outputs) <= set(ROW_OF_EACH):
        return False
    poolings = {mode} if mode else set()
    if CLASS_LOGITS in outputs and card.classifier:
        poolings.add(card.classifier.pooling or "")
    return poolings == {ROW_POOLINGS[card.row_graphs.row]}


def _lookup(card: Card, graphs: Graphs) -> str | None:
    """Return the one graph that reads nothing but ids, positions and segments, which the family fills."""
    if len(graphs) != 1 or card.types == "optional" or card.mask_from == "pad_count":
        return None
    (graph,) = graphs
    reads = set(card.graphs[graph].inputs) <= {"ids", "positions", "types"}
    return graph if reads and card.graphs[graph].layout == "packed" else None


def _check_fields(pooling: str | None, dimensions: int | None, dtype: str, width: int) -> None:
    if dtype not in DTYPES and dtype not in PRECISIONS:
        known = ", ".join((*DTYPES, *PRECISIONS))
        raise UnknownValue(f"is {dtype[:40]!r}", field=("dtype",), allowed=f"send one of {known}")
    if pooling is not None and pooling not in POOLINGS:
        raise UnknownValue(f"is {pooling[:40]!r}", field=("pooling",), allowed=f"send one of {', '.join(POOLINGS)}")
    if dimensions is not None and not 1 <= dimensions <= width:
        raise OutOfRange(f"is {dimensions}", field=("dimensions",), allowed=f"send 1 to {width}")


def _check_pooled_fields(card: Card, outputs: tuple[str, ...], fields: dict[str, object]) -> None:
    for field, value in fields.items():
        if value:
            raise ConflictingFields(
                f"applies to {POOLED} alone, and {card.name} was asked for {', '.join(outputs)}",
                field=(field,),
                remedy=f"leave it out or ask for {POOLED}",
            )


def _by_graph(card: Card, names: tuple[str, ...], typed: bool) -> Graphs:
    graphs: Graphs = {}
    for name in names:
        graph = card.graph_for(HIDDEN if name == ONE_ROW else name, typed)
        if graph is not None:  # token_type_embeddings of a family whose segments are optional: typed sequences alone
            graphs[graph] = (*graphs.get(graph, ()), name)
    return graphs
