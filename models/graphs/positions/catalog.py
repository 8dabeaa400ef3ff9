"""GRAPHS: one row per scheme, from the arguments of its table to an ONNX graph for any positions."""

from collections.abc import Callable, Mapping
from typing import Any

from models.errors import BadEncoding
from models.graphs.positions import alibi, buckets, multi_axis, rope, sinusoidal
from models.positions.rope.frequencies import frequencies

Arguments = Mapping[str, Any]


def _frequencies(arguments: Arguments) -> Any:
    return frequencies(arguments["rope"], arguments["arithmetic"], arguments["seq_len"])


def _select(arguments: Arguments, *names: str) -> dict[str, Any]:
    return {name: arguments[name] for name in names if name in arguments}


def _deberta(arguments: Arguments) -> Any:
    reach = arguments["max_relative_positions"]
    if reach < 1 and (reach := arguments.get("max_position_embeddings") or 0) < 1:
        raise BadEncoding(
            "max_relative_positions is below 1, which means max_position_embeddings: send one of them, 1 or more"
        )
    return buckets.deberta(**_select(arguments, "position_buckets", "arithmetic"), max_relative_positions=reach)


GRAPHS: dict[str, Callable[[Arguments], Any]] = {
    "rope": lambda arguments: rope.rope(_frequencies(arguments)),
    "mrope": lambda arguments: multi_axis.mrope(_frequencies(arguments), arguments["sections"], arguments["axes"]),
    "axial": lambda arguments: multi_axis.axial(**_select(arguments, "kind", "head_dim", "theta", "arithmetic")),
    "sinusoidal": lambda arguments: sinusoidal.sinusoid(
        **_select(arguments, "kind", "dim", "arithmetic", "theta", "offset", "zero_row")
    ),
    "sinusoidal-2d": lambda arguments: sinusoidal.sinusoid_grid(
        **_select(arguments, "dim", "order", "arithmetic", "theta")
    ),
    "alibi": lambda arguments: alibi.alibi(
        **_select(arguments, "heads", "form", "max_bias", "arithmetic"),
        masked=arguments.get("attention_mask") is not None,
    ),
    "t5": lambda arguments: buckets.t5(
        **_select(arguments, "bidirectional", "num_buckets", "max_distance", "weights", "arithmetic")
    ),
    "deberta": _deberta,
}


def graph(scheme: str, arguments: Arguments) -> bytes:
    """Return the ONNX file of a scheme.

    Args:
        scheme: a row of GRAPHS.
        arguments: those of the scheme's `tabulate`; positions and lengths are not read.

    Raises:
        BadEncoding: the scheme has no graph (a stored table, or a mask), or an argument is out of range.
    """
    if scheme not in GRAPHS:
        raise BadEncoding(f"{scheme} has no graph; those that do: {', '.join(GRAPHS)}")
    file: bytes = GRAPHS[scheme](arguments).SerializeToString()
    return file
