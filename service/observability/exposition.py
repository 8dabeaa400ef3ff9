"""Writes what Prometheus scrapes from the snapshots of all workers: its text format 0.0.4, or OpenMetrics 1.0.0.

A histogram or summary is shown from its first value on, so that graphs that no request needs cost nothing.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from service.observability.metric_families import BY_NAME, FAMILIES, Family
from service.observability.metric_store import Key, Numbers, Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
LOADED = "inlay_model_workers"
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class Exemplar(NamedTuple):
    """A value of a histogram, the trace that it belongs to, and when it came, in seconds since the epoch."""

    trace_id: str
    value: float
    at: float


Exemplars = Mapping[Key, Mapping[int, Exemplar]]
"""The last one of each bucket, by its number, of histograms by their key."""


def exposition(snapshots: Sequence[Snapshot], exemplars: Exemplars | None = None) -> bytes:
    """Return every family with its samples: counters summed over all workers, gauges merged as their rows say.

    Args:
        exemplars: to show, in OpenMetrics; None: the older text format, which has none.
    """
    by_family = collected(snapshots)
    lines: list[str] = []
    for family in FAMILIES:
        name = family.name + ("_total" if family.kind == "counter" else "")
        title = name if exemplars is None else family.name
        lines += (f"# HELP {title} {family.help}", f"# TYPE {title} {family.kind}")
        for values, numbers in by_family[family.name].items():
            lines += _samples(family, name, values, numbers, (exemplars or {}).get((family.name, *values), {}))
    return ("\n".join([*lines, *([] if exemplars is None else ["# EOF"])]) + "\n").encode()


def collected(snapshots: Sequence[Snapshot]) -> dict[str, dict[Key, Sequence[float]]]:
    """Return the numbers of each family that are shown, by the values of their labels."""
    by_family: dict[str, dict[Key, Sequence[float]]] = {family.name: {} for family in FAMILIES}
    loaded = _loaded(snapshots)
    for (name, *values), numbers in totals(snapshots).items():
        family = BY_NAME[name]
        at = family.labels.index("model") if "model" in family.labels and "key" not in family.labels else None
        if (at is None or values[at] in loaded) and (len(numbers) == 1 or any(numbers)):
            by_family[name][tuple(values)] = numbers
    return by_family


def totals(snapshots: Sequence[Snapshot]) -> Numbers:
    """Return the numbers of all workers: counters summed, gauges merged as their rows say."""
    return _summed(snapshots) | _merged(snapshots)


def _samples(
    family: Family, name: str, values: Key, numbers: Sequence[float], exemplars: Mapping[int, Exemplar]
) -> Iterator[str]:
    names = family.labels or ("worker",) * len(values)
    labels = [f'{label}="{value.translate(_ESCAPES)}"' for label, value in zip(names, values, strict=True)]
    shown = f"{{{','.join(labels)}}}" if labels else ""
    if len(numbers) == 1:
        yield f"{name}{shown} {_number(numbers[0])}"
        return
    start = f"{name}_bucket{{{''.join(f'{label},' for label in labels)}le="
    total = sum(numbers[:-1])
    bounds = (*family.bounds, math.inf) if family.bounds else ()
    for place, (bound, count) in enumerate(zip(bounds, accumulate(numbers[:-1]), strict=False)):
        yield f'{start}"{_number(bound)}"}} {_number(count)}' + _shown(exemplars.get(place))
    yield f"{name}_count{shown} {_number(total)}"
    yield f"{name}_sum{shown} {_number(numbers[-1])}"


def _shown(exemplar: Exemplar | None) -> str:
    if exemplar is None:
        return ""
    return f' # {{trace_id="{exemplar.trace_id}"}} {_number(exemplar.value)} {exemplar.at:.3f}'


def _number(value: float) -> str:
    return repr(float(value)) if math.isfinite(value) else {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN")


def _summed(snapshots: Iterable[Snapshot]) -> dict[Key, Sequence[float]]:
    totals: dict[Key, Sequence[float]] = {}
    for snapshot in snapshots:
        for key, numbers in snapshot.counters.items():
            held = totals.get(key)
            totals[key] = numbers if held is None else [a + b for a, b in zip(held, numbers, strict=True)]
    return totals


def _merged(snapshots: Iterable[Snapshot]) -> dict[Key, Sequence[float]]:
    gauges: dict[Key, list[float]] = {}
    for snapshot in snapshots:
        for (name, *values), number in snapshot.gauges.items():
            if not math.isnan(number):
                labels = [str(snapshot.worker)] if BY_NAME[name].merged == "each" else values
                gauges.setdefault((name, *labels), []).append(number)
    merges = {"max": max, "min": min}
    return {key: [merges.get(BY_NAME[key[0]].merged, sum)(numbers)] for key, numbers in gauges.items()}


def _loaded(snapshots: Iterable[Snapshot]) -> set[str]:
    """Return the models that a worker has loaded; counters of others are kept and shown again once they are loaded."""
    return {key[1] for snapshot in snapshots for key in snapshot.gauges if key[0] == LOADED}
