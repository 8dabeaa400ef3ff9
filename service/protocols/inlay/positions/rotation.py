"""Rotates q and k by their positions: tensors in, tensors out."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from models.errors import BadEncoding
from models.positions.rope import rotation
from models.positions.rope.angles import cos_sin
from models.positions.rope.frequencies import Rope, facts_of, frequencies
from models.positions.table import Output, Positions, Table, checked_positions, rounded, slice_positions
from service.embedding.position_tables import TableCall
from service.errors import BadParameters
from service.http.parameter_types import SentTensor
from service.protocols.inlay.positions.parameters import ModelRotateParameters, RotateParameters
from service.protocols.inlay.positions.schemes import CardAndWeights, check_positions_alone, choose_rope, model_rope

LISTED_DTYPE = "float32"  # of numbers that come without one


def rotate(parameters: RotateParameters) -> TableCall:
    """Return q, k or both, rotated by a RoPE of any parameters."""
    layer, facts = choose_rope(parameters)
    layout = parameters.layout or layer.layout
    rope = {"rope": layer.rope, "layout": layout, "notes": layer.notes}
    return _call(parameters, rope, facts)


def rotate_by_model(model: CardAndWeights, parameters: ModelRotateParameters) -> TableCall:
    """Return q, k or both, rotated as a model's layers rotate them."""
    layer_type, table = model_rope(model, parameters)
    rope = {"rope": table.rope, "layout": table.layout, "notes": table.notes}
    return _call(parameters, rope, {"model": model.card.name, "layer_type": layer_type})


def _call(
    parameters: RotateParameters | ModelRotateParameters, rope: Mapping[str, Any], facts: Mapping[str, Any]
) -> TableCall:
    sent = {name: tensor for name, tensor in (("q", parameters.q), ("k", parameters.k)) if tensor is not None}
    if not sent:
        raise BadParameters("there is nothing to rotate", remedy="send q, k or both")
    tensors = {name: _array(tensor, parameters.dtype) for name, tensor in sent.items()}
    if len({tensor.dtype for tensor in tensors.values()}) > 1:
        raise BadParameters(f"q is {tensors['q'].dtype} and k is {tensors['k'].dtype}", remedy="send both in one dtype")
    check_positions_alone(parameters)
    names = ("start", "length", "positions", "inverse", "skip", "widen", "seq_len", "arithmetic")
    arguments = {"tensors": tensors, **{name: getattr(parameters, name) for name in names}, **rope}
    return TableCall(_rotated, arguments, facts, dtype=parameters.dtype or next(iter(tensors.values())).dtype.name)


def _array(sent: SentTensor, dtype: str | None) -> NDArray[Any]:
    return rounded(sent.array, dtype or LISTED_DTYPE) if sent.listed else sent.array


def _rotated(
    tensors: Mapping[str, NDArray[Any]],
    rope: Rope,
    layout: str,
    start: int,
    length: int | None,
    positions: Positions | None,
    seq_len: int | None,
    arithmetic: Any,
    notes: tuple[str, ...],
    **turn: Any,
) -> Table:
    rope_frequencies = frequencies(rope, arithmetic, seq_len)
    outputs = {}
    for name, tensor in tensors.items():
        places = _token_positions(name, tensor, turn["skip"], start, length, positions)
        cos, sin = cos_sin(rope_frequencies, slice_positions(places, 0, len(places)))
        factor = rope_frequencies.attention_factor
        turned = rotation.rotate(tensor, cos, sin, layout, attention_factor=factor, arithmetic=arithmetic, **turn)
        outputs[name] = Output.of(turned)
    facts = facts_of(rope, rope_frequencies) | {"layout": layout, "seq_len": seq_len} | turn
    return Table("rotation", arithmetic, outputs, facts, notes)


def _token_positions(
    name: str, tensor: NDArray[Any], skip: int, start: int, length: int | None, positions: Positions | None
) -> Positions:
    """Return the positions of a tensor's tokens; raise BadEncoding if their number differs."""
    if tensor.ndim < 2:
        raise BadEncoding(f"{name} is {list(tensor.shape)}; it must be [..., tokens, head_dim]")
    tokens = tensor.shape[-2] - skip
    places = range(start, start + max(tokens, 0)) if positions is None else positions
    if len(places) != tokens or (length is not None and length != tokens):
        count = len(places) if length is None else length
        raise BadEncoding(f"{name} has {max(tokens, 0)} tokens to rotate and there are {count} positions")
    return checked_positions(places)
