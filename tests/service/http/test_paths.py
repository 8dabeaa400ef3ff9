"""Which application a path reaches, which verbs it answers, and whose words say that it is not there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.routing import Match, Route

from service.http.paths import Paths
from tests.served import Served

ROUTES = ("/", "/embed", "/v2/models/{name}/infer", "/v2/models/stats", "/v2/models/{name}/versions/{version}", "/a/")
SEGMENTS = st.sampled_from(["", "embed", "v2", "models", "stats", "infer", "versions", "a", "b c", "{name}"])


async def nothing(scope: object, receive: object, send: object) -> None:
    """An application that is told apart by its path alone."""


def entered() -> Paths:
    paths = Paths()
    for path in ROUTES:
        paths.add(path, ("POST",), nothing)
    return paths


@given(st.lists(SEGMENTS, max_size=7), st.sampled_from(["POST", "GET"]))
def test_what_is_found_is_what_starlette_finds(segments: list[str], method: str) -> None:
    path = "/" + "/".join(segments)
    scope = {"type": "http", "path": path, "method": method}
    matches = [Route(each, nothing, methods=["POST"]).matches(scope) for each in ROUTES]  # type: ignore[arg-type]
    full = [child["path_params"] for match, child in matches if match is Match.FULL]
    found = entered().find(method, path)
    assert (found.parameters if found else None) == (full[0] if full else None)


def test_a_literal_path_stands_before_a_parameter() -> None:
    found = entered().find("POST", "/v2/models/stats")
    assert found is not None
    assert found.parameters == {}


@pytest.mark.parametrize(
    ("path", "template"),
    [
        ("/embed", "/embed"),
        ("/v2/models/infer/infer", "/v2/models/{name}/infer"),
        ("/v2/models/{version}/versions/{name}", "/v2/models/{name}/versions/{version}"),
        ("/v2/models/a\nb/infer", "/v2/models/{name}/infer"),
        ("/v2/models//infer", None),
        ("/v2/models", None),
        ("/a\nb", None),
        ("", None),
    ],
)
def test_a_template_holds_nothing_of_the_path_it_is_asked_for(path: str, template: str | None) -> None:
    assert entered().template(path) == template


@pytest.mark.parametrize("path", ["/a/{rest:path}", "/a/{name}.png"])
def test_what_it_cannot_hold_is_left_to_the_router(path: str) -> None:
    paths = Paths()
    paths.add(path, ("GET",), nothing)
    assert paths.find("GET", "/a/b.png") is None
    assert paths.methods("/a/b.png") == []


GETS = [
    "/",
    "/health/live",
    "/models",
    "/models/bert",
    "/metrics",
    "/docs",
    "/openapi.json",
    "/v1/models",
    "/v2",
    "/info",
]


@pytest.mark.parametrize("path", GETS)
def test_what_answers_get_answers_head(served: Served, path: str) -> None:
    got, headed = served.http.get(path), served.http.head(path)
    assert (headed.status_code, headed.content) == (got.status_code, b"") == (200, b"")
    assert headed.headers["content-type"] == got.headers["content-type"]


def test_one_path_of_several_routes_names_all_its_verbs(served: Served) -> None:
    answer = served.http.put("/")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD, POST"


# verb, path, where the message lies, status
WORDS = [
    ("GET", "/v1/embeddings", ("error", "message"), 405),
    ("POST", "/v1/embedding", ("error", "message"), 404),
    ("GET", "/pooling", ("error", "message"), 405),
    ("DELETE", "/embeddings", ("error", "message"), 405),
    ("GET", "/v2/models/bert/infer", ("error",), 405),
    ("GET", "/v2/model", ("error",), 404),
    ("GET", "/embed", ("detail",), 405),
    ("GET", "/v11", ("detail",), 404),
    ("PATCH", "/tokenize", ("error",), 405),
]


@pytest.mark.parametrize(("verb", "path", "place", "status"), WORDS)
def test_what_is_not_there_is_told_in_the_protocols_words(
    served: Served, verb: str, path: str, place: tuple[str, ...], status: int
) -> None:
    answer = served.http.request(verb, path)
    message = answer.json()
    for each in place:
        message = message[each]
    assert answer.status_code == status
    assert path in message
    assert bool(answer.headers.get("allow")) == (status == 405)


@pytest.mark.parametrize("path", ["/embed/", "/v1/embeddings/", "/health/live/"])
def test_a_slash_too_many_is_no_redirect(served: Served, path: str) -> None:
    answer = served.http.post(path, json={"inputs": "a"}, follow_redirects=False)
    assert answer.status_code == 404


def test_a_message_of_no_path_blames_no_model(served: Served) -> None:
    error = served.http.get("/v1/nothing").json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, "not_found")


def test_every_tag_of_the_document_is_described(served: Served) -> None:
    document = served.http.get("/openapi.json").json()
    used = {tag for item in document["paths"].values() for each in item.values() for tag in each["tags"]}
    assert used <= {tag["name"] for tag in document["tags"]}
