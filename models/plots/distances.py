"""Pictures over distance or position: decay of the score, similarity of rows, error."""

from collections.abc import Sequence

import numpy as np

from models.plots import curves
from models.plots.curves import Band
from models.plots.picture import Axis, AxisScale, Curve, LinePanel, Mark, Picture
from models.plots.subject import Subject, picture_of

LOG_FROM = 4096  # number of positions from which an axis is logarithmic by default
ROUNDING = (
    Mark("y", 2.0**-9, "bfloat16\nrounding"),
    Mark("y", 2.0**-12, "float16\nrounding"),
    Mark("y", 2.0**-25, "float32\nrounding"),
)
ZERO = Mark("y", 0.0, "")


def decay(subjects: Sequence[Subject], axis: AxisScale | None = None) -> Picture:
    """Return the picture of the mean score of two equal vectors by their distance."""
    maximum = max(_max_distance(subject) for subject in subjects)
    scale = axis or ("log" if maximum >= LOG_FROM else "linear")
    all_waves = [subject.waves() for subject in subjects]
    trained = sorted({length for waves in all_waves if (length := waves.trained_context) and length < maximum})
    panel = LinePanel(
        Axis("distance between query and key (tokens)", scale, limits=(1 if scale == "log" else 0, maximum)),
        Axis("mean score of equal unit vectors\n(before softmax)"),
        _curves(subjects, [curves.decay(waves, maximum, scale) for waves in all_waves]),
        (ZERO, *(Mark("x", length, f"trained on {length:,} tokens") for length in trained)),
    )
    note = "line: mean of neighbouring distances; band: from the smallest to the largest of them"
    about = f"Mean attention score of equal unit vectors at distances up to {maximum:,} tokens."
    return _picture(subjects, "score over distance", about, panel, note)


def similarity(subjects: Sequence[Subject], axis: AxisScale | None = None) -> Picture:
    """Return the picture of the cosine similarity of two rows by their distance."""
    outputs = [subject.output("table") for subject in subjects]
    scale = axis or ("log" if max(output.count for output in outputs) >= LOG_FROM else "linear")
    panel = LinePanel(
        Axis("distance between rows (positions)", scale),
        Axis("cosine similarity\n(−1 to 1)"),
        _curves(subjects, [curves.similarity(output, scale) for output in outputs]),
        (ZERO,),
    )
    every = all(output.count <= curves.similarity_rows(output) for output in outputs)
    pairs = "all pairs of rows" if every else f"up to {curves.ANCHORS} pairs of rows per distance"
    note = f"line: mean over {pairs}; band: from the smallest to the largest of them"
    about = "Cosine similarity of two rows by their distance: mean and extremes."
    return _picture(subjects, "similarity over distance", about, panel, note)


def error(subjects: Sequence[Subject], axis: AxisScale | None = None) -> Picture:
    """Return the picture of the difference between float32 and exact values, by position."""
    bands = [curves.error(subject) for subject in subjects]
    maximum = max(float(band.high.max(initial=0.0)) for band in bands)
    panel = LinePanel(
        Axis("position (tokens)", axis or "log"),
        Axis("largest error of any channel\n(absolute)", "log" if maximum > 0 else "linear"),
        tuple(_above_zero(curve) for curve in _curves(subjects, bands)),
        tuple(mark for mark in ROUNDING if mark.value <= 4 * maximum),
    )
    note = (
        f"float32 (parity) minus exact values, at up to {curves.ERROR_ROWS} positions; line: mean of neighbouring "
        "positions; band: from the smallest to the largest of them"
    )
    about = f"Largest difference of parity from exact values by position; at most {maximum:.2g}."
    return _picture(subjects, "error of float32 arithmetic by position", about, panel, note, arithmetic=False)


def _picture(
    subjects: Sequence[Subject], what: str, about: str, panel: LinePanel, band_note: str, arithmetic: bool = True
) -> Picture:
    banded = any(curve.low is not None for curve in panel.curves)
    notes = (band_note,) if banded else ()
    return picture_of(subjects, what, about, ((panel,),), 460, notes, arithmetic=arithmetic)


def _max_distance(subject: Subject) -> int:
    """Return the largest distance between two positions of the table, 1 or more."""
    positions = subject.row_positions(next(iter(subject.table.outputs.values())).count)
    spread = abs(positions[-1] - positions[0]) if isinstance(positions, range) else int(np.ptp(positions))
    return max(1, spread)


def _curves(subjects: Sequence[Subject], bands: Sequence[Band]) -> tuple[Curve, ...]:
    return tuple(
        Curve(subject.label, band.x, band.y, tone=tone)
        if np.array_equal(band.low, band.high)
        else Curve(subject.label, band.x, band.y, band.low, band.high, tone)
        for tone, (subject, band) in enumerate(zip(subjects, bands, strict=True))
    )


def _above_zero(curve: Curve) -> Curve:
    """Return the curve without values of 0, which a logarithmic axis cannot show."""
    low, high = (None if band is None else np.where(band > 0, band, np.nan) for band in (curve.low, curve.high))
    return Curve(curve.label, curve.x, np.where(curve.y > 0, curve.y, np.nan), low, high, curve.tone)
