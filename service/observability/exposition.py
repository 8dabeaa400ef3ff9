"""Writes the text format that Prometheus scrapes (exposition format 0.0.4) from the snapshots of all workers."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from service.observability.metric_families import BY_NAME, FAMILIES, Family
from service.observability.metric_store import Key, Numbers, Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LOADED = "inlay_model_workers"
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def exposition(snapshots: Sequence[Snapshot]) -> bytes:
    """Return every family with its samples: counters summed over all workers, gauges merged as their rows say."""
    by_family: dict[str, dict[Key, Sequence[float]]] = {family.name: {} for family in FAMILIES}
    for key, numbers in totals(snapshots).items():
        by_family[key[0]][key[1:]] = numbers
    loaded = _loaded(snapshots)
    lines: list[str] = []
    for family in FAMILIES:
        name = family.name + ("_total" if family.kind == "counter" else "")
        lines += (f"# HELP {name} {family.help}", f"# TYPE {name} {family.kind}")
        at = family.labels.index("model") if "model" in family.labels else None
        for values, numbers in by_family[family.name].items():
            if at is None or values[at] in loaded:
                lines += _samples(family, name, values, numbers)
    return ("\n".join(lines) + "\n").encode()


def totals(snapshots: Sequence[Snapshot]) -> Numbers:
    """Return the numbers of all workers: counters summed, gauges merged as their rows say."""
    return _summed(snapshots) | _merged(snapshots)


def _samples(family: Family, name: str, values: Key, numbers: Sequence[float]) -> Iterator[str]:
    names = family.labels or ("worker",) * len(values)
    labels = [f'{label}="{value.translate(_ESCAPES)}"' for label, value in zip(names, values, strict=True)]
    shown = f"{{{','.join(labels)}}}" if labels else ""
    if family.kind != "histogram":
        yield f"{name}{shown} {_number(numbers[0])}"
        return
    start = f"{name}_bucket{{{''.join(f'{label},' for label in labels)}le="
    total = 0.0
    for bound, total in zip((*family.bounds, math.inf), accumulate(numbers[:-1]), strict=True):
        yield f'{start}"{_number(bound)}"}} {_number(total)}'
    yield f"{name}_count{shown} {_number(total)}"
    yield f"{name}_sum{shown} {_number(numbers[-1])}"


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
