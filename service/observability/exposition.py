"""The numbers of all slots as the text that Prometheus scrapes (exposition format 0.0.4). Keeps no numbers.

Own code, because a scrape holds up the event loop: of 4400 lines prometheus_client 0.26 makes 65 ms, this 5. Most lines
are zeros of methods that nobody called, so what is written for a key is remembered as far as it does not change. Tests
read it with prometheus_client's parser, and with promtool.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

from service.observability.counter_store import STARTS, Key, Seen
from service.observability.metric_definitions import FAMILIES, Family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
WORKER = ("worker",)
Numbers = Mapping[Key, Sequence[float]]  # by the values of the labels


class Exposition:
    """Writes scrapes; remembers names and labels."""

    def __init__(self) -> None:
        self._heads: dict[Key, tuple[str, ...]] = {}
        self._zeros: dict[Key, str] = {}

    def text(self, slots: Sequence[Seen]) -> bytes:
        """Every family: counters of all slots there ever were, gauges of those that live."""
        alive = [slot for slot in slots if slot.alive]
        totals = _summed(slots)
        restarts = totals.get(STARTS, [0.0])[0] - len(slots)
        own = {("inlay_worker_restarts",): [restarts], ("inlay_workers",): [float(len(alive))]}
        by_name: dict[str, dict[Key, Sequence[float]]] = {}
        for key, cells in (totals | own).items():
            by_name.setdefault(key[0], {})[key[1:]] = cells
        hidden = _unloaded(alive)
        parts: list[str] = []
        for family in FAMILIES:
            numbers: Numbers = by_name.get(family.name, {})
            if (family.kind == "gauge" and (family.name,) not in own) or family.merged == "each":
                numbers = _merged(family, alive)
            if hidden and family.labels[:1] == ("model",):
                numbers = {labels: cells for labels, cells in numbers.items() if labels[0] not in hidden}
            parts += self._family(family, numbers, by_name.get(family.counted or "", {}))
        return "".join(parts).encode()

    def _family(self, family: Family, numbers: Numbers, expected: Numbers) -> Iterator[str]:
        labels = WORKER if family.merged == "each" else family.labels
        if family.kind == "histogram":
            yield _title(family.name, family.about, "histogram")
            heads = _heads_of_histogram(family)
            for values, cells in numbers.items():
                yield self._lines(family.name, values, cells, heads, _of_histogram)
        if family.kind != "histogram" or family.counted:
            name = family.counted or family.name
            name += "" if family.kind == "gauge" else "_total"
            about = f"Count of: {family.about}" if family.counted else family.about
            yield _title(name, about, "gauge" if family.kind == "gauge" else "counter")
            counts = numbers if not family.counted else _counts(numbers, expected)
            for values, cells in counts.items():
                yield self._lines(name, values, cells, lambda each: (name + _labelled(labels, each),), _of_number)

    def _lines(
        self,
        name: str,
        values: Key,
        cells: Sequence[float],
        heads: Callable[[Key], tuple[str, ...]],
        shown: Callable[[Sequence[float]], Sequence[float]],
    ) -> str:
        key = (name, *values)
        if not any(cells) and (zeros := self._zeros.get(key)):
            return zeros
        known = self._heads.get(key)
        if known is None:
            known = self._heads[key] = heads(values)
            self._zeros[key] = "".join([f"{head} 0.0\n" for head in known])
        return "".join([f"{head} {_float(each)}\n" for head, each in zip(known, shown(cells), strict=True)])


def _heads_of_histogram(family: Family) -> Callable[[Key], tuple[str, ...]]:
    def heads(values: Key) -> tuple[str, ...]:
        bounds = [*(_float(float(bound)) for bound in family.bounds), "+Inf"]
        names = (*family.labels, "le")
        buckets = [f"{family.name}_bucket{_labelled(names, (*values, bound))}" for bound in bounds]
        labels = _labelled(family.labels, values)
        return (*buckets, f"{family.name}_count{labels}", f"{family.name}_sum{labels}")

    return heads


def _of_histogram(cells: Sequence[float]) -> Sequence[float]:
    sums = list(accumulate(cells[:-1]))
    return [*sums, sums[-1], cells[-1]]


def _of_number(cells: Sequence[float]) -> Sequence[float]:
    return cells[:1]


def _title(name: str, about: str, kind: str) -> str:
    return f"# HELP {name} {about}\n# TYPE {name} {kind}\n"


def _labelled(names: Sequence[str], values: Sequence[str]) -> str:
    pairs = [f'{name}="{_escaped(value)}"' for name, value in sorted(zip(names, values, strict=True))]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _float(value: float) -> str:
    return repr(float(value)) if math.isfinite(value) else {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN")


def _counts(numbers: Numbers, expected: Numbers) -> Numbers:
    return {**dict.fromkeys(expected, (0.0,)), **{values: [sum(cells[:-1])] for values, cells in numbers.items()}}


def _summed(slots: Sequence[Seen]) -> dict[Key, Sequence[float]]:
    totals: dict[Key, Sequence[float]] = {}
    for slot in slots:
        for key, cells in slot.cells.items():
            held = totals.get(key)
            if held is None:
                totals[key] = cells
            elif any(cells):
                totals[key] = [a + b for a, b in zip(held, cells, strict=True)]
    return totals


def _merged(family: Family, alive: Sequence[Seen]) -> dict[Key, Sequence[float]]:
    found: dict[Key, list[float]] = {}
    for slot in alive:
        for key, cells in slot.cells.items():
            if key[0] == family.name and not math.isnan(cells[0]):
                labels = (str(slot.slot),) if family.merged == "each" else key[1:]
                found.setdefault(labels, []).append(cells[0])
    merge = {"max": max, "min": min}.get(family.merged, sum)
    return {labels: [merge(values)] for labels, values in found.items()}


def _unloaded(alive: Sequence[Seen]) -> set[str]:
    """The models that workers held once and none holds now."""
    held: dict[str, bool] = {}
    for slot in alive:
        for key, cells in slot.cells.items():
            if key[0] == "inlay_model_workers":
                held[key[1]] = held.get(key[1], False) or not math.isnan(cells[0])
    return {model for model, by_some in held.items() if not by_some}
