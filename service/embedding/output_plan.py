"""What a request's fields come to on one model, worked out once and remembered. Looks at no input."""

from dataclasses import dataclass

from models.artifacts.card import Card
from service.embedding.pooling import POOLINGS
from service.embedding.requests import DTYPES
from service.errors import BadRequest

POOLED = "sentence_embedding"
HIDDEN = "last_hidden_state"
Graphs = dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Plan:
    """How to answer.

    outputs       the names to answer with, each once
    plain, typed  outputs to compute by graph, for sequences without and with segment ids
    whole         the request runs as one row; False: an item a sequence, since an encoder mixes its rows
    mode          how to pool; None: the graph gives the pooled vector, or nothing is pooled
    """

    outputs: tuple[str, ...]
    plain: Graphs
    typed: Graphs
    whole: bool
    mode: str | None
    normalize: bool
    dimensions: int | None
    dtype: str


def make(
    card: Card,
    outputs: tuple[str, ...],
    pooling: str | None,
    normalize: bool | None,
    dimensions: int | None,
    dtype: str,
) -> Plan:
    """The plan of a request with these fields (service.embedding.requests.EmbedRequest).

    raises   BadRequest naming the field, what came and what this model has
    """
    _check_fields(card, pooling, dimensions, dtype)
    mode = pooling or (card.pooling.mode if card.pooling else None)
    default = POOLED if pooling else card.default_output
    outputs = tuple(dict.fromkeys(outputs)) or (default,)
    for name in outputs:
        if name not in card.outputs and not (name == POOLED and mode and HIDDEN in card.outputs):
            raise BadRequest(f"{card.name} has no output {name!r}; it has {', '.join(card.outputs)}")
    if POOLED not in outputs:
        _refuse_pooled_fields(card, outputs, {"pooling": pooling, "dimensions": dimensions, "normalize": normalize})
        mode = None
    elif mode and HIDDEN not in card.outputs:
        if pooling:
            raise BadRequest(f"{card.name} gives sentence vectors as they are: leave out pooling")
        mode = None
    if normalize is None:
        normalize = card.pooling.normalize if card.pooling else True  # TEI normalises unless told otherwise
    computed = tuple(dict.fromkeys(HIDDEN if name == POOLED and mode else name for name in outputs))
    plain, typed = _by_graph(card, computed, False), _by_graph(card, computed, True)
    whole = all(not card.graphs[graph].attends for graph in plain)
    return Plan(outputs, plain, typed, whole, mode, normalize, dimensions, dtype)


def _check_fields(card: Card, pooling: str | None, dimensions: int | None, dtype: str) -> None:
    if dtype not in DTYPES:
        raise BadRequest(f"dtype is {dtype!r}; send one of {', '.join(DTYPES)}")
    if pooling is not None and pooling not in POOLINGS:
        raise BadRequest(f"pooling is {pooling!r}; send one of {', '.join(POOLINGS)}")
    if dimensions is not None and not 1 <= dimensions <= card.hidden_size:
        raise BadRequest(f"dimensions is {dimensions}; send 1 to {card.hidden_size}")


def _refuse_pooled_fields(card: Card, outputs: tuple[str, ...], fields: dict[str, object]) -> None:
    for field, value in fields.items():
        if value:
            raise BadRequest(
                f"{field} applies to {POOLED} alone, and {card.name} was asked for {', '.join(outputs)}: "
                f"leave {field} out or ask for {POOLED}"
            )


def _by_graph(card: Card, names: tuple[str, ...], typed: bool) -> Graphs:
    graphs: Graphs = {}
    for name in names:
        graph = card.graph_for(name, typed)
        if graph is not None:  # token_type_embeddings of a family whose segments are optional: typed sequences alone
            graphs[graph] = (*graphs.get(graph, ()), name)
    return graphs
