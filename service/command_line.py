"""The commands behind `python -m service`: flags from the settings' own fields, and one line for each failure.

The only place of service/ that reads the environment.
"""

import argparse
import signal
import sys
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError
from pydantic_settings import SettingsError

from models.errors import ModelError
from service.errors import StartError
from service.settings import SECRET, Settings


def add_flags(parser: argparse.ArgumentParser) -> None:
    """One flag a setting, described by its docstring; absent flags leave the environment to decide."""
    for name, field in Settings.model_fields.items():
        parser.add_argument(
            _flag(name),
            dest=name,
            default=argparse.SUPPRESS,
            metavar="VALUE",
            help=f"{field.description} [{_variable(name)}, default: {_default(field.default)}]".replace("%", "%%"),
        )


def serve(flags: dict[str, Any]) -> int:
    """Serve until told to stop."""
    settings = _settings(flags)
    if settings is None:
        return 1
    try:
        from service.listen import listen

        return listen(settings)
    except (StartError, ModelError) as error:
        return _fail(error)


def check(flags: dict[str, Any]) -> int:
    """Load everything once and say what would be served."""
    settings = _settings(flags)
    if settings is None:
        return 1
    try:
        from service.catalog import open_catalog
        from service.listen import introduce
        from service.sight.metrics import Metrics

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


def _settings(flags: dict[str, Any]) -> Settings | None:
    try:
        return Settings(**flags)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        name = str(fault["loc"][0])
        variable = name if name.isupper() else _variable(name)  # a field read from other variables is named by one
        source = _flag(name) if name in flags else variable
        came = "" if name in SECRET else f" is {fault['input']!r}"
        _fail(f"{source}{came}: {fault['msg'][0].lower()}{fault['msg'][1:]}")
    except SettingsError as error:
        _fail(str(error))
    return None


def _fail(error: object) -> int:
    print(f"inlay: {error}", file=sys.stderr)
    return 1


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _variable(name: str) -> str:
    return "INLAY_" + name.upper()


def _default(value: Any) -> str:
    return {None: "unset", (): "none"}.get(value, str(value)) if not isinstance(value, bool) else str(value).lower()
