"""`inlay serve`, `check`, `settings` and `health`."""

import logging
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from service.cli.console import MISUSED, fail, nearest, print_failure, reporting, say
from service.cli.flat_options import HELP

if TYPE_CHECKING:
    from service.settings import Settings


REVISION = "REVISION"  # text-embeddings-inference's variable of the revision of MODEL_ID
log = logging.getLogger(__name__)


def _tell(message: str, options: Mapping[str, Any]) -> None:
    """Print why `serve` failed, or log it if the log is JSON."""
    chosen = options.get("values", {}).get("log_format") or os.environ.get("INLAY_LOG_FORMAT")
    if chosen != "json":
        print_failure(message, options)
        return
    from service.observability.logs import start_logging

    start_logging("json", "info", inputs=False)
    logging.getLogger("inlay").error("%s", message)


@partial(reporting, tell=_tell)
def serve(
    values: Mapping[str, str],
    names: list[str] | None = None,
    model: list[str] | None = None,
    model_name: str | None = None,
    alias: list[str] | None = None,
    adapter: list[str] | None = None,
) -> None:
    """Serve models over REST and gRPC.

    Each option is a variable too: INLAY_MAX_INPUTS=64 is --max-inputs 64. Options win.
    """
    if (names and "api_keys" in values) or any(name.startswith("-") for name in names or ()):
        fail(misused("serve", names or ()), MISUSED)  # a word may be part of a key
    if alias:
        values = {**values, "aliases": ",".join(alias)}
    if adapter:
        values = {**values, "adapters": ",".join(adapter)}
    from service.process.stop_signals import exit_on_stop, was_stopped

    exit_on_stop()  # process 1 of a container does not notice a signal without a handler
    try:
        settings = _prepared(values, names or [], model or [], model_name)
        from service.cli.startup import listen

        code = listen(settings)
    except KeyboardInterrupt:  # while a checkpoint was exported
        code = 0
    except Exception:
        if was_stopped():
            raise typer.Exit(0) from None
        raise
    raise typer.Exit(code)


def _prepared(
    values: Mapping[str, str], names: Sequence[str], checkpoints: Sequence[str], model_name: str | None
) -> "Settings":
    """Start logging, export the checkpoints, and return the settings."""
    from service.cli.options import flag, forget_links, read_settings, variables_of_others

    ignored = forget_links()
    others = variables_of_others([*values, *(["model"] if names or checkpoints else [])])
    if "model" not in others and not names and not checkpoints:
        others.pop("pooling", None)  # which is of a checkpoint
    given = {name: os.environ[other] for name, other in others.items() if name != "model"}
    settings = read_settings({**given, **values}, lambda name: others.get(name) or flag(name))
    from service.observability.logs import start_logging

    start_logging(settings.log_format, settings.log_level, settings.log_inputs)
    if ignored:
        log.info("ignored, since they hold the address of a Service of Kubernetes: %s", ", ".join(ignored))
    for name, other in others.items():
        say(settings, f"{other} is read as {flag(name)}")
    if "model" in others:
        revision = os.environ.get(REVISION)
        checkpoints = [os.environ[others["model"]] + (f"@{revision}" if revision else "")]
    if not names and not checkpoints and model_name is None:
        if settings.pooling or settings.adapters:
            fail("--pooling and --adapter are of a model that is given as a checkpoint: add --model", MISUSED)
        return settings
    from service.cli.checkpoints import exported, may_be_model
    from service.registry.store import exports, quote_names

    if unknown := [name for name in names if not may_be_model(settings, name)]:
        has = quote_names(exports(settings.store))
        fail(f"{misused('serve', unknown)}; the store has no model of that name; it has {has}", MISUSED)
    return exported(settings, [*names, *checkpoints], model_name)


@reporting
def check(context: typer.Context, values: Mapping[str, str]) -> None:
    """Load everything once and print what would be served."""
    from service.cli.options import read_settings

    if context.args:  # not shown: one may be part of a key
        fail(misused(context.info_name or "", context.args), MISUSED)
    settings = read_settings(values)
    verify = "off" if settings.verify == "off" else "always"
    settings = settings.model_copy(update={"verify": verify, "log_format": "text"})
    from service.cli.announcement import introduce
    from service.observability.metrics import Metrics
    from service.registry.registry import open_registry

    _open_security(settings)
    introduce(settings, open_registry(settings, Metrics()))


@reporting
def settings() -> None:
    """List every setting with its variable, option, default and meaning."""
    from service.cli.options import flag, shown, variable
    from service.settings import SECTIONS, Settings

    for name, field in Settings.model_fields.items():
        if name in SECTIONS:
            print(f"{SECTIONS[name]}\n")
        print(f"{variable(name)}  {flag(name)}  default: {shown(None if field.default_factory else field.default)}")
        for paragraph in (field.description or "").split("\n\n"):
            print(f"    {' '.join(paragraph.split())}")


def health(url: str | None = None, port: int | None = None, cert: str | None = None, key: str | None = None) -> None:
    """Ask a running service whether it is ready; exit code 0 or 1."""
    from service.cli import health

    raise typer.Exit(health.check(url, port, cert, key))


def misused(command: str, words: Sequence[str]) -> str:
    """Return the message for words that no option of `serve` or `check` reads."""
    from service.cli.options import flag
    from service.settings import Settings

    names = [word.partition("=")[0] for word in words]
    name = next((name for name in names if re.fullmatch("--[a-z-]+", name)), None)
    if name is None:
        return f"{len(words)} of the words belong to no option: one value follows each, lists have commas and no spaces"
    known = [*Settings.model_fields, *(name for name, row in HELP.get(command, {}).items() if "argument" not in row)]
    return f"{name} is not an option of {command}{nearest(name, map(flag, known))}"


def _open_security(settings: "Settings") -> None:
    """Open keys, certificates and tracing before models are loaded; raise StartError if one cannot be used."""
    from service.observability.tracing import open_tracing
    from service.security import tls
    from service.security.api_keys import open_keys, warn_of_short_keys

    if files := tls.files(settings):
        tls.context(files)
    open_keys(settings)
    warn_of_short_keys(settings)
    if tracing := open_tracing(settings):
        tracing.close()
