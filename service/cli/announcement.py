"""Prints what `inlay serve` and `inlay check` announce: the loaded models, and how to call the service."""

import logging
from typing import TYPE_CHECKING

from service.cli.console import say
from service.registry.registry import DEFAULT_VARIABLE, ModelRegistry
from service.security.api_keys import warn_of_short_keys
from service.settings import Settings

if TYPE_CHECKING:  # a supervisor never imports the application, so that its workers start sooner
    from service.context import ServiceContext
    from service.embedding.model import Model

ANYWHERE = ("0.0.0.0", "::")
log = logging.getLogger(__name__)


def introduce(settings: Settings, registry: ModelRegistry) -> None:
    """Print the loaded models, the device that runs each, and what follows for requests that name no model."""
    say(settings, f"models of {settings.store.absolute()}")
    for name, model in registry.offered.items():
        card, default = model.card, ", default" if model is registry.default else ""
        size = f"{card.answer_width} wide, {card.parameters / 1e6:.1f} M parameters, {card.bytes / 2**20:.0f} MiB"
        say(settings, f"{name} ({card.family}{default}): {size} {card.dtype}, outputs: {', '.join(card.outputs)}")
        if name not in registry.models:
            say(settings, f"{name} is loaded by its first request")
            continue
        reasons = _device_reason(settings, model), _engine_reason(model)
        if card.random:
            say(settings, f"{name} has random weights, made by `inlay create`: what it answers means nothing")
        say(settings, f"{name} runs on {model.engine.device} ({reasons[0]}){reasons[1]}")
    if not registry.offered:
        held = f"no model is loaded, {settings.store} holds none"
        say(settings, f"{held}; routes that need none, such as /positions, are served")
        out = settings.store / "NAME"
        say(settings, f"add one with `inlay serve --model CHECKPOINT_OR_HUB_ID` or `inlay export CHECKPOINT {out}`")
    if fault := registry.default_fault():
        names = f"{DEFAULT_VARIABLE} or --default-model sets it"
        say(settings, f"no default model: {fault}; requests must name one, {names}")
    alone = registry.default if not registry.named_defaults else None
    if alone is not None and (settings.watch_store or settings.model_control != "none"):
        name = alone.card.name
        keeps = f"{DEFAULT_VARIABLE}={name} keeps it"
        say(settings, f"{name} is the default only while no other model is loaded; {keeps}")


def _device_reason(settings: Settings, model: "Model") -> str:
    if settings.device != "auto" or settings.engine == "reference":
        return "as set"
    from service.runtime.onnx import explain_device

    return explain_device(model.engine.device)


def _engine_reason(model: "Model") -> str:
    """Return which engine runs the encoder and why; empty if there was no choice."""
    reason, closeness = model.choice.reason, model.choice.closeness
    if closeness is None:
        return f"; {reason}" if reason else ""
    return f"; its encoder in {reason}; cosines to float32: {closeness.least:.5f} at least, {closeness.mean:.5f} mean"


def announce(settings: Settings, context: "ServiceContext", grpc_port: int) -> None:
    """Print the loaded models, the addresses of the service and an example request."""
    introduce(settings, context.registry)
    host = "localhost" if settings.host in ANYWHERE else f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http{'s' if settings.tls_cert else ''}://{host}:{settings.port}"
    management = "" if settings.management_port is None else f" · management {host}:{settings.management_port}"
    page = f" · web page {url}/" if settings.web else ""
    say(settings, f"REST {url}{page} · docs {url}/docs · gRPC {host}:{grpc_port}{management}")
    needs_key = settings.api_keys or settings.api_keys_file
    if settings.host in ANYWHERE and not (needs_key or settings.tls_client_ca):
        log.warning("all who reach this machine may call: INLAY_API_KEYS or INLAY_TLS_CLIENT_CA says who may")
    warn_of_short_keys(settings)
    key = " -H 'authorization: Bearer KEY'" if needs_key else ""
    say(settings, f"try: curl {url}{_example(context.registry, key)}")


def _example(registry: ModelRegistry, key: str) -> str:
    """Return the path and the curl flags of an example request."""
    model = registry.default or next(iter(registry.offered.values()), None)
    if model is None:
        return f"/positions{key}"
    name = "" if model is registry.default else f'"model": "{model.card.name}", '
    inputs = '"hello world"' if model.card.tokenizer else "[1, 2, 3]"
    return f"/embed{key} -H 'content-type: application/json' -d '{{{name}\"inputs\": {inputs}}}'"
