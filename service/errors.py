"""The errors a caller can meet, as data that each protocol renders in its own format.

InlayError
├── BadRequest                a request that cannot be served
│   ├── BadParameters         a positional encoding with a missing, unknown or impossible parameter
│   ├── UnknownField          a field, parameter or tensor that is not known
│   ├── MissingField          a field that is needed
│   │   └── ModelRequired     no model is named, and there is no default
│   ├── ConflictingFields     fields that do not go together, or one sent twice
│   ├── WrongType             a value of another type, or that cannot be read as its own
│   ├── WrongShape            a tensor or list of another size
│   ├── OutOfRange            a number outside its range
│   ├── UnknownValue          a value other than those allowed
│   ├── EmptyRequest          no inputs at all
│   ├── Malformed             a body that is not what its content type says
│   │   └── InvalidJson       a body that is not JSON
│   └── TooLarge              more than this server takes in one request
│       ├── TooManyInputs     more inputs
│       ├── TooManyTokens     more tokens
│       ├── TooManyCharacters more characters
│       ├── BodyTooLarge      more bytes
│       └── HeadTooLarge      a request line, headers or trailers larger than this server reads
├── RangeNotSatisfiable       a byte range that begins after the last byte
├── BadInput                  one input that cannot be read
│   ├── EmptyInput            without a token
│   └── TooLong               longer than the model reads
├── WrongModelKind            a model that does not do what the route is for
├── Unsupported               a part of a protocol that this server does not have
├── Unauthorized              no key, or an unknown one
├── NotFound                  no such table, head or version
│   ├── UnknownModel          no such model
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


class BadRequest(InlayError):
    """A request that cannot be served, for a reason that no code of its own names."""

    code = "bad_request"


class BadParameters(BadRequest):
    """A positional encoding with a missing, unknown or impossible parameter."""

    code = "bad_parameters"


class UnknownField(BadRequest):
    """A field, parameter or tensor that is not known here."""

    code = "unknown_field"


class MissingField(BadRequest):
    """A field that is needed and was not sent."""

    code = "missing_field"


class ModelRequired(MissingField):
    """No model is named, and there is no default."""

    code = "model_required"


class ConflictingFields(BadRequest):
    """Fields that do not go together, or one that was sent twice."""

    code = "conflicting_fields"


class WrongType(BadRequest):
    """A value of another type, or that cannot be read as its own."""

    code = "wrong_type"


class WrongShape(BadRequest):
    """A tensor or list of another size than what it belongs to."""

    code = "wrong_shape"


class OutOfRange(BadRequest):
    """A number outside its range."""

    code = "out_of_range"


class UnknownValue(BadRequest):
    """A value other than those allowed, e.g. the name of an output that the model does not have."""

    code = "unknown_value"


class EmptyRequest(BadRequest):
    """A request without inputs."""

    code = "empty"


class Malformed(BadRequest):
    """A body that is not what its content type says."""

    code = "malformed"


class InvalidJson(Malformed):
    """A body that is not JSON."""

    code = "invalid_json"


class TooLarge(BadRequest):
    """More than this server takes in one request."""

    code = "too_large"


class TooManyInputs(TooLarge):
    """More inputs than this server takes in one request."""

    code = "too_many_inputs"


class TooManyTokens(TooLarge):
    """More tokens than this server takes in one request."""

    code = "too_many_tokens"


class TooManyCharacters(TooLarge):
    """More characters than this server takes in one request."""

    code = "too_many_characters"


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


class EmptyInput(BadInput):
    """An input without a token."""

    code = "empty_input"


class TooLong(BadInput):
    """An input that is longer than the model reads."""

    code = "too_long"


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
    """No such table, output head or version."""

    code = "not_found"


class UnknownModel(NotFound):
    """No such model."""

    code = "unknown_model"


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
