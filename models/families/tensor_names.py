"""What a checkpoint's file calls the tensors of a family: prefixes, old spellings, tied tensors. Reads no tensor."""

from collections.abc import Callable

from models.checkpoints.checkpoint import Checkpoint
from models.checkpoints.config import Config
from models.errors import BadCheckpoint
from models.families import Family
from models.families.recipe import tensors

Naming = Callable[[str], str]  # a name of the base class -> that of the file


def candidates(family: Family, name: str) -> tuple[str, ...]:
    """Every name, without prefix, that a file may hold a tensor of the base class under; the first there counts.

    The last is how files converted from TensorFlow long ago spell a norm.
    """
    old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    return tuple(dict.fromkeys((*family.held_as.get(name, ()), name, *family.else_as.get(name, ()), old)))


def find_prefix(family: Family, checkpoint: Checkpoint, config: Config | None = None) -> str:
    """What this file puts before the base class's tensor names, found by its word table.

    config   where several fit, those whose table has its vocabulary and width are looked at first
    raises   BadCheckpoint: no word table, or several and none under the family's usual name
    """
    stem = tensors(family.input_layer)[0]
    found = _prefixes(candidates(family, stem), checkpoint)
    if len(found) > 1 and config is not None:
        found = {prefix: name for prefix, name in found.items() if _fits(checkpoint, name, config)} or found
    for prefix in (family.prefix, ""):
        if prefix in found:
            return prefix
    if len(found) == 1:
        return next(iter(found))
    held = f"several: {', '.join(sorted(found.values()))}" if found else "none"
    raise BadCheckpoint(
        f"{checkpoint.folder} should hold the word table {family.prefix + stem!r} (any one prefix will do), "
        f"but holds {held}"
    )


def _prefixes(stems: tuple[str, ...], checkpoint: Checkpoint) -> dict[str, str]:
    """Prefix -> the tensor found under it, by the first of the stems that is there at all under that prefix."""
    found: dict[str, str] = {}
    for stem in stems:
        for name in checkpoint.tensors:
            if name == stem or name.endswith("." + stem):
                found.setdefault(name.removesuffix(stem), name)
    return found


def _fits(checkpoint: Checkpoint, name: str, config: Config) -> bool:
    return checkpoint.tensors[name].shape == (config.get("vocab_size"), config.table_width())


def on_disk(family: Family, prefix: str, checkpoint: Checkpoint) -> Naming:
    """What the file calls each tensor of the base class; the naming raises BadCheckpoint for one it does not hold."""

    def held(name: str) -> str:
        for candidate in candidates(family, name):
            if prefix + candidate in checkpoint.tensors:
                return prefix + candidate
        raise BadCheckpoint(
            f"{checkpoint.folder} holds no tensor {prefix + name!r}, which its model_type "
            f"{checkpoint.model_type!r} needs"
        )

    return held
