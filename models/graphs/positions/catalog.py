"""GRAPHS: one row per scheme of positions, from the arguments of its table to an ONNX graph for any positions."""

from collections.abc import Callable, Mapping
from typing import Any

from models.errors import BadEncoding
from models.graphs.positions import multi_axis, rope, sinusoidal
from models.positions.rope.frequencies import frequencies

Arguments = Mapping[str, Any]


def _frequencies(arguments: Arguments) -> Any:
    return frequencies(arguments["rope"], arguments["arithmetic"], arguments["seq_len"])


def _select(arguments: Arguments, *names: str) -> dict[str, Any]:
    return {name: arguments[name] for name in names if name in arguments}


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
}


def graph(scheme: str, arguments: Arguments) -> bytes:
    """Return the ONNX file of a scheme.

    Args:
        scheme: a row of GRAPHS.
        arguments: those of the scheme's `tabulate`; positions and lengths are not read.

    Raises:
        BadEncoding: the scheme has no graph (a stored table, a bias, a mask), or an argument is out of range.
    """
    if scheme not in GRAPHS:
        raise BadEncoding(f"{scheme} has no graph; those that do: {', '.join(GRAPHS)}")
    file: bytes = GRAPHS[scheme](arguments).SerializeToString()
    return file
