"""Pictures of biases as curves: slopes by head, buckets and biases by distance. Draws nothing."""

from collections.abc import Sequence

import numpy as np

from models.plots import curves
from models.plots.captions import description, subtitle, title
from models.plots.picture import (
    Axis,
    AxisScale,
    Curve,
    LinePanel,
    Mark,
    Picture,
    Shape,
)
from models.plots.sampling import (
    Float64s,
    Int64s,
    evenly,
    note,
)
from models.plots.subject import Subject

MAX_HEADS = 6
# Distances up to which an axis with both signs is linear: T5's buckets grow from 8 on, ALiBi is a straight line.
FAR = {"t5": 64, "deberta": 1024, "alibi": 2**53}
LINEAR_UP_TO = 8.0
KEY_MINUS_QUERY = "key position − query position (tokens)"
QUERY_MINUS_KEY = "query position − key position (tokens)"
HERE = Mark("x", 0.0, "")


def slopes(subjects: Sequence[Subject], axis: AxisScale | None = None) -> Picture:
    """The slope of each head, in the order of the heads."""
    drawn = []
    for tone, subject in enumerate(subjects):
        found = subject.output("slopes").whole().ravel().astype(np.float64)
        drawn.append(Curve(subject.label, np.arange(len(found)), found, tone=tone, shape="points"))
    return _picture(
        title("slope of each head", subjects),
        subtitle(subjects),
        description("The slope of each head on a logarithmic axis.", subjects),
        LinePanel(Axis("head (index)"), Axis("slope\n(bias per token of distance)", "log2"), tuple(drawn)),
    )


def bucket(subjects: Sequence[Subject], axis: AxisScale | None = None) -> Picture:
    """Which bucket a key falls in by how far it stands from its query."""
    backwards = all(subject.table.facts.get("relative_position") == "query - key" for subject in subjects)
    drawn = []
    for tone, subject in enumerate(subjects):
        output = subject.output("bucket")
        relative, found = curves.by_distance(output, subject.row_positions(output.shape[-2]))
        if backwards:
            relative, found = -relative[::-1], found[::-1]
        drawn.append(Curve(subject.label, relative, found, tone=tone, shape="steps"))
    x = _relative(drawn, axis, subjects[0].scheme, QUERY_MINUS_KEY if backwards else KEY_MINUS_QUERY)
    return _picture(
        title("bucket by distance", subjects),
        subtitle(subjects),
        description("The bucket of each relative position.", subjects),
        LinePanel(x, Axis("bucket (index)"), tuple(drawn), (HERE,)),
    )


def bias(subjects: Sequence[Subject], axis: AxisScale | None = None) -> Picture:
    """What is added to a score by how far its key stands: a curve a head, or of several subjects a band."""
    drawn: list[Curve] = []
    notes: tuple[str, ...] = (f"line: mean of up to {MAX_HEADS} heads; band: their extremes",)
    for tone, subject in enumerate(subjects):
        heads, relative, values = _by_head(subject)
        shape: Shape = "line" if subject.scheme == "alibi" else "steps"
        if len(subjects) > 1:
            extremes = values.min(axis=0), values.max(axis=0)
            drawn.append(Curve(subject.label, relative, values.mean(axis=0), *extremes, tone, shape))
            continue
        drawn = [
            Curve(f"head {head}", relative, values[n], tone=n, shape=shape) for n, head in enumerate(heads.tolist())
        ]
        notes = note(len(heads), subject.output("bias").shape[1], "heads drawn")
    x = _relative(drawn, axis, subjects[0].scheme, KEY_MINUS_QUERY)
    return _picture(
        title("bias by distance", subjects),
        subtitle(subjects),
        description("The bias added to an attention score by relative position.", subjects),
        LinePanel(x, Axis("bias\n(added to the score before softmax)"), tuple(drawn), (HERE,)),
        notes,
    )


def _by_head(subject: Subject) -> tuple[Int64s, Int64s, Float64s]:
    """Heads, distances, and the bias [heads, distances]; a key-only form is measured from its last key."""
    output = subject.output("bias")
    queries, keys = output.shape[-2:]
    positions = subject.row_positions(queries) if queries > 1 else range(keys - 1, keys)
    heads = evenly(output.shape[1], MAX_HEADS)
    found = [curves.by_distance(output, positions, int(head)) for head in heads]
    return heads, found[0][0], np.stack([values for _, values in found])


def _picture(heading: str, parameters: str, told: str, panel: LinePanel, notes: tuple[str, ...] = ()) -> Picture:
    return Picture(heading, parameters, told, ((panel,),), height=440, notes=notes)


def _relative(drawn: Sequence[Curve], axis: AxisScale | None, scheme: str, label: str) -> Axis:
    """Distance: linear where near, logarithmic on both sides where far."""
    least, most = min(int(curve.x[0]) for curve in drawn), max(int(curve.x[-1]) for curve in drawn)
    far = max(-least, most)
    if far < LINEAR_UP_TO or (axis or ("log" if far > FAR[scheme] else "linear")) == "linear":
        return Axis(label, limits=(least, most) if most > least else None)
    decades = range(1, int(np.log10(far)) + 1, 1 if far < 10**5 else 2)
    marked = sorted([0, *(side * 10**decade for decade in decades for side in (-1, 1))])
    ticks = tuple((float(tick), f"{tick:,}".replace("-", "−")) for tick in marked)
    return Axis(label, "symlog", ticks=ticks, limits=(least, most), linear_up_to=LINEAR_UP_TO)
