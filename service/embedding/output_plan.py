"""Plans: which graphs and steps answer the options of a request on one model, worked out once and kept."""

from dataclasses import dataclass

from models.artifacts.card import Card
from service.embedding.pooling import POOLINGS
from service.embedding.requests import DTYPES
from service.errors import ConflictingFields, OutOfRange, UnknownValue

POOLED = "sentence_embedding"
HIDDEN = "last_hidden_state"
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
        dtype: of the returned arrays, one of DTYPES.
        lookup: the graph whose rows for plain token ids are the answer as they are; None: there is no such graph.
        modules: whether the card's modules make the sentence vector of the pooled one.
        kept: leading values of the sentence vector to keep after it is scaled; None: all.
        vector_width: of the sentence vector before it is cut.
        end_id: of the mode EOS: the card's.
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


def make(
    card: Card,
    outputs: tuple[str, ...],
    pooling: str | None,
    normalize: bool | None,
    dimensions: int | None,
    dtype: str,
) -> Plan:
    """Return the plan of a request; the arguments are fields of EmbedRequest.

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
    computed = tuple(dict.fromkeys(HIDDEN if name == POOLED and mode else name for name in outputs))
    plain, typed = _by_graph(card, computed, False), _by_graph(card, computed, True)
    whole = all(not card.graphs[graph].attends for graph in plain)
    lookup = _lookup(card, typed) if whole and dtype == "float32" and POOLED not in outputs else None
    modules = card.modules is not None and as_trained and POOLED in outputs
    end_id = card.pooling.end_id if card.pooling else None
    return Plan(outputs, plain, typed, whole, mode, normalize, dimensions, dtype, lookup, modules, kept, width, end_id)


def _lookup(card: Card, graphs: Graphs) -> str | None:
    """Return the one graph that reads nothing but ids, positions and segments, which the family fills."""
    if len(graphs) != 1 or card.types == "optional" or card.mask_from == "pad_count":
        return None
    (graph,) = graphs
    reads = set(card.graphs[graph].inputs) <= {"ids", "positions", "types"}
    return graph if reads and card.graphs[graph].layout == "packed" else None


def _check_fields(pooling: str | None, dimensions: int | None, dtype: str, width: int) -> None:
    if dtype not in DTYPES:
        raise UnknownValue(f"is {dtype[:40]!r}", field=("dtype",), allowed=f"send one of {', '.join(DTYPES)}")
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
        graph = card.graph_for(name, typed)
        if graph is not None:  # token_type_embeddings of a family whose segments are optional: typed sequences alone
            graphs[graph] = (*graphs.get(graph, ()), name)
    return graphs
