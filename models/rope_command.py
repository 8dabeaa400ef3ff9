"""python -m models rope: a model's cos and sin written to a file, or what they are made of, printed. Serves nothing."""

import argparse
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from models.progress import Progress
from models.errors import BadEncoding
from models.positions.rope import choice as rope_choice
from models.positions.rope import table as rope_table
from models.positions.rope.config import LayerRope
from models.positions.rope.frequencies import frequencies
from models.positions.rope.presets import PRESETS
from models.positions.rope.rotation import LAYOUTS
from models.positions.rope.scalings import SCALINGS
from models.positions.table import DTYPES, Arithmetic, Table

PICTURES = (".png", ".svg")
GRAPH = ".onnx"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The flags of the command."""
    command.add_argument("--config", type=Path, metavar="FILE", help="a config.json, or its rope part")
    command.add_argument("--preset", metavar="NAME", help="a public configuration; --preset list names them")
    command.add_argument("--layer-type", metavar="TYPE", help="where layers differ: full_attention, sliding_attention")
    command.add_argument("--layer", type=int, metavar="N", help="instead of --layer-type: the number of a layer")
    command.add_argument("--theta", type=float, help="the base of the frequencies (default: 10000)")
    command.add_argument("--head-dim", type=int, metavar="N", help="channels of a head")
    command.add_argument("--rotary-dim", type=int, metavar="N", help="channels that rotate (default: the whole head)")
    command.add_argument("--rope-type", choices=SCALINGS, help="how the frequencies are scaled (default: default)")
    command.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the rope type, as in JSON"
    )
    command.add_argument("--max-position-embeddings", type=int, metavar="N", help="positions the model was trained for")
    command.add_argument("--seq-len", type=int, metavar="N", help="tokens at hand, for dynamic and longrope")
    command.add_argument("--start", type=int, default=0, help="first position (default: 0)")
    command.add_argument("--length", type=int, help="rows (default: as many as the model was trained on)")
    command.add_argument(
        "--arithmetic", choices=("exact", "parity"), default="exact", help="parity: transformers' float32 steps"
    )
    command.add_argument("--table", choices=rope_table.WIDTHS, default="single", help="a value a pair, or a channel")
    command.add_argument("--layout", choices=LAYOUTS, help="how channels pair (default: the model's)")
    command.add_argument("--dtype", choices=DTYPES, default="float32", help="of the file (default: float32)")
    command.add_argument("--plot", help="for .png and .svg: heatmap, spectrum, decay or error")
    command.add_argument(
        "-o", "--out", type=Path, help=".npy, .safetensors, .json, .onnx, .png or .svg; none: print what it is made of"
    )


def run(given: argparse.Namespace, progress_bar: Callable[[], AbstractContextManager[Progress]]) -> None:
    """Write or print what the flags ask for; raises ModelError or OSError."""
    if given.preset == "list":
        print("\n".join(f"{name:<28}{preset.title} ({preset.source})" for name, preset in PRESETS.items()))
        return
    rope = _chosen(given)
    positions = range(given.start, given.start + _length(given, rope))
    table = rope_table.tabulate(
        rope.rope,
        positions,
        arithmetic=given.arithmetic,
        seq_len=given.seq_len,
        table=given.table,
        layout=given.layout or rope.layout,
        notes=rope.notes,
    )
    if given.out is None:
        _print(table)
        return
    _write(given, rope, table, positions, progress_bar)
    print(f"{given.out}: {given.out.stat().st_size:,} bytes, {given.arithmetic}")
    for note in table.notes:
        print(f"note: {note}")


def _write(
    given: argparse.Namespace,
    rope: LayerRope,
    table: Table,
    positions: range,
    progress_bar: Callable[[], AbstractContextManager[Progress]],
) -> None:
    if not given.out.parent.is_dir():
        raise BadEncoding(f"{given.out}: there is no folder {given.out.parent}; make it first, or write elsewhere")
    if given.out.suffix == GRAPH:
        from models.graphs.builder import save
        from models.graphs.positions.rope import rope as graph

        save(graph(frequencies(rope.rope, given.arithmetic, given.seq_len)), given.out)
    elif given.out.suffix in PICTURES:
        given.out.write_bytes(_drawn(given, rope, table, positions))
    else:
        from models.artifacts.table_files import FORMATS, write

        if given.out.suffix not in FORMATS:
            allowed = ", ".join((*FORMATS, GRAPH, *PICTURES))
            raise BadEncoding(f"{given.out} ends in {given.out.suffix or 'nothing'!r}; what is written: {allowed}")
        with progress_bar() as progress:
            write(table, given.out, given.dtype, progress)


def _drawn(given: argparse.Namespace, rope: LayerRope, table: Table, positions: range) -> bytes:
    from models.plots import Subject, draw

    other: Arithmetic = "parity" if given.arithmetic == "exact" else "exact"
    twin = rope_table.tabulate(rope.rope, positions, arithmetic=other, seq_len=given.seq_len, layout=rope.layout)
    name = given.preset or (given.config.stem if given.config else "")
    format_name: Any = given.out.suffix.removeprefix(".")
    return draw(given.plot, [Subject(table, name, positions, twin)], format=format_name)


def _chosen(given: argparse.Namespace) -> LayerRope:
    named = {
        "--theta": given.theta,
        "--head-dim": given.head_dim,
        "--rotary-dim": given.rotary_dim,
        "--rope-type": given.rope_type,
        "--set": given.set or None,
        "--max-position-embeddings": given.max_position_embeddings,
    }
    sources = {"--config": given.config, "--preset": given.preset}
    sent = [flag for flag, value in sources.items() if value is not None]
    if others := sent[1:] + ([flag for flag, value in named.items() if value is not None] if sent else []):
        raise BadEncoding(f"{sent[0]} and {others[0]} contradict each other: give one of them")
    if given.config is not None:
        return rope_choice.by_config(_json(given.config), None, given.layer_type, given.layer)[1]
    if given.preset is not None:
        return rope_choice.by_preset(given.preset, given.layer_type, given.layer, listed="--preset list")[1]
    rope = rope_choice.by_parameters(
        theta=given.theta,
        head_dim=given.head_dim,
        rotary_dim=given.rotary_dim,
        rope_type=given.rope_type,
        parameters=dict(_setting(each) for each in given.set),
        max_position_embeddings=given.max_position_embeddings,
    )
    return LayerRope(rope, given.layout or "half", None, None)


def _json(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadEncoding(f"{path} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise BadEncoding(f"{path} holds a JSON {type(config).__name__}; a config.json is an object")
    return config


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    try:
        if not equals:
            raise ValueError
        return name, json.loads(value)
    except ValueError:
        raise BadEncoding(
            f"--set {text!r} is not NAME=VALUE with a JSON value, such as factor=8 or truncate=false"
        ) from None


def _length(given: argparse.Namespace, rope: LayerRope) -> int:
    trained = rope.rope.max_position_embeddings
    length = given.length if given.length is not None else trained and trained - given.start
    if length is None:
        raise BadEncoding("how many positions it was trained on is not known: give --length")
    if given.start < 0 or length < 1:
        raise BadEncoding(f"--start {given.start} and --length {length}: a table begins at 0 or later and has a row")
    return int(length)


def _print(table: Table) -> None:
    for name, value in table.facts.items():
        shown = " ".join(f"{each:.9g}" for each in value) if name == "inverse_frequency" else value
        print(f"{name:<24} {shown}")
    for name, output in table.outputs.items():
        print(f"{name:<24} {' x '.join(map(str, output.shape))}")
    for note in table.notes:
        print(f"note: {note}")
