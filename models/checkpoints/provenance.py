"""`Setting`: something that an export read from a checkpoint's files, and where it was read."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

WEIGHTS, RANDOM = "weights", "random"  # the name of a setting, and how its value begins where `inlay create` drew them


@dataclass(frozen=True, slots=True)
class Setting:
    """One entry of a card's `provenance`.

    Attributes:
        name: what is set, such as pooling.
        value: its value as a person reads it; "none" where there is none.
        origin: the file and key that say so, the option that was given, or what decides where no file does.
        disagrees: a place that says something else, and what, in a phrase; None: no file does.
    """

    name: str
    value: str
    origin: str
    disagrees: str | None = None

    @property
    def warning(self) -> str | None:
        """The disagreement as a sentence; None: there is none."""
        if self.disagrees is None:
            return None
        return f"{self.name} is {self.value} by {self.origin}, but {self.disagrees}"

    def against(self, origin: str, value: str | None) -> "Setting":
        """Return the setting beside what another place says of it; unchanged if that says the same, or nothing (None).

        The first place that says something else is the one that is named.
        """
        if value is None or value == self.value or self.disagrees is not None:
            return self
        return replace(self, disagrees=f"{origin} says {value}")


def random_weights(config: Mapping[str, Any]) -> tuple[Setting, ...]:
    """Return that the weights, or those of the head, are random, if `inlay create` wrote this config.json."""
    drawn = config.get("initialised")
    if not isinstance(drawn, dict):
        return ()
    return (Setting(WEIGHTS, f"{RANDOM}, of the head" if drawn.get("tensors") else RANDOM, "config.json: initialised"),)
