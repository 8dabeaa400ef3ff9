"""PRESETS: the RoPE of well-known public models, as the keys of their config.json; the rows are in presets.json.

Only the keys that determine the rotation are kept, as the model was published with them. `source` names the repository
of the config.json, or the transformers class whose defaults they are.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Preset:
    """One public configuration.

    Attributes:
        title: the model's usual name.
        source: where the values come from.
        config: a fragment of config.json that config.read accepts.
    """

    title: str
    source: str
    config: Mapping[str, Any]


PRESETS: dict[str, Preset] = {
    name: Preset(**row)
    for name, row in json.loads(Path(__file__).with_name("presets.json").read_text(encoding="utf-8")).items()
}
"""By name: lower case, words joined by hyphens."""
