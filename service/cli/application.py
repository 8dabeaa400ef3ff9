"""The sub-commands of `inlay` as a typer application."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from models import VERSION
from service.cli import bulk, models, serving
from service.cli.console import MISUSED, nearest
from service.cli.flat_options import flattened

COMMANDS: dict[str, Callable[..., None]] = {
    "serve": serving.serve,
    "export": models.export,
    "adopt": models.adopt,
    "verify": models.verify,
    "list": models.list_models,
    "describe": models.describe,
    "embed": bulk.embed,
    "calibrate": bulk.calibrate,
    "create": models.create,
    "settings": serving.settings,
    "check": serving.check,
    "health": serving.health,
}
"""In the order of --help."""
OF_SETTINGS = ("serve", "check")
"""Commands with an option for each setting. Their words may be API keys: those that typer does not know are left to the
command, which does not show them."""


def run(words: Sequence[str]) -> int:
    """Run one command; return its exit code."""
    command = next((word for word in words if not word.startswith("-")), None)
    if command is not None and command not in COMMANDS:  # not shown: it may be a key before a `serve`
        print(
            f"inlay: a command comes first, one of {', '.join(COMMANDS)}{nearest(command, COMMANDS)}", file=sys.stderr
        )
        return MISUSED
    completing = "_INLAY_COMPLETE" in os.environ
    try:
        application(with_settings=completing or command in OF_SETTINGS)(words, prog_name="inlay")
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"inlay {VERSION}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


def application(with_settings: bool) -> typer.Typer:
    """Return the typer application; without settings, `inlay --help` and most commands need not import pydantic."""
    app = typer.Typer(
        name="inlay",
        help="Embeddings, positional encodings and sentence vectors over REST and gRPC.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,  # they show local variables, which hold what callers sent
    )
    app.callback()(_options)
    generated = []
    if with_settings:
        from service.cli.options import settings_options

        generated = settings_options()
    for name, command in COMMANDS.items():
        if name in OF_SETTINGS:
            leaves = {"allow_extra_args": True, "ignore_unknown_options": True}
            app.command(name, context_settings=leaves)(flattened(name, command, generated))
        else:
            app.command(name)(flattened(name, command))
    return app
