"""MODEL_SCHEMES: the positional encodings of a loaded model, with the parameters that its card does not set."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

from numpy.typing import NDArray

from models.artifacts.card import Card
from models.positions import alibi, buckets, learned, masks, sinusoidal
from models.positions.rope import axial
from models.positions.rope import choice as rope_choice
from models.positions.rope import table as rope_table
from models.recipes.positional_encodings import RopeTable
from models.recipes.steps import AddPosition, AddSinusoid
from service.context import ServiceContext
from service.embedding.position_tables import TableCall, as_bad_parameters
from service.errors import NotFound
from service.http.routes import Need
from service.http.validation_errors import LONGEST_COMPARED
from service.protocols.inlay.parameter_types import TableOptions
from service.protocols.inlay.positions.parameters import (
    Layer,
    ModelAlibiParameters,
    ModelAxialParameters,
    ModelDebertaParameters,
    ModelLearnedParameters,
    ModelMaskParameters,
    ModelRopeParameters,
    ModelSinusoidalParameters,
    ModelT5Parameters,
)
from service.protocols.inlay.positions.schemes import SCHEMES, Scheme, call_of, positions_of


@dataclass(frozen=True, slots=True)
class CardAndWeights:
    """A loaded model's card and its mapped tensors, kept because its folder may hold another export by now."""

    card: Card
    weights: Mapping[str, Any]

    def tensor(self, name: str | None) -> NDArray[Any] | None:
        """Return a view of a tensor of the weights file; None if the model has none."""
        if name is None:
            return None
        if self.card.weights is None:
            raise NotFound(f"{self.card.name} was adopted", allowed="its ONNX files hold its tables")
        tensor: NDArray[Any] = self.weights[name]
        return tensor


def _rope(model: CardAndWeights, parameters: ModelRopeParameters) -> TableCall:
    layer_type, table = model_rope(model, parameters)
    facts = {"model": model.card.name, "softmax_scale": table.softmax_scale}
    facts |= {"layer_type": layer_type} if layer_type != "all" else {}
    positions = positions_of(parameters, table.rope.max_position_embeddings)
    rope: dict[str, Any] = {"rope": table.rope, "layout": table.layout, "notes": table.notes}
    return call_of(rope_table.tabulate, parameters, facts, positions=positions, **rope)


def model_rope(model: CardAndWeights, layer: Layer) -> tuple[str, RopeTable]:
    """Return the requested layer type and its rotation; raise NotFound if the model has no rotary encoding."""
    check_has(model, "rope")
    encodings = model.card.encodings
    with as_bad_parameters():
        return rope_choice.chosen(encodings.ropes, encodings.layers, layer.layer_type, layer.layer)


def _alibi(model: CardAndWeights, parameters: ModelAlibiParameters) -> TableCall:
    row = model.card.encodings.alibi
    assert row is not None  # checked
    return _call(model, alibi.tabulate, parameters, heads=row.heads, form=row.form, max_bias=row.max_bias)


def _t5(model: CardAndWeights, parameters: ModelT5Parameters) -> TableCall:
    row = model.card.encodings.buckets
    assert row is not None  # checked
    sizes = {"num_buckets": row.buckets, "max_distance": row.reach, "bidirectional": row.bidirectional}
    return _call(model, buckets.tabulate_t5, parameters, weights=model.tensor(row.table), **sizes)


def _deberta(model: CardAndWeights, parameters: ModelDebertaParameters) -> TableCall:
    row = model.card.encodings.buckets
    assert row is not None  # checked
    sizes: dict[str, Any] = {"position_buckets": row.buckets, "max_relative_positions": row.reach}
    if row.norm:
        weight, bias, eps = row.norm
        sizes |= {"norm": (model.tensor(weight), model.tensor(bias)), "norm_eps": eps}
    return _call(model, buckets.tabulate_deberta, parameters, weights=model.tensor(row.table), **sizes)


def _mask(model: CardAndWeights, parameters: ModelMaskParameters) -> TableCall:
    with as_bad_parameters():
        _, mask = rope_choice.chosen(model.card.encodings.masks, (), parameters.layer_type, None)
    return _call(model, masks.tabulate, parameters, **asdict(mask))


def _learned(model: CardAndWeights, parameters: ModelLearnedParameters) -> TableCall:
    step = next(step for step in model.card.recipe if isinstance(step, AddPosition))
    table, positions = model.tensor(step.table), positions_of(parameters, model.card.position.rows)
    return _call(model, learned.tabulate, parameters, table=table, length=parameters.stretch_to, positions=positions)


def _sinusoidal(model: CardAndWeights, parameters: ModelSinusoidalParameters) -> TableCall:
    step = next(step for step in model.card.recipe if isinstance(step, AddSinusoid))
    positions = positions_of(parameters, model.card.position.rows)
    return _call(model, sinusoidal.tabulate, parameters, kind=step.kind, dim=step.dim, positions=positions)


def _axial(model: CardAndWeights, parameters: ModelAxialParameters) -> TableCall:
    assert model.card.axial is not None  # checked
    return _call(model, axial.tabulate_axial, parameters, **asdict(model.card.axial))


def _call(model: CardAndWeights, function: Any, parameters: TableOptions, **others: Any) -> TableCall:
    return call_of(function, parameters, {"model": model.card.name}, **others)


_SQUARE = {"query_length": 8}
_ROWS = (
    Scheme(
        "rope", "Its rotary cos and sin", ModelRopeParameters, _rope, {"length": 8},
        has="rotary positions, such as a Llama, a Qwen or a ModernBERT",
    ),
    Scheme(
        "sinusoidal", "Its sinusoidal positions", ModelSinusoidalParameters, _sinusoidal, {"length": 8},
        has="sinusoidal positions, such as a Marian or an M2M100",
    ),
    Scheme(
        "learned", "Its learned positions", ModelLearnedParameters, _learned, {"length": 8},
        has="learned positions, such as a BERT or a GPT-2",
    ),
    Scheme("alibi", "Its ALiBi slopes and bias", ModelAlibiParameters, _alibi, _SQUARE, has="ALiBi, such as a BLOOM"),
    Scheme(
        "t5", "Its relative buckets and their bias", ModelT5Parameters, _t5, _SQUARE,
        has="T5's relative buckets, such as a T5",
    ),
    Scheme(
        "deberta", "Its relative buckets and their vectors", ModelDebertaParameters, _deberta, _SQUARE,
        has="DeBERTa-v2's relative buckets",
    ),
    Scheme(
        "axial", "Rotary cos and sin of its patches", ModelAxialParameters, _axial, {"grid": "4x4"},
        has="rotary positions of patches, such as a DINOv3 or a vision tower of Qwen2-VL",
    ),
    Scheme("mask", "Its attention mask", ModelMaskParameters, _mask, _SQUARE, has="attention masks"),
)  # fmt: skip
MODEL_SCHEMES = {row.name: row for row in _ROWS}


def need_of(row: Scheme) -> Need | None:
    """Return what the routes of a row need of a model, for the OpenAPI document."""
    if not row.of_model:
        return None
    return Need(what=f"a model with {row.has}", status=404, is_met_by=lambda model: row.name in available(model.card))


def example_of(row: Scheme, card: Card | None) -> dict[str, Any]:
    """Return a row's example; if the model's layers differ, with the first layer type.

    Args:
        card: card of the model that the example is for; None: any model.
    """
    tables: Mapping[str, Any] = {}
    if card is not None and row.of_model:
        encodings: dict[str, Mapping[str, Any]] = {"rope": card.encodings.ropes, "mask": card.encodings.masks}
        tables = encodings.get(row.name, {})
    return {**row.example, **({"layer_type": next(iter(tables))} if len(tables) > 1 else {})}


def available(card: Card) -> tuple[str, ...]:
    """Return the names of the rows of MODEL_SCHEMES that a model has."""
    encodings, steps = card.encodings, {type(step) for step in card.recipe}
    has = {
        "rope": bool(encodings.ropes),
        "alibi": encodings.alibi is not None,
        "t5": encodings.buckets is not None and encodings.buckets.kind == "t5",
        "deberta": encodings.buckets is not None and encodings.buckets.kind == "deberta",
        "mask": bool(encodings.masks),
        "learned": AddPosition in steps and card.weights is not None,
        "sinusoidal": AddSinusoid in steps,
        "axial": card.axial is not None,
    }
    return tuple(name for name, there in has.items() if there)


def check_has(model: CardAndWeights, scheme: str) -> None:
    """Raise NotFound unless the model has the encoding of that row of MODEL_SCHEMES."""
    if scheme not in available(model.card):
        if reason := model.card.encodings.refused.get(scheme):
            raise NotFound(f"{model.card.name} has no {scheme} table, for its checkpoint allows none", allowed=reason)
        names = ", ".join(available(model.card)) or "none"
        raise NotFound(
            f"{model.card.name} has no {scheme}: it is a {model.card.family}",
            allowed=f"positional encodings it has: {names}",
        )


def find_model(context: ServiceContext, name: str | None, scheme: str = "rope") -> CardAndWeights:
    """Return the loaded model of a name, or the default; raise NotFound if it has no such encoding."""
    loaded = context.registry.get(name)
    model = CardAndWeights(loaded.card, loaded.weights)
    check_has(model, scheme)
    return model


def find_scheme(name: str, *, of_model: bool) -> Scheme:
    """Return the row of SCHEMES, or of MODEL_SCHEMES; raise NotFound for an unknown name."""
    rows: Mapping[str, Scheme] = MODEL_SCHEMES if of_model else SCHEMES
    if name not in rows:
        near = get_close_matches(name, rows, 1) if len(name) <= LONGEST_COMPARED else []
        remedy = f"did you mean {near[0]}?" if near else ""
        raise NotFound(f"there is no scheme {name[:40]!r}", allowed=f"there are {', '.join(rows)}", remedy=remedy)
    return rows[name]


def call_maker(context: ServiceContext, row: Scheme, model: str) -> Callable[[Any], TableCall]:
    """Return the function that turns the row's parameters into a call.

    Args:
        model: the model, for a row of MODEL_SCHEMES.

    Raises:
        NotFound: the model is not loaded or has no such encoding; it is checked before parameters are read.
    """
    return partial(row.call, find_model(context, model, row.name)) if row.of_model else row.call
