"""What can go wrong while serving, in the caller's words.

InlayError                    code, message, index of the bad input (None: the whole request)
├── BadRequest                the request as a whole: a field, a combination, a name
│   ├── BadParameters         a positional encoding with a missing, unknown or impossible parameter
│   ├── EmptyRequest          no inputs at all
│   ├── Malformed             a body that is not JSON at all
│   └── TooLarge              more inputs or tokens than this server takes
│       ├── BodyTooLarge      more bytes than this server takes
│       └── HeadTooLarge      a line, headers or trailers larger than it reads
├── RangeNotSatisfiable       a byte range behind the end
├── BadInput                  one input: too long, empty, an id outside the vocabulary
├── WrongModelKind            a model that does not do what the route is for
├── Unsupported               a part of a protocol that this server does not have
├── Unauthorized              no key, or not one of this server's
├── NotFound                  no such model, no such table
│   └── NoSuchPath            no such path
├── TooSlow                   a client that takes too long to send its request
├── MethodNotAllowed          a verb this path does not answer
├── NotAcceptable             no format the client accepts
├── UnsupportedMedia          a body of a type this route does not read
│   └── UnsupportedCoding     a body under a content coding this server does not undo
├── Overloaded                no room in the queue
│   └── KeyLimited            one key asks for more than it may have
├── DeadlineExceeded          the time the caller allowed is over, or would be
├── Unavailable               the service is stopping or not ready
└── EngineFailure             the engine failed on this request alone

Only wire/status.py knows which HTTP and gRPC status each one gets. `StartError` is for the operator, not a caller.
"""


class InlayError(Exception):
    """A refusal a caller can act on: what came, what is allowed, what to do."""

    code = "error"

    def __init__(self, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.index = index


class BadRequest(InlayError):
    """A field, a name or a combination that cannot be served."""

    code = "bad_request"


class BadParameters(BadRequest):
    """A positional encoding with a missing, unknown or impossible parameter."""

    code = "bad_parameters"


class EmptyRequest(BadRequest):
    """No inputs at all."""

    code = "empty"


class Malformed(BadRequest):
    """A body that is not JSON at all."""

    code = "malformed"


class TooLarge(BadRequest):
    """More inputs or tokens than this server takes in one request."""

    code = "too_large"


class BodyTooLarge(TooLarge):
    """More bytes than this server takes in one request."""

    code = "body_too_large"


class HeadTooLarge(TooLarge):
    """A request's line, headers or trailers are more than this server reads."""

    code = "head_too_large"


class RangeNotSatisfiable(InlayError):
    """A byte range that begins behind the end of `size` bytes."""

    code = "range_not_satisfiable"

    def __init__(self, message: str, size: int) -> None:
        super().__init__(message)
        self.size = size


class BadInput(InlayError):
    """One input cannot be read; `index` says which."""

    code = "bad_input"


class WrongModelKind(InlayError):
    """The model does not do what this route is for: ranking, classifying, sparse vectors, reading text."""

    code = "wrong_model_kind"


class Unsupported(InlayError):
    """A part of a protocol that this server does not have, or that its operator has not switched on."""

    code = "unsupported"


class Unauthorized(InlayError):
    """No key, or not one of this server's."""

    code = "unauthorized"


class NotFound(InlayError):
    """No such model or table."""

    code = "not_found"


class NoSuchPath(NotFound):
    """No protocol has this path."""


class TooSlow(InlayError):
    """A client that takes too long to send its request."""

    code = "too_slow"


class MethodNotAllowed(InlayError):
    """A verb this path does not answer."""

    code = "method_not_allowed"


class NotAcceptable(InlayError):
    """None of the formats the client accepts can carry this answer."""

    code = "not_acceptable"


class UnsupportedMedia(InlayError):
    """The body is of a type this route does not read."""

    code = "unsupported_media"


class UnsupportedCoding(UnsupportedMedia):
    """The body is under a content coding this server does not undo."""


class Overloaded(InlayError):
    """No room in the queue; `retry_after` is when there should be, in seconds (None: not known)."""

    code = "overloaded"

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class KeyLimited(Overloaded):
    """A key asks for more than it may have; there may be room for others."""

    code = "key_limited"


class DeadlineExceeded(InlayError):
    """The time the caller allowed is over, or would be before the work is done."""

    code = "deadline_exceeded"


class Unavailable(InlayError):
    """The service is stopping or not ready."""

    code = "unavailable"


class EngineFailure(InlayError):
    """The engine failed on this request alone."""

    code = "engine_failure"


class StartError(Exception):
    """The service cannot start; the message is one line for the operator."""
