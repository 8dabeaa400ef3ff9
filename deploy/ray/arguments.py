"""The settings of a Ray Serve replica: `args` of the application, and INLAY_ variables."""

from collections.abc import Iterable, Mapping
from typing import Any

from service.cli.console import nearest
from service.cli.options import read_settings
from service.errors import StartError
from service.settings import Settings

UNSUPPORTED = {
    "workers": "let Serve start more replicas",
    "management_port": "the application has its routes",
    "tls_cert": "give the certificate to Serve, in its http_options",
    "model_control": "a load request reaches one replica; with watch_store every replica follows the store",
}
"""Settings that need one process that listens itself, and what to do instead."""


def check_names(arguments: Iterable[str]) -> None:
    """Raise StartError if there is no setting of one of these names."""
    for name in arguments:
        if name not in Settings.model_fields:
            hint = nearest(name, list(Settings.model_fields))
            raise StartError(f"{name} is not a setting{hint}: correct it in args; `inlay settings` lists them all")


def replica_settings(arguments: Mapping[str, Any], cores: float) -> Settings:
    """Return the settings of a replica.

    Args:
        arguments: settings by name; they win over INLAY_ variables.
        cores: that Ray gives the replica; as many threads, unless `threads` is set.

    Raises:
        StartError: one is wrong, or has another meaning behind Serve.
    """
    settings = read_settings(arguments, lambda name: f"{name} in args")
    for name, remedy in UNSUPPORTED.items():
        if getattr(settings, name) != Settings.model_fields[name].default:
            raise StartError(f"{name} has no use behind Ray Serve: unset it; {remedy}")
    if not settings.store.is_absolute():
        raise StartError(
            f"store is {str(settings.store)!r}, and replicas run in folders of Ray's: give the full path, in args or "
            "as INLAY_STORE on every machine"
        )
    changes = {"threads": settings.threads or max(1, int(cores))}
    if "max_table_bytes" not in settings.model_fields_set:
        # Serve takes a table as fast as it is made and keeps what the client has not read
        changes["max_table_bytes"] = settings.max_answer_bytes
    return settings.model_copy(update=changes)
