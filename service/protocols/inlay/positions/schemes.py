"""SCHEMES: one row per positional encoding, with its parameters and the table they stand for.

MODEL_SCHEMES: those of a loaded model, with the parameters that its card does not decide.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from functools import cache, partial
from inspect import signature
from typing import Any, NamedTuple

from numpy.typing import NDArray

from models.artifacts.card import Card
from models.positions import alibi, buckets, learned, masks, sinusoidal
from models.positions.rope import axial, multi_axis
from models.positions.rope import choice as rope_choice
from models.positions.rope import table as rope_table
from models.positions.rope.config import LayerRope
from models.positions.rope.conventions import ALL
from models.positions.rope.frequencies import Rope
from models.positions.table import MAX_POSITION, Positions, Table
from models.recipes.positional_encodings import RopeTable
from models.recipes.steps import AddPosition, AddSinusoid
from service.context import ServiceContext
from service.embedding.position_tables import TableCall, as_bad_parameters
from service.errors import BadParameters, NotFound
from service.http.parameter_types import MAX_ROWS, TableOptions
from service.http.routes import Need
from service.http.validation_errors import LONGEST_COMPARED
from service.protocols.inlay.positions import parameters as schemas
from service.protocols.inlay.positions.parameters import SIZES, Layer, PositionRange, RopeSource

PRESET_LIST = "GET /positions/presets (gRPC: ListPresets)"


@dataclass(frozen=True, slots=True)
class Scheme:
    """A row of SCHEMES or of MODEL_SCHEMES.

    Args:
        parameters: the model that validates and describes the parameters.
        call: returns the table that they stand for; of a loaded model it takes the CardAndWeights first.
        example: parameters of a small table, as a query string and a JSON body alike have them.
        methods: GET, whose responses can be cached and linked to, and POST, or POST alone.
        has: what a model with this encoding has, such as "rotary positions"; empty: no model has this encoding.
    """

    name: str
    summary: str
    parameters: type[TableOptions]
    call: Callable[..., TableCall]
    example: Mapping[str, Any] = field(hash=False)
    methods: tuple[str, ...] = ("GET", "POST")
    has: str = ""

    @property
    def of_model(self) -> bool:
        """Whether this is the encoding of a loaded model."""
        return bool(self.has)

    @property
    def path(self) -> str:
        """The path of its table."""
        return f"{'/models/{name}' if self.of_model else '/positions'}/{self.name}"


def positions_of(parameters: PositionRange, trained: int | None = None) -> Positions:
    """Return the positions given by start and length, or by a list.

    Args:
        trained: the positions of the model, up to which a missing length goes; None: length is required.

    Raises:
        BadParameters: both were sent, or none, or they pass the highest position.
    """
    if parameters.positions is not None:
        check_positions_alone(parameters)
        return parameters.positions
    start, length = parameters.start, parameters.length
    if length is None:
        if trained is None:
            raise BadParameters(f"send length, 1 to {MAX_ROWS}, or a list of positions")
        if start >= trained:
            raise BadParameters(
                f"is {start}",
                field=("start",),
                allowed=f"the model was trained on {trained} positions",
                remedy="send length too",
            )
        length = min(trained - start, MAX_ROWS)
    if start + length > MAX_POSITION:
        raise BadParameters(f"start + length is {start + length}", allowed=f"allowed: up to {MAX_POSITION}")
    return range(start, start + length)


def check_positions_alone(parameters: PositionRange) -> None:
    """Raise BadParameters if both a list of positions and start or length were sent."""
    if parameters.positions is not None and {"start", "length"} & parameters.model_fields_set:
        raise BadParameters("positions and start or length contradict each other", remedy="send one or the other")


def call_of(
    function: Callable[..., Table], parameters: TableOptions, facts: Mapping[str, Any] | None = None, **others: Any
) -> TableCall:
    """Return the call of a function with its parameters by name.

    Args:
        facts: facts about the call.
        others: arguments that are no parameters, or come in their place.
    """
    if isinstance(parameters, PositionRange) and "positions" not in others:
        others["positions"] = positions_of(parameters)
    taken = [name for name in _argument_names(function) if name in type(parameters).model_fields]
    return TableCall(function, {name: getattr(parameters, name) for name in taken} | others, facts or {})


@cache
def _argument_names(function: Callable[..., Table]) -> tuple[str, ...]:
    return tuple(signature(function).parameters)


# ---- RoPE


class ChosenRope(NamedTuple):
    """The rope that a request names, and facts about its source."""

    layer: LayerRope
    facts: Mapping[str, Any]


def choose_rope(source: RopeSource) -> ChosenRope:
    """Return the rope that parameters, a preset or a config describe.

    Raises:
        BadParameters: these contradict each other, or describe no rope.
    """
    sources = [name for name in ("config", "preset") if getattr(source, name) is not None]
    explicit = [name for name in SIZES if getattr(source, name) is not None] + list(source.scaling_parameters)
    if len(sources) > 1 or (sources and explicit):
        raise BadParameters(f"{' and '.join([*sources, *explicit])} contradict each other", remedy="send one of them")
    if not sources and (source.layer is not None or source.layer_type is not None):
        raise BadParameters(
            "layer and layer_type choose a table of a config or a preset", remedy="send one of these too"
        )
    with as_bad_parameters():
        if source.preset is not None:
            name, layer = rope_choice.by_preset(source.preset, source.layer_type, source.layer, listed=PRESET_LIST)
        elif source.config is not None:
            name, layer = rope_choice.by_config(source.config, source.model_type, source.layer_type, source.layer)
        else:
            return ChosenRope(LayerRope(_explicit_rope(source), "half", None, None), {})
    facts = {"preset": source.preset, "layer_type": name if name != ALL else None, "softmax_scale": layer.softmax_scale}
    return ChosenRope(layer, {fact: value for fact, value in facts.items() if value is not None})


def _explicit_rope(source: RopeSource) -> Rope:
    return rope_choice.by_parameters(
        theta=source.theta,
        head_dim=source.head_dim,
        rotary_dim=source.rotary_dim,
        rope_type=source.rope_type,
        parameters={**source.scaling_parameters, rope_choice.FRACTION: source.partial_rotary_factor},
        max_position_embeddings=source.max_position_embeddings,
    )


def _rope(parameters: schemas.RopeParameters) -> TableCall:
    layer, facts = choose_rope(parameters)  # a wrong rope is reported before the positions are read
    layout = parameters.layout or layer.layout
    return call_of(rope_table.tabulate, parameters, facts, rope=layer.rope, layout=layout, notes=layer.notes)


def _mrope(parameters: schemas.MropeParameters) -> TableCall:
    layer, facts = choose_rope(parameters)
    sections = parameters.sections or layer.sections
    others = {"sections": sections and tuple(sections), "axes": parameters.axes or layer.axes or "chunked"}
    return call_of(multi_axis.tabulate_mrope, parameters, facts, rope=layer.rope, **others)


# ---- the other schemes


def _learned(parameters: schemas.LearnedParameters) -> TableCall:
    return call_of(learned.tabulate, parameters, table=parameters.weights, length=parameters.stretch_to)


def _deberta(parameters: schemas.DebertaParameters) -> TableCall:
    norm = (parameters.norm_weight, parameters.norm_bias)
    if (norm[0] is None) != (norm[1] is None):
        raise BadParameters("norm_weight and norm_bias go together", remedy="send both")
    return call_of(buckets.tabulate_deberta, parameters, norm=None if norm[0] is None else norm)


_axial, _alibi, _t5 = [partial(call_of, made) for made in (axial.tabulate_axial, alibi.tabulate, buckets.tabulate_t5)]
_sinusoidal, _sinusoidal_grid = partial(call_of, sinusoidal.tabulate), partial(call_of, sinusoidal.tabulate_grid)
_mask = partial(call_of, masks.tabulate)
_SQUARE = {"query_length": 8}
_MROPE = {"positions": "0,1,2;0,0,1;0,1,0", "head_dim": 128, "sections": [16, 24, 24]}
_LEARNED = {"weights": [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]], "length": 3}
_DEBERTA = {"query_length": 8, "max_position_embeddings": 512}
_ROWS = (
    Scheme("rope", "Rotary cos and sin", schemas.RopeParameters, _rope, {"head_dim": 64, "length": 8}),
    Scheme("mrope", "M-RoPE cos and sin: time, height and width", schemas.MropeParameters, _mrope, _MROPE),
    Scheme(
        "axial", "Rotary cos and sin of an image's patches", schemas.AxialParameters, _axial,
        {"kind": "pixtral", "head_dim": 64, "grid": "4x4"},
    ),
    Scheme("sinusoidal", "Sinusoidal positions", schemas.SinusoidalParameters, _sinusoidal, {"dim": 64, "length": 8}),
    Scheme(
        "sinusoidal-2d", "Sinusoidal positions of an image's patches", schemas.SinusoidalGridParameters,
        _sinusoidal_grid, {"grid": "4x4", "dim": 64},
    ),
    Scheme("learned", "Rows of a learned table", schemas.LearnedParameters, _learned, _LEARNED, ("POST",)),
    Scheme("alibi", "ALiBi slopes and bias", schemas.AlibiParameters, _alibi, {"heads": 8, "query_length": 8}),
    Scheme("t5", "T5's relative buckets, and the bias of a learned table", schemas.T5Parameters, _t5, _SQUARE),
    Scheme("deberta", "DeBERTa-v2's relative buckets", schemas.DebertaParameters, _deberta, _DEBERTA),
    Scheme(
        "mask", "Attention masks: causal, sliding, chunked, padded, packed", schemas.MaskParameters, _mask, _SQUARE
    ),
)  # fmt: skip
SCHEMES = {row.name: row for row in _ROWS}


# ---- a loaded model's own encodings


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


def _model_rope(model: CardAndWeights, parameters: schemas.ModelRopeParameters) -> TableCall:
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


def _model_alibi(model: CardAndWeights, parameters: schemas.ModelAlibiParameters) -> TableCall:
    row = model.card.encodings.alibi
    assert row is not None  # checked
    return _model_call(model, alibi.tabulate, parameters, heads=row.heads, form=row.form, max_bias=row.max_bias)


def _model_t5(model: CardAndWeights, parameters: schemas.ModelT5Parameters) -> TableCall:
    row = model.card.encodings.buckets
    assert row is not None  # checked
    sizes = {"num_buckets": row.buckets, "max_distance": row.reach, "bidirectional": row.bidirectional}
    return _model_call(model, buckets.tabulate_t5, parameters, weights=model.tensor(row.table), **sizes)


def _model_deberta(model: CardAndWeights, parameters: schemas.ModelDebertaParameters) -> TableCall:
    row = model.card.encodings.buckets
    assert row is not None  # checked
    sizes: dict[str, Any] = {"position_buckets": row.buckets, "max_relative_positions": row.reach}
    if row.norm:
        weight, bias, eps = row.norm
        sizes |= {"norm": (model.tensor(weight), model.tensor(bias)), "norm_eps": eps}
    return _model_call(model, buckets.tabulate_deberta, parameters, weights=model.tensor(row.table), **sizes)


def _model_mask(model: CardAndWeights, parameters: schemas.ModelMaskParameters) -> TableCall:
    with as_bad_parameters():
        _, mask = rope_choice.chosen(model.card.encodings.masks, (), parameters.layer_type, None)
    return _model_call(model, masks.tabulate, parameters, **asdict(mask))


def _model_learned(model: CardAndWeights, parameters: schemas.ModelLearnedParameters) -> TableCall:
    step = next(step for step in model.card.recipe if isinstance(step, AddPosition))
    table, positions = model.tensor(step.table), positions_of(parameters, model.card.position.rows)
    return _model_call(
        model, learned.tabulate, parameters, table=table, length=parameters.stretch_to, positions=positions
    )


def _model_sinusoidal(model: CardAndWeights, parameters: schemas.ModelSinusoidalParameters) -> TableCall:
    step = next(step for step in model.card.recipe if isinstance(step, AddSinusoid))
    positions = positions_of(parameters, model.card.position.rows)
    return _model_call(model, sinusoidal.tabulate, parameters, kind=step.kind, dim=step.dim, positions=positions)


def _model_axial(model: CardAndWeights, parameters: schemas.ModelAxialParameters) -> TableCall:
    assert model.card.axial is not None  # checked
    return _model_call(model, axial.tabulate_axial, parameters, **asdict(model.card.axial))


def _model_call(model: CardAndWeights, function: Any, parameters: TableOptions, **others: Any) -> TableCall:
    return call_of(function, parameters, {"model": model.card.name}, **others)


_MODEL_ROWS = (
    Scheme(
        "rope", "Its rotary cos and sin", schemas.ModelRopeParameters, _model_rope, {"length": 8},
        has="rotary positions, such as a Llama, a Qwen or a ModernBERT",
    ),
    Scheme(
        "sinusoidal", "Its sinusoidal positions", schemas.ModelSinusoidalParameters, _model_sinusoidal, {"length": 8},
        has="sinusoidal positions, such as a Marian or an M2M100",
    ),
    Scheme(
        "learned", "Its learned positions", schemas.ModelLearnedParameters, _model_learned, {"length": 8},
        has="learned positions, such as a BERT or a GPT-2",
    ),
    Scheme(
        "alibi", "Its ALiBi slopes and bias", schemas.ModelAlibiParameters, _model_alibi, _SQUARE,
        has="ALiBi, such as a BLOOM",
    ),
    Scheme(
        "t5", "Its relative buckets and their bias", schemas.ModelT5Parameters, _model_t5, _SQUARE,
        has="T5's relative buckets, such as a T5",
    ),
    Scheme(
        "deberta", "Its relative buckets and their vectors", schemas.ModelDebertaParameters, _model_deberta, _SQUARE,
        has="DeBERTa-v2's relative buckets",
    ),
    Scheme(
        "axial", "Rotary cos and sin of its patches", schemas.ModelAxialParameters, _model_axial, {"grid": "4x4"},
        has="rotary positions of patches, such as a DINOv3 or a vision tower of Qwen2-VL",
    ),
    Scheme("mask", "Its attention mask", schemas.ModelMaskParameters, _model_mask, _SQUARE, has="attention masks"),
)  # fmt: skip
MODEL_SCHEMES = {row.name: row for row in _MODEL_ROWS}


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
