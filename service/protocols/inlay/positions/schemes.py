"""SCHEMES: one row a positional encoding: its parameters and the call they stand for. Computes nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from models.positions import alibi, buckets, learned, masks, sinusoidal
from models.positions.rope import axial
from models.positions.table import MAX_POSITION, Positions
from service.errors import BadParameters
from service.protocols.inlay.positions import parameters, rope
from service.protocols.inlay.positions.fields import MAX_ROWS
from service.protocols.inlay.positions.table_call import Call


@dataclass(frozen=True, slots=True)
class Scheme:
    """One row.

    parameters  the model that validates and describes them
    call        what an instance of it asks for
    methods     GET where an answer may be cached and linked to
    """

    name: str
    summary: str
    parameters: type[BaseModel]
    call: Callable[[Any], Call]
    methods: tuple[str, ...] = ("GET", "POST")


def places(asked: Any, trained: int | None = None) -> Positions:
    """The positions that start and length, or a list, stand for.

    trained  where length is left out: up to this position; None: it must be there
    raises   BadParameters
    """
    if asked.positions is not None:
        if {"start", "length"} & asked.model_fields_set:
            raise BadParameters("positions and start or length contradict each other: send one or the other")
        found: Positions = asked.positions
        return found
    length = asked.length
    if length is None:
        if trained is None:
            raise BadParameters(f"send length, 1 to {MAX_ROWS}, or a list of positions")
        if asked.start >= trained:
            raise BadParameters(
                f"start is {asked.start} and the model was trained on {trained} positions: send length too"
            )
        length = min(trained - asked.start, MAX_ROWS)
    if asked.start + length > MAX_POSITION:
        raise BadParameters(f"start + length is {asked.start + length}; allowed: up to {MAX_POSITION}")
    return range(asked.start, asked.start + length)


def named(asked: Any, *names: str) -> dict[str, Any]:
    """Some parameters as arguments of the same names, and the arithmetic."""
    return {name: getattr(asked, name) for name in (*names, "arithmetic")}


def _axial(asked: Any) -> Call:
    names = ("kind", "head_dim", "grid", "positions", "theta", "merge", "table")
    return Call(axial.tabulate_axial, named(asked, *names))


def _sinusoidal(asked: Any) -> Call:
    arguments = named(asked, "kind", "dim", "theta", "offset", "zero_row")
    return Call(sinusoidal.tabulate, arguments | {"positions": places(asked)})


def _grid(asked: Any) -> Call:
    return Call(sinusoidal.tabulate_grid, named(asked, "dim", "grid", "order", "cls_rows", "theta"))


def _learned(asked: Any) -> Call:
    own = {"table": asked.weights, "length": asked.stretch_to, "positions": places(asked)}
    return Call(learned.tabulate, named(asked, "beyond") | own)


def _alibi(asked: Any) -> Call:
    names = ("heads", "form", "query_length", "key_length", "past", "attention_mask", "max_bias")
    return Call(alibi.tabulate, named(asked, *names))


def _t5(asked: Any) -> Call:
    names = ("query_length", "key_length", "past", "bidirectional", "num_buckets", "max_distance", "weights")
    return Call(buckets.tabulate_t5, named(asked, *names))


def _deberta(asked: Any) -> Call:
    names = ("query_length", "key_length", "position_buckets", "max_relative_positions", "max_position_embeddings")
    norm = (asked.norm_weight, asked.norm_bias)
    if (norm[0] is None) != (norm[1] is None):
        raise BadParameters("norm_weight and norm_bias go together: send both")
    own = {"norm": None if norm[0] is None else norm}
    return Call(buckets.tabulate_deberta, named(asked, *names, "weights", "norm_eps") | own)


def _mask(asked: Any) -> Call:
    names = ("query_length", "key_length", "past", "causal", "window", "chunk", "attention_mask")
    return Call(masks.tabulate, named(asked, *names, *parameters.PACKED, "dtype"))


SCHEMES: dict[str, Scheme] = {
    row.name: row
    for row in (
        Scheme("rope", "Rotary cos and sin", parameters.ROPE, lambda asked: rope.table(asked, places)),
        Scheme("mrope", "M-RoPE cos and sin: time, height and width", parameters.MROPE, rope.mrope),
        Scheme("axial", "Rotary cos and sin of an image's patches", parameters.AXIAL_ROPE, _axial),
        Scheme("sinusoidal", "Sinusoidal positions", parameters.SINUSOIDAL, _sinusoidal),
        Scheme("sinusoidal-2d", "Sinusoidal positions of an image's patches", parameters.SINUSOIDAL_GRID, _grid),
        Scheme("learned", "Rows of a learned table", parameters.LEARNED, _learned, ("POST",)),
        Scheme("alibi", "ALiBi slopes and bias", parameters.ALIBI, _alibi),
        Scheme("t5", "T5's relative buckets, and the bias of a learned table", parameters.T5, _t5),
        Scheme("deberta", "DeBERTa-v2's relative buckets", parameters.DEBERTA, _deberta),
        Scheme("mask", "Attention masks: causal, sliding, chunked, padded, packed", parameters.MASK, _mask),
    )
}
