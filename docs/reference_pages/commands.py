"""The page of the command line, made from the application that runs it."""

from typing import Any

import typer
from typer.core import TyperArgument, TyperOption

from reference_pages.markdown import code, described, heading, page, table
from service.cli.application import COMMANDS, OF_SETTINGS, application
from service.cli.options import variable
from service.settings import Settings

INTRODUCTION = """\
The command is `inlay`, or `.venv/bin/inlay` of a checkout. `inlay COMMAND --help` shows the same. Exit codes: 0; 1
where the command failed; 2 where it was called wrongly."""


def commands_page() -> str:
    """Return the page: a table of commands, then each with its arguments and options."""
    group: Any = typer.main.get_command(application(with_settings=True))
    rows = [[f"[`inlay {name}`](#{name})", described(_first_paragraph(group.commands[name]))] for name in COMMANDS]
    parts = [_command(name, group.commands[name]) for name in COMMANDS]
    return page("Command line", INTRODUCTION, table(["command", "what it does"], rows), *parts)


def _first_paragraph(command: Any) -> str:
    return (command.help or "").partition("\n\n")[0].replace("\n", " ")


def _command(name: str, command: Any) -> str:
    context = typer.Context(command, info_name=f"inlay {name}")
    usage = " ".join(command.get_usage(context).removeprefix("Usage: ").split())
    arguments = [each for each in command.params if isinstance(each, TyperArgument)]
    panels: dict[str, list[TyperOption]] = {}
    for option in command.params:
        if isinstance(option, TyperOption) and not option.hidden:
            panels.setdefault(option.rich_help_panel or "", []).append(option)
    parts = [heading(2, f"inlay {name}", name), described(command.help or ""), f"```text\n{usage}\n```"]
    parts.append(table(["argument", "meaning"], (_row(name, each, context) for each in arguments)))
    for panel, options in panels.items():
        rows = [_row(name, each, context) for each in options]
        parts += [f"**{panel}**" if panel else "", table(["option", "meaning"], rows)]
    return "\n\n".join(part for part in parts if part)


def _row(command: str, parameter: TyperArgument | TyperOption, context: Any) -> list[str]:
    """Return a parameter as --help shows it, with a link to its setting where it is one."""
    words, meaning = parameter.get_help_record(context) or ("", "")
    name = parameter.name or ""
    link = ""
    if command in OF_SETTINGS and name in Settings.model_fields:
        link = f" Setting [`{variable(name)}`](settings.md#{variable(name)})."
    return [code(words), described(meaning) + link]
