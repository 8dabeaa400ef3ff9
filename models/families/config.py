"""`Config`: a config.json read through a family's key names and defaults, with checked values."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from models.errors import BadCheckpoint
from models.recipes.steps import Activation

Value = TypeVar("Value")

# transformers' names (activations.ACT2CLS); prelu and xielu have parameters in the checkpoint: of text models, only
# Apertus has one of them
ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_10": "gelu_clipped",
    "linear": "identity",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "leaky_relu": "leaky_relu",
    "relu6": "relu6",
    "hardswish": "hardswish",
    "mish": "mish",
    "laplace": "laplace",
    "sqrtsoftplus": "sqrtsoftplus",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "quick_gelu",
    "relu2": "squared_relu",
}


@dataclass(frozen=True, slots=True)
class Config:
    """The values of one config.json under the usual keys (`hidden_size`), whatever the family calls them (`n_embd`).

    Every method that checks a value raises BadCheckpoint, which names the key, the value and what is allowed.

    Attributes:
        data: the JSON object.
        defaults: values of keys that `data` omits.
        names: usual key -> the family's own.
    """

    data: Mapping[str, Any]
    defaults: Mapping[str, Any]
    names: Mapping[str, str]

    def get(self, key: str) -> Any:
        """Return the value under the family's own name, else the usual one, else the family's default, else None."""
        family_key = self.names.get(key, key)
        for source in (self.data, self.defaults):
            for name in (family_key, key):
                if name in source:
                    return source[name]
        return None

    def inside(self, path: str) -> Any:
        """Return the value at a dotted path such as `attn_config.alibi`, or None where it is not there."""
        outer, _, inner = path.rpartition(".")
        return self.section(outer).get(inner) if outer else self.get(inner)

    def section(self, key: str) -> Mapping[str, Any]:
        """Return the object of a key; empty where there is none."""
        nested = self.get(key)
        if not isinstance(nested, Mapping | None):
            raise self.bad_value(key, nested, "an object, or null")
        return nested or {}

    def holds(self, condition: str) -> bool:
        """Return whether "key" is true, "key>1" above 1, or "key=word" that word."""
        key, above, least = condition.partition(">")
        if above:
            return self.count(key, 0) > int(least)
        key, equal, word = condition.partition("=")
        return self.get(key) == word if equal else bool(self.get(key))

    def table_width(self) -> int:
        """Return the width of the tables before the input layer's Linear; by default hidden_size."""
        return self.count("table_width") if self.get("table_width") is not None else self.count("hidden_size")

    def count(self, key: str, least: int = 1) -> int:
        """Return a whole number of at least `least`."""
        value = self.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 31:
            raise self.bad_value(key, value, f"a whole number from {least}")
        return value

    def number(self, key: str, above_zero: bool = False) -> float:
        """Return a finite number of at least 0, or above it; the key may be dotted, as for `inside`."""
        value = self.inside(key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and 0 <= value <= sys.float_info.max) or (above_zero and value == 0):
            raise self.bad_value(key, value, f"a number {'above' if above_zero else 'from'} 0")
        return float(value)

    def choice(self, key: str, allowed: Mapping[str, Value]) -> Value:
        """Return the item of `allowed` that the value names."""
        value = self.get(key)
        if not isinstance(value, str) or value not in allowed:
            raise self.bad_value(key, value, f"one of {', '.join(allowed)}")
        return allowed[value]

    def pad_id(self) -> int | None:
        """Return pad_token_id, inside the vocabulary; None where the model has none (old Llama files write -1)."""
        if (value := self.get("pad_token_id")) is None or value == -1:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < self.count("vocab_size"):
            raise self.bad_value(
                "pad_token_id", value, f"null or an id of the vocabulary, 0 to {self.count('vocab_size') - 1}"
            )
        return value

    def inner_width(self) -> int:
        """Return intermediate_size; null, or no such key, is four times hidden_size."""
        if self.get("intermediate_size") is None:
            return 4 * self.count("hidden_size")
        return self.count("intermediate_size")

    def heads(self) -> int:
        """Return num_attention_heads, which must divide hidden_size."""
        heads, hidden = self.count("num_attention_heads"), self.count("hidden_size")
        if hidden % heads:
            raise self.bad_value("num_attention_heads", heads, f"a number that divides hidden_size {hidden}")
        return heads

    def head_dim(self) -> int:
        """Return head_dim where it is given, else hidden_size / num_attention_heads."""
        return self.count("head_dim") if self.get("head_dim") is not None else self.count("hidden_size") // self.heads()

    def bad_value(self, key: str, value: Any, allowed: str) -> BadCheckpoint:
        """Return the error for a value under the family's own name of a key."""
        return BadCheckpoint(f"config.json says {self.names.get(key, key)} {value!r}; it must be {allowed}")
