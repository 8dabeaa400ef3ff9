"""config.json seen through a family's names and defaults: typed values, or one clear refusal. Reads no file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from models.errors import BadCheckpoint

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Config:
    """The values of one config.json, by the usual keys (`hidden_size`); a family's own (`n_embd`) stand for them."""

    data: Mapping[str, Any]
    defaults: Mapping[str, Any]
    names: Mapping[str, str]

    def get(self, key: str) -> Any:
        """The value under the family's own name, else the usual one, else the family's default, else None."""
        own = self.names.get(key, key)
        for source in (self.data, self.defaults):
            for name in (own, key):
                if name in source:
                    return source[name]
        return None

    def inside(self, path: str) -> Any:
        """The value at a dotted path, `attn_config.alibi`; None where it is not there; raises BadCheckpoint."""
        outer, _, inner = path.rpartition(".")
        if not outer:
            return self.get(inner)
        held = self.get(outer)
        if not isinstance(held, Mapping | None):
            raise self._refusal(outer, held, "an object, or null")
        return (held or {}).get(inner)

    def holds(self, condition: str) -> bool:
        """Whether "key" is true, "key>1" above 1, or "key=word" that word; raises BadCheckpoint."""
        key, above, least = condition.partition(">")
        if above:
            return self.count(key, 0) > int(least)
        key, equal, word = condition.partition("=")
        return self.get(key) == word if equal else bool(self.get(key))

    def table_width(self) -> int:
        """Channels of the tables before the input layer's Linear: hidden_size where the family or config has none."""
        return self.count("table_width") if self.get("table_width") is not None else self.count("hidden_size")

    def count(self, key: str, least: int = 1) -> int:
        """A whole number of at least `least`; raises BadCheckpoint."""
        value = self.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 31:
            raise self._refusal(key, value, f"a whole number from {least}")
        return value

    def number(self, key: str) -> float:
        """A finite number of at least 0; raises BadCheckpoint."""
        value = self.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not (math.isfinite(value) and value >= 0):
            raise self._refusal(key, value, "a number from 0")
        return float(value)

    def choice(self, key: str, allowed: Mapping[str, Value]) -> Value:
        """What `allowed` makes of the value; raises BadCheckpoint."""
        value = self.get(key)
        if not isinstance(value, str) or value not in allowed:
            raise self._refusal(key, value, f"one of {', '.join(allowed)}")
        return allowed[value]

    def pad_id(self) -> int | None:
        """pad_token_id, inside the vocabulary; None where the model has none. -1 is how old Llama files say none."""
        if (value := self.get("pad_token_id")) is None or value == -1:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < self.count("vocab_size"):
            raise self._refusal(
                "pad_token_id", value, f"null or an id of the vocabulary, 0 to {self.count('vocab_size') - 1}"
            )
        return value

    def heads(self) -> int:
        """num_attention_heads, which must divide hidden_size; raises BadCheckpoint."""
        heads, hidden = self.count("num_attention_heads"), self.count("hidden_size")
        if hidden % heads:
            raise BadCheckpoint(f"config.json says {heads} attention heads, which do not divide hidden_size {hidden}")
        return heads

    def head_dim(self) -> int:
        """head_dim where it is given, else hidden_size / num_attention_heads; raises BadCheckpoint."""
        return self.count("head_dim") if self.get("head_dim") is not None else self.count("hidden_size") // self.heads()

    def _refusal(self, key: str, value: Any, allowed: str) -> BadCheckpoint:
        return BadCheckpoint(f"config.json says {self.names.get(key, key)} {value!r}; it must be {allowed}")
