"""Every error has a status for HTTP and gRPC, and protocols that have errors of their own give it theirs."""

import grpc
import pytest

from service import errors
from service.error_status import STATUSES
from service.errors import BadInput, InlayError, Overloaded
from service.http.problem_details import ERROR_TYPES, Problem, error_type, problem_document, render_problem
from service.protocols.oip.errors import STATUSES as OIP_STATUSES
from service.protocols.oip.errors import grpc_status as oip_grpc_status
from service.protocols.openai.errors import CODES as CODES_OF_OPENAI
from service.protocols.openai.errors import INVALID_REQUESTS, OpenAIFault
from service.protocols.tei.rpc import grpc_status as tei_grpc_status

KINDS = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, InlayError)]
CODES = {kind.code: kind for kind in KINDS if "code" in vars(kind)}
TEI = {"Unhealthy": 503, "Backend": 424, "Overloaded": 429, "Validation": 422, "Tokenizer": 422, "Empty": 400}


def kinds(error: type[InlayError] = InlayError) -> set[type[InlayError]]:
    """Return every class of error that service/ defines, wherever it stands."""
    return {error}.union(*[kinds(subclass) for subclass in error.__subclasses__()])


def test_every_error_has_a_status_and_every_status_an_error() -> None:
    assert {kind.code for kind in kinds()} == set(STATUSES)


def test_openapi_lists_every_code() -> None:
    assert Problem.model_json_schema()["properties"]["code"]["enum"] == list(STATUSES)
    openai = OpenAIFault.model_json_schema()["properties"]["code"]["enum"]
    assert set(openai) == {CODES_OF_OPENAI.get(code, code) for code in STATUSES}


def test_codes_are_not_shared() -> None:
    assert len(CODES) == len([kind for kind in KINDS if "code" in vars(kind)])


def test_protocols_have_no_codes_of_their_own() -> None:
    assert ERROR_TYPES.keys() | INVALID_REQUESTS | OIP_STATUSES.keys() <= STATUSES.keys()


@pytest.mark.parametrize("code", STATUSES)
def test_grpc_status_names_exist(code: str) -> None:
    error = InlayError("x")
    error.code = code
    for status in (STATUSES[code].grpc, oip_grpc_status(error), tei_grpc_status(error)):
        assert hasattr(grpc.StatusCode, status)


def test_error_types_are_those_of_tei() -> None:
    assert set(ERROR_TYPES.values()) <= TEI.keys()


@pytest.mark.parametrize(
    "code", ["empty", "bad_request", "bad_input", "too_large", "overloaded", "engine_failure", "unavailable"]
)
def test_statuses_are_those_of_tei(code: str) -> None:
    """TEI 1.9.3, From<&ErrorType> for StatusCode."""
    assert STATUSES[code].http == TEI[error_type(CODES[code]("x"))]


def test_problem_document_matches_its_schema() -> None:
    error = BadInput("is bad", field=("inputs", 3))
    problem = Problem.model_validate(problem_document(error), strict=True)
    assert (problem.code, problem.index, problem.status, problem.error) == ("bad_input", 3, 422, problem.detail)


def test_overloaded_response_says_when_to_retry() -> None:
    response = render_problem(Overloaded("full"))
    assert (response.status, dict(response.headers)[b"retry-after"]) == (429, b"1")
