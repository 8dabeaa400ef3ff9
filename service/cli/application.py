"""The sub-commands of `inlay` as a typer application.

Options made from pydantic models are added only to the command that runs, so that `inlay --help` imports no pydantic.
"""

import os
import sys
from collections.abc import Callable, Collection, Sequence
from inspect import Parameter

import typer

from service.cli import bulk, models, rope, serving
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
    "rope": rope.rope,
    "settings": serving.settings,
    "check": serving.check,
    "health": serving.health,
}
"""In the order of --help."""
GENERATED = ("serve", "check", "rope")
"""Commands with options made from a pydantic model."""
CONTAINS_KEYS = ("serve", "check")
"""Commands whose words may be API keys: those typer does not know are left to the command, which does not show them."""


def run(words: Sequence[str]) -> int:
    """Run one command; return its exit code."""
    command = next((word for word in words if not word.startswith("-")), None)
    if command is not None and command not in COMMANDS:  # not shown: it may be a key before a `serve`
        print(
            f"inlay: a command comes first, one of {', '.join(COMMANDS)}{nearest(command, COMMANDS)}", file=sys.stderr
        )
        return MISUSED
    generated = GENERATED if "_INLAY_COMPLETE" in os.environ else (command,)
    try:
        application([name for name in GENERATED if name in generated])(words, prog_name="inlay")
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def application(generated: Collection[str]) -> typer.Typer:
    """Return the typer application; commands that `generated` names also get its options."""
    app = typer.Typer(
        name="inlay",
        help="Embeddings, positional encodings and sentence vectors over REST and gRPC.",
        no_args_is_help=True,
        # at 80 columns a table of rich would cut --original-max-position-embeddings off
        rich_markup_mode=None if "rope" in generated and len(generated) == 1 else "rich",
        pretty_exceptions_enable=False,  # they show local variables, which hold what callers sent
    )
    for name, command in COMMANDS.items():
        options = _generated(name) if name in generated else []
        leaves = {"allow_extra_args": True, "ignore_unknown_options": True} if name in CONTAINS_KEYS else None
        app.command(name, context_settings=leaves)(flattened(command, options))
    return app


def _generated(command: str) -> list[Parameter]:
    from service.cli.options import settings_options

    return rope.rope_options() if command == "rope" else settings_options()
