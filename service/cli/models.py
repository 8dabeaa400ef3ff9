"""`inlay export`, `adopt`, `verify`, `list`, `describe` and `create`: exported models and their checkpoints."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, BadParameter, Option

from service.cli.console import progress_bars, reporting

if TYPE_CHECKING:
    from models.artifacts.card import Card
    from models.artifacts.int8_encoder import Int8Options

SOURCE = "folder, .gguf file, or hub id, org/name or org/name@revision"
Checkpoint = Annotated[str, Argument(metavar="CHECKPOINT", help=SOURCE, show_default=False)]
Out = Annotated[
    Path | None,
    Argument(metavar="OUT", help="folder to write; unset: NAME in the store, INLAY_STORE; an older export is replaced"),
]
Name = Annotated[str | None, Option(metavar="NAME", help="what the model is called; unset: the name of its folder")]
Pooling = Annotated[
    str | None,
    Option(
        metavar="MODE",
        help="a sentence-transformers mode, splade (sparse vectors of a masked language model) or none, instead of "
        "what the files say",
    ),
]
Force = Annotated[bool, Option("--force", help="replace an older export even where other files lie beside its own")]


@reporting
def export(
    checkpoint: Checkpoint,
    out: Out = None,
    name: Name = None,
    pooling: Pooling = None,
    dtype: Annotated[
        Literal["keep", "float32", "float16", "bfloat16", "int8", "int4"],
        Option(help="of the tables; keep: the checkpoint's own"),
    ] = "keep",
    side: Annotated[
        Literal["text", "vision", "encoder", "decoder"] | None,
        Option(help="which half of a checkpoint with two input layers (CLIP: text, vision; Whisper: encoder, decoder)"),
    ] = None,
    assume: Annotated[
        bool, Option("--assume", help="take an unknown model_type for a plain decoder, where its files fit one")
    ] = False,
    link: Annotated[
        bool, Option("--link", help="serve the tables in place, from the checkpoint's file, by a hard link")
    ] = False,
    encoder: Annotated[
        Literal["none", "float32", "int8"] | None,
        Option(
            help="of the blocks; none: input layer alone; int8: about three times as fast on CPU, see --min-cosine. "
            "unset: float32 where they are known and, of a decoder, where it pools"
        ),
    ] = None,
    attention: Annotated[
        Literal["causal", "bidirectional"] | None,
        Option(help="of a decoder exported whole: how it attends, instead of what config.json says"),
    ] = None,
    calibration: Annotated[
        Path | None,
        Option(
            metavar="FILE", help="of --encoder int8: texts like those it will get, one a line; unset: built-in texts"
        ),
    ] = None,
    min_cosine: Annotated[
        float | None,
        Option(
            metavar="NUMBER", help="of --encoder int8 to float32, over built-in texts; below it: refused. unset: 0.99"
        ),
    ] = None,
    reranker: Annotated[
        str | None,
        Option(
            metavar="YES,NO",
            help="of a causal reranker whose files do not say so (Qwen3-Reranker): the two tokens whose logits make a "
            "score, here: yes,no",
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Export a Hugging Face checkpoint or a GGUF file, so that it can be served."""
    from models.artifacts.export import export

    out = out or _in_store(checkpoint, name)
    with progress_bars() as progress:
        card = export(
            checkpoint,
            out,
            name=name,
            pooling=pooling,
            dtype=dtype,
            link=link,
            side=side,
            assume=assume,
            encoder={"none": False, "float32": True}.get(encoder or ""),
            attention=attention,
            int8=_int8(encoder, calibration, min_cosine),
            reranker=reranker,
            force=force,
            progress=progress,
        )
    _report(card, out)


@reporting
def adopt(
    source: Annotated[
        str,
        Argument(
            metavar="SOURCE",
            help="folder or hub id, org/name or org/name@revision, with onnx/model.onnx or model.onnx, config.json and "
            "tokenizer files; of a hub repository no other file is fetched",
            show_default=False,
        ),
    ],
    out: Out = None,
    name: Name = None,
    file: Annotated[
        str | None,
        Option(metavar="PATH", help="another ONNX file of SOURCE, such as onnx/model_quantized.onnx"),
    ] = None,
    pooling: Annotated[
        str | None,
        Option(
            metavar="MODE",
            help="a sentence-transformers mode, none, or graph (its sentence_embedding is the output of every module), "
            "instead of what the files say",
        ),
    ] = None,
    compare: Annotated[
        bool | None,
        Option(
            help="state the cosine to the float32 weights beside the file, ONNX or safetensors; unset: of folders "
            "alone, since the hub's would have to be fetched",
            show_default=False,
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Make an exported model of ONNX that a folder or hub repository already holds, byte for byte."""
    from models.artifacts.adoption import adopt

    out = out or _in_store(source, name)
    with progress_bars() as progress:
        card = adopt(
            source, out, name=name, file=file, pooling=pooling, compare=compare, force=force, progress=progress
        )
    _report(card, out)


@reporting
def verify(
    folder: Annotated[
        Path,
        Argument(
            metavar="FOLDER", help="folder that `inlay export` or `inlay adopt` wrote, or the name of one in the store"
        ),
    ],
) -> None:
    """Hash an exported model's files and compare its graphs with the reference again."""
    from models.artifacts.verification import verify

    folder = model_of_store(folder)
    with progress_bars() as progress:
        differences = verify(folder, progress)
    print(f"{folder}: every file is the one its card names; largest difference by output:")
    for output, difference in differences.items():
        print(f"  {output:<24}{difference:.1e}")


@reporting
def list_models(
    store: Annotated[
        Path | None,
        Option(metavar="PATH", help="folder of exported models; unset: INLAY_STORE, else models/store"),
    ] = None,
) -> None:
    """List the exported models of the store, and the model families that can be exported."""
    from models.artifacts.description import families
    from models.artifacts.description import store as models_of

    print(families())
    print()
    print(models_of(store or _store()))


@reporting
def describe(
    what: Annotated[
        str, Argument(metavar="X", help=f"model_type, exported model or its name in the store, or checkpoint: {SOURCE}")
    ],
) -> None:
    """Describe what a model_type, an exported model or a checkpoint is made of."""
    from models.artifacts.description import describe, is_model_type

    named = str(model_of_store(Path(what))) if "/" not in what else what
    if named != what or not is_model_type(what):
        print(describe(named))
    if named != what and is_model_type(what):
        print()
    if is_model_type(what):
        print(describe(what))


@reporting
def create(
    checkpoint: Annotated[Path, Argument(metavar="CHECKPOINT", help="folder to write; a new or an empty one")],
    model_type: Annotated[
        str | None, Option(metavar="NAME", help="one that `inlay list` names, such as bert; unset: that of --config")
    ] = None,
    config: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="a config.json, or a part of one: its keys replace the family's defaults, others are kept",
        ),
    ] = None,
    whole: Annotated[
        bool,
        Option(
            "--whole", help="the blocks too, as published files hold them; poolers and output heads are not written"
        ),
    ] = False,
    vocab_size: Annotated[
        int | None, Option(metavar="N", help="rows of the word table; unset: as --config says, else the family's")
    ] = None,
    hidden_size: Annotated[
        int | None, Option(metavar="N", help="its columns; unset: as --config says, else the family's")
    ] = None,
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16"] | None,
        Option(help="of the weights; unset: as --config says, else float32", show_default=False),
    ] = None,
    init: Annotated[
        str,
        Option(metavar="NAME", help="normal, scaled (1/sqrt(d)) or xavier_uniform; a padding row is zero"),
    ] = "normal",
    std: Annotated[
        float | None, Option(metavar="NUMBER", help="standard deviation of --init normal; unset: 0.02")
    ] = None,
    seed: Annotated[int, Option(metavar="N", help="the same numbers for the same seed")] = 0,
    labels: Annotated[
        int | None,
        Option(
            metavar="N",
            help="of a classification head behind the blocks; 1: a reranker. unset: the head that --config names",
        ),
    ] = None,
    base: Annotated[
        Path | None,
        Option(
            metavar="FOLDER", help="a checkpoint that is copied, its weights too: the head of --labels alone is random"
        ),
    ] = None,
) -> None:
    """Write a checkpoint of random weights, for measuring: a family's input layer, a whole model, or a head."""
    from models.artifacts.random_checkpoint import add_head, create

    if base is not None:
        if labels is None or model_type or config or whole or vocab_size or hidden_size or dtype:
            raise BadParameter("--base goes with --labels, --init, --std and --seed alone")
        add_head(checkpoint, base, labels, init=init, std=std, seed=seed)
        print(f"{checkpoint}: {base} with a head of random weights; next: inlay serve --model {checkpoint}")
        return
    if model_type is None and config is None:
        raise BadParameter("give --model-type NAME, or --config FILE whose config names one")
    with progress_bars() as progress:
        create(
            checkpoint,
            model_type=model_type,
            config=config,
            whole=whole,
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            dtype=dtype,
            init=init,
            std=std,
            seed=seed,
            labels=labels,
            progress=progress,
        )
    print(f"{checkpoint}: random weights; next: inlay serve --model {checkpoint}")


def _int8(encoder: str | None, calibration: Path | None, min_cosine: float | None) -> "Int8Options | None":
    """Return the options of an int8 encoder; None for any other. ModelError for options it does not have."""
    from models.artifacts.int8_encoder import MIN_COSINE, Int8Options
    from models.errors import ModelError

    if encoder == "int8":
        return Int8Options(calibration, MIN_COSINE if min_cosine is None else min_cosine)
    if calibration is not None or min_cosine is not None:
        raise ModelError("--calibration and --min-cosine are of --encoder int8: add it, or leave them out")
    return None


def _store() -> Path:
    return Path(os.environ.get("INLAY_STORE") or "models/store")


def _in_store(checkpoint: str, name: str | None) -> Path:
    """Return the folder of the store that a checkpoint is exported to where no folder is named."""
    from service.cli.checkpoints import name_of

    return _store() / (name or name_of(checkpoint))


def model_of_store(folder: Path) -> Path:
    """Return the folder of the store's model if this is the name of one and no folder here; else the folder itself."""
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
    for warning in description.warnings(card):
        print(f"warning: {warning}", file=sys.stderr)
    for sentence in card.assumed:
        print(f"assumed: {sentence}")
    if card.tokenizer is None and card.image is None:
        print("no tokenizer.json: this model takes token ids only")
    in_store = out.absolute().parent == _store().absolute()
    serve = "inlay serve" if in_store else f"inlay serve --store {out.parent}"
    print(f"next: {serve}; a server that runs already serves it after a restart, or soon with --watch-store SECONDS")
