"""Reads durations as Ollama writes them."""

import math
import re

UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER, _PART = re.compile(r"\d+(?:\.\d+)?"), re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_PARTS = re.compile(f"(?:{_PART.pattern})+")


def duration_seconds(value: object) -> object:
    """Return seconds of a duration as Ollama reads it: a number, `5m`, `1h30m`; infinity if it is negative.

    Raises:
        ValueError: it is a text of another form.

    Source: ollama 0.13, api/types.go and envconfig; Go's time.ParseDuration.
    """
    if isinstance(value, str):
        sign, text = value.strip()[:1] == "-", value.strip().lstrip("+-")
        if not _NUMBER.fullmatch(text) and not _PARTS.fullmatch(text):
            raise ValueError(f"it is {value[:40]!r}: write seconds, or a duration as 5m or 1h30m; -1: for ever")
        parts = [(text, "s")] if _NUMBER.fullmatch(text) else _PART.findall(text)
        value = sum([float(number) * UNITS[unit] for number, unit in parts]) * (-1 if sign else 1)
    return math.inf if isinstance(value, int | float) and value < 0 else value
