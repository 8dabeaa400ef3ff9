"""What a picture says about its subjects: titles, subtitles, descriptions. Measures nothing."""

from collections.abc import Sequence

from models.plots.subject import SCHEMES, Subject

_ROUNDED = ("rope", "mrope", "axial_rope", "sinusoidal", "sinusoidal_grid", "alibi")  # where arithmetic tells
_ARITHMETIC = {"exact": "exact arithmetic", "parity": "float32 arithmetic (parity)"}


def title(what: str, subjects: Sequence[Subject]) -> str:
    """The schemes and what is drawn of them."""
    schemes = dict.fromkeys(SCHEMES.get(subject.scheme, subject.scheme) for subject in subjects)
    return f"{' and '.join(schemes)}: {what}"


def subtitle(subjects: Sequence[Subject], arithmetic: bool = True) -> str:
    """Parameters of a lone subject; several are named in the legend or above their grids."""
    if len(subjects) > 1:
        return ""
    label = subjects[0].label
    told = arithmetic and subjects[0].scheme in _ROUNDED
    return f"{label} · {_ARITHMETIC[subjects[0].table.arithmetic]}" if told else label


def letters(subjects: Sequence[Subject]) -> tuple[str, ...]:
    """What stands above the grids of each subject: a, b, c; nothing of a lone one."""
    return ("",) if len(subjects) == 1 else tuple("abcdefgh"[: len(subjects)])


def lettered(subjects: Sequence[Subject]) -> tuple[str, ...]:
    """What the letters stand for."""
    if len(subjects) == 1:
        return ()
    return tuple(f"{letter}   {subject.label}" for letter, subject in zip(letters(subjects), subjects, strict=True))


def joined(*words: str) -> str:
    """A grid's title of its letter, output or head."""
    return " · ".join(word for word in words if word)


def description(what: str, subjects: Sequence[Subject]) -> str:
    """For those who do not see the picture."""
    return f"{what} Drawn: {'; '.join(subject.label for subject in subjects)}."
