"""How text-embeddings-inference refuses over HTTP: strangers with an empty body, all else as /embed does."""

from service.errors import InlayError, Unauthorized
from service.wire import embed
from service.wire.endpoint import Answer
from service.wire.status import STATUSES


def refusal(error: InlayError) -> Answer:
    """An error as that server words it."""
    if isinstance(error, Unauthorized):
        return Answer(((b"content-length", b"0"),), [b""], STATUSES[error.code].http)
    return embed.refusal(error)
