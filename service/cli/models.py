"""`inlay export`, `adopt`, `verify`, `list`, `describe` and `create`: exported models and their checkpoints."""

import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from typer import BadParameter

from service.cli.console import fail, progress_bars, reporting

if TYPE_CHECKING:
    from models.artifacts.card import Card
    from models.artifacts.int8_encoder import Int8Options


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportOptions:
    """Arguments and options of `inlay export`."""

    checkpoint: str
    out: Path | None = None
    name: str | None = None
    pooling: str | None = None
    dtype: Literal["keep", "float32", "float16", "bfloat16", "int8"] = "keep"
    side: Literal["text", "vision", "encoder", "decoder"] | None = None
    route: str | None = None
    assume: bool = False
    encoder: Literal["none", "float32", "int8"] | None = None
    attention: Literal["causal", "bidirectional"] | None = None
    calibration: Path | None = None
    min_cosine: float | None = None
    reranker: str | None = None
    alias: list[str] | None = None
    base: str | None = None
    adapter: list[str] | None = None

    def int8(self) -> "Int8Options | None":
        """Return the options of an int8 encoder, None for others; end the command for options that the dtype lacks."""
        from models.artifacts.int8_encoder import MIN_COSINE, Int8Options

        if self.encoder == "int8":
            return Int8Options(self.calibration, MIN_COSINE if self.min_cosine is None else self.min_cosine)
        if self.calibration is not None or self.min_cosine is not None:
            fail("--calibration and --min-cosine are of --encoder int8: add it, or leave them out")
        return None


@reporting
def export(options: ExportOptions) -> None:
    """Export a Hugging Face checkpoint or a GGUF file, so that it can be served."""
    from models.artifacts.export import export
    from service.cli.checkpoints import adapters_of

    out = options.out or _in_store(options.checkpoint, options.name)
    given = ("name", "pooling", "dtype", "side", "route", "assume", "attention", "reranker", "base")
    with progress_bars() as progress:
        card = export(
            options.checkpoint,
            out,
            **{name: getattr(options, name) for name in given},
            encoder={"none": False, "float32": True}.get(options.encoder or ""),
            int8=options.int8(),
            aliases=options.alias or (),
            adapters=adapters_of(options.adapter or ()),
            progress=progress,
        )
    _report(card, out)


@reporting
def adopt(
    source: str,
    out: Path | None = None,
    *,
    name: str | None = None,
    file: str | None = None,
    pooling: str | None = None,
    compare: bool | None = None,
) -> None:
    """Make an exported model of the ONNX files that a folder or hub repository already holds, byte for byte."""
    from models.artifacts.adoption import adopt

    out, given = out or _in_store(source, name), {"name": name, "file": file, "pooling": pooling}
    with progress_bars() as progress:
        card = adopt(source, out, **given, compare=compare, progress=progress)
    _report(card, out)


@reporting
def verify(folder: Path) -> None:
    """Hash an exported model's files and compare its graphs with the reference again."""
    from models.artifacts.verification import verify

    folder = model_of_store(folder)
    with progress_bars() as progress:
        differences = verify(folder, progress)
    print(f"{folder}: every file is the one its card names; largest difference by output:")
    for output, difference in differences.items():
        print(f"  {output:<24}{difference:.1e}")


@reporting
def list_models(store: Path | None = None) -> None:
    """List the exported models of the store, and the model families that can be exported."""
    from models.artifacts.description import families
    from models.artifacts.description import store as models_of

    print(models_of(store or _store()))
    print()
    print(families())


@reporting
def describe(what: str) -> None:
    """Describe the parts of a model_type, an exported model or a checkpoint."""
    from models.artifacts.description import describe, is_model_type

    named = str(model_of_store(Path(what))) if "/" not in what else what
    of_type = [what] if is_model_type(what) else []
    of_folder = [] if of_type and named == what else [named]
    print("\n\n".join(map(describe, [*of_folder, *of_type])))


@dataclass(frozen=True, kw_only=True, slots=True)
class CreateOptions:
    """Arguments and options of `inlay create`."""

    checkpoint: Path
    model_type: str | None = None
    config: Path | None = None
    whole: bool = False
    vocab_size: int | None = None
    hidden_size: int | None = None
    dtype: Literal["float32", "float16", "bfloat16"] | None = None
    init: str = "normal"
    std: float | None = None
    seed: int = 0
    labels: int | None = None
    base: Path | None = None


@reporting
def create(options: CreateOptions) -> None:
    """Write a checkpoint of random weights, for measuring: a family's input layer, a whole model, or a head."""
    from models.artifacts import random_checkpoint

    if options.base is not None:
        made = _with_head(options, options.base)
    elif options.model_type is None and options.config is None:
        raise BadParameter("give --model-type NAME, or --config FILE whose config names one")
    else:
        values = asdict(options)
        folder, _ = values.pop("checkpoint"), values.pop("base")
        with progress_bars() as progress:
            random_checkpoint.create(folder, **values, progress=progress)
        made = "random weights"
    print(f"{options.checkpoint}: {made}; next: inlay serve --model {options.checkpoint}")


def _with_head(options: CreateOptions, base: Path) -> str:
    """Write a copy of a checkpoint with a random head; return a description of it."""
    from models.artifacts.random_checkpoint import add_head

    weights = (options.model_type, options.config, options.whole, options.vocab_size, options.hidden_size)
    if options.labels is None or any((*weights, options.dtype)):
        raise BadParameter("--base goes with --labels, --init, --std and --seed alone")
    add_head(options.checkpoint, base, options.labels, init=options.init, std=options.std, seed=options.seed)
    return f"{base} with a head of random weights"


def _store() -> Path:
    if named := os.environ.get("INLAY_STORE"):
        return Path(named)
    from service.settings import default_store

    return default_store()


def _in_store(checkpoint: str, name: str | None) -> Path:
    """Return the folder of the store that a checkpoint is exported to if no folder is named."""
    from service.cli.checkpoints import name_of

    return _store() / (name or name_of(checkpoint))


def model_of_store(folder: Path) -> Path:
    """Return the folder of the store's model of this name, unless such a folder lies here; else the path itself."""
    named = _store() / folder
    return named if len(folder.parts) == 1 and not folder.exists() and named.is_dir() else folder


def _report(card: "Card", out: Path) -> None:
    from models.artifacts import description

    print(f"{out}: model {card.name} (model_type {card.family}), {card.bytes / 1e6:.1f} MB")
    print(f"outputs: {', '.join(card.outputs)}")
    print(description.comparison_summary(card))
    if blocks := description.blocks_summary(card):
        print(blocks)
    if precision := description.encoder_precision(card):
        print(precision)
    for line in description.adoption_summary(card):
        print(line)
    if read_from := description.provenance(card):
        print(f"\n{read_from}\n")
    for warning in description.warnings(card):
        print(f"warning: {warning}", file=sys.stderr)
    for sentence in card.assumed:
        print(f"assumed: {sentence}")
    if card.tokenizer is None and card.vocab_size:
        print("no tokenizer.json: this model takes token ids only")
    in_store = out.absolute().parent == _store().absolute()
    serve = "inlay serve" if in_store else f"inlay serve --store {out.parent}"
    print(f"next: {serve}; a server that runs already serves it after a restart, or soon with --watch-store SECONDS")
