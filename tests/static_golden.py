"""Static embedding models saved by their own libraries, and the vectors these gave: golden/static.json says how."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

GOLDEN = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class StaticCase:
    """A folder, the library that judges it, and its vector for each text of `texts()`."""

    name: str
    library: str
    vectors: NDArray[np.float64]

    def __repr__(self) -> str:
        return self.name

    @property
    def folder(self) -> Path:
        """What the library saved."""
        return GOLDEN / "static" / self.name

    @property
    def tolerance(self) -> float:
        """Model2Vec rounds the mean of a float16 table, and each step before it, to float16; the rest is float32."""
        return 4e-3 if self.name == "model2vec_float16" else 1e-5


@cache
def origin() -> dict[str, Any]:
    """The file itself."""
    document: dict[str, Any] = json.loads((GOLDEN / "static.json").read_text(encoding="utf-8"))
    return document


def texts() -> list[str]:
    """The texts given to every model."""
    return list(origin()["texts"])


@cache
def static_cases() -> tuple[StaticCase, ...]:
    """All models, the transformer in a folder of its own among them."""
    return tuple(
        StaticCase(entry["name"], entry["library"], np.array(entry["vectors"])) for entry in origin()["models"]
    )


def static_case(name: str) -> StaticCase:
    """One model by name."""
    return next(case for case in static_cases() if case.name == name)


def difference(got: NDArray[Any], expected: NDArray[Any]) -> float:
    """The largest difference in units of max(1, |expected|)."""
    assert got.shape == expected.shape
    return float(np.max(np.abs(got - expected) / np.maximum(1.0, np.abs(expected))))
