"""BOUND: the positional encodings of a loaded model, as its card has them. The only file here that reads a card."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from numpy.typing import NDArray
from pydantic import BaseModel

from models.artifacts.card import Card
from models.families.encodings import RopeTable
from models.families.recipe import AddPosition, AddSinusoid
from models.positions import alibi, buckets, learned, masks, sinusoidal
from models.positions.rope import axial
from models.positions.rope import choice as rope_choice
from models.positions.rope import table as rope_table
from service.errors import NotFound
from service.protocols.inlay.positions import rope
from service.protocols.inlay.positions.parameters import (
    BEYOND,
    LENGTHS,
    PACKED,
    PADDING,
    PAST,
    PATCHES,
    PLACES,
    Parameters,
    model,
)
from service.protocols.inlay.positions.schemes import named, places
from service.protocols.inlay.positions.table_call import Call, in_the_callers_words

KINDS = {"t5": buckets.tabulate_t5, "deberta": buckets.tabulate_deberta}
LAYER = {name: rope.FIELDS[name] for name in ("layer_type", "layer")}
LAYER_TYPE = {"layer_type": rope.FIELDS["layer_type"]}


@dataclass(frozen=True, slots=True)
class Owner:
    """A loaded model.

    weights  its tensors, mapped when it was loaded: the folder may hold another export by now
    """

    card: Card
    weights: Mapping[str, Any]

    def tensor(self, name: str | None) -> NDArray[Any] | None:
        """A tensor of the weights file, as a view of it; None where the model has none."""
        if name is None:
            return None
        if self.card.weights is None:
            raise NotFound(f"{self.card.name} was adopted: its ONNX files hold its tables")
        found: NDArray[Any] = self.weights[name]
        return found


@dataclass(frozen=True, slots=True)
class Bound:
    """One row: an encoding a model may have, what may be asked of it, and the call that makes."""

    name: str
    summary: str
    parameters: type[BaseModel]
    call: Callable[[Owner, Any], Call]
    methods: tuple[str, ...] = ("GET", "POST")


def _rope(owner: Owner, asked: Any) -> Call:
    found, table = rope_of(owner, asked)
    arguments = {
        "rope": table.rope,
        "positions": places(asked, table.rope.max_position_embeddings),
        "arithmetic": asked.arithmetic,
        "seq_len": asked.seq_len,
        "table": asked.table,
        "layout": table.layout,
        "notes": table.notes,
    }
    told = {"model": owner.card.name, "softmax_scale": table.softmax_scale}
    return Call(rope_table.tabulate, arguments, told | ({"layer_type": found} if found != "all" else {}))


def rope_of(owner: Owner, asked: Any) -> tuple[str, RopeTable]:
    """The layer type that is asked for, and how it rotates; raises NotFound where the model does not."""
    encodings = owner.card.encodings
    check(owner, "rope")
    with in_the_callers_words():
        return rope_choice.chosen(encodings.ropes, encodings.layers, asked.layer_type, asked.layer)


def _alibi(owner: Owner, asked: Any) -> Call:
    found = owner.card.encodings.alibi
    assert found is not None  # checked
    own = {"heads": found.heads, "form": found.form, "max_bias": found.max_bias}
    return _call(owner, alibi.tabulate, own, asked, *LENGTHS, *PAST, *PADDING)


def _t5(owner: Owner, asked: Any) -> Call:
    row = owner.card.encodings.buckets
    assert row is not None  # checked
    own = {"num_buckets": row.buckets, "max_distance": row.reach, "bidirectional": row.bidirectional}
    return _call(owner, KINDS["t5"], own | {"weights": owner.tensor(row.table)}, asked, *LENGTHS, *PAST)


def _deberta(owner: Owner, asked: Any) -> Call:
    row = owner.card.encodings.buckets
    assert row is not None  # checked
    own: dict[str, Any] = {"position_buckets": row.buckets, "max_relative_positions": row.reach}
    own |= {"weights": owner.tensor(row.table)}
    if row.norm:
        weight, bias, eps = row.norm
        own |= {"norm": (owner.tensor(weight), owner.tensor(bias)), "norm_eps": eps}
    return _call(owner, KINDS["deberta"], own, asked, *LENGTHS)


def _mask(owner: Owner, asked: Any) -> Call:
    with in_the_callers_words():
        _, mask = rope_choice.chosen(owner.card.encodings.masks, (), asked.layer_type, None)
    return _call(owner, masks.tabulate, asdict(mask), asked, *LENGTHS, *PAST, *PADDING, *PACKED, "dtype")


def _learned(owner: Owner, asked: Any) -> Call:
    step = next(step for step in owner.card.recipe if isinstance(step, AddPosition))
    table = owner.tensor(step.table)
    own = {"table": table, "positions": places(asked, owner.card.position.rows), "length": asked.stretch_to}
    return _call(owner, learned.tabulate, own, asked, "beyond")


def _sinusoidal(owner: Owner, asked: Any) -> Call:
    step = next(step for step in owner.card.recipe if isinstance(step, AddSinusoid))
    own = {"kind": step.kind, "dim": step.dim, "positions": places(asked, owner.card.position.rows)}
    return _call(owner, sinusoidal.tabulate, own, asked)


def _axial(owner: Owner, asked: Any) -> Call:
    assert owner.card.image is not None  # checked
    assert owner.card.image.axial is not None
    return _call(owner, axial.tabulate_axial, asdict(owner.card.image.axial), asked, "grid", "positions", "table")


def _call(owner: Owner, function: Any, own: dict[str, Any], asked: Any, *names: str) -> Call:
    return Call(function, named(asked, *names) | own, {"model": owner.card.name})


def check(owner: Owner, name: str) -> None:
    """Raise NotFound unless the model has the encoding of that row of BOUND."""
    if name not in available(owner.card):
        has = ", ".join(available(owner.card)) or "none"
        told = f"it is a {owner.card.family}; positional encodings it has: {has}"
        raise NotFound(f"{owner.card.name} has no {name}: {told}")


def available(card: Card) -> tuple[str, ...]:
    """The names of the rows of BOUND that a model has."""
    found, steps = card.encodings, {type(step) for step in card.recipe}
    has = {
        "rope": bool(found.ropes),
        "alibi": found.alibi is not None,
        "t5": found.buckets is not None and found.buckets.kind == "t5",
        "deberta": found.buckets is not None and found.buckets.kind == "deberta",
        "mask": bool(found.masks),
        "learned": AddPosition in steps and card.weights is not None,
        "sinusoidal": AddSinusoid in steps,
        "axial": card.image is not None and card.image.axial is not None,
    }
    return tuple(name for name, there in has.items() if there)


def _parameters(name: str, *groups: Parameters) -> type[BaseModel]:
    return model(f"Model{name}", "What is asked of the model's own encoding.", *groups, arithmetic="parity")


BOUND: dict[str, Bound] = {
    row.name: row
    for row in (
        Bound("rope", "Its rotary cos and sin", _parameters("Rope", PLACES, rope.SEQ_LEN, LAYER, rope.WIDTH), _rope),
        Bound("sinusoidal", "Its sinusoidal positions", _parameters("Sinusoidal", PLACES), _sinusoidal),
        Bound("learned", "Its learned positions", _parameters("Learned", PLACES, BEYOND), _learned),
        Bound("alibi", "Its ALiBi slopes and bias", _parameters("Alibi", LENGTHS, PAST, PADDING), _alibi),
        Bound("t5", "Its relative buckets and their bias", _parameters("T5", LENGTHS, PAST), _t5),
        Bound("deberta", "Its relative buckets and their vectors", _parameters("Deberta", LENGTHS), _deberta),
        Bound("axial", "Rotary cos and sin of its patches", _parameters("Axial", PATCHES, rope.WIDTH), _axial),
        Bound("mask", "Its attention mask", _parameters("Mask", LENGTHS, PAST, PADDING, PACKED, LAYER_TYPE), _mask),
    )
}
