"""GRAPHS: one row a scheme, from the arguments its table is made with to the ONNX graph of any positions. Runs none."""

from collections.abc import Callable, Mapping
from typing import Any

from models.errors import BadEncoding
from models.graphs.positions import (
    alibi,
    buckets,
    masks,
    multi_axis,
    rope,
    sinusoidal,
)
from models.positions.rope.frequencies import frequencies

Arguments = Mapping[str, Any]


def _frequencies(given: Arguments) -> Any:
    return frequencies(given["rope"], given["arithmetic"], given["seq_len"])


def _only(given: Arguments, *names: str) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given}


def _deberta(given: Arguments) -> Any:
    reach = given["max_relative_positions"]
    if reach < 1 and (reach := given.get("max_position_embeddings") or 0) < 1:
        raise BadEncoding(
            "max_relative_positions is below 1, that is max_position_embeddings: send one of them, 1 or more"
        )
    return buckets.deberta(**_only(given, "position_buckets", "arithmetic"), max_relative_positions=reach)


def _mask(given: Arguments) -> Any:
    padding, packed = (given.get(name) is not None for name in ("attention_mask", "position_ids"))
    own = _only(given, "causal", "window", "chunk", "form", "fill", "dtype")
    return masks.mask(**own, padding=padding, packed=packed)


GRAPHS: dict[str, Callable[[Arguments], Any]] = {
    "rope": lambda given: rope.rope(_frequencies(given)),
    "mrope": lambda given: multi_axis.mrope(_frequencies(given), given["sections"], given["axes"]),
    "axial": lambda given: multi_axis.axial(**_only(given, "kind", "head_dim", "theta", "arithmetic")),
    "sinusoidal": lambda given: sinusoidal.sinusoid(
        **_only(given, "kind", "dim", "arithmetic", "theta", "offset", "zero_row")
    ),
    "sinusoidal-2d": lambda given: sinusoidal.sinusoid_grid(**_only(given, "dim", "order", "arithmetic", "theta")),
    "alibi": lambda given: alibi.alibi(
        **_only(given, "heads", "form", "max_bias", "arithmetic"), masked=given.get("attention_mask") is not None
    ),
    "t5": lambda given: buckets.t5(
        **_only(given, "bidirectional", "num_buckets", "max_distance", "weights", "arithmetic")
    ),
    "deberta": _deberta,
    "mask": _mask,
}


def graph(scheme: str, arguments: Arguments) -> bytes:
    """The ONNX file of a scheme.

    arguments  of the scheme's `tabulate`: those that no graph depends on (positions, lengths) are not read
    raises     BadEncoding, also where the scheme is a table that is looked up, not computed
    """
    if scheme not in GRAPHS:
        raise BadEncoding(f"{scheme} has no graph; those that do: {', '.join(GRAPHS)}")
    file: bytes = GRAPHS[scheme](arguments).SerializeToString()
    return file
