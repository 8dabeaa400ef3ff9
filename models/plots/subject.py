"""Subject, one table to draw with its name and positions, and the titles and legends of subjects.

The words of legends are in subject.json: names of schemes and arithmetics; the facts that distinguish two tables of a
scheme, as text; texts that have other words; parameters of scalings; schemes whose values the arithmetic changes.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.errors import BadEncoding
from models.plots.picture import Colours, HeatPanel, LinePanel, Picture
from models.positions.rope.scaling_parameters import TRAINED
from models.positions.table import Output, Positions, Table

Float64s = NDArray[np.float64]
MAX_LABEL = 160


@dataclass(frozen=True, slots=True, eq=False)
class Waves:
    """The frequencies of a table whose channels rotate.

    Attributes:
        inverse_frequency: float64 (n,), radians per position; 0: the channel does not rotate.
        unscaled: the same before any scaling; None: there is no scaling.
        attention_factor: factor of cos and sin.
        trained_context: number of positions that the model was trained with; None: not known.
    """

    inverse_frequency: Float64s
    unscaled: Float64s | None = None
    attention_factor: float = 1.0
    trained_context: int | None = None

    @property
    def scaled(self) -> bool:
        """Whether there is an unscaled form to compare with."""
        return self.unscaled is not None


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """One table to draw.

    Attributes:
        table: the table.
        name: name in titles and legends; "": scheme and parameters, from the table's facts.
        positions: positions of the table's rows (encodings) or queries (biases, masks); None: from 0, or from `past`.
        twin: the same table in the other arithmetic; the figure `error` draws their difference.
        shared: parameters that it has in common with all other subjects of its picture, as one line; see `distinct`.
    """

    table: Table
    name: str = ""
    positions: Positions | None = None
    twin: Table | None = None
    shared: str = ""

    @property
    def scheme(self) -> str:
        """The table's scheme."""
        return self.table.scheme

    @property
    def label(self) -> str:
        """The subject's name in titles and legends, one line."""
        line = self.name or described(self.table)
        return "".join(letter if letter.isprintable() else " " for letter in line)[:MAX_LABEL]

    def output(self, *names: str) -> Output:
        """Return the first of these outputs that the table has.

        Raises:
            BadEncoding: the table has none of them.
        """
        for name in names:
            if name in self.table.outputs:
                return self.table.outputs[name]
        has = ", ".join(self.table.outputs)
        raise BadEncoding(f"{self.label}: this figure draws {' or '.join(names)}; the table has {has}")

    def row_positions(self, count: int) -> Positions:
        """Return the positions of `count` rows or queries.

        Raises:
            BadEncoding: another number of positions was given.
        """
        if self.positions is None:
            past = int(self.table.facts.get("past") or 0)
            return range(past, past + count)
        if len(self.positions) != count:
            raise BadEncoding(f"{self.label}: {len(self.positions)} positions were given for {count} rows")
        return self.positions

    def waves(self) -> Waves:
        """Return the table's frequencies, with those that it would have unscaled.

        Raises:
            BadEncoding: the table has no frequencies.
        """
        facts = self.table.facts
        if "inverse_frequency" not in facts:
            raise BadEncoding(f"{self.label}: a {self.scheme} table has no frequencies to draw")
        inverse_frequency = np.asarray(facts["inverse_frequency"], np.float64)
        trained = (facts.get("parameters") or {}).get(TRAINED) or facts.get("max_position_embeddings")
        factor = float(facts.get("attention_factor", 1.0))
        return Waves(
            inverse_frequency, _unscaled(facts, len(inverse_frequency)), factor, int(trained) if trained else None
        )


def _unscaled(facts: Mapping[str, Any], count: int) -> Float64s | None:
    """Return theta^(-2i/r) over as many pairs as the scaled table has; None where the table is not scaled."""
    if facts.get("rope_type", "default") == "default":
        return None
    return np.asarray(float(facts["theta"]) ** (-np.arange(count) / count))


_WORDS: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
SCHEMES: dict[str, str] = _WORDS["schemes"]


def described(table: Table) -> str:
    """Return model, scheme and parameters in one line, from the table's facts."""
    owner = _owner(table)
    parameters = ", ".join(_words(table))
    return f"{owner}: {parameters}" if owner else parameters


def _owner(table: Table) -> str:
    return " ".join(str(table.facts[fact]) for fact in ("model", "preset", "layer_type") if table.facts.get(fact))


def _words(table: Table) -> list[str]:
    """Return the scheme and its parameters, each as a few words."""
    facts = table.facts
    if table.scheme == "mask":
        return [str(facts["description"])]
    words = [template.format(_format(facts[fact])) for fact, template in _WORDS["facts"].items() if facts.get(fact)]
    words = [word for word in (_WORDS["instead"].get(word, word) for word in words) if word]
    if "slopes" in facts:
        words.insert(1, f"{len(facts['slopes'])} heads")
    if "bidirectional" in facts:
        words.append("bidirectional" if facts["bidirectional"] else "keys before the query only")
    scaling = facts.get("parameters") or {}
    words += [
        _WORDS["parameters"].get(name, f"{name.replace('_', ' ')} {{}}").format(_format(value))
        for name, value in scaling.items()
        if np.isscalar(value)
    ]
    return [SCHEMES.get(table.scheme, table.scheme), *words]


def _format(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "×".join(_format(item) for item in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{int(value):,}" if float(value).is_integer() and value < 1e12 else f"{value:,.6g}"


def picture_of(
    subjects: Sequence[Subject],
    what: str,
    about: str,
    panels: Sequence[Sequence[LinePanel | HeatPanel]],
    height: int,
    notes: Iterable[str] = (),
    colours: Colours | None = None,
    arithmetic: bool = True,
) -> Picture:
    """Return a picture of subjects, with its title, subtitle and alternative text.

    Args:
        subjects: subjects to draw; grids of several are told apart by letters, which the picture's keys explain.
        what: what is drawn of the subjects, for the title.
        about: the first sentence of the alternative text.
        panels: rows of panels.
        height: height in pixels, for a picture 800 pixels wide.
        notes: lines at the bottom, each once.
        colours: the scale of its grids; None: there is none.
        arithmetic: whether the subtitle of a single subject names its arithmetic.
    """
    schemes = dict.fromkeys(SCHEMES.get(subject.scheme, subject.scheme) for subject in subjects)
    return Picture(
        f"{' and '.join(schemes)}: {what}",
        _subtitle(subjects, arithmetic),
        f"{about} Drawn: {'; '.join(subject.label for subject in subjects)}.",
        tuple(map(tuple, panels)),
        height,
        colours,
        () if colours is None else legend_keys(subjects),
        tuple(dict.fromkeys(notes)),
    )


def _subtitle(subjects: Sequence[Subject], arithmetic: bool) -> str:
    """Return the parameters of a single subject, or those that several share: the others stand in their labels."""
    if len(subjects) > 1:
        return subjects[0].shared
    label = subjects[0].label
    names_arithmetic = arithmetic and subjects[0].scheme in _WORDS["rounded"]
    return f"{label} · {_WORDS['arithmetic'][subjects[0].table.arithmetic]}" if names_arithmetic else label


def distinct(subjects: Sequence[Subject]) -> list[Subject]:
    """Return the subjects of one picture with labels that differ and are short.

    Parameters that all have in common move to `shared`. Labels that are still the same get the arithmetic, and a
    number where that is the same too.
    """
    if len(subjects) == 1:
        return list(subjects)
    shared, labels = _split(subjects)
    if len(set(labels)) < len(labels):
        arithmetic = [_WORDS["arithmetic"][subject.table.arithmetic] for subject in subjects]
        if len(set(arithmetic)) > 1:
            labels = [f"{label}, {words}" for label, words in zip(labels, arithmetic, strict=True)]
    numbered = [
        f"{label} ({labels[: place + 1].count(label)})" if labels.count(label) > 1 else label
        for place, label in enumerate(labels)
    ]
    return [replace(subject, name=name, shared=shared) for subject, name in zip(subjects, numbered, strict=True)]


def _split(subjects: Sequence[Subject]) -> tuple[str, list[str]]:
    """Return the parameters that all subjects share, and the label of each without them."""
    labels = [subject.label for subject in subjects]
    if any(subject.name or _owner(subject.table) or subject.scheme == "mask" for subject in subjects):
        return "", labels
    words = [_words(subject.table) for subject in subjects]
    shared = [word for word in words[0][1:] if all(word in others for others in words)]
    differing = [[word for word in each if word not in shared] for each in words]
    if len({each[0] for each in differing}) == 1 and all(len(each) > 1 for each in differing):
        differing = [each[1:] for each in differing]  # the title names the scheme
    return ", ".join(shared), [", ".join(each) for each in differing]


def panel_letters(subjects: Sequence[Subject]) -> tuple[str, ...]:
    """Return the letter above the grids of each subject: a, b, c; an empty text for a single one."""
    return ("",) if len(subjects) == 1 else tuple("abcdefgh"[: len(subjects)])


def legend_keys(subjects: Sequence[Subject]) -> tuple[str, ...]:
    """Return the lines that explain the letters; () for a single subject."""
    if len(subjects) == 1:
        return ()
    return tuple(
        f"{letter}   {subject.label}" for letter, subject in zip(panel_letters(subjects), subjects, strict=True)
    )


def panel_title(*words: str) -> str:
    """Return a grid's title from its letter, output and head, without the empty ones."""
    return " · ".join(word for word in words if word)
