"""Every parameter of every scheme, said once, and the pydantic models they make up.

A model is the query string, the JSON body and the gRPC struct of its scheme at once, and what OpenAPI says of it.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, create_model

from models.positions import alibi, learned, masks, sinusoidal
from models.positions.rope import multi_axis
from models.positions.rope.axial import AXIAL
from models.positions.sinusoidal import MAX_DIM
from models.positions.table import DTYPES, MAX_POSITION, MAX_WIDTH
from service.protocols.inlay.positions import fields
from service.protocols.inlay.positions.fields import (
    MAX_LISTED,
    MAX_ROWS,
    Parameter,
    choice,
    number,
    read,
    switch,
    whole,
    word,
)
from service.protocols.inlay.positions.rope import FIELDS, LAYOUT, WIDTH

Parameters = Mapping[str, Parameter]
ARITHMETICS = ("exact", "parity")
FORMATS = ("json", "raw", "npy", "safetensors")
ROWS_SCHEMA = {
    "anyOf": [
        {"type": "string", "examples": ["1,1,1,0;1,1,0,0"]},
        {"type": "array", "items": {"anyOf": [{"type": "integer"}, fields.INTEGERS]}},
    ]
}
PLACES_SCHEMA = {"anyOf": [{"type": "string", "examples": ["0,5,100-110"]}, fields.INTEGERS]}
PLACES_ABOUT = (
    "positions with commas between, a-b for a span of them, both ends counted, such as 0,5,100-110; or a list of "
    f"integers; {MAX_LISTED} at most; instead of start and length"
)


def rows(about: str, default: Any = None) -> Parameter:
    """Lists of integers of one length."""
    return read(fields.rows_of_integers, ROWS_SCHEMA, about, default)


def tensor(about: str, default: Any = None) -> Parameter:
    """A tensor of floats."""
    return read(fields.floats, fields.TENSOR, about, default)


ANSWER: Parameters = {
    "dtype": choice(DTYPES, "of floating-point outputs", "float32"),
    "arithmetic": choice(
        ARITHMETICS, "exact: float64, rounded once. parity: the float32 steps of transformers", "exact"
    ),
    "format": choice(FORMATS, "of the answer; left out: as Accept says, else json", None),
    "output": word("one output by its name; left out: all", None),
    "encoding_format": choice(("float", "base64"), "of the arrays in JSON", "float"),
}
PLACES: Parameters = {
    "start": whole(0, MAX_POSITION - 1, "the first position", 0),
    "length": whole(1, MAX_ROWS, "how many positions", None),
    "positions": read(fields.positions, PLACES_SCHEMA, PLACES_ABOUT, None),
}
LENGTHS: Parameters = {
    "query_length": whole(1, MAX_ROWS, "queries, that is rows"),
    "key_length": whole(1, MAX_WIDTH, "keys, that is columns; left out: as many as there must be", None),
}
PAST: Parameters = {"past": whole(0, MAX_POSITION - 1, "keys before the first query", 0)}
PADDING: Parameters = {"attention_mask": rows("1 for a token, 0 for padding, a list a sequence, such as 1,1,0;1,0,0")}
PACKED: Parameters = {
    "position_ids": rows("packed sequences, such as 0,1,0,1,2: a new one begins where these do not rise by 1"),
    "form": choice(masks.FORMS, "additive: 0 where a query may look. boolean: true where it may", "additive"),
    "fill": choice(masks.FILLS, "of an additive mask: the lowest number of its dtype, or -inf", "min"),
}
BEYOND: Parameters = {
    "beyond": choice(learned.BEYOND, "past the last row: refuse, repeat it, or stretch the table", "error"),
    "stretch_to": whole(1, MAX_ROWS, "rows of the stretched table; left out: as many as needed", None),
}
THETA: Parameters = {"theta": number("the base of the frequencies, above 1", sinusoidal.THETA)}
GRID_ABOUT = "patches down x across, such as 14x14"


def model(
    name: str, about: str, *groups: Parameters, arithmetic: str = "exact", answer: Parameters | None = None
) -> type[BaseModel]:
    """The pydantic model of these parameters and of ANSWER's; one that is not among them is refused.

    arithmetic  the default
    answer      what differs from ANSWER
    """
    every = {key: value for group in (*groups, ANSWER, answer or {}) for key, value in group.items()}
    return exactly(name, about, every | {"arithmetic": (every["arithmetic"][0], arithmetic)})


def exactly(name: str, about: str, every: Parameters) -> type[BaseModel]:
    """The pydantic model of these parameters alone."""
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    return create_model(name, __config__=config, __doc__=about, **dict[str, Any](every))


ROPE = model("Rope", "Which RoPE, and which rows of its table.", FIELDS, PLACES, WIDTH, LAYOUT)
MROPE = model(
    "Mrope",
    "Which M-RoPE, and the positions on its three axes.",
    FIELDS,
    {
        "positions": rows("three lists of one length: time, height, width, such as 0,1,2;0,0,1;0,1,0", ...),
        "sections": read(
            fields.triple,
            fields.INTEGERS,
            "three integers that sum to rotary_dim/2, such as 16,24,24; left out: as the config says, else the axes",
            None,
        ),
        "axes": choice(multi_axis.AXES, "who owns which frequency; left out: as the config says, else chunked", None),
    },
    WIDTH,
)
PATCHES: Parameters = {
    "grid": read(fields.pair, fields.GRID, GRID_ABOUT, None),
    "positions": rows("instead of a grid: row and column of each patch, such as 0,0;0,1"),
}
AXIAL_ROPE = model(
    "Axial",
    "Which vision tower, and its patches.",
    {
        "kind": choice(AXIAL, "whose vision tower"),
        "head_dim": whole(4, MAX_DIM, "channels of a head, a multiple of 4"),
        **PATCHES,
        "theta": number("the base of the frequencies; left out: the tower's own", None),
        "merge": whole(1, 64, "patches come in blocks of merge x merge; left out: as the tower reads them", None),
    },
    WIDTH,
)
SINUSOIDAL = model(
    "Sinusoidal",
    "Which sinusoids, and which rows.",
    {
        "kind": choice(sinusoidal.SINUSOIDS, "where sines and cosines stand", "vaswani"),
        "dim": whole(1, MAX_DIM, "channels"),
    },
    PLACES,
    THETA,
    {
        "offset": whole(-(2**31), 2**31, "added to every position, such as 2 in M2M100", 0),
        "zero_row": whole(0, MAX_POSITION - 1, "a position whose row is all zero: padding_idx", None),
    },
)
SINUSOIDAL_GRID = model(
    "SinusoidalGrid",
    "The channels and the patches.",
    {
        "dim": whole(4, MAX_DIM, "channels, a multiple of 4"),
        "grid": read(fields.pair, fields.GRID, GRID_ABOUT),
        "order": choice(sinusoidal.ORDERS, "hw: the first half for the row. wh: swapped, as ViT-MAE", "hw"),
        "cls_rows": whole(0, 1024, "rows of zeros before the patches", 0),
    },
    THETA,
)
LEARNED = model(
    "Learned", "A table, and which rows of it.", {"weights": tensor("the table [rows, dim]", ...)}, PLACES, BEYOND
)
ALIBI = model(
    "Alibi",
    "Heads, form and lengths.",
    {
        "heads": whole(1, MAX_WIDTH, "attention heads"),
        "form": choice(alibi.FORMS, "what the slopes are multiplied with", "symmetric"),
    },
    LENGTHS,
    PAST,
    PADDING,
    {"max_bias": number("alibi_bias_max, above 0", alibi.MAX_BIAS)},
)
T5 = model(
    "T5",
    "Lengths and buckets.",
    LENGTHS,
    PAST,
    {
        "bidirectional": switch("true in encoders, false in decoders", True),
        "num_buckets": whole(2, MAX_WIDTH, "relative_attention_num_buckets", 32),
        "max_distance": whole(1, MAX_POSITION, "relative_attention_max_distance", 128),
        "weights": tensor("relative_attention_bias.weight [num_buckets, heads]; with it comes the bias"),
    },
)
DEBERTA = model(
    "Deberta",
    "Lengths and buckets.",
    LENGTHS,
    {
        "position_buckets": whole(-1, MAX_WIDTH, "below 1: no buckets", 256),
        "max_relative_positions": whole(-1, MAX_POSITION, "below 1: max_position_embeddings", -1),
        "max_position_embeddings": whole(1, MAX_POSITION, "where max_relative_positions is below 1", None),
        "weights": tensor("rel_embeddings.weight [2 span, dim]"),
        "norm_weight": tensor("encoder.LayerNorm.weight [dim], where norm_rel_ebd says layer_norm"),
        "norm_bias": tensor("encoder.LayerNorm.bias [dim]"),
        "norm_eps": number("layer_norm_eps", 1e-7),
    },
)
MASK = model(
    "Mask",
    "Lengths, and what a query may look at.",
    LENGTHS,
    PAST,
    {
        "causal": switch("a query sees itself and what comes before", True),
        "window": whole(0, MAX_POSITION, "causal: tokens it sees, its own counted. Otherwise: to either side", None),
        "chunk": whole(1, MAX_POSITION, "tokens of a chunk that sees itself alone", None),
    },
    PADDING,
    PACKED,
)
