"""The gate of gRPC: calls that must show a key, before any message is read. Knows no service but those open to all.

An interceptor, unlike request ids and spans: around a handler it would come after the first message was read. Only
there where keys are set.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, NoReturn

import grpc
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from service.context import ServiceContext
from service.errors import InlayError, Unauthorized
from service.grpc.access_log import sighted
from service.grpc.methods import StatusOf, abort, inlay_status
from service.grpc.request_ids import numbered

BEARER = b"bearer "
from service.security.api_keys import Keys

OPEN = (health.SERVICE_NAME, reflection.SERVICE_NAME)
OTHER = "_OTHER"  # what OpenTelemetry calls a method that is not there, whose name is the caller's own


class Words(NamedTuple):
    """How the services of a package refuse.

    stranger   what those are told who show no known key; empty: what was wrong
    """

    status_of: StatusOf = inlay_status
    stranger: str = ""


class Gate(grpc.aio.ServerInterceptor):
    """Lets calls pass that show a key.

    words   by package of the service; inlay.v1's for every other
    """

    def __init__(self, keys: Keys, context: ServiceContext, words: Mapping[str, Words]) -> None:
        self._keys, self._words = keys, words
        self._count = context.metrics.gate("grpc")
        self._followed = partial(sighted, tracing=context.tracing, lines=context.settings.access_log)

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """The handler of a call: its own, or one that refuses it."""
        method, began = handler_call_details.method[1:], perf_counter()
        service = method.rpartition("/")[0]
        if service in OPEN:
            return await continuation(handler_call_details)
        try:
            key = self._keys.acquire(_shown(handler_call_details.invocation_metadata or ()))
        except InlayError as error:
            words = self._words.get(service.rpartition(".")[0], Words())
            self._count(error.code, words.status_of(error), perf_counter() - began)
            there = await continuation(handler_call_details) is not None
            return numbered(self._followed(_refusing(error, words), method if there else OTHER))
        if key.limited:
            task = asyncio.current_task()
            assert task is not None  # the call's own: its end is the call's
            task.add_done_callback(lambda _: key.release(perf_counter() - began))
        return await continuation(handler_call_details)


def _shown(metadata: Sequence[tuple[str, str | bytes]]) -> bytes | None:
    for name, value in metadata:
        if name == "authorization" and isinstance(value, str):
            raw = value.encode("ascii", "replace")
            return raw[len(BEARER) :].strip() if raw[: len(BEARER)].lower() == BEARER else None
    return None


def _refusing(error: InlayError, words: Words) -> Any:
    """A handler that reads nothing; to the caller it is of any kind."""
    if isinstance(error, Unauthorized) and words.stranger:
        error.message = words.stranger

    async def refuse(requests: Any, context: Any) -> NoReturn:
        await abort(context, error, words.status_of)

    return grpc.stream_stream_rpc_method_handler(refuse)
