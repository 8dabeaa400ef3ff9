"""What there is to say about families that see, their checkpoints and their exports, as lines for a terminal."""

from dataclasses import asdict
from typing import Any

from models.checkpoints.checkpoint import Checkpoint
from models.families.config import Config
from models.vision.families import FAMILIES, TOWERS
from models.vision.fitting import plan
from models.vision.image_spec import Image
from models.vision.preprocessor import FILTERS, Preprocessor
from models.vision.steps import Step, tensors

FEEDS = {"pixels": "pixel_values", "patches": "flattened patches", "features": "input_features"}


def rows() -> list[tuple[str, str, str]]:
    """(model_type, steps, what goes in) of every family, then of the checkpoints that hold one beside a text side."""
    found = []
    for name, family in FAMILIES.items():
        steps = " ".join(type(step).__name__ for step in family.steps)
        found.append((name, steps, FEEDS[family.feed]))
    for name, tower in TOWERS.items():
        found.append((f"{name} --side {tower.side}", f"as {tower.family}, or as its config says", ""))
    return found


def family(name: str) -> list[str]:
    """One family."""
    row = FAMILIES[name]
    return [
        f"{name}: tensors under {row.prefix!r} or any one prefix",
        f"reads      {FEEDS[row.feed]}",
        "input layer",
        *steps(row.steps),
    ]


def checkpoint(source: Checkpoint, found: tuple[str, Config]) -> list[str]:
    """A checkpoint folder; raises BadCheckpoint where it is no model of its family."""
    planned = plan(source, *found)
    size = sum(source.tensors[name].bytes for name in planned.shapes)
    return [
        f"{source.name}: a checkpoint whose images a {planned.model_type!r} reads",
        f"an export reads {len(planned.shapes)} of its {len(source.tensors)} tensors, {size:,} bytes",
        "input layer",
        *steps(planned.steps),
    ]


def image(seen: Image) -> dict[str, Any]:
    """What an exported model reads, by what it is called."""
    allowed = f"of {seen.fixed[0]}x{seen.fixed[1]} alone" if seen.fixed else "of any size"
    reads = {
        "pixels": f"pixel_values [{seen.width}, height, width] {allowed}, patches of {seen.patch}",
        "patches": f"pixel_values [patches, {seen.width}]{' and grid' if seen.takes_grid else ''}",
        "features": f"input_features [{seen.width}, {seen.frames}]",
    }
    return {"reads": reads[seen.feed], "pictures": _pictures(seen.preprocessor)}


def _pictures(how: Preprocessor | None) -> str:
    if how is None:
        return "not known how they become pixels: takes tensors"
    sized = f"{how.sizing} {how.sizes}, {FILTERS[how.resample]}" if how.sizing else "their size stays"
    cut = f", cut to {how.crop}" if how.crop else ""
    scaled = f", scaled by {how.scale:g}" if how.scale is not None else ""
    return f"{sized}{cut}{scaled}{f', mean {how.mean}, std {how.std}' if how.mean else ''}"


def steps(given: tuple[Step, ...]) -> list[str]:
    """Each step and what it reads."""
    return [f"  {type(step).__name__:<12} {', '.join(tensors((step,)))}{_how(step)}" for step in given]


def _how(step: Step) -> str:
    told = {key: value for key, value in asdict(step).items() if key in ("resize", "at", "stride") and value}
    return "".join(f" ({key} {value})" for key, value in told.items())
