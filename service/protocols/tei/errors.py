"""How text-embeddings-inference refuses over HTTP: strangers with an empty body, all else as /embed does."""

from service.error_status import STATUSES
from service.errors import InlayError, Unauthorized
from service.http.endpoint import Answer
from service.protocols.inlay import embed


def refusal(error: InlayError) -> Answer:
    """An error as that server words it."""
    if isinstance(error, Unauthorized):
        return Answer(((b"content-length", b"0"),), [b""], STATUSES[error.code].http)
    return embed.refusal(error)
