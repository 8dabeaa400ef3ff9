"""The errors a caller can meet, as data that each protocol renders in its own format.

InlayError
├── BadRequest                a field, a name or a combination that cannot be served
│   ├── BadParameters         a positional encoding with a missing, unknown or impossible parameter
│   ├── EmptyRequest          no inputs at all
│   ├── Malformed             a body that is not what its content type says
│   └── TooLarge              more inputs or tokens than this server takes
│       ├── BodyTooLarge      more bytes than this server takes
│       └── HeadTooLarge      a request line, headers or trailers larger than this server reads
├── RangeNotSatisfiable       a byte range that begins after the last byte
├── BadInput                  one input: too long, empty, an id outside the vocabulary
├── WrongModelKind            a model that does not do what the route is for
├── Unsupported               a part of a protocol that this server does not have
├── Unauthorized              no key, or an unknown one
├── NotFound                  no such model or table
│   └── NoSuchPath            no such path
├── TooSlow                   a client that takes too long to send its request
├── MethodNotAllowed          a verb that this path does not answer
├── NotAcceptable             no format that the client accepts
├── UnsupportedMedia          a body of a type that this route does not read
│   └── UnsupportedCoding     a body under a content coding that this server does not decode
├── Overloaded                no room in the queue
│   └── KeyLimited            one key asks for more than it may have
├── DeadlineExceeded          the caller's deadline has passed, or would pass before the work is done
├── Unavailable               the service is stopping or not ready
└── EngineFailure             the engine failed on this request alone

`service/error_status.py` maps codes to HTTP and gRPC statuses. `StartError` is for the operator, not for a caller.
"""

from collections.abc import Mapping
from typing import NamedTuple

FieldPath = tuple[str | int, ...]
SHORTEN_OR_TRUNCATE = 'shorten it or send "truncate": true'


class Spelling(NamedTuple):
    """How a protocol spells the core's field names and remedies.

    Args:
        fields: the protocol's name of a field, by the core's name; an empty name leaves the step out of a path.
        remedies: the protocol's sentence for a remedy, by the core's.
    """

    fields: Mapping[str, str] = {}
    remedies: Mapping[str, str] = {}

    def path(self, field: FieldPath) -> str:
        """Return a field path as text, e.g. `inputs[3].input_ids[5]`."""
        text = ""
        for step in field:
            if isinstance(step, int):
                text += f"[{step}]"
            elif name := self.fields.get(step, step):
                text += f".{name}" if text else name
        return text


INLAY = Spelling()


class InlayError(Exception):
    """An error that a caller can act on.

    Args:
        received: what came, as a clause; it follows the field's path where there is a field.
        index: the number of the input to blame; by default the first number in `field`.
        field: the path of the field to blame, in the core's names, e.g. ("inputs", 3, "input_ids", 5).
        allowed: what is allowed, as a clause.
        remedy: what to do.
    """

    code = "error"

    def __init__(
        self, received: str, index: int | None = None, *, field: FieldPath = (), allowed: str = "", remedy: str = ""
    ) -> None:
        self.received, self.field, self.allowed, self.remedy = received, field, allowed, remedy
        self.index = index if index is not None else next((step for step in field if isinstance(step, int)), None)
        super().__init__(received)

    @property
    def message(self) -> str:
        """The sentence in the core's own names."""
        return self.render(INLAY)

    def render(self, spelling: Spelling) -> str:
        """Return the sentence: what came, what is allowed, what to do."""
        text = f"{spelling.path(self.field)} {self.received}" if self.field else self.received
        text += f"; {self.allowed}" if self.allowed else ""
        return f"{text}: {spelling.remedies.get(self.remedy, self.remedy)}" if self.remedy else text

    def __str__(self) -> str:
        return self.message


class BadRequest(InlayError):
    """A field, a name or a combination that cannot be served."""

    code = "bad_request"


class BadParameters(BadRequest):
    """A positional encoding with a missing, unknown or impossible parameter."""

    code = "bad_parameters"


class EmptyRequest(BadRequest):
    """A request without inputs."""

    code = "empty"


class Malformed(BadRequest):
    """A body that is not what its content type says."""

    code = "malformed"


class TooLarge(BadRequest):
    """More inputs or tokens than this server takes in one request."""

    code = "too_large"


class BodyTooLarge(TooLarge):
    """More bytes than this server takes in one request."""

    code = "body_too_large"


class HeadTooLarge(TooLarge):
    """A request line, headers or trailers larger than this server reads."""

    code = "head_too_large"


class RangeNotSatisfiable(InlayError):
    """A byte range that begins after the last of `size` bytes."""

    code = "range_not_satisfiable"

    def __init__(self, received: str, size: int) -> None:
        super().__init__(received)
        self.size = size


class BadInput(InlayError):
    """An input that cannot be read; `index` is its number."""

    code = "bad_input"


class WrongModelKind(InlayError):
    """A model that does not do what this route is for, such as ranking or classifying."""

    code = "wrong_model_kind"


class Unsupported(InlayError):
    """A part of a protocol that this server does not have, or that its operator has not enabled."""

    code = "unsupported"


class Unauthorized(InlayError):
    """No key, or an unknown one."""

    code = "unauthorized"


class NotFound(InlayError):
    """No such model or table."""

    code = "not_found"


class NoSuchPath(NotFound):
    """A path that no protocol has."""


class TooSlow(InlayError):
    """A client that takes too long to send its request."""

    code = "too_slow"


class MethodNotAllowed(InlayError):
    """A verb that this path does not answer; `verbs` are those it does."""

    code = "method_not_allowed"

    def __init__(self, received: str, verbs: tuple[str, ...] = ()) -> None:
        super().__init__(received)
        self.verbs = verbs


class NotAcceptable(InlayError):
    """None of the formats that the client accepts can carry this answer."""

    code = "not_acceptable"


class UnsupportedMedia(InlayError):
    """A body of a type that this route does not read."""

    code = "unsupported_media"


class UnsupportedCoding(UnsupportedMedia):
    """A body under a content coding that this server does not decode."""


class Overloaded(InlayError):
    """No room in the queue; `retry_after` is when there should be room, in seconds (None: not known)."""

    code = "overloaded"

    def __init__(self, received: str, retry_after: float | None = None, *, allowed: str = "", remedy: str = "") -> None:
        super().__init__(received, allowed=allowed, remedy=remedy)
        self.retry_after = retry_after


class KeyLimited(Overloaded):
    """A key that asks for more than it may have; there may be room for other callers."""

    code = "key_limited"


class DeadlineExceeded(InlayError):
    """The caller's deadline has passed, or would pass before the work is done."""

    code = "deadline_exceeded"


class Unavailable(InlayError):
    """The service is stopping or not ready."""

    code = "unavailable"


class EngineFailure(InlayError):
    """The engine failed on this request alone."""

    code = "engine_failure"


class StartError(Exception):
    """The service cannot start; the message is one line for the operator."""
