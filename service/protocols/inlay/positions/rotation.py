"""q and k turned by their positions, and weights converted between layouts: tensors in, tensors out."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.errors import BadEncoding
from models.positions.rope import rotation
from models.positions.rope.angles import cos_sin
from models.positions.rope.frequencies import MAX_ROTARY_DIM, Rope, frequencies
from models.positions.rope.table import facts_of
from models.positions.table import (
    DTYPES,
    MAX_POSITION,
    Output,
    Positions,
    Table,
    checked_positions,
    rounded,
    slice_positions,
)
from service.errors import BadParameters
from service.protocols.inlay.positions import fields, rope
from service.protocols.inlay.positions.fields import (
    Sent,
    choice,
    read,
    switch,
    whole,
)
from service.protocols.inlay.positions.model_schemes import LAYER, Owner, rope_of
from service.protocols.inlay.positions.parameters import PLACES, Parameters, model
from service.protocols.inlay.positions.table_call import Call

LISTED_DTYPE = "float32"  # of numbers that come without one
DTYPE: Parameters = {
    "dtype": choice(
        DTYPES, f"of the answer, and of tensors sent as lists; left out: as they came, lists {LISTED_DTYPE}", None
    )
}
TENSORS: Parameters = {
    name: read(fields.sent, fields.TENSOR, f"{about} [..., tokens, head_dim]", None)
    for name, about in {"q": "queries", "k": "keys"}.items()
}
TURN: Parameters = {
    "inverse": switch("undo a rotation", False),
    "skip": whole(0, MAX_POSITION, "leading tokens that do not rotate, such as DINOv3's CLS", 0),
    "widen": switch("in parity: half precision rotates in float32, as in Llama 4 and Cohere", False),
}
ROTATE = model("Rotate", "Tensors, and how they turn.", TENSORS, rope.FIELDS, PLACES, rope.LAYOUT, TURN, answer=DTYPE)
ROTATE_OF_A_MODEL = model(
    "ModelRotate",
    "Tensors, and where they stand.",
    TENSORS,
    PLACES,
    rope.SEQ_LEN,
    LAYER,
    TURN,
    answer=DTYPE,
    arithmetic="parity",
)
CONVERT = model(
    "Convert",
    "A projection of q or k, and the layouts.",
    {
        "weight": read(fields.sent, fields.TENSOR, "a weight [heads * head_dim, ...] or its bias"),
        "head_dim": whole(2, MAX_ROTARY_DIM, "channels of a head"),
        "rotary_dim": whole(2, MAX_ROTARY_DIM, "channels of it that rotate; left out: head_dim", None),
        "source": choice(rotation.LAYOUTS, "the layout the weights are for"),
        "target": choice(rotation.LAYOUTS, "the layout that is wanted"),
    },
    answer=DTYPE,
)


def rotate(asked: Any) -> Call:
    """q, k or both, turned by a RoPE of any parameters."""
    what = rope.found(asked)
    arguments = _tensors(asked) | {"rope": what.layer.rope, "layout": asked.layout or what.layer.layout}
    return Call(_rotated, arguments | {"notes": what.layer.notes}, what.told)


def rotate_of_a_model(owner: Owner, asked: Any) -> Call:
    """q, k or both, turned as a model's layers do."""
    name, table = rope_of(owner, asked)
    arguments = _tensors(asked) | {"rope": table.rope, "layout": table.layout, "notes": table.notes}
    return Call(_rotated, arguments, {"model": owner.card.name, "layer_type": name})


def convert(asked: Any) -> Call:
    """A weight's rows in the order of another layout."""
    weight = _array(asked.weight, asked.dtype)
    if not weight.size:
        raise BadParameters(f"weight has shape {list(weight.shape)}, no number in it: send [heads * head_dim, ...]")
    names = ("head_dim", "source", "target")
    rotary_dim = asked.head_dim if asked.rotary_dim is None else asked.rotary_dim
    arguments = {name: getattr(asked, name) for name in names} | {"weight": weight, "rotary_dim": rotary_dim}
    return Call(_converted, arguments)


def dtype_of(call: Call, asked: Any) -> str:
    """Of the answer: what was asked for, else that of the tensors."""
    if asked.dtype:
        return str(asked.dtype)
    tensors: Mapping[str, NDArray[Any]] = call.arguments.get("tensors") or {"weight": call.arguments["weight"]}
    return next(iter(tensors.values())).dtype.name


def _tensors(asked: Any) -> dict[str, Any]:
    sent = {name: getattr(asked, name) for name in TENSORS if getattr(asked, name) is not None}
    if not sent:
        raise BadParameters("there is nothing to rotate: send q, k or both")
    tensors = {name: _array(each, asked.dtype) for name, each in sent.items()}
    if len({tensor.dtype for tensor in tensors.values()}) > 1:
        raise BadParameters(f"q is {tensors['q'].dtype} and k is {tensors['k'].dtype}: send both in one dtype")
    places = {name: getattr(asked, name) for name in ("start", "length", "positions")}
    if places["positions"] is not None and {"start", "length"} & asked.model_fields_set:
        raise BadParameters("positions and start or length contradict each other: send one or the other")
    turn = {name: getattr(asked, name) for name in (*TURN, "seq_len", "arithmetic")}
    return {"tensors": tensors, **places, **turn}


def _array(sent: Sent, dtype: str | None) -> NDArray[Any]:
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
    found = frequencies(rope, arithmetic, seq_len)
    outputs = {}
    for name, tensor in tensors.items():
        if tensor.ndim < 2:
            raise BadEncoding(f"{name} is {list(tensor.shape)}; it must be [..., tokens, head_dim]")
        tokens = tensor.shape[-2] - turn["skip"]
        where = range(start, start + max(tokens, 0)) if positions is None else positions
        if len(where) != tokens or (length is not None and length != tokens):
            count = len(where) if length is None else length
            raise BadEncoding(f"{name} has {max(tokens, 0)} tokens to rotate and there are {count} positions")
        checked_positions(where)
        cos, sin = cos_sin(found, slice_positions(where, 0, len(where)))
        turned = rotation.rotate(
            tensor, cos, sin, layout, attention_factor=found.attention_factor, arithmetic=arithmetic, **turn
        )
        outputs[name] = _output(turned)
    facts = facts_of(rope, found) | {"layout": layout, "seq_len": seq_len} | turn
    return Table("rotation", arithmetic, outputs, facts, notes)


def _converted(weight: NDArray[Any], head_dim: int, rotary_dim: int, source: str, target: str) -> Table:
    found = rotation.convert_rows(weight, head_dim, rotary_dim, source, target)
    facts = {"head_dim": head_dim, "rotary_dim": rotary_dim, "source": source, "target": target}
    facts["formula"] = "the same rows in another order"
    return Table("conversion", "exact", {"weight": _output(found)}, facts)


def _output(array: NDArray[Any]) -> Output:
    rows = np.ascontiguousarray(array).reshape(-1, array.shape[-1])
    return Output(array.shape, lambda start, stop: rows[start:stop])
