"""How text-embeddings-inference answers errors over HTTP: as /embed does, callers without a key with an empty body."""

from service.error_status import STATUSES
from service.errors import InlayError, Unauthorized
from service.http.problem_details import render_problem
from service.http.response import Response


def render_error(error: InlayError) -> Response:
    """Return an error as that server answers it."""
    if isinstance(error, Unauthorized):
        return Response((), (), STATUSES[error.code].http)
    return render_problem(error)
