"""`inlay embed` writes the vectors of whole corpora; `inlay calibrate` finds the ranges of their values."""

import os
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from service.cli.console import STOPPED, fail, progress_bars, reporting

if TYPE_CHECKING:
    from service.bulk.plan import Options
    from service.settings import Settings

TOLD = {"cut": "were cut to what the model reads", "empty": "are missing", "failed": "were refused"}
FEW_TEXTS = 100  # with fewer texts a note says that ranges may be too narrow, as sentence-transformers warns
InputType = Literal["query", "document", "classification", "clustering"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbedOptions:
    """Arguments and options of `inlay embed`."""

    source: str
    output: Path
    model: str | None = None
    column: str | None = None
    pair_column: str | None = None
    keep: str = ""
    output_name: str | None = None
    dtype: Literal["float32", "float16", "int8", "uint8", "binary", "ubinary"] = "float32"
    prompt_name: str | None = None
    input_type: InputType | None = None
    task: str | None = None
    instruction: str | None = None
    pooling: str | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    truncate: bool = True
    fail_on_truncation: bool = False
    skip_failed: bool = False
    part_rows: int = 32768
    ray: str | None = None
    ray_actors: int = 0

    def computed(self, folder: Path) -> "Options":
        """Return the options that decide the vectors of a run by the model in `folder`."""
        from service.bulk.inputs import Columns
        from service.bulk.plan import Options
        from service.embedding import requests
        from service.registry.store import export_version

        return Options(
            model=folder.name,
            version=export_version(folder),
            columns=Columns(self.column or "", tuple(filter(None, self.keep.split(","))), self.pair_column or None),
            embed=requests.EmbedOptions(
                outputs=(self.output_name,) if self.output_name else (),
                **{name: getattr(self, name) for name in requests.EmbedOptions._fields if hasattr(self, name)},
            ),
            part_rows=self.part_rows,
            skip_failed=self.skip_failed,
        )


@reporting
def embed(options: EmbedOptions) -> None:
    """Embed the texts of files, on all cores; started again after an interruption it does only what is missing.

    Variables of `inlay serve` such as INLAY_STORE, INLAY_DEVICE, INLAY_ENGINE and INLAY_THREADS count here too.
    """
    from service.bulk import inputs
    from service.bulk.outputs import report_of
    from service.bulk.remote import path_of
    from service.bulk.run import run

    _tokenize_by_threads()
    output = path_of(options.output)
    if options.ray is not None and find_spec("ray") is None:
        fail("--ray needs ray, which is not installed: pip install 'inlay[ray]'")
    for note in inputs.notes(inputs.find(options.source)):
        print(f"note: {note}", file=sys.stderr)
    folder, settings = _model(options.model)
    cluster = None if options.ray is None else (options.ray, options.ray_actors)
    started = time.monotonic()
    try:
        with progress_bars() as progress:
            computed = options.computed(folder)
            rows, there, counts = run(options.source, output, computed, folder, settings, progress, cluster)
    except KeyboardInterrupt:
        fail("stopped; the same command goes on with what is missing", STOPPED)
    seconds = time.monotonic() - started
    speed = f", {(rows - there) / seconds:,.0f} rows/s" if rows > there else ""
    vectors = rows - counts.get("empty", 0) - counts.get("failed", 0)
    print(f"{output}: {vectors:,} vectors, {there:,} of them there already; {seconds:.0f} s{speed}")
    if told := [f"{count:,} {TOLD[kind]}" for kind, count in counts.items() if count]:
        print(f"note: of {rows:,} texts {', '.join(told)}: {report_of(output)} has their rows", file=sys.stderr)
    if options.fail_on_truncation and counts.get("cut"):
        fail(f"{counts['cut']:,} texts were cut, and --fail-on-truncation is set; the vectors are written")


@reporting
def calibrate(
    model: Path,
    texts: str,
    column: str | None = None,
    prompt_name: str | None = None,
    input_type: InputType | None = None,
) -> None:
    """Find the ranges of a model's sentence vectors, which int8 and uint8 vectors need, and keep them in its card.

    A running server with INLAY_WATCH_STORE takes them up without a break; any other, when it loads the model again.
    """
    from service.bulk.calibration import calibrated
    from service.cli.checkpoints import keeping_origin
    from service.cli.models import model_of_store
    from service.cli.options import read_settings
    from service.embedding.requests import EmbedOptions

    _tokenize_by_threads()
    folder = model_of_store(model)
    options = EmbedOptions(prompt_name=prompt_name, input_type=input_type)
    with keeping_origin(folder):
        calibration = calibrated(folder, texts, column, options, read_settings({}))
    print(f"{folder}: ranges of {len(calibration.least)} dimensions, of {calibration.texts:,} texts")
    if calibration.texts < FEW_TEXTS:
        print(f"note: ranges of fewer than {FEW_TEXTS} texts may be narrower than those of others", file=sys.stderr)


def _tokenize_by_threads() -> None:
    """Stop tokenizers from starting threads: the run's own threads tokenize, a quarter more texts a second."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _model(name: str | None) -> "tuple[Path, Settings]":
    """Return the folder of the exported model that `name` means, and the settings."""
    from service.cli.checkpoints import exported
    from service.cli.options import read_settings
    from service.registry.store import configured_folders

    settings = read_settings({})
    folders = configured_folders(settings, must_exist=False)
    if name is not None and name not in folders:
        settings = exported(settings, [name])
        folders = configured_folders(settings)
        name = settings.models[0]
    name = name or next(iter(settings.default_model), None) or (next(iter(folders)) if len(folders) == 1 else None)
    if name is None or name not in folders:
        held = ", ".join(folders) or "none; `inlay export` puts one there"
        fail(f"which model? name one with --model; {settings.store} holds {held}")
    return folders[name], settings
