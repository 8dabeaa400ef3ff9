"""Context variables of the running task that log lines and spans name."""

from contextvars import ContextVar

REQUEST_ID: ContextVar[bytes] = ContextVar("request_id", default=b"-")
"""The id of the request that the running task serves; b"-" outside a request."""
KEY_NAME: ContextVar[str] = ContextVar("key_name", default="")
"""The name of the API key that the caller of the running task showed; empty without keys."""
TRACE_ID: ContextVar[str] = ContextVar("trace_id", default="")
"""The id of the trace that the running task adds to, in hexadecimal; empty where nothing is traced."""
