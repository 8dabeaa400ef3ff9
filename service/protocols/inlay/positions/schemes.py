"""SCHEMES and MODEL_SCHEMES: a row per positional encoding, of parameters alone and of a loaded model.

REST routes, the gRPC method, the OpenAPI document, the page's controls, pictures and graphs all come from these rows.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from functools import cache, partial
from inspect import signature
from typing import Any

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
from models.recipes.positional_encodings import Buckets, Mask
from models.recipes.steps import AddPosition, AddSinusoid
from models.vision.image_spec import AxialRope
from service.context import ServiceContext
from service.embedding.model import Model
from service.embedding.position_tables import TableCall, as_bad_parameters
from service.errors import BadParameters, NotFound
from service.http.parameter_types import MAX_ROWS, TableOptions
from service.http.validation_errors import LONGEST_COMPARED
from service.protocols.inlay.positions import parameters as schemas
from service.protocols.inlay.positions.parameters import SIZES, LayerType, PositionRange, RopeSource

PRESET_LIST = "GET /positions/presets (gRPC: ListPresets)"
Arguments = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scheme:
    """A row of SCHEMES or of MODEL_SCHEMES.

    Args:
        parameters: the model that validates and describes the parameters.
        function: makes the table; it takes parameters by name, and what `arguments` returns.
        example: parameters of a small table, as a query string and a JSON body alike have them.
        arguments: returns the arguments that are no parameters or come in their place; a mapping under "facts" holds
            facts about the table. Of a loaded model it takes the model, its `part` and the parameters.
        methods: GET, whose responses can be cached and linked to, and POST, or POST alone.
        part: returns the part of a card that describes the encoding; a false value: the model has none.
        has: what a model with this encoding has, such as "rotary positions"; empty: the row is not of a model.
    """

    name: str
    summary: str
    parameters: type[TableOptions]
    function: Callable[..., Table]
    example: Mapping[str, Any] = field(hash=False)
    arguments: Callable[..., Arguments] = lambda *_: {}
    methods: tuple[str, ...] = ("GET", "POST")
    part: Callable[[Card], Any] = lambda _: None
    has: str = ""

    @property
    def of_model(self) -> bool:
        """Whether this is the encoding of a loaded model."""
        return bool(self.has)

    @property
    def path(self) -> str:
        """The path of its table."""
        return f"{'/models/{name}' if self.of_model else '/positions'}/{self.name}"

    def call(self, parameters: TableOptions, model: Model | None = None) -> TableCall:
        """Return the call that makes the table; raise BadParameters for parameters that describe none.

        Args:
            model: the model, for a row of MODEL_SCHEMES.
        """
        if model is None:
            arguments, facts = self.arguments(parameters), {}
        else:
            arguments, facts = self.arguments(model, self.part(model.card), parameters), {"model": model.card.name}
        facts |= arguments.pop("facts", {})
        if isinstance(parameters, PositionRange) and "positions" not in arguments:
            arguments["positions"] = positions_of(parameters)
        taken = _argument_names(self.function) & type(parameters).model_fields.keys()
        return TableCall(self.function, {name: getattr(parameters, name) for name in taken} | arguments, facts)


@cache
def _argument_names(function: Callable[..., Table]) -> frozenset[str]:
    return frozenset(signature(function).parameters)


def positions_of(parameters: PositionRange, trained: int | None = None) -> Positions:
    """Return the positions given by start and length, or by a list.

    Args:
        trained: the positions of the model, up to which a missing length goes; None: length is required.

    Raises:
        BadParameters: both were sent, or none, or they pass the highest position.
    """
    if parameters.positions is not None:
        if {"start", "length"} & parameters.model_fields_set:
            raise BadParameters("positions and start or length contradict each other", remedy="send one or the other")
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


# ---- RoPE


def choose_rope(source: RopeSource) -> tuple[LayerRope, Arguments]:
    """Return the rope that parameters, a preset or a config describe, and facts about its source.

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
            return LayerRope(_explicit_rope(source), "half", None, None), {}
    facts = {"preset": source.preset, "layer_type": name if name != ALL else None, "softmax_scale": layer.softmax_scale}
    return layer, {fact: value for fact, value in facts.items() if value is not None}


def _explicit_rope(source: RopeSource) -> Rope:
    return rope_choice.by_parameters(
        theta=source.theta,
        head_dim=source.head_dim,
        rotary_dim=source.rotary_dim,
        rope_type=source.rope_type,
        parameters={**source.scaling_parameters, rope_choice.FRACTION: source.partial_rotary_factor},
        max_position_embeddings=source.max_position_embeddings,
    )


def _rope(parameters: schemas.RopeParameters) -> Arguments:
    layer, facts = choose_rope(parameters)  # a wrong rope is reported before the positions are read
    return {"rope": layer.rope, "layout": parameters.layout or layer.layout, "notes": layer.notes, "facts": facts}


def _mrope(parameters: schemas.MropeParameters) -> Arguments:
    layer, facts = choose_rope(parameters)
    sections = parameters.sections or layer.sections
    axes = parameters.axes or layer.axes or "chunked"
    return {"rope": layer.rope, "sections": sections and tuple(sections), "axes": axes, "facts": facts}


# ---- the other schemes


def _learned(parameters: schemas.LearnedParameters) -> Arguments:
    return {"table": parameters.weights, "length": parameters.stretch_to}


def _deberta(parameters: schemas.DebertaParameters) -> Arguments:
    norm = (parameters.norm_weight, parameters.norm_bias)
    if (norm[0] is None) != (norm[1] is None):
        raise BadParameters("norm_weight and norm_bias go together", remedy="send both")
    return {"norm": None if norm[0] is None else norm}


_SQUARE = {"query_length": 8}
_MROPE = {"positions": "0,1,2;0,0,1;0,1,0", "head_dim": 128, "sections": [16, 24, 24]}
_AXIAL = {"kind": "pixtral", "head_dim": 64, "grid": "4x4"}
_LEARNED = {"weights": [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]], "length": 3}
_DEBERTA = {"query_length": 8, "max_position_embeddings": 512}
_ALIBI = {"heads": 8, "query_length": 8}
_ROWS = (
    Scheme(
        "rope", "Rotary cos and sin", schemas.RopeParameters, rope_table.tabulate, {"head_dim": 64, "length": 8}, _rope
    ),
    Scheme(
        "mrope", "M-RoPE cos and sin: time, height and width", schemas.MropeParameters, multi_axis.tabulate_mrope,
        _MROPE, _mrope,
    ),
    Scheme(
        "axial", "Rotary cos and sin of an image's patches", schemas.AxialParameters, axial.tabulate_axial, _AXIAL
    ),
    Scheme(
        "sinusoidal", "Sinusoidal positions", schemas.SinusoidalParameters, sinusoidal.tabulate,
        {"dim": 64, "length": 8},
    ),
    Scheme(
        "sinusoidal-2d", "Sinusoidal positions of an image's patches", schemas.SinusoidalGridParameters,
        sinusoidal.tabulate_grid, {"grid": "4x4", "dim": 64},
    ),
    Scheme(
        "learned", "Rows of a learned table", schemas.LearnedParameters, learned.tabulate, _LEARNED, _learned,
        methods=("POST",),
    ),
    Scheme("alibi", "ALiBi slopes and bias", schemas.AlibiParameters, alibi.tabulate, _ALIBI),
    Scheme(
        "t5", "T5's relative buckets, and the bias of a learned table", schemas.T5Parameters, buckets.tabulate_t5,
        _SQUARE,
    ),
    Scheme(
        "deberta", "DeBERTa-v2's relative buckets", schemas.DebertaParameters, buckets.tabulate_deberta, _DEBERTA,
        _deberta,
    ),
    Scheme(
        "mask", "Attention masks: causal, sliding, chunked, padded, packed", schemas.MaskParameters, masks.tabulate,
        _SQUARE,
    ),
)  # fmt: skip
SCHEMES = {row.name: row for row in _ROWS}


# ---- a loaded model's own encodings


def _tensor(model: Model, name: str | None) -> NDArray[Any] | None:
    """Return a view of a tensor of the weights file; None if the model has none."""
    if name is None:
        return None
    if model.card.weights is None:
        raise NotFound(f"{model.card.name} was adopted", allowed="its ONNX files hold its tables")
    tensor: NDArray[Any] = model.weights[name]
    return tensor


def _model_rope(model: Model, _: object, parameters: schemas.LayerRange) -> Arguments:
    encodings = model.card.encodings
    with as_bad_parameters():
        layer_type, table = rope_choice.chosen(
            encodings.ropes, encodings.layers, parameters.layer_type, parameters.layer
        )
    facts = {"softmax_scale": table.softmax_scale} | ({"layer_type": layer_type} if layer_type != ALL else {})
    positions = positions_of(parameters, table.rope.max_position_embeddings)
    return {"rope": table.rope, "layout": table.layout, "notes": table.notes, "positions": positions, "facts": facts}


def _model_t5(model: Model, row: Buckets, _: object) -> Arguments:
    sizes = {"num_buckets": row.buckets, "max_distance": row.reach, "bidirectional": row.bidirectional}
    return {"weights": _tensor(model, row.table), **sizes}


def _model_deberta(model: Model, row: Buckets, _: object) -> Arguments:
    arguments: Arguments = {"position_buckets": row.buckets, "max_relative_positions": row.reach}
    if row.norm:
        weight, bias, eps = row.norm
        arguments |= {"norm": (_tensor(model, weight), _tensor(model, bias)), "norm_eps": eps}
    return arguments | {"weights": _tensor(model, row.table)}


def _model_mask(_: object, tables: Mapping[str, Mask], parameters: LayerType) -> Arguments:
    with as_bad_parameters():
        return asdict(rope_choice.chosen(tables, (), parameters.layer_type, None)[1])


def _model_learned(model: Model, step: AddPosition, parameters: schemas.LearnedParameters) -> Arguments:
    positions = positions_of(parameters, model.card.position.rows)
    return {"table": _tensor(model, step.table), "length": parameters.stretch_to, "positions": positions}


def _model_sinusoidal(model: Model, step: AddSinusoid, parameters: PositionRange) -> Arguments:
    return {"kind": step.kind, "dim": step.dim, "positions": positions_of(parameters, model.card.position.rows)}


def _model_axial(_: object, row: AxialRope, __: object) -> Arguments:
    return {name: value for name, value in asdict(row).items() if name != "layout"}  # which follows from its kind


def _buckets_of(kind: str) -> Callable[[Card], Buckets | None]:
    def part(card: Card) -> Buckets | None:
        row = card.encodings.buckets
        return row if row is not None and row.kind == kind else None

    return part


def _step_of(kind: type[Any]) -> Callable[[Card], Any]:
    return lambda card: next((step for step in card.recipe if isinstance(step, kind)), None)


_MODEL_ROWS = (
    Scheme(
        "rope", "Its rotary cos and sin", schemas.ModelRopeParameters,
        rope_table.tabulate, {"length": 8}, _model_rope,
        part=lambda card: card.encodings.ropes, has="rotary positions, such as a Llama, a Qwen or a ModernBERT",
    ),
    Scheme(
        "alibi", "Its ALiBi slopes and bias", schemas.ModelAlibiParameters,
        alibi.tabulate, _SQUARE, lambda _, row, __: asdict(row),
        part=lambda card: card.encodings.alibi, has="ALiBi, such as a BLOOM",
    ),
    Scheme(
        "t5", "Its relative buckets and their bias", schemas.ModelT5Parameters,
        buckets.tabulate_t5, _SQUARE, _model_t5,
        part=_buckets_of("t5"), has="T5's relative buckets, such as a T5",
    ),
    Scheme(
        "deberta", "Its relative buckets and their vectors", schemas.ModelDebertaParameters,
        buckets.tabulate_deberta, _SQUARE, _model_deberta,
        part=_buckets_of("deberta"), has="DeBERTa-v2's relative buckets",
    ),
    Scheme(
        "mask", "Its attention mask", schemas.ModelMaskParameters,
        masks.tabulate, _SQUARE, _model_mask, part=lambda card: card.encodings.masks, has="attention masks",
    ),
    Scheme(
        "learned", "Its learned positions", schemas.ModelLearnedParameters,
        learned.tabulate, {"length": 8}, _model_learned,
        part=lambda card: card.weights and _step_of(AddPosition)(card),
        has="learned positions, such as a BERT or a GPT-2",
    ),
    Scheme(
        "sinusoidal", "Its sinusoidal positions", schemas.ModelSinusoidalParameters,
        sinusoidal.tabulate, {"length": 8}, _model_sinusoidal,
        part=_step_of(AddSinusoid), has="sinusoidal positions, such as a Marian or an M2M100",
    ),
    Scheme(
        "axial", "Rotary cos and sin of its patches", schemas.ModelAxialParameters,
        axial.tabulate_axial, {"grid": "4x4"}, _model_axial,
        part=lambda card: card.axial, has="rotary positions of patches, such as a DINOv3 or a vision tower of Qwen2-VL",
    ),
)  # fmt: skip
MODEL_SCHEMES = {row.name: row for row in _MODEL_ROWS}


def available(card: Card) -> tuple[str, ...]:
    """Return the names of the rows of MODEL_SCHEMES that a model has."""
    return tuple(name for name, row in MODEL_SCHEMES.items() if row.part(card))


def _find_model(context: ServiceContext, name: str, scheme: str) -> Model:
    """Return the loaded model of a name; raise NotFound if it has no encoding of that row of MODEL_SCHEMES."""
    model = context.registry.get(name)
    card = model.card
    if scheme not in available(card):
        if reason := card.encodings.refused.get(scheme):
            raise NotFound(f"{card.name} has no {scheme} table, for its checkpoint allows none", allowed=reason)
        names = ", ".join(available(card)) or "none"
        received = f"{card.name} has no {scheme}: it is a {card.family}"
        raise NotFound(received, allowed=f"positional encodings it has: {names}")
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
    return partial(row.call, model=_find_model(context, model, row.name)) if row.of_model else row.call
