"""The one table of statuses knows every error."""

import grpc
import pytest

from service import errors
from service.error_status import STATUSES
from service.errors import BadInput, InlayError, Overloaded
from service.http.problem_details import Problem, answer, document

KINDS = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, InlayError)]
TEI = {"Unhealthy": 503, "Backend": 424, "Overloaded": 429, "Validation": 422, "Tokenizer": 422, "Empty": 400}


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_a_row(kind: type[InlayError]) -> None:
    assert kind.code in STATUSES


def test_every_row_has_an_error() -> None:
    assert {kind.code for kind in KINDS} == set(STATUSES)


def test_codes_are_not_shared() -> None:
    own = [kind.code for kind in KINDS if "code" in vars(kind)]
    assert len(set(own)) == len(own)


@pytest.mark.parametrize("code", STATUSES)
def test_grpc_and_text_embeddings_inference_know_their_names(code: str) -> None:
    assert hasattr(grpc.StatusCode, STATUSES[code].grpc)
    assert STATUSES[code].tei in TEI


@pytest.mark.parametrize(
    "code", ["empty", "bad_request", "bad_input", "too_large", "overloaded", "engine_failure", "unavailable"]
)
def test_where_text_embeddings_inference_has_the_error_the_status_is_its_own(code: str) -> None:
    assert STATUSES[code].http == TEI[STATUSES[code].tei]  # TEI 1.9.3, From<&ErrorType> for StatusCode


def test_a_problem_is_what_the_documentation_says() -> None:
    problem = Problem.model_validate(document(BadInput("inputs[3] is bad", 3)), strict=True)
    assert (problem.code, problem.index, problem.status, problem.error) == ("bad_input", 3, 422, problem.detail)


def test_a_refused_caller_is_told_when_to_come_back() -> None:
    status, headers, _ = answer(Overloaded("full"))
    assert (status, dict(headers)[b"retry-after"]) == (429, b"1")
