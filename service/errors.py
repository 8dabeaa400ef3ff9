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
└── RangeNotSatisfiable, WrongModelKind, Unsupported, Unauthorized, TooSlow, MethodNotAllowed, NotAcceptable,
    DeadlineExceeded, Unavailable, EngineFailure

`service/error_status.py` lists the codes, which are stable, with their HTTP and gRPC statuses. `StartError` is for the
operator, not for a caller.
"""

from collections.abc import Mapping
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
    """Return the first number of a field path: the input to blame."""
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
        """Give a class its stable code; without one it has that of its parent."""
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
        """The sentence in the core's own names."""
        return self.render(INLAY)

    def render(self, spelling: Spelling) -> str:
        """Return the sentence: what came, what is allowed, what to do."""
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
    """A request that cannot be served, for a reason that no code of its own names."""


class BadParameters(BadRequest, code="bad_parameters"):
    """A positional encoding with a missing, unknown or impossible parameter."""


class UnknownField(BadRequest, code="unknown_field"):
    """A field, parameter or tensor that is not known here."""


class MissingField(BadRequest, code="missing_field"):
    """A field that is needed and was not sent."""


class ModelRequired(MissingField, code="model_required"):
    """No model is named, and there is no default."""


class ConflictingFields(BadRequest, code="conflicting_fields"):
    """Fields that do not go together, or one that was sent twice."""


class WrongType(BadRequest, code="wrong_type"):
    """A value of another type, or that cannot be read as its own."""


class WrongShape(BadRequest, code="wrong_shape"):
    """A tensor or list of another size than what it belongs to."""


class OutOfRange(BadRequest, code="out_of_range"):
    """A number outside its range."""


class UnknownValue(BadRequest, code="unknown_value"):
    """A value other than those allowed, e.g. the name of an output that the model does not have."""


class EmptyRequest(BadRequest, code="empty"):
    """A request without inputs."""


class Malformed(BadRequest, code="malformed"):
    """A body that is not what its content type says."""


class InvalidJson(Malformed, code="invalid_json"):
    """A body that is not JSON."""


class TooLarge(BadRequest, code="too_large"):
    """More than this server takes in one request."""


class TooManyInputs(TooLarge, code="too_many_inputs"):
    """More inputs than this server takes in one request."""


class TooManyTokens(TooLarge, code="too_many_tokens"):
    """More tokens than this server takes in one request."""


class TooManyCharacters(TooLarge, code="too_many_characters"):
    """More characters than this server takes in one request."""


class BodyTooLarge(TooLarge, code="body_too_large"):
    """More bytes than this server takes in one request."""


class HeadTooLarge(TooLarge, code="head_too_large"):
    """A request line, headers or trailers larger than this server reads."""


class RangeNotSatisfiable(InlayError, code="range_not_satisfiable"):
    """A byte range that begins after the last of `size` bytes."""

    def __init__(self, received: str, size: int) -> None:
        super().__init__(received)
        self.size = size


class BadInput(InlayError, code="bad_input"):
    """An input that cannot be read; `index` is its number."""


class EmptyInput(BadInput, code="empty_input"):
    """An input without a token."""


class TooLong(BadInput, code="too_long"):
    """An input that is longer than the model reads."""


class WrongModelKind(InlayError, code="wrong_model_kind"):
    """A model that does not do what this route is for, such as ranking or classifying."""


class Unsupported(InlayError, code="unsupported"):
    """A part of a protocol that this server does not have, or that its operator has not enabled."""


class Unauthorized(InlayError, code="unauthorized"):
    """No key, or an unknown one."""


class NotFound(InlayError, code="not_found"):
    """No such table, output head or version."""


class UnknownModel(NotFound, code="unknown_model"):
    """No such model."""


class NoSuchPath(NotFound):
    """A path that no protocol has."""


class TooSlow(InlayError, code="too_slow"):
    """A client that takes too long to send its request."""


class MethodNotAllowed(InlayError, code="method_not_allowed"):
    """A verb that this path does not answer; `verbs` are those it does."""

    def __init__(self, received: str, verbs: tuple[str, ...] = ()) -> None:
        super().__init__(received)
        self.verbs = verbs


class NotAcceptable(InlayError, code="not_acceptable"):
    """None of the formats that the client accepts can carry this answer."""


class UnsupportedMedia(InlayError, code="unsupported_media"):
    """A body of a type that this route does not read."""


class UnsupportedCoding(UnsupportedMedia):
    """A body under a content coding that this server does not decode."""


class Overloaded(InlayError, code="overloaded"):
    """No room in the queue; `retry_after` is when there should be room, in seconds (None: not known)."""

    def __init__(self, received: str, retry_after: float | None = None, *, allowed: str = "", remedy: str = "") -> None:
        super().__init__(received, allowed=allowed, remedy=remedy)
        self.retry_after = retry_after


class KeyLimited(Overloaded, code="key_limited"):
    """A key that asks for more than it may have; there may be room for other callers."""


class DeadlineExceeded(InlayError, code="deadline_exceeded"):
    """The caller's deadline has passed, or would pass before the work is done."""


class Unavailable(InlayError, code="unavailable"):
    """The service is stopping or not ready."""


class EngineFailure(InlayError, code="engine_failure"):
    """The engine failed on this request alone."""


class StartError(Exception):
    """The service cannot start; the message is one line for the operator."""
