"""The errors that a caller can get, as data that each protocol renders in its own format.

InlayError
├── BadRequest                a request that cannot be served, and below it
│   ├── BadParameters, UnknownField, ConflictingFields, WrongType, WrongShape, OutOfRange, UnknownValue, EmptyRequest
│   ├── MissingField          ModelRequired
│   ├── Malformed             InvalidJson
│   └── TooLarge              TooManyInputs, TooManyTokens, TooManyCharacters, BodyTooLarge, HeadTooLarge
├── BadInput                  one input that cannot be read: EmptyInput, TooLong
├── NotFound                  UnknownModel, NoSuchPath
├── UnsupportedMedia          UnsupportedCoding
├── Overloaded                KeyLimited
├── Unavailable               ModelNotLoaded
└── WrongModelKind, Unsupported, Unauthorized, Forbidden, TooSlow, MethodNotAllowed, NotAcceptable,
    DeadlineExceeded, EngineFailure

`service/error_status.py` lists the codes, which are stable, with their HTTP and gRPC statuses. `StartError` is for the
operator, not for a caller.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Self

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


def first_number(field: FieldPath) -> int | None:
    """Return the first number of a field path, which is the input to blame."""
    return next((step for step in field if isinstance(step, int)), None)


class InlayError(Exception):
    """An error that a caller can act on.

    Args:
        received: what came, as a clause; it follows the field's path where there is a field.
        index: the number of the input to blame; by default the first number in `field`.
        field: the path of the field to blame, in the core's names, e.g. ("inputs", 3, "input_ids", 5).
        allowed: what is allowed, as a clause.
        remedy: what to do.
        verbatim: `field` is as the caller's own document has it, so no protocol respells it and `index` is not read
            from it.
    """

    code = "error"

    def __init_subclass__(cls, code: str = "") -> None:
        """Give a class its stable code; a class without one has its parent's."""
        if code:
            cls.code = code

    def __init__(
        self,
        received: str,
        index: int | None = None,
        *,
        field: FieldPath = (),
        allowed: str = "",
        remedy: str = "",
        verbatim: bool = False,
    ) -> None:
        self.received, self.field, self.allowed, self.remedy, self.verbatim = received, field, allowed, remedy, verbatim
        self.index = index if index is not None or verbatim else first_number(field)
        super().__init__(received)

    @property
    def message(self) -> str:
        """The message with the core's field names."""
        return self.render(INLAY)

    def render(self, spelling: Spelling) -> str:
        """Return the message: what came, what is allowed, what to do."""
        fields = INLAY if self.verbatim else spelling
        text = f"{fields.path(self.field)} {self.received}" if self.field else self.received
        text += f"; {self.allowed}" if self.allowed else ""
        return f"{text}: {spelling.remedies.get(self.remedy, self.remedy)}" if self.remedy else text

    def __str__(self) -> str:
        return self.message

    def without_frames(self) -> Self:
        """Return the error without its traceback and context.

        A frame that keeps an error which keeps the frame is freed by the garbage collector alone, and with it what
        the caller sent.
        """
        self.__context__ = self.__cause__ = None
        return self.with_traceback(None)


class BadRequest(InlayError, code="bad_request"):
    """A request that cannot be served, for a reason without a code of its own."""


class BadParameters(BadRequest, code="bad_parameters"):
    """A positional encoding with a missing, unknown or impossible parameter."""


class UnknownField(BadRequest, code="unknown_field"):
    """A field, parameter or tensor that this server does not know."""


class MissingField(BadRequest, code="missing_field"):
    """A required field that was not sent."""


class ModelRequired(MissingField, code="model_required"):
    """No model is named, and there is no default."""


class ConflictingFields(BadRequest, code="conflicting_fields"):
    """Fields that contradict each other, or one that was sent twice."""


class WrongType(BadRequest, code="wrong_type"):
    """A value of another type, or one that cannot be parsed as its type."""


class WrongShape(BadRequest, code="wrong_shape"):
    """A tensor or list whose size does not match the value that it belongs to."""


class OutOfRange(BadRequest, code="out_of_range"):
    """A number outside its range."""


class UnknownValue(BadRequest, code="unknown_value"):
    """A value other than those allowed, e.g. the name of an output that the model does not have."""


class EmptyRequest(BadRequest, code="empty"):
    """A request without inputs."""


class Malformed(BadRequest, code="malformed"):
    """A body that does not match its content type."""


class InvalidJson(Malformed, code="invalid_json"):
    """A body that is not JSON."""


class TooLarge(BadRequest, code="too_large"):
    """A request that exceeds one of this server's limits."""


class TooManyInputs(TooLarge, code="too_many_inputs"):
    """A request with more inputs than this server takes."""


class TooManyTokens(TooLarge, code="too_many_tokens"):
    """A request with more tokens than this server takes."""


class TooManyCharacters(TooLarge, code="too_many_characters"):
    """A request with more characters than this server takes."""


class BodyTooLarge(TooLarge, code="body_too_large"):
    """A request with more bytes than this server takes."""


class HeadTooLarge(TooLarge, code="head_too_large"):
    """A request line, headers or trailers larger than this server reads."""


class BadInput(InlayError, code="bad_input"):
    """An input that cannot be read; `index` is its number."""


class EmptyInput(BadInput, code="empty_input"):
    """An input without a token."""


class TooLong(BadInput, code="too_long"):
    """An input that is longer than the model can read."""


class WrongModelKind(InlayError, code="wrong_model_kind"):
    """A model that cannot do what the route is for, such as ranking or classifying."""


class Unsupported(InlayError, code="unsupported"):
    """A part of a protocol that this server does not support, or that its operator has not enabled."""


class Unauthorized(InlayError, code="unauthorized"):
    """No key, or an unknown one."""


class Forbidden(InlayError, code="forbidden"):
    """A request of a web page that may not make it, or to a host that is not this server's name."""


class NotFound(InlayError, code="not_found"):
    """A table, output head or version that does not exist."""


class UnknownModel(NotFound, code="unknown_model"):
    """A model that is not loaded."""


class NoSuchPath(NotFound):
    """A path that no protocol serves."""


class TooSlow(InlayError, code="too_slow"):
    """A client that takes too long to send its request."""


class MethodNotAllowed(InlayError, code="method_not_allowed"):
    """A method that this path does not support; `verbs` are those it supports."""

    def __init__(self, received: str, verbs: tuple[str, ...] = ()) -> None:
        super().__init__(received)
        self.verbs = verbs


class NotAcceptable(InlayError, code="not_acceptable"):
    """A request that accepts none of the formats that this answer can have."""


class UnsupportedMedia(InlayError, code="unsupported_media"):
    """A body of a content type that this route does not read."""


class UnsupportedCoding(UnsupportedMedia):
    """A body with a content coding that this server does not decode."""


class Overloaded(InlayError, code="overloaded"):
    """The queue is full; `retry_after` is when there should be room, in seconds (None: not known)."""

    def __init__(self, received: str, retry_after: float | None = None, *, allowed: str = "", remedy: str = "") -> None:
        super().__init__(received, allowed=allowed, remedy=remedy)
        self.retry_after = retry_after


class KeyLimited(Overloaded, code="key_limited"):
    """A key that has reached one of its limits; there may be room for other callers."""


class DeadlineExceeded(InlayError, code="deadline_exceeded"):
    """The caller's deadline has passed, or would pass before the work is done."""


class Unavailable(InlayError, code="unavailable"):
    """The service is stopping or not ready; `retry_after` is when it should be, in seconds (None: not known)."""

    retry_after: float | None = None


class ModelNotLoaded(Unavailable):
    """A model that its first request loads; `load` does so, after which the same request is served."""

    def __init__(self, received: str, load: Callable[[], Awaitable[None]]) -> None:
        super().__init__(received, remedy="try again in a moment")
        self.load = load


class EngineFailure(InlayError, code="engine_failure"):
    """The engine failed on this request alone."""


class StartError(Exception):
    """The service cannot start; the message is one line for the operator."""
