"""Describes image families, their checkpoints and their exports as lines for a terminal."""

from dataclasses import asdict
from typing import Any

from models.checkpoints.checkpoint import Checkpoint
from models.families.config import Config
from models.recipes.steps import tensors
from models.vision.families import FAMILIES, TOWERS, Family
from models.vision.fitting import fit
from models.vision.image_spec import Image
from models.vision.preprocessor_config import FILTERS, Preprocessor
from models.vision.steps import Step

FEEDS = {"pixels": "pixel_values", "patches": "flattened patches", "features": "input_features"}


def rows() -> list[tuple[str, str, str]]:
    """Return (model_type, steps, input) of every family, then of the checkpoints that hold one beside a text side."""
    lines = []
    for name, family in FAMILIES.items():
        steps = " ".join(type(step).__name__ for step in family.steps)
        lines.append((name, steps, FEEDS[family.feed]))
    for name, tower in TOWERS.items():
        lines.append((f"{name} --side {tower.side}", f"as {tower.family}, or as its config says", ""))
    return lines


def family(name: str) -> list[str]:
    """Describe one family."""
    row = FAMILIES[name]
    return [
        f"{name}: tensors under {row.prefix!r} or any one prefix",
        f"reads      {FEEDS[row.feed]}",
        "input layer",
        *steps(row.steps),
        f"blocks: {'no: ' + row.uncovered if row.blocks is None else ' '.join(_names(row))}",
    ]


def _names(row: Family) -> list[str]:
    """Return the kinds of the steps of a block, and of those to an image's vector."""
    assert row.blocks is not None
    block = [type(step).__name__ for step in (*row.blocks.block, *row.blocks.after_blocks)]
    return [*block, *(f"-> {type(step).__name__}" for step in row.vector)]


def checkpoint(source: Checkpoint, tower: tuple[str, Config]) -> list[str]:
    """Return a description of a checkpoint folder; BadCheckpoint if it is not a model of its family."""
    fitted = fit(source, *tower)
    size = sum(source.tensors[name].bytes for name in fitted.shapes)
    return [
        f"{source.name}: a checkpoint whose images a {fitted.model_type!r} reads",
        f"an export reads {len(fitted.shapes)} of its {len(source.tensors)} tensors, {size:,} bytes",
        "input layer",
        *steps(fitted.steps),
        f"whole tower: {'no: ' + fitted.no_blocks_reason if fitted.no_blocks_reason else 'yes'}; "
        f"image_embedding: {f'{fitted.vector_width} wide' if fitted.vector else 'none'}",
    ]


def image(spec: Image) -> dict[str, Any]:
    """Return the inputs of an exported model, by a heading."""
    allowed = f"of {spec.fixed[0]}x{spec.fixed[1]} alone" if spec.fixed else "of any size"
    reads = {
        "pixels": f"pixel_values [{spec.width}, height, width] {allowed}, patches of {spec.patch}",
        "patches": f"pixel_values [patches, {spec.width}]{' and grid' if spec.takes_grid else ''}",
        "features": f"input_features [{spec.width}, {spec.frames}]",
    }
    unit = ", of unit length" if spec.normalize else ""
    vectors = {"image vectors": f"{spec.vector_width} wide{unit}"} if spec.vector else {}
    return {"reads": reads[spec.feed], "pictures": pictures(spec.preprocessor), **vectors}


def pictures(preprocessor: Preprocessor | None) -> str:
    """Return how a picture becomes pixels."""
    if preprocessor is None:
        return "not known how they become pixels: takes tensors"
    sized = (
        f"{preprocessor.sizing} {preprocessor.sizes}, {FILTERS[preprocessor.resample]}"
        if preprocessor.sizing
        else "their size stays"
    )
    cut = f", cut to {preprocessor.crop}" if preprocessor.crop else ""
    scaled = f", scaled by {preprocessor.scale:g}" if preprocessor.scale is not None else ""
    return f"{sized}{cut}{scaled}{f', mean {preprocessor.mean}, std {preprocessor.std}' if preprocessor.mean else ''}"


def steps(tower_steps: tuple[Step, ...]) -> list[str]:
    """Return each step and what it reads."""
    return [f"  {type(step).__name__:<12} {', '.join(tensors((step,)))}{_options(step)}" for step in tower_steps]


def _options(step: Step) -> str:
    options = {key: value for key, value in asdict(step).items() if key in ("resize", "at", "stride") and value}
    return "".join(f" ({key} {value})" for key, value in options.items())
