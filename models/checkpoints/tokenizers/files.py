"""`TokenizerFiles`: what tokenizer_config.json, special_tokens_map.json, added_tokens.json and config.json say.

Source: transformers 4.57, PreTrainedTokenizerBase._from_pretrained (which file stands above which).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from models.checkpoints.json_files import read_object, read_optional
from models.errors import BadCheckpoint

TOKENIZER, CONFIG, MAP, ADDED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True)
class TokenizerFiles:
    """The files beside a tokenizer's vocabulary.

    Attributes:
        folder: the folder they lie in.
        config: tokenizer_config.json; empty: there is none.
    """

    folder: Path
    config: Mapping[str, Any]

    @cached_property
    def class_name(self) -> str | None:
        """The class that the files name, without Fast; None: they name none."""
        name = self.config.get("tokenizer_class") or self._model.get("tokenizer_class")
        return name.removesuffix("Fast") if isinstance(name, str) else None

    @cached_property
    def model_type(self) -> str | None:
        """The model_type of config.json."""
        name = self._model.get("model_type")
        return name if isinstance(name, str) else None

    @cached_property
    def _model(self) -> dict[str, Any]:
        return read_optional(self.folder / "config.json")

    def flag(self, name: str, default: bool | None = None) -> bool | None:
        """Return a switch of tokenizer_config.json; `default` where it is left out or null.

        Raises:
            BadCheckpoint: it is neither true nor false.
        """
        value = self.config.get(name)
        if value is not None and not isinstance(value, bool):
            raise BadCheckpoint(f"{self.folder / CONFIG}: {name} is {str(value)[:40]!r}; it must be true or false")
        return default if value is None else value

    @cached_property
    def special(self) -> dict[str, str]:
        """The texts of the special tokens that the files name, by role (ROLES)."""
        said = read_optional(self.folder / MAP) | {name: value for name, value in self.config.items() if value}
        texts = {role: _text(said.get(f"{role}_token")) for role in ROLES}
        return {role: text for role, text in texts.items() if text is not None}

    @cached_property
    def added(self) -> list[tuple[int, str, dict[str, bool]]]:
        """The tokens beside the vocabulary, by their ids: id, text and flags of each."""
        path, decoder = self.folder / CONFIG, self.config.get("added_tokens_decoder") or {}
        if not decoder and (self.folder / ADDED).is_file():
            path, special = self.folder / ADDED, set(self.special.values())
            decoder = {id_: {"content": text, "special": text in special} for text, id_ in read_object(path).items()}
        try:
            return sorted((int(number), entry["content"], _flags(entry)) for number, entry in decoder.items())
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadCheckpoint(f"{path} does not list added tokens by their ids") from error


def read_files(folder: Path) -> TokenizerFiles:
    """Return the files of a checkpoint's folder."""
    return TokenizerFiles(folder, read_optional(folder / CONFIG))


def _text(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) and text else None


def _flags(entry: Mapping[str, Any]) -> dict[str, bool]:
    return {name: bool(entry[name]) for name in _FLAGS if name in entry}
