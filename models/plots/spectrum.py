"""The picture of frequencies: how fast each channel turns, and how much a scaling slows it."""

from collections.abc import Sequence

import numpy as np

from models.plots.picture import (
    Axis,
    AxisScale,
    Curve,
    LinePanel,
    Mark,
    Picture,
)
from models.plots.subject import Float64s, Subject, Waves, description, subtitle, title

FULL_TURN = 2 * np.pi


def spectrum(subjects: Sequence[Subject], axis: AxisScale | None = None) -> Picture:
    """Return the picture of the radians per position of each channel, scaled and unscaled, and their ratio."""
    all_waves = [subject.waves() for subject in subjects]
    max_pairs = max(len(waves.inverse_frequency) for waves in all_waves)
    x = Axis("channel pair (index)", limits=(-0.5, max_pairs - 0.5))
    panels = [_frequencies(x, subjects, all_waves)]
    if slowed := [
        _slowed(subject, waves, tone) for tone, (subject, waves) in _numbered(subjects, all_waves) if waves.scaled
    ]:
        highest = max(2.0, *(float(np.nanmax(curve.y, initial=0.0)) for curve in slowed))
        y = Axis("slowed down by\n(times)", "log2", limits=(0.9, highest * 1.15))
        panels.append(LinePanel(x, y, tuple(slowed)))
    return Picture(
        title("frequency of each channel pair", subjects),
        subtitle(subjects),
        description("Inverse frequency and wavelength by channel pair, fastest first.", subjects),
        tuple((panel,) for panel in panels),
        height=600 if slowed else 440,
        notes=tuple(
            f"{unrotated} pairs never turn and are not drawn" + (f" ({subject.label})" if len(subjects) > 1 else "")
            for _, (subject, waves) in _numbered(subjects, all_waves)
            if (unrotated := int((waves.inverse_frequency == 0).sum()))
        ),
    )


def _numbered(subjects: Sequence[Subject], all_waves: Sequence[Waves]) -> list[tuple[int, tuple[Subject, Waves]]]:
    return list(enumerate(zip(subjects, all_waves, strict=True)))


def _frequencies(x: Axis, subjects: Sequence[Subject], all_waves: Sequence[Waves]) -> LinePanel:
    drawn = {tuple(waves.inverse_frequency.tolist()) for waves in all_waves}
    unscaled_curves = {
        tuple(waves.unscaled.tolist()): waves.unscaled for waves in all_waves if waves.unscaled is not None
    }
    unscaled_only = [unscaled for values, unscaled in unscaled_curves.items() if values not in drawn]
    trained = sorted({waves.trained_context for waves in all_waves if waves.trained_context})
    return LinePanel(
        x,
        Axis("inverse frequency\n(radians per position)", "log"),
        (
            *(Curve("unscaled", np.arange(len(values)), values, tone=None) for values in unscaled_only),
            *(
                Curve(
                    "scaled" if unscaled_only and len(subjects) == 1 else subject.label,
                    np.arange(len(waves.inverse_frequency)),
                    _rotating(waves.inverse_frequency),
                    tone=tone,
                )
                for tone, (subject, waves) in _numbered(subjects, all_waves)
            ),
        ),
        tuple(Mark("y", FULL_TURN / length, f"one turn in the trained {length:,} tokens") for length in trained),
        (FULL_TURN, Axis("wavelength (tokens per turn)", "log")),
    )


def _slowed(subject: Subject, waves: Waves, tone: int) -> Curve:
    unscaled = waves.inverse_frequency if waves.unscaled is None else waves.unscaled
    return Curve(subject.label, np.arange(len(unscaled)), unscaled / _rotating(waves.inverse_frequency), tone=tone)


def _rotating(frequencies: Float64s) -> Float64s:
    return np.where(frequencies > 0, frequencies, np.nan)
