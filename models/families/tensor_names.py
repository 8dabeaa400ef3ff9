"""Finds a family's tensors in a checkpoint's file: prefixes, old spellings, tied tensors."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from models.checkpoints.checkpoint import Checkpoint
from models.errors import BadCheckpoint
from models.families.config import Config
from models.families.family import Family, TensorPart
from models.families.tensor_parts import StoredPart, stored_part
from models.recipes.steps import tensors

ORIGINAL, LORA_A, LORA_B = (f".parametrizations.weight.{part}" for part in ("original", "0.lora_A", "0.lora_B"))
_BLOCK = re.compile(r"(?<=\.)\d+(?=\.)")
_EXPERT = re.compile(r"(?<=\.experts\.)\d+(?=\.)")
TensorNaming = Callable[[str], str]  # a name of the base class -> that of the file


def candidates(family: Family, name: str) -> tuple[str, ...]:
    """Return every name, without prefix, under which a file may hold a tensor of the base class, the preferred first.

    The last are how files converted from TensorFlow long ago spell a norm, and how torch calls a weight with adapters.
    """
    old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    names = (*family.preferred_names.get(name, ()), name, *family.fallback_names.get(name, ()), old)
    return tuple(dict.fromkeys((*names, *_with_adapters(name))))


def _with_adapters(name: str) -> tuple[str, ...]:
    return (name.removesuffix(".weight") + ORIGINAL,) if name.endswith(".weight") else ()


def parts(family: Family, name: str) -> tuple[str | TensorPart, ...]:
    """Return the other places where files may hold a tensor of the blocks, as full names without prefix."""
    number = match.group() if (match := _BLOCK.search(name)) else ""
    expert = match.group() if (match := _EXPERT.search(name)) else "0"
    stem, _, kind = _EXPERT.sub("{expert}", _BLOCK.sub("{block}", name, count=1)).rpartition(".")

    def named(place: str | TensorPart) -> str | TensorPart:
        if isinstance(place, str):
            return f"{place.replace('{block}', number).replace('{expert}', expert)}.{kind}"
        whole = place.stem.replace("{block}", number)
        place = replace(place, index=int(number)) if place.by_block else place
        return replace(place, stem=whole if place.experts else f"{whole}.{kind}", expert=int(expert))

    return tuple(named(place) for place in family.stored.get(stem, ()))


def find_prefix(family: Family, checkpoint: Checkpoint, config: Config | None = None) -> str:
    """Return the file's prefix before the base class's tensor names, found by its word table.

    Args:
        family: family whose word table is looked for.
        checkpoint: the file.
        config: if several prefixes fit, those whose table has this config's vocabulary and width are preferred.

    Raises:
        BadCheckpoint: there is no word table, or several and none under the family's usual prefix.
    """
    stem = tensors(family.input_layer)[0]
    by_prefix = _prefixes(candidates(family, stem), checkpoint)
    if len(by_prefix) > 1 and config is not None:
        by_prefix = {prefix: name for prefix, name in by_prefix.items() if _fits(checkpoint, name, config)} or by_prefix
    for prefix in (family.prefix, ""):
        if prefix in by_prefix:
            return prefix
    if len(by_prefix) == 1:
        return next(iter(by_prefix))
    held = f"several: {', '.join(sorted(by_prefix.values()))}" if by_prefix else "none"
    raise BadCheckpoint(
        f"{checkpoint.folder} should hold the word table {family.prefix + stem!r} (any one prefix will do), "
        f"but holds {held}: {_what_helps(checkpoint)}"
    )


def _what_helps(checkpoint: Checkpoint) -> str:
    """Return what helps where a tensor is missing."""
    quantized = checkpoint.config.get("quantization_config")
    if isinstance(quantized, Mapping):
        how = str(quantized.get("quant_method", "another form"))[:40]
        return f"config.json says quantization_config, {how}; take the checkpoint before it was quantised, or its GGUF"
    return "download config.json and the weights again, from one place"


def _prefixes(stems: tuple[str, ...], checkpoint: Checkpoint) -> dict[str, str]:
    """Return prefix -> the tensor by_prefix under it, by the first of the stems that exists under that prefix."""
    by_prefix: dict[str, str] = {}
    for stem in stems:
        for name in checkpoint.tensors:
            if name == stem or name.endswith("." + stem):
                by_prefix.setdefault(name.removesuffix(stem), name)
    return by_prefix


def _fits(checkpoint: Checkpoint, name: str, config: Config) -> bool:
    return checkpoint.tensors[name].shape == (config.get("vocab_size"), config.table_width())


def checkpoint_naming(
    family: Family,
    prefix: str,
    checkpoint: Checkpoint,
    fused: tuple[Config, dict[str, StoredPart]] | None = None,
) -> TensorNaming:
    """Return the function that maps a tensor name of the base class to the file's.

    The function raises BadCheckpoint for a tensor that the file does not hold. A tensor that is part of another keeps
    the base class's name.

    Args:
        family: family of the tensors.
        prefix: prefix of the file's names.
        checkpoint: the file.
        fused: the sizes, and where parts of other tensors are noted by name; None: such are not looked for.
    """

    def name_in_file(name: str) -> str:
        held, part = place_of(family, prefix, checkpoint, name, fused is not None)
        if part is None or fused is None:
            return held
        config, found = fused
        found[prefix + name] = stored_part(prefix + name, part, checkpoint.tensors[held], config)
        return prefix + name

    return name_in_file


def place_of(
    family: Family, prefix: str, checkpoint: Checkpoint, name: str, fused: bool
) -> tuple[str, TensorPart | None]:
    """Return the file's tensor that is or, if `fused`, contains a tensor of the base class, and the part of it.

    Raises:
        BadCheckpoint: the file holds none.
    """
    for place in parts(family, name) if fused else ():
        inside, part = (place, None) if isinstance(place, str) else (place.stem, place)
        for held in (inside, *_with_adapters(inside)):
            if prefix + held in checkpoint.tensors:
                return prefix + held, part
    for candidate in candidates(family, name):
        if prefix + candidate in checkpoint.tensors:
            return prefix + candidate, None
    raise BadCheckpoint(
        f"{checkpoint.folder} holds no tensor {prefix + name!r}, which its model_type {checkpoint.model_type!r} needs: "
        f"{_what_helps(checkpoint)}"
    )
