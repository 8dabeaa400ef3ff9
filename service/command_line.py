"""The commands behind `python -m service`: flags from the settings' own fields, and one line for each failure.

The only place of service/ that reads the environment. A name that is no setting is refused: ignored, it could be the
key that was to close the service. No failure shows a value that may be secret.
"""

import argparse
import re
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource, SettingsError

from models.errors import ModelError
from service.errors import StartError
from service.settings import SECRET, Settings

PREFIX = "INLAY_"
LINK = re.compile(r"INLAY(_\w+)?_(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
"""What Kubernetes writes for a Service named inlay or inlay-*, as Docker's links did: nobody misspelt these."""
LINKED = re.compile(r"(tcp|udp|sctp)://.*")
USERINFO = re.compile(r"(\w+://)?.*@", re.DOTALL)


METAVARS = {
    "integer": "N",
    "number": "NUMBER",
    "boolean": "{true,false}",
    "array": "A,B,...",
    "string": "TEXT",
    "path": "PATH",
}
"""How --help shows a kind of JSON schema."""
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
"""What pydantic's errors allow."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """One flag a setting, described by its docstring; absent flags leave the environment to decide."""
    schemas = Settings.model_json_schema(by_alias=False)["properties"]
    for name, field in Settings.model_fields.items():
        parser.add_argument(
            _flag(name),
            dest=name,
            default=argparse.SUPPRESS,
            metavar=_metavar(schemas[name]),
            help=f"{field.description} [{_variable(name)}, default: {_default(field.default)}]".replace("%", "%%"),
        )


def serve(flags: dict[str, Any]) -> int:
    """Serve until told to stop."""
    settings = _settings(flags)
    if settings is None:
        return 1
    try:
        from service.process.serve import listen

        return listen(settings)
    except (StartError, ModelError) as error:
        return _fail(error)


def check(flags: dict[str, Any]) -> int:
    """Load everything once and say what would be served."""
    settings = _settings(flags)
    if settings is None:
        return 1
    try:
        from service.observability.metrics import Metrics
        from service.process.serve import introduce
        from service.registry.registry import open_catalog

        _try_openings(settings)
        introduce(settings, open_catalog(settings, Metrics()))
    except (StartError, ModelError) as error:
        return _fail(error)
    return 0


def show_settings(flags: dict[str, Any]) -> int:
    """Every setting: variable, flag, default, meaning."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `settings | head` ends quietly
    for name, field in Settings.model_fields.items():
        print(f"{_variable(name)}  {_flag(name)}  default: {_default(field.default)}\n    {field.description}")
    return 0


COMMANDS: dict[str, Callable[[dict[str, Any]], int]] = {"serve": serve, "check": check, "settings": show_settings}


def misused(command: str, words: Sequence[str]) -> str:
    """What is wrong with words after `command` that nothing read; any but a flag's name may be part of a key."""
    names = [word.partition("=")[0] for word in words]
    name = next((name for name in names if re.fullmatch("--[a-z-]+", name)), None)
    if name is None:
        return f"{len(words)} of the words belong to no flag: one value follows each, lists have commas and no spaces"
    flags = map(_flag, Settings.model_fields) if command in ("serve", "check") else ()
    return f"{name} is no flag of {command}{nearest(name, flags)}"


def nearest(word: str, allowed: Iterable[str]) -> str:
    """A question after the one that may be meant; empty where none is near."""
    found = get_close_matches(word, list(allowed), 1, 0.8)
    return f" (did you mean {found[0]}?)" if found else ""


def _try_openings(settings: Settings) -> None:
    """Open what guards and follows requests, as `serve` does before it loads; raises StartError where it cannot."""
    from service.observability.tracing import open_tracing
    from service.security import tls
    from service.security.api_keys import open_keys

    if files := tls.files(settings):
        tls.context(files)
    if keys := open_keys(settings):
        keys.tell_short()
    if tracing := open_tracing(settings):
        tracing.close()


def _settings(flags: dict[str, Any]) -> Settings | None:
    if (unknown := _unknown_variable()) is not None:
        _fail(unknown)
        return None
    try:
        return Settings(**flags)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        said = fault["msg"].removeprefix("Value error, ")
        if not fault["loc"]:  # of several settings together, which it names
            _fail(said)
            return None
        name = str(fault["loc"][0])
        variable = name if name.isupper() else _variable(name)  # a field read from other variables is named by one
        source = _flag(name) if name in flags else variable
        came = "" if name in SECRET else f" is {_shown(fault['input'])}"
        if allowed := ALLOWED.get(fault["type"]):
            _fail(f"{source}{came}; allowed: {allowed.format(**fault.get('ctx', {}))}")
        else:
            _fail(f"{source}{came}: {said[0].lower()}{said[1:]}")
    except SettingsError as error:
        _fail(str(error))
    return None


def _unknown_variable() -> str | None:
    """What is wrong with a variable that is named like a setting and is none; those that are empty ask for nothing."""
    known = list(map(_variable, Settings.model_fields))
    for lowered, value in EnvSettingsSource(Settings).env_vars.items():
        name = lowered.upper()
        if value and name.startswith(PREFIX) and name not in known and not _linked(name, value):
            return f"{name} is no setting{nearest(name, known)}: correct or unset it; `settings` lists all there are"
    return None


def _linked(name: str, value: str) -> bool:
    return bool(LINK.fullmatch(name) or (name.endswith("_PORT") and LINKED.fullmatch(value)))


def _shown(value: object) -> str:
    """What came, without the user and password that an address may hold."""
    return repr(USERINFO.sub(r"\1***@", value) if isinstance(value, str) else value)


def _fail(error: object) -> int:
    print(f"inlay: {error}", file=sys.stderr)
    return 1


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _variable(name: str) -> str:
    return PREFIX + name.upper()


def _metavar(schema: dict[str, Any]) -> str:
    """What a value looks like: the words allowed, or its kind."""
    first = schema.get("anyOf", [schema])[0]
    if "enum" in first:
        return f"{{{','.join(first['enum'])}}}"
    return METAVARS[first.get("format", first["type"])]


def _default(value: Any) -> str:
    return {None: "unset", (): "empty"}.get(value, str(value)) if not isinstance(value, bool) else str(value).lower()
