"""Routing: which route a path and a verb reach, the values of its parameters, and errors of unknown paths and verbs."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.routing import Match as Matches
from starlette.routing import Route as StarletteRoute

from service.errors import NoSuchPath
from service.http.problem_details import render_problem
from service.http.response import Response
from service.http.router import Router
from service.http.routes import Head, RouteGroup
from tests.served import Served
from tests.service.http.toy_server import exchange, request, route, running, statuses

PATHS = (
    "/",
    "/embed",
    "/v2/models/stats",
    "/v2/models/{name}/infer",
    "/v2/models/{name}/versions/{version}",
    "/a/",
    "/a/{name}.png",
    "/a/{name}",
    "/files/{file:path}",
)
PLAIN = ["", "embed", "v2", "models", "stats", "infer", "versions", "a", "b c", ".png", "x.png", "files"]
SEGMENTS = st.sampled_from([*PLAIN, "{name}", "{}", "{}.png"])


async def nothing(request: Any) -> Response:
    """A handler; its route is told apart by its path."""
    return Response()


def router_of(paths: Sequence[str], verbs: Sequence[str] = ("POST",)) -> Router:
    return Router([RouteGroup([route(path, nothing, verb) for path in paths for verb in verbs], render_problem)])


@given(st.lists(SEGMENTS, max_size=7), st.sampled_from(["POST", "GET"]))
def test_finds_what_starlette_finds(segments: list[str], method: str) -> None:
    path = "/" + "/".join(segments)
    scope = {"type": "http", "path": path, "method": method}
    matches = [StarletteRoute(each, nothing, methods=["POST"]).matches(scope) for each in PATHS]
    full = [child["path_params"] for match, child in matches if match is Matches.FULL]
    our_match = router_of(PATHS).find(method, path)
    expected = full[0] if full else None
    if path.startswith("/files//") or path == "/files/":  # starlette's :path may be empty or absolute
        expected = None
    assert (our_match.parameters if our_match else None) == expected


@pytest.mark.parametrize(
    ("path", "template", "parameters"),
    [
        ("/embed", "/embed", {}),
        ("/v2/models/stats", "/v2/models/stats", {}),
        ("/v2/models/infer/infer", "/v2/models/{name}/infer", {"name": "infer"}),
        (
            "/v2/models/{version}/versions/{name}",
            "/v2/models/{name}/versions/{version}",
            {"name": "{version}", "version": "{name}"},
        ),
        ("/v2/models/a\nb/infer", "/v2/models/{name}/infer", {"name": "a\nb"}),
        ("/v2/models/stats/infer", "/v2/models/{name}/infer", {"name": "stats"}),
        ("/a/b.png", "/a/{name}.png", {"name": "b"}),
        ("/a/b.c.png", "/a/{name}.png", {"name": "b.c"}),
        ("/a/.png", "/a/{name}", {"name": ".png"}),
        ("/a/{}", "/a/{name}", {"name": "{}"}),
        ("/a/{}.png", "/a/{name}.png", {"name": "{}"}),
        ("/files/{:path}/a", "/files/{file:path}", {"file": "{:path}/a"}),
        ("/a/b.pngs", "/a/{name}", {"name": "b.pngs"}),
        ("/files/a", "/files/{file:path}", {"file": "a"}),
        ("/files/a/b//c.css", "/files/{file:path}", {"file": "a/b//c.css"}),
        ("/a/", "/a/", {}),
        ("/v2/models//infer", None, None),
        ("/v2/models", None, None),
        ("/embed/", None, None),
        ("//embed", None, None),
        ("/files", None, None),
        ("/a\nb", None, None),
        ("*", None, None),
        ("", None, None),
    ],
)
def test_most_exact_route_wins(path: str, template: str | None, parameters: dict[str, str] | None) -> None:
    match = router_of(PATHS).find("POST", path)
    assert (match and match.route.path, match and match.parameters) == (template, parameters)


def test_finds_a_parameter_where_the_exact_path_has_another_verb() -> None:
    rows = [route("/models/stats", nothing, "GET"), route("/models/{name}", nothing, "POST")]
    router = Router([RouteGroup(rows, render_problem)])
    match = router.find("POST", "/models/stats")
    assert match is not None
    assert match.parameters == {"name": "stats"}
    assert router.verbs("/models/stats") == ("GET", "HEAD", "POST")


def test_rejects_a_route_that_is_declared_twice() -> None:
    with pytest.raises(ValueError, match="POST /embed is declared twice"):
        router_of(["/embed", "/embed"])


@pytest.mark.parametrize(
    ("verbs", "reported"),
    [(("POST",), ("POST",)), (("GET",), ("GET", "HEAD")), (("GET", "POST"), ("GET", "HEAD", "POST"))],
)
@pytest.mark.parametrize("path", ["/embed", "/v2/models/a/infer", "/a/b.png", "/files/a/b"])
def test_names_the_verbs_of_a_path(path: str, verbs: tuple[str, ...], reported: tuple[str, ...]) -> None:
    router = router_of(PATHS, verbs)
    assert router.verbs(path) == reported
    assert (router.find("HEAD", path) is None) is ("HEAD" not in reported)
    assert router.verbs("/nothing") == ()


def test_protocol_of_a_prefix_renders_its_unknown_paths() -> None:
    def renders(name: str) -> Any:
        return lambda error: Response((name.encode(),))

    own = route("/own", nothing, render_error=renders("own"))
    groups = [
        RouteGroup([own], renders("first")),
        RouteGroup([route("/v2", nothing)], renders("second"), ("/v2", "/x")),
    ]
    router = Router(groups)
    error = NoSuchPath("there is none")
    for path, name in (
        ("/a", b"first"),
        ("/v2", b"second"),
        ("/v2/a", b"second"),
        ("/v22", b"first"),
        ("/x/", b"second"),
    ):
        assert router.renderer(None, path)(error).body == (name,)
    assert router.renderer(own, "/v2")(error).body == (b"own",)


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/a", "/a", b""),
        (b"/a?b=c?d", "/a", b"b=c?d"),
        (b"/a%20b%2Fc", "/a b/c", b""),
        (b"/%C3%A9", "/\u00e9", b""),
        (b"/%ff%zz%", "/\ufffd%zz%", b""),
        (b"/a+b", "/a+b", b""),
        (b"/a?%20", "/a", b"%20"),
        (b"http://x/a?b", "/a", b"b"),
        (b"HTTP://x:80/a", "/a", b""),
        (b"http://x", "/", b""),
        (b"http://x?b", "/", b"b"),
        (b"/http://x/a", "/http://x/a", b""),
        (b"*", "*", b""),
    ],
)
def test_reads_path_and_query_of_a_target(target: bytes, path: str, query: bytes) -> None:
    head = Head("GET", target, {})
    assert (head.path, head.query) == (path, query)


async def test_percent_encoded_names_reach_their_route() -> None:
    seen: list[dict[str, str]] = []

    async def handler(request: Any) -> Response:
        seen.append(request.parameters)
        return Response()

    async with running([route("/models/{name}", handler)]) as toy:
        lines = (b"GET /models/a%20b", b"GET /models/%e2%82%ac", b"GET /models/a%2Fb", b"GET http://x/models/c")
        answer = await exchange(toy.port, b"".join(map(request, lines)) + request(b"GET /models", b"connection: close"))
    assert statuses(answer) == [200, 200, 200, 200, 404]
    assert seen == [{"name": "a b"}, {"name": "\u20ac"}, {"name": "a/b"}, {"name": "c"}]


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
def test_routes_that_answer_get_answer_head(served: Served, path: str) -> None:
    got, headed = served.http.get(path), served.http.head(path)
    assert (headed.status_code, headed.content) == (got.status_code, b"") == (200, b"")
    assert headed.headers["content-type"] == got.headers["content-type"]


def test_405_names_all_verbs_of_a_path(served: Served) -> None:
    answer = served.http.put("/")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD, POST"


# verb, path, where the message lies, status
WORDS = [
    ("GET", "/v1/embeddings", ("error", "message"), 405),
    ("POST", "/v1/embedding", ("error", "message"), 404),
    ("GET", "/v1/embed", ("message",), 405),
    ("POST", "/v2/embed/x", ("message",), 404),
    ("GET", "/pooling", ("error", "message"), 405),
    ("DELETE", "/embeddings", ("error", "message"), 405),
    ("GET", "/v2/models/bert/infer", ("error",), 405),
    ("GET", "/v2/model", ("error",), 404),
    ("GET", "/embed", ("detail",), 405),
    ("GET", "/v11", ("detail",), 404),
    ("PATCH", "/tokenize", ("error",), 405),
]


@pytest.mark.parametrize(("verb", "path", "place", "status"), WORDS)
def test_unknown_paths_get_an_error_of_their_protocol(
    served: Served, verb: str, path: str, place: tuple[str, ...], status: int
) -> None:
    answer = served.http.request(verb, path)
    message = answer.json()
    for each in place:
        message = message[each]
    assert answer.status_code == status
    assert path in message
    assert bool(answer.headers.get("allow")) == (status == 405)


@pytest.mark.parametrize(
    ("verb", "path"), [("POST", "/embed"), ("GET", "/health/live"), ("GET", "/models/bert"), ("GET", "/v1/models/bert")]
)
def test_slash_at_the_end_changes_nothing(served: Served, verb: str, path: str) -> None:
    body = {"inputs": "a"} if verb == "POST" else None
    plain, slash = [served.http.request(verb, path + end, json=body, follow_redirects=False) for end in ("", "/")]
    assert plain.status_code == 200
    assert slash.content == plain.content


def test_slash_behind_an_unknown_path_is_unknown(served: Served) -> None:
    assert served.http.get("/v1/nothing/").status_code == 404
    assert "/embed//" in served.http.post("/embed//", json={"inputs": "a"}).text


def test_error_of_an_unknown_path_blames_no_field(served: Served) -> None:
    error = served.http.get("/v1/nothing").json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, "not_found")


def test_openapi_describes_every_tag(served: Served) -> None:
    document = served.http.get("/openapi.json").json()
    used = {tag for item in document["paths"].values() for each in item.values() for tag in each["tags"]}
    assert used <= {tag["name"] for tag in document["tags"]}
