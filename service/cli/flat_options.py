"""Turns parameters and dataclasses into command-line options, which help.json describes.

typer reads each field of a dataclass as an option or argument, and the command gets the dataclass.
"""

import json
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

HELP = json.loads(Path(__file__).with_name("help.json").read_text(encoding="utf-8"))
"""By command and parameter the arguments of typer.Option, with `flags` for other names than the parameter's; of
typer.Argument where `argument` is true."""


def flattened(name: str, command: Callable[..., None], generated: Sequence[Parameter] = ()) -> Callable[..., None]:
    """Return a command for typer, with a parameter for each option.

    Args:
        name: of the command in HELP.
        command: its parameter `options` is a dataclass of options; its parameter `values` gets the generated options
            that are given, as text by name; typer gives `context`. Any other is an option. It may lack them all.
        generated: options for `values`.
    """
    others = dict(signature(command).parameters)
    takes_values = others.pop("values", None) is not None
    grouped: Any = others.pop("options").annotation if "options" in others else None
    inner = signature(grouped).parameters if grouped else {}
    declared = [_described(name, each) for each in inner.values()]
    single = [each if each.annotation is typer.Context else _described(name, each) for each in others.values()]

    def run(**given: Any) -> None:
        arguments = {each.name: given[each.name] for each in single}
        if grouped:
            arguments["options"] = grouped(**{each: given[each] for each in inner})
        if takes_values:
            texts = {each.name: given[each.name] for each in generated}
            arguments["values"] = {name: text for name, text in texts.items() if text is not None}
        command(**arguments)

    parameters = [*single, *declared, *generated]
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__doc__ = command.__doc__
    return run


def _described(command: str, parameter: Parameter) -> Parameter:
    """Return a parameter with its description."""
    row = dict(HELP[command][parameter.name])
    required = parameter.default is Parameter.empty
    if row.pop("argument", False):
        described = typer.Argument(**row, show_default=required)
    else:
        described = typer.Option(*row.pop("flags", ()), **row)
    kind = parameter.annotation
    return parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=Annotated[kind, described])
