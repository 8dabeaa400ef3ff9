"""CORS: preflight requests as browsers send them, keys and headers of SDKs, readable responses."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.served import Served, serving

PAGE = "https://app.example"
CALL = {"origin": PAGE, "sec-fetch-mode": "cors"}
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def open_to_one(tiny_store: Path) -> Iterator[Served]:
    with serving(tiny_store, default_model="bert", cors_origins=f"{PAGE}, http://localhost:3000") as service:
        yield service


@pytest.fixture(scope="module")
def open_to_all(tiny_store: Path) -> Iterator[Served]:
    with serving(tiny_store, default_model="bert", cors_origins="*") as service:
        yield service


def preflight(served: Served, path: str, headers: str, origin: str = PAGE) -> dict[str, str]:
    """What a browser may do after its question."""
    request_headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": headers,
    }
    answer = served.http.options(path, headers=request_headers)
    assert answer.headers["x-request-id"]
    allowed = dict(answer.headers) if answer.is_success else {}
    return {name: value.lower() for name, value in allowed.items() if name.startswith("access-control-")}


# what the OpenAI and huggingface SDKs send from a page
@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings", "/v2/models/bert/infer", "/positions/rope"])
@pytest.mark.parametrize(
    "headers", ["authorization,content-type", "authorization,content-type,x-stainless-lang,x-stainless-os", "x-api-key"]
)
def test_page_of_an_allowed_origin_may_send_keys(open_to_one: Served, path: str, headers: str) -> None:
    allowed = preflight(open_to_one, path, headers)
    assert allowed["access-control-allow-origin"] == PAGE
    assert "post" in allowed["access-control-allow-methods"]
    assert set(headers.split(",")) <= {each.strip() for each in allowed["access-control-allow-headers"].split(",")}


def test_page_of_another_origin_may_not_call(open_to_one: Served) -> None:
    assert preflight(open_to_one, "/embed", "content-type", "https://evil.example") == {}
    answer = open_to_one.http.get("/models", headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in answer.headers
    assert "Origin" in answer.headers["vary"]


@pytest.mark.parametrize("content", [b'{"inputs": "a"}', b"{", b'{"inputs": []}'])
def test_page_reads_every_header_of_answers_and_errors(open_to_one: Served, content: bytes) -> None:
    octets = {"accept": "application/octet-stream, application/json"}
    answer = open_to_one.http.post("/embed", content=content, headers=CALL | JSON | octets)
    assert answer.headers["access-control-allow-origin"] == PAGE
    exposed = {each.strip() for each in answer.headers["access-control-expose-headers"].split(",")}
    safelisted = {"content-type", "content-length", "date", "vary", "server"}
    own = {name for name in answer.headers if not name.startswith("access-control-")}
    assert own - safelisted <= exposed


@pytest.mark.parametrize("path", ["/nothing", "/v1/nothing", "/embed"])
def test_page_reads_unknown_paths_and_verbs_too(open_to_one: Served, path: str) -> None:
    answer = open_to_one.http.get(path, headers=CALL)
    assert answer.status_code in (404, 405)
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers.get_list("x-request-id")[1:] == []


def test_star_allows_every_origin(open_to_all: Served) -> None:
    assert preflight(open_to_all, "/embed", "authorization")["access-control-allow-origin"] == "*"
    assert open_to_all.http.get("/models", headers=CALL).headers["access-control-allow-origin"] == "*"


def test_no_origin_is_allowed_by_default(served: Served) -> None:
    preflight_headers = {"origin": PAGE, "access-control-request-method": "POST"}
    assert served.http.options("/embed", headers=preflight_headers).status_code == 405
    assert "access-control-allow-origin" not in served.http.get("/models", headers=CALL).headers


@pytest.fixture(scope="module")
def controlled(tiny_store: Path) -> Iterator[Served]:
    """A service whose models callers may load, and read by pages of one origin."""
    with serving(tiny_store, models=("bert",), model_control="explicit", cors_origins=PAGE) as service:
        yield service


@pytest.mark.parametrize("verb", ["load", "unload"])
@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1", "http://127.0.0.1:1", "https://app.example.evil"]
)
def test_foreign_page_changes_no_state(controlled: Served, origin: str, verb: str) -> None:
    """As a browser sends a form of any page: without asking first, since it needs no permission to send."""
    headers = {"origin": origin, "content-type": "text/plain", "sec-fetch-site": "cross-site"}
    answer = controlled.http.post(f"/v2/repository/models/bert/{verb}", headers=headers)
    assert answer.status_code == 403
    assert origin in answer.json()["error"]
    assert "INLAY_CORS_ORIGINS" in answer.json()["error"]
    assert controlled.http.post("/embed", json={"inputs": "a"}, headers=headers | JSON).status_code == 200


@pytest.mark.parametrize("origin", [None, PAGE, "of the server"])
def test_other_callers_change_state(controlled: Served, origin: str | None) -> None:
    own = "http://{}:{}".format(*controlled.address)
    headers = {"origin": own if origin == "of the server" else origin} if origin else {}
    assert controlled.http.post("/v2/repository/models/bert/load", headers=headers).status_code == 200


@pytest.fixture(scope="module")
def named(tiny_store: Path) -> Iterator[Served]:
    with serving(tiny_store, default_model="bert", allowed_hosts="inlay.example, ::1") as service:
        yield service


@pytest.mark.parametrize("host", ["inlay.example", "INLAY.example:8080", "[::1]:8080", "[::1]"])
def test_host_of_the_operators_list_is_served(named: Served, host: str) -> None:
    assert named.http.post("/embed", json={"inputs": "a"}, headers={"host": host}).status_code == 200


@pytest.mark.parametrize("path", ["/embed", "/no/such/path", "/v1/embeddings"])
@pytest.mark.parametrize("host", ["evil.example", "inlay.example.evil", "127.0.0.1", "evil.example:80"])
def test_request_to_another_host_is_refused(named: Served, host: str, path: str) -> None:
    """A page of evil.example whose name now leads to this server: for the browser it is of the same origin."""
    headers = {"host": host, "origin": f"http://{host}"}
    for _ in range(2):
        answer = named.http.post(path, json={"inputs": "a"}, headers=headers)
        assert answer.status_code == 403
        assert "INLAY_ALLOWED_HOSTS" in answer.text


@pytest.mark.parametrize("path", ["/health", "/health/ready", "/metrics"])
def test_probes_may_call_any_host(named: Served, path: str) -> None:
    assert named.http.get(path, headers={"host": "10.1.2.3:8080"}).status_code == 200
