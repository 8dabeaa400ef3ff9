"""python -m models: list · describe · export · verify · adopt · create · rope. Parses, calls, prints; decides nothing.

A ModelError or OSError is one line on stderr and exit code 1; bad usage is 2; a stop (Ctrl-C, SIGTERM) is 130 and
leaves no half export.
"""

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from models import rope_command
from models.artifacts.card import Card
from models.progress import Progress
from models.errors import ModelError

STORE = Path(__file__).parent / "store"


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    given = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], None] = given.run
    usual = signal.signal(signal.SIGTERM, _stop)
    try:
        run(given)
    except ModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of a pipe has seen enough
        sys.stdout = None  # so that Python does not flush into it at exit
        return 0
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print(f"error: {place}{error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; nothing was left behind", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, usual)
    return 0


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m models", description="Export models for Inlay, look at them, check them."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("list", help="the families that can be exported, and the exported models")
    command.add_argument("--store", type=Path, default=STORE, help="folder of exported models (default: models/store)")
    command.set_defaults(run=_list)

    command = commands.add_parser("describe", help="what a model_type, an exported model or a checkpoint is made of")
    command.add_argument("what", metavar="X", help="model_type, folder, .gguf file, or hub id: org/name[@revision]")
    command.set_defaults(run=_describe)

    command = commands.add_parser("export", help="make an exported folder of a Hugging Face checkpoint or a GGUF file")
    command.add_argument("checkpoint", metavar="CHECKPOINT", help="folder, .gguf file, or hub id: org/name[@revision]")
    _add_out(command)
    command.add_argument(
        "--pooling", metavar="MODE", help="a sentence-transformers mode or none, instead of what the files say"
    )
    command.add_argument(
        "--dtype",
        default="keep",
        choices=("keep", "float32", "float16", "bfloat16", "int8", "int4"),
        help="of the tables (default: keep, the checkpoint's own)",
    )
    command.add_argument(
        "--side",
        choices=("text", "vision", "encoder", "decoder"),
        help="which half of a checkpoint that holds two input layers (CLIP: text, vision; Whisper: encoder, decoder)",
    )
    command.add_argument(
        "--assume",
        action="store_true",
        help="take a model_type that is not known for a plain decoder, where its tensors and config fit one",
    )
    command.add_argument(
        "--link", action="store_true", help="serve the tables in place, from the checkpoint's file, by a hard link"
    )
    command.set_defaults(run=_export)

    command = commands.add_parser(
        "verify", help="hash an exported folder's files and compare its graphs with the reference again"
    )
    command.add_argument("out", type=Path, metavar="OUT", help="folder that `export` or `adopt` wrote")
    command.set_defaults(run=_verify)

    command = commands.add_parser("adopt", help="make an exported folder of one that already holds ONNX, byte for byte")
    command.add_argument(
        "folder", type=Path, metavar="DIR", help="holds onnx/model.onnx or model.onnx, config.json and tokenizer files"
    )
    _add_out(command)
    command.add_argument("--pooling", metavar="MODE", help="as for export")
    command.set_defaults(run=_adopt)

    command = commands.add_parser("create", help="write a checkpoint of random weights, for measuring")
    command.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="folder to write; a new or an empty one")
    command.add_argument(
        "--model-type", required=True, metavar="NAME", help="one that `models list` names, such as bert"
    )
    command.add_argument("--vocab-size", type=int, metavar="N", help="rows of the word table (default: the family's)")
    command.add_argument("--hidden-size", type=int, metavar="N", help="its columns (default: the family's)")
    command.add_argument(
        "--dtype",
        default="float32",
        choices=("float32", "float16", "bfloat16"),
        help="of the weights (default: float32)",
    )
    command.add_argument(
        "--init", default="normal", help="normal (default), scaled (1/sqrt(d)) or xavier_uniform; a padding row is zero"
    )
    command.add_argument("--std", type=float, help="standard deviation of --init normal (default: 0.02)")
    command.add_argument("--seed", type=int, default=0, help="the same numbers for the same seed (default: 0)")
    command.set_defaults(run=_create)

    command = commands.add_parser("rope", help="write the RoPE cos and sin of a config.json, a preset or parameters")
    rope_command.add_arguments(command)
    command.set_defaults(run=_rope)
    return parser


def _add_out(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "out", type=Path, metavar="OUT", help="folder to write, such as models/store/NAME; an older export is replaced"
    )
    command.add_argument("--name", help="what the model is called (default: OUT's folder name)")
    command.add_argument(
        "--force", action="store_true", help="replace an older export even where other files lie beside its own"
    )


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Bars on stderr, one a kind of work; where stderr is no terminal, only the finished ones."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<28}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    bars = Progress(*columns, console=Console(stderr=True))
    tasks: dict[str, TaskID] = {}

    def show(what: str, done: int, total: int) -> None:
        if what not in tasks:
            bars.start()
            tasks[what] = bars.add_task(what, total=total or None)
        bars.update(tasks[what], completed=done, total=total or None)

    try:
        yield show
    finally:
        if tasks:
            bars.stop()


def _list(given: argparse.Namespace) -> None:
    from models.artifacts.description import families, store

    print(families())
    print()
    print(store(given.store))


def _describe(given: argparse.Namespace) -> None:
    from models.artifacts.description import describe

    print(describe(given.what))


def _export(given: argparse.Namespace) -> None:
    from models.artifacts.export import export

    with progress_bar() as progress:
        card = export(
            given.checkpoint,
            given.out,
            name=given.name,
            pooling=given.pooling,
            dtype=given.dtype,
            link=given.link,
            side=given.side,
            assume=given.assume,
            force=given.force,
            progress=progress,
        )
    _report(card, given.out)


def _adopt(given: argparse.Namespace) -> None:
    from models.artifacts.adoption import adopt

    with progress_bar() as progress:
        card = adopt(
            given.folder, given.out, name=given.name, pooling=given.pooling, force=given.force, progress=progress
        )
    _report(card, given.out)


def _verify(given: argparse.Namespace) -> None:
    from models.artifacts.verification import verify

    with progress_bar() as progress:
        found = verify(given.out, progress)
    print(f"{given.out} holds together: every file is the one its card names; largest difference by output:")
    for output, difference in found.items():
        print(f"  {output:<24}{difference:.1e}")


def _create(given: argparse.Namespace) -> None:
    from models.artifacts.random_checkpoint import create

    with progress_bar() as progress:
        create(
            given.checkpoint,
            model_type=given.model_type,
            vocab_size=given.vocab_size,
            hidden_size=given.hidden_size,
            dtype=given.dtype,
            init=given.init,
            std=given.std,
            seed=given.seed,
            progress=progress,
        )
    print(f"{given.checkpoint}: random weights; next: python -m models export {given.checkpoint} OUT")


def _rope(given: argparse.Namespace) -> None:
    rope_command.run(given, progress_bar)


def _report(card: Card, out: Path) -> None:
    from models.artifacts.description import faithfulness

    print(f"{out}: {card.name}, {card.family}, {card.bytes / 1e6:.1f} MB; outputs {', '.join(card.outputs)}")
    print(faithfulness(card))
    for sentence in card.assumed:
        print(f"assumed: {sentence}")
    if card.tokenizer is None and card.image is None:
        print("no tokenizer.json: this model takes token ids only")


if __name__ == "__main__":
    sys.exit(main())
