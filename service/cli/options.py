"""The options of `inlay serve` and `inlay check`, one for each setting, and the settings that they and variables give.

Values stay text until pydantic reads them, so an option means what the same text in a variable means.
"""

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import Parameter
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource, SettingsError

from service.cli.console import nearest
from service.errors import StartError
from service.settings import SECRET, SECTIONS, Settings

PREFIX = "INLAY_"
LINK_VARIABLE = re.compile(r"INLAY(_\w+)?_(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
"""What Kubernetes sets for a Service named inlay or inlay-*, and Docker for a link, beside ..._PORT=LINK_ADDRESS."""
LINK_ADDRESS = re.compile(r"(tcp|udp|sctp)://.*")
USERINFO = re.compile(r"(\w+://)?.*@", re.DOTALL)
METAVARS = {"integer": "N", "number": "NUMBER", "array": "A,B,...", "string": "TEXT", "path": "PATH"}
"""How --help shows a type of JSON schema."""
WIDEST = 24
"""Characters of choices that --help shows before a description; with more there is too little room for it."""
ELSEWHERE = {
    "PORT": ("port",),
    "API_KEY": ("api_keys", "api_keys_file"),
    "MODEL_ID": ("model", "models", "default_model"),
    "POOLING": ("pooling",),
    "DEFAULT_PROMPT": ("default_prompt", "default_prompt_name"),
    "DEFAULT_PROMPT_NAME": ("default_prompt_name", "default_prompt"),
}
"""Variables of text-embeddings-inference and of hosts such as Cloud Run: each gives its first option if none is set."""
ALLOWED = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "float_parsing": "a number",
    "bool_parsing": "true or false",
    "literal_error": "{expected}",
    "greater_than_equal": "{ge} or more",
    "greater_than": "more than {gt}",
    "less_than_equal": "{le} at most",
    "string_pattern_mismatch": "http://HOST:PORT or https://HOST:PORT",
}
"""What is allowed, by the type of a pydantic error."""


def settings_options() -> list[Parameter]:
    """Return an option for each setting, described with its default, under the heading of its section."""
    options, section = [], ""
    for name, schema in Settings.model_json_schema(by_alias=False)["properties"].items():
        section = SECTIONS.get(name, section)
        first = schema.get("anyOf", [schema])[0]
        words = ["true", "false"] if first.get("type") == "boolean" else [*map(str, first.get("enum", []))]
        default = f" (default: {shown(schema['default'])})" if schema.get("default") not in (None, []) else ""
        option = typer.Option(
            flag(name),
            metavar=_metavar(first, words),
            help=schema["description"].partition("\n\n")[0] + default,
            show_default=False,
            autocompletion=_completion(words),
            rich_help_panel=section,
        )
        options.append(Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option]))
    return options


def _completion(words: Sequence[str]) -> Callable[[], Sequence[str]] | None:
    return (lambda: words) if words else None


def _metavar(schema: dict[str, Any], words: Sequence[str]) -> str:
    if words:
        choices = f"{{{'|'.join(words)}}}"
        return choices if len(choices) <= WIDEST else "NAME"
    return METAVARS[schema.get("format", schema.get("type", "string"))]


def flag(name: str) -> str:
    """Return the option of a field, e.g. --max-inputs."""
    return "--" + name.replace("_", "-")


def read_settings(values: Mapping[str, Any], named: Callable[[str], str] = flag) -> Settings:
    """Return the settings made of the given values and the environment.

    An unknown INLAY_ variable is an error: it could be a misspelt one that was meant to protect the service.

    Args:
        values: the values, by the name of their setting.
        named: the name in errors of each setting that has a value.

    Raises:
        StartError: one is wrong.
    """
    forget_links()
    if unknown := _unknown_variable():
        raise StartError(unknown)
    try:
        return Settings(**dict[str, Any](values))
    except ValidationError as error:
        raise StartError(_explained(error, lambda name: named(name) if name in values else variable(name))) from None
    except SettingsError as error:
        raise StartError(str(error)) from None


def variables_of_others(given: Collection[str]) -> dict[str, str]:
    """Return which variable of ELSEWHERE gives an option that is not given, nor by an INLAY_ variable."""
    ours = {name.upper() for name, value in EnvSettingsSource(Settings).env_vars.items() if value}
    return {
        names[0]: other
        for other, names in ELSEWHERE.items()
        if os.environ.get(other) and not any(name in given or variable(name) in ours for name in names)
    }


def _explained(error: ValidationError, source: Callable[[str], str]) -> str:
    """Return the message for the first invalid value, without showing a value that may be secret."""
    fault = error.errors(include_url=False)[0]
    message = fault["msg"].removeprefix("Value error, ")
    if not fault["loc"]:  # of several settings together, which it names
        return message
    name = str(fault["loc"][0])
    # a field that is read from other variables is located by the variable's name
    where = name if name.isupper() else source(name)
    received = "" if name in SECRET else f" is {_redacted(fault['input'])}"
    if allowed := ALLOWED.get(fault["type"]):
        return f"{where}{received}; allowed: {allowed.format(**fault.get('ctx', {}))}"
    return f"{where}{received}: {message[0].lower()}{message[1:]}"


def _unknown_variable() -> str | None:
    known = list(map(variable, Settings.model_fields))
    for lowered, value in EnvSettingsSource(Settings).env_vars.items():
        name = lowered.upper()
        if value and name.startswith(PREFIX) and name not in known:
            return (
                f"{name} is not a setting{nearest(name, known)}: correct or unset it; `inlay settings` lists them all"
            )
    return None


def forget_links() -> list[str]:
    """Remove the INLAY_ variables that hold the address of a Service of Kubernetes, and return their names."""
    links = [
        name
        for name, value in os.environ.items()
        if LINK_VARIABLE.fullmatch(name)
        or (name.startswith(PREFIX) and name.endswith("_PORT") and LINK_ADDRESS.fullmatch(value))
    ]
    for name in links:
        del os.environ[name]
    return links


def _redacted(value: object) -> str:
    """Return a value as text, without the user and password of a URL."""
    return repr(USERINFO.sub(r"\1***@", value) if isinstance(value, str) else value)


def variable(name: str) -> str:
    """Return the variable of a setting, e.g. INLAY_MAX_INPUTS."""
    return PREFIX + name.upper()


def shown(value: Any) -> str:
    """Return a default as it would be written in a variable."""
    if isinstance(value, bool):
        return str(value).lower()
    return "unset" if value is None else "empty" if value in ((), []) else str(value)
