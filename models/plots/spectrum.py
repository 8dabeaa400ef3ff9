"""The picture of frequencies: how fast each channel turns, and how much a scaling slows it."""

from collections.abc import Sequence

import numpy as np

from models.plots.picture import Axis, AxisScale, Curve, LinePanel, Mark, Picture
from models.plots.subject import Float64s, Subject, Waves, picture_of

FULL_TURN = 2 * np.pi


def spectrum(subjects: Sequence[Subject], axis: AxisScale | None = None) -> Picture:
    """Return the picture of the radians per position of each channel, scaled and unscaled, and their ratio."""
    all_waves = [subject.waves() for subject in subjects]
    max_pairs = max(len(waves.inverse_frequency) for waves in all_waves)
    x = Axis("channel pair (index)", limits=(-0.5, max_pairs - 0.5))
    references = _references(all_waves)
    names = ("scaled",) if references and len(subjects) == 1 else tuple(subject.label for subject in subjects)
    panels = [_frequencies(x, all_waves, names, references)]
    if any(waves.scaled for waves in all_waves):
        slowed = [_slowed(waves, name, tone) for tone, (waves, name) in enumerate(zip(all_waves, names, strict=True))]
        highest = max(2.0, *(float(np.nanmax(curve.y, initial=0.0)) for curve in slowed))
        y = Axis("slowed down by\n(times)", "log2", limits=(0.9, highest * 1.15))
        panels.append(LinePanel(x, y, tuple(slowed)))
    notes = [
        f"{unrotated} pairs never turn and are not drawn" + (f" ({subject.label})" if len(subjects) > 1 else "")
        for subject, waves in zip(subjects, all_waves, strict=True)
        if (unrotated := int((waves.inverse_frequency == 0).sum()))
    ]
    about = "Inverse frequency and wavelength by channel pair, fastest first."
    height = 640 if len(panels) > 1 else 460
    return picture_of(subjects, "frequency of each channel pair", about, [[panel] for panel in panels], height, notes)


def _references(all_waves: Sequence[Waves]) -> list[Float64s]:
    """Return the unscaled frequencies that no subject has itself, each once."""
    drawn = [waves.inverse_frequency for waves in all_waves]
    references: list[Float64s] = []
    for waves in all_waves:
        if waves.unscaled is not None and not any(_equal(waves.unscaled, other) for other in (*drawn, *references)):
            references.append(waves.unscaled)
    return references


def _equal(first: Float64s, second: Float64s) -> bool:
    """Return whether two spectra differ by no more than the rounding of float32."""
    return len(first) == len(second) and np.allclose(first, second, rtol=1e-6, atol=0)


def _frequencies(
    x: Axis, all_waves: Sequence[Waves], names: Sequence[str], references: Sequence[Float64s]
) -> LinePanel:
    trained = sorted({waves.trained_context for waves in all_waves if waves.trained_context})
    return LinePanel(
        x,
        Axis("inverse frequency\n(radians per position)", "log"),
        (
            *(Curve("unscaled", np.arange(len(values)), values, tone=None) for values in references),
            *(
                Curve(name, np.arange(len(waves.inverse_frequency)), _rotating(waves.inverse_frequency), tone=tone)
                for tone, (waves, name) in enumerate(zip(all_waves, names, strict=True))
            ),
        ),
        tuple(
            Mark("y", FULL_TURN / length, f"one turn in {length:,} tokens, the trained length") for length in trained
        ),
        (FULL_TURN, Axis("wavelength\n(tokens per turn)", "log")),
    )


def _slowed(waves: Waves, name: str, tone: int) -> Curve:
    unscaled = waves.inverse_frequency if waves.unscaled is None else waves.unscaled
    return Curve(name, np.arange(len(unscaled)), _rotating(unscaled) / _rotating(waves.inverse_frequency), tone=tone)


def _rotating(frequencies: Float64s) -> Float64s:
    return np.where(frequencies > 0, frequencies, np.nan)
