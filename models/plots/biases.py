"""Pictures of biases as curves: slopes by head, buckets and biases by distance."""

from collections.abc import Sequence

import numpy as np

from models.plots import curves
from models.plots.picture import Axis, AxisScale, Curve, LinePanel, Mark, Picture, Shape
from models.plots.sampling import Float64s, Int64s, evenly, sampling_note
from models.plots.subject import Subject, picture_of

HEIGHT = 440
MAX_HEADS = 6
# Distances up to which an axis with both signs is linear; ALiBi is a straight line.
LINEAR_REACH = {"t5": 64, "deberta": 1024, "alibi": 2**53}
LINEAR_UP_TO = 8.0
KEY_MINUS_QUERY = "key position − query position (tokens)"
QUERY_MINUS_KEY = "query position − key position (tokens)"
AT_QUERY = Mark("x", 0.0, "")


def slopes(subjects: Sequence[Subject], axis: AxisScale | None = None) -> Picture:
    """Return the picture of the slope of each head, in the order of the heads."""
    lines = []
    for tone, subject in enumerate(subjects):
        values = subject.output("slopes").whole().ravel().astype(np.float64)
        lines.append(Curve(subject.label, np.arange(len(values)), values, tone=tone, shape="points"))
    panel = LinePanel(Axis("head (index)"), Axis("slope\n(bias per token of distance)", "log2"), tuple(lines))
    return picture_of(
        subjects, "slope of each head", "The slope of each head on a logarithmic axis.", ((panel,),), HEIGHT
    )


def bucket(subjects: Sequence[Subject], axis: AxisScale | None = None) -> Picture:
    """Return the picture of a key's bucket by its distance from the query."""
    backwards = all(subject.table.facts.get("relative_position") == "query - key" for subject in subjects)
    lines = []
    for tone, subject in enumerate(subjects):
        output = subject.output("bucket")
        relative, values = curves.by_distance(output, subject.row_positions(output.shape[-2]))
        if backwards:
            relative, values = -relative[::-1], values[::-1]
        lines.append(Curve(subject.label, relative, values, tone=tone, shape="steps"))
    x = _relative(lines, axis, subjects[0].scheme, QUERY_MINUS_KEY if backwards else KEY_MINUS_QUERY)
    panel = LinePanel(x, Axis("bucket (index)"), tuple(lines), (AT_QUERY,))
    return picture_of(subjects, "bucket by distance", "The bucket of each relative position.", ((panel,),), HEIGHT)


def bias(subjects: Sequence[Subject], axis: AxisScale | None = None) -> Picture:
    """Return the picture of the bias by distance: one curve per head, or for several subjects one band each."""
    lines: list[Curve] = []
    notes: tuple[str, ...] = (f"line: mean of up to {MAX_HEADS} heads; band: from the smallest to the largest of them",)
    for tone, subject in enumerate(subjects):
        heads, relative, values = _by_head(subject)
        shape: Shape = "line" if subject.scheme == "alibi" else "steps"
        if len(subjects) > 1:
            extremes = values.min(axis=0), values.max(axis=0)
            lines.append(Curve(subject.label, relative, values.mean(axis=0), *extremes, tone, shape))
            continue
        lines = [
            Curve(f"head {head}", relative, values[n], tone=n, shape=shape) for n, head in enumerate(heads.tolist())
        ]
        notes = sampling_note(len(heads), subject.output("bias").shape[1], "heads drawn")
    x = _relative(lines, axis, subjects[0].scheme, KEY_MINUS_QUERY)
    panel = LinePanel(x, Axis("bias\n(added to the score before softmax)"), tuple(lines), (AT_QUERY,))
    about = "The bias added to an attention score by relative position."
    return picture_of(subjects, "bias by distance", about, ((panel,),), HEIGHT, notes)


def _by_head(subject: Subject) -> tuple[Int64s, Int64s, Float64s]:
    """Return heads, distances, and the bias [heads, distances]; a key-only form is measured from its last key."""
    output = subject.output("bias")
    queries, keys = output.shape[-2:]
    positions = subject.row_positions(queries) if queries > 1 else range(keys - 1, keys)
    heads = evenly(output.shape[1], MAX_HEADS)
    by_head = [curves.by_distance(output, positions, int(head)) for head in heads]
    return heads, by_head[0][0], np.stack([values for _, values in by_head])


def _relative(lines: Sequence[Curve], axis: AxisScale | None, scheme: str, label: str) -> Axis:
    """Return the axis of distances: linear where they are short, logarithmic on both sides where they are long."""
    minimum, maximum = (min(int(curve.x[0]) for curve in lines), max(int(curve.x[-1]) for curve in lines))
    reach = max(-minimum, maximum)
    if reach < LINEAR_UP_TO or (axis or ("log" if reach > LINEAR_REACH[scheme] else "linear")) == "linear":
        return Axis(label, limits=(minimum, maximum) if maximum > minimum else None)
    decades = range(1, int(np.log10(reach)) + 1, 1 if reach < 10**5 else 2)
    marked = sorted([0, *(side * 10**decade for decade in decades for side in (-1, 1))])
    ticks = tuple((float(tick), f"{tick:,}".replace("-", "−")) for tick in marked)
    return Axis(label, "symlog", ticks=ticks, limits=(minimum, maximum), linear_up_to=LINEAR_UP_TO)
