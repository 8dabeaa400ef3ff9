"""KINDS, one row for each kind of output, and the plan that they make of a request's options on one model."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from models.artifacts.card import IMAGE_VECTOR, SPARSE, Card
from models.recipes.graph_names import ONE_ROW
from service.embedding.outputs.classes import ClassLogits
from service.embedding.outputs.dense import SentenceVector, own_pooling, precisions
from service.embedding.outputs.image import ImageVector
from service.embedding.outputs.kind import HIDDEN, POOLED, Graphs, Lookup, OutputKind, Plan, Planner, Planning
from service.embedding.outputs.multi_vector import MultiVector
from service.embedding.outputs.rows import GraphRows
from service.embedding.outputs.spans import SpanVectors
from service.embedding.outputs.sparse import SparseLookup, SparseVector
from service.embedding.pooling import POOLINGS
from service.embedding.quantization import PRECISIONS
from service.embedding.requests import DTYPES, Cut, EmbedOptions
from service.embedding.tokenize.prompts import instructed, prompt_of, task_of
from service.errors import ConflictingFields, OutOfRange, UnknownValue
from service.runtime.engine import Engine

KINDS: tuple[type[OutputKind], ...] = (
    SpanVectors,
    SentenceVector,
    SparseLookup,
    SparseVector,
    MultiVector,
    ClassLogits,
    ImageVector,
    GraphRows,
)
"""The first kind that makes an output of a name counts; a new kind of output is a class and its row here."""
ROW_POOLINGS = {"first": "cls", "last": "lasttoken"}  # that take one row; others of row_graphs are named as they are


def planner(card: Card, engine: Engine, weights: Mapping[str, Any]) -> Planner:
    """Return the function that makes the plans of a model and keeps them.

    It raises BadRequest if the model cannot serve the value of an option.
    """

    @lru_cache(maxsize=256)
    def kept(options: EmbedOptions, spans: str) -> Plan:
        names = options.outputs or (POOLED if options.pooling else card.default_output,)
        return _made(Planning(card, engine, weights, options, names, spans))

    def plan(options: EmbedOptions, spans: str) -> Plan:
        if len(options.outputs) > 1:  # a caller may repeat them a million times, and plans are kept
            options = options._replace(outputs=tuple(dict.fromkeys(options.outputs)))
        return kept(options, spans)

    return plan


def _made(planning: Planning) -> Plan:
    card, options = planning.card, planning.options
    _check_values(card, options)
    kinds = _kinds(planning)
    for kind in kinds:
        options = kind.as_read(options)
    plain, typed = (_by_graph(card, kinds, with_types) for with_types in (False, True))
    whole = all(not card.graphs[graph].attends for graph in plain)
    return Plan(
        kinds=kinds,
        names=tuple([kind.name for kind in kinds]),
        options=options,
        plain=plain,
        typed=typed,
        whole=whole,
        task=task_of(card, options.task, options.prompt_name, options.input_type),
        prompt=_prompt(card, options),
        cuts=_cuts(card, options, kinds),
        token_bytes=sum([kind.token_bytes for kind in kinds]),
        input_bytes=sum([kind.input_bytes for kind in kinds]),
        random=card.random,
        lookup=_lookup(card, kinds, typed, options) if whole else None,
        preparing=tuple([kind for kind in kinds if kind.prepares]),
        completing=tuple([kind for kind in kinds if kind.completes]),
        reduces_in_thread=any([kind.reduces_in_thread for kind in kinds]),
        ending=kinds[0].ending if options.special_tokens else (),
        locates=any([kind.locates for kind in kinds]),
        early=next((kind for kind in kinds if kind.held_rows), None),
        cached=kinds[0] if len(kinds) == 1 and kinds[0].cache_form and not whole else None,
    )


def _kinds(planning: Planning) -> tuple[OutputKind, ...]:
    classes: list[type[OutputKind]] = []
    for name in planning.outputs:
        made = next((kind for kind in KINDS if kind.makes(planning, name)), None)
        if made is None:
            allowed = f"it has {', '.join(planning.card.outputs)}"
            raise UnknownValue(f"{planning.card.name} has no output {name[:40]!r}", allowed=allowed)
        classes.append(made)
    _check_fields(planning, classes)
    return tuple([kind(planning, name) for kind, name in zip(classes, planning.outputs, strict=True)])


def _check_values(card: Card, options: EmbedOptions) -> None:
    dtype, pooling, dimensions = options.dtype, options.pooling, options.dimensions
    if dtype not in DTYPES and dtype not in PRECISIONS:
        known = ", ".join((*DTYPES, *PRECISIONS))
        raise UnknownValue(f"is {dtype[:40]!r}", field=("dtype",), allowed=f"send one of {known}")
    as_trained = pooling in (None, own_pooling(card))
    if pooling is not None and not as_trained and pooling not in POOLINGS:
        raise UnknownValue(f"is {pooling[:40]!r}", field=("pooling",), allowed=f"send one of {', '.join(POOLINGS)}")
    width = card.sentence_width if as_trained else card.token_width
    if dimensions is not None and not 1 <= dimensions <= width:
        raise OutOfRange(f"is {dimensions}", field=("dimensions",), allowed=f"send 1 to {width}")


def _check_fields(planning: Planning, kinds: Sequence[type[OutputKind]]) -> None:
    """Raise ConflictingFields for an option of a kind of output that the request does not ask for."""
    card, options, names = planning.card, planning.options, planning.outputs
    asked = f"{card.name} was asked for {', '.join(names)}"
    vector = IMAGE_VECTOR if card.image else POOLED
    sent = {
        "pooling": (options.pooling, POOLED),
        "dimensions": (options.dimensions, vector),
        "normalize": (options.normalize or None, vector),
        "max_active_dims": (options.max_active_dims, SPARSE),
        planning.spans: (planning.spans or None, POOLED),
    }
    for field, (value, owner) in sent.items():
        if value is not None and not any(field in kind.fields for kind in kinds):
            remedy = f"leave it out or ask for {POOLED}" if owner == POOLED else "leave it out"
            raise ConflictingFields(f"applies to {owner} alone, and {asked}", field=(field,), remedy=remedy)
    for dtype in precisions(options):
        if names != (POOLED,):
            raise ConflictingFields(
                f"is {dtype}, which applies to {POOLED} alone, and {asked}",
                field=("dtype",),
                remedy=f"ask for {POOLED}, or send float32, float16 or bfloat16",
            )


def _by_graph(card: Card, kinds: Sequence[OutputKind], typed: bool) -> Graphs:
    row = card.row_graphs.row if card.row_graphs else None
    one_row = row and {kind.row_pooling for kind in kinds} == {ROW_POOLINGS.get(row, row)}
    graphs: Graphs = {}
    for source in dict.fromkeys(kind.source for kind in kinds):
        graph = None if source is None else card.graph_for(source, typed)
        if graph and source:  # token_type_embeddings of a family whose segments are optional: typed sequences alone
            graphs[graph] = (*graphs.get(graph, ()), ONE_ROW if one_row else source)
    return graphs


def _lookup(card: Card, kinds: Sequence[OutputKind], graphs: Graphs, options: EmbedOptions) -> Lookup | None:
    """Return the one graph that reads only ids, positions and segments, which the family fills in.

    None of a model of random weights: its responses have a header that others take no step for.
    """
    if card.random or any(type(kind) is not GraphRows or kind.pooled or kind.dtype != "float32" for kind in kinds):
        return None
    if (options.max_tokens, options.task) != (None, None):
        return None
    if len(graphs) != 1 or card.types == "optional" or card.mask_from == "pad_count":
        return None
    (graph,) = graphs
    inputs = set(card.graphs[graph].inputs)
    if not inputs <= {"ids", "positions", "types"} or card.graphs[graph].layout != "packed":
        return None
    positions = card.position if "positions" in inputs else None
    return Lookup(graph, "types" in inputs, positions, card.position.longest())


def _prompt(card: Card, options: EmbedOptions) -> str | None:
    """Return the prompt before texts; None where the model has none of that name, which token ids do not need."""
    if options.instruction is not None:
        return instructed(card, options.instruction, options.prompt_name)
    if options.prompt_name is not None and options.prompt_name not in card.prompts:
        return None
    return prompt_of(card, options.prompt_name, options.task, options.input_type)


def _cuts(card: Card, options: EmbedOptions, kinds: Sequence[OutputKind]) -> tuple[Cut, Cut]:
    """Return how inputs are cut if the server does not cut by default, and if it does."""
    limits = card.max_tokens, options.max_tokens, *[kind.longest for kind in kinds]
    most = min([limit for limit in limits if limit is not None], default=None)
    if most is not None and options.special_tokens:
        most -= len(kinds[0].ending)
    fields = options.truncation_direction or card.cut_side, options.max_tokens, options.special_tokens, most
    sent = options.truncate
    return Cut(bool(sent), *fields), Cut(sent is not False, *fields)


def width_in_graph(card: Card, name: str) -> int | None:
    """Return the width of a graph's output by the card; None if the card does not say."""
    widths = {POOLED: card.graph_width or card.hidden_size, IMAGE_VECTOR: card.sentence_width}
    widths |= dict.fromkeys((HIDDEN, ONE_ROW), card.token_width)
    if card.classifier:
        widths[card.classifier_output] = len(card.classifier.labels)
    return widths.get(name, card.hidden_size if name == card.default_output else None)
