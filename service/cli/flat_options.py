"""Turns dataclasses into command-line options: typer reads a field as an option, commands get the dataclass."""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, field, fields
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer

TYPER = "typer"  # the key of a field's metadata


def argument(metavar: str, help: str, **default: Any) -> Any:
    """Return the field of a positional argument; without `default` it is required."""
    return field(**default, metadata={TYPER: typer.Argument(metavar=metavar, help=help, show_default=not default)})


def option(
    help: str, metavar: str | None = None, *, default: Any = None, flags: Sequence[str] = (), **details: Any
) -> Any:
    """Return the field of an option.

    Args:
        help: the text in --help.
        metavar: what --help calls the value; None: its type.
        default: the value if the option is not given.
        flags: names of the option; empty: the field's name, and for a boolean also --no-NAME.
        details: further arguments of typer.Option.
    """
    return field(default=default, metadata={TYPER: typer.Option(*flags, metavar=metavar, help=help, **details)})


def flattened(command: Callable[..., None], generated: Sequence[Parameter] = ()) -> Callable[..., None]:
    """Return a command for typer, with a parameter for each option.

    Args:
        command: its parameter `options` is a dataclass of fields made here; its parameter `values` gets the generated
            options that are given, as text by name. It may lack either.
        generated: options for `values`.
    """
    others = dict(signature(command).parameters)
    takes_values = others.pop("values", None) is not None
    grouped = others.pop("options", None)
    declared = _parameters(grouped.annotation) if grouped else []
    parameters = [*others.values(), *declared, *generated]

    def run(**given: Any) -> None:
        arguments = {name: given[name] for name in others}
        if grouped:
            arguments["options"] = grouped.annotation(**{each.name: given[each.name] for each in declared})
        if takes_values:
            texts = {each.name: given[each.name] for each in generated}
            arguments["values"] = {name: text for name, text in texts.items() if text is not None}
        command(**arguments)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__doc__ = command.__doc__
    return run


def _parameters(options: type) -> list[Parameter]:
    types = get_type_hints(options)
    return [
        Parameter(
            each.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if each.default is MISSING else each.default,
            annotation=Annotated[types[each.name], each.metadata[TYPER]],
        )
        for each in fields(options)
    ]
