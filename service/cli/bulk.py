"""`inlay embed`: the vectors of whole corpora."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from service.cli.console import STOPPED, fail, reporting, stoppable

if TYPE_CHECKING:
    from service.bulk.run import Progress
    from service.settings import Settings

REPORT_SECONDS = 10.0  # between lines where stderr is no terminal
FEW_TEXTS = 100  # below which a note says that ranges may be too narrow, as sentence-transformers warns
InputUse = Annotated[
    Literal["query", "document", "classification", "clustering"] | None,
    Option(help="what the texts are for: the model's prompt for it, if it has one; unset: its default prompt"),
]


@reporting
def embed(
    source: Annotated[
        str,
        Argument(
            metavar="INPUT",
            help="file, folder or quoted glob of .parquet, .arrow, .csv, .tsv, .jsonl or .txt (the last four also .gz, "
            ".bz2, .zst)",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        Argument(
            metavar="OUTPUT",
            help="folder of parquet files, or one file: NAME.parquet, NAME.npy or NAME.safetensors",
            show_default=False,
        ),
    ],
    model: Annotated[
        str | None,
        Option(metavar="NAME", help="of the store, or a checkpoint: folder, .gguf or hub id; unset: the only one"),
    ] = None,
    column: Annotated[
        str | None, Option(metavar="NAME", help="of the texts; unset: text, or the only one that holds texts")
    ] = None,
    pair_column: Annotated[
        str | None,
        Option(metavar="NAME", help="of the second texts of pairs, for rerankers; unset: none"),
    ] = None,
    keep: Annotated[
        str, Option(metavar="NAMES", help="columns to copy to the output, separated by commas, or * for all")
    ] = "",
    output_name: Annotated[
        str | None,
        Option("--output", metavar="NAME", help="of the model's outputs, or scores of its logits; unset: its default"),
    ] = None,
    dtype: Annotated[
        Literal["float32", "float16", "int8", "uint8", "binary", "ubinary"],
        Option(
            help="of the vectors; int8, uint8: by the ranges of `inlay calibrate`, else of the first 4096 rows; "
            "binary, ubinary: signs, eight to a byte"
        ),
    ] = "float32",
    prompt_name: Annotated[
        str | None, Option(metavar="NAME", help="prompt put before each text; unset: the model's default")
    ] = None,
    input_type: InputUse = None,
    task: Annotated[
        str | None,
        Option(metavar="NAME", help="one of the model's tasks (Jina v3); unset: that of the prompt, or its default"),
    ] = None,
    pooling: Annotated[str | None, Option(metavar="MODE", help="unset: the model's own")] = None,
    normalize: Annotated[bool | None, Option(help="unset: as the model's files say", show_default=False)] = None,
    dimensions: Annotated[int | None, Option(metavar="N", help="leading values to keep; unset: all")] = None,
    truncate: Annotated[bool, Option(help="cut texts that are too long; else they are an error")] = True,
    part_rows: Annotated[
        int, Option(metavar="N", min=1, help="rows of one part, which a run that is started again may have to repeat")
    ] = 32768,
    ray: Annotated[
        str | None, Option(metavar="ADDRESS", help="Ray cluster that computes: auto, HOST:PORT, or local for a new one")
    ] = None,
    ray_actors: Annotated[
        int, Option(metavar="N", min=0, help="engines on the cluster; 0: one for each core or INLAY_THREADS of them")
    ] = 0,
) -> None:
    """Embed the texts of files, on all cores; started again after an interruption it does only what is missing.

    Variables of `inlay serve` such as INLAY_STORE, INLAY_DEVICE, INLAY_ENGINE and INLAY_THREADS count here too.
    """
    try:
        from service.bulk.run import run
    except ModuleNotFoundError as error:
        fail(f"inlay embed needs {error.name}, which is not installed: install requirements/bulk.txt")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the threads tokenize: a quarter more texts a second
    if ray is not None:
        _check_ray()
    from service.bulk.plan import Options
    from service.registry.store import export_version

    folder, settings = _model(model)
    options = Options(
        model=folder.name,
        version=export_version(folder),
        column=column or "",
        pair=pair_column or "",
        keep=tuple(filter(None, keep.split(","))),
        output=output_name,
        dtype=dtype,
        prompt_name=prompt_name,
        task=task,
        input_type=input_type,
        pooling=pooling,
        normalize=normalize,
        dimensions=dimensions,
        truncate=truncate,
        part_rows=part_rows,
    )
    started = time.monotonic()
    try:
        with _progress() as progress:
            cluster = None if ray is None else (ray, ray_actors)
            rows, found = run(source, output, options, folder, settings, progress, cluster)
    except KeyboardInterrupt:
        fail("stopped; the same command goes on with what is missing", STOPPED)
    seconds = time.monotonic() - started
    speed = f", {(rows - found) / seconds:,.0f} rows/s" if rows > found else ""
    print(f"{output}: {rows:,} vectors, {found:,} of them there already; {seconds:.0f} s{speed}")


@reporting
def calibrate(
    model: Annotated[
        Path, Argument(metavar="MODEL", help="name of a model of the store, or its folder", show_default=False)
    ],
    texts: Annotated[
        str,
        Argument(
            metavar="TEXTS",
            help="texts like those it will get: a file of lines, or what `inlay embed` reads",
            show_default=False,
        ),
    ],
    column: Annotated[
        str | None, Option(metavar="NAME", help="of the texts, in a table; unset: as `inlay embed`")
    ] = None,
    prompt_name: Annotated[
        str | None, Option(metavar="NAME", help="prompt put before each text; unset: the model's default")
    ] = None,
    input_type: InputUse = None,
) -> None:
    """Find the ranges of a model's sentence vectors, which int8 and uint8 vectors need, and keep them in its card.

    A running server with INLAY_WATCH_STORE takes them up without a break; any other, when it loads the model again.
    """
    from service.bulk.calibration import calibrated
    from service.cli.checkpoints import keeping_origin
    from service.cli.models import model_of_store
    from service.cli.options import read_settings
    from service.embedding.requests import EmbedOptions

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    folder = model_of_store(model)
    chosen = EmbedOptions(prompt_name=prompt_name, input_type=input_type)
    with keeping_origin(folder):
        calibration = calibrated(folder, texts, column, chosen, read_settings({}))
    print(f"{folder}: ranges of {len(calibration.least)} dimensions, of {calibration.texts:,} texts")
    if calibration.texts < FEW_TEXTS:
        print(f"note: ranges of fewer than {FEW_TEXTS} texts may be narrower than those of others", file=sys.stderr)


def _model(name: str | None) -> "tuple[Path, Settings]":
    """Return the folder of an exported model, and the settings."""
    from service.cli.checkpoints import exported
    from service.cli.options import read_settings
    from service.registry.store import configured_folders

    settings = read_settings({})
    folders = configured_folders(settings, must_exist=False)
    if name is not None and name not in folders:
        settings = exported(settings, [name])
        folders = configured_folders(settings)
        name = settings.models[0]
    name = name or settings.default_model or (next(iter(folders)) if len(folders) == 1 else None)
    if name is None or name not in folders:
        held = ", ".join(folders) or "none; `inlay export` puts one there"
        fail(f"which model? name one with --model; {settings.store} holds {held}")
    return folders[name], settings


def _check_ray() -> None:
    from importlib.util import find_spec

    if find_spec("ray") is None:
        fail("--ray needs ray, which is not installed: install requirements/ray.txt")


@contextmanager
def _progress() -> "Iterator[Progress]":
    """Show rows, rate and time left: a bar on a terminal, else a line every REPORT_SECONDS."""
    with stoppable():
        if not sys.stderr.isatty():
            yield _Lines()
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        rate = TextColumn("{task.fields[rate]:,.0f} rows/s")
        with Progress(
            BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn(), console=Console(stderr=True)
        ) as bar:
            task = bar.add_task("", total=None, rate=0.0)
            yield lambda done, total: bar.update(task, completed=done, total=total, rate=bar.tasks[0].speed or 0.0)


class _Lines:
    """Tells the progress in lines of stderr."""

    def __init__(self) -> None:
        self._began: tuple[float, int] | None = None
        self._told = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._began is None:
            self._began = now, done
        if now - self._told < REPORT_SECONDS:
            return
        self._told = now
        rate = (done - self._began[1]) / (now - self._began[0])
        left = f"{(total - done) / rate:.0f} s left" if rate else ""
        print(f"{done:,} of {total:,} rows, {rate:,.0f} rows/s, {left}", file=sys.stderr, flush=True)
