"""Try while the server is busy, stopped, or wants a key."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.served import Served, serving
from tests.web.browser import Page, axe, expect
from tests.web.conftest import RERANKER, open_view

Open = Callable[[str], Page]
KEY = "a-secret-key"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def vectors_say(page: Page, text: str) -> None:
    expect(page.get_by_role("region", name="Vectors")).to_contain_text(text)


def test_busy_server_is_named_and_asked_again(minilm_store: Path, page: Page) -> None:
    with serving(minilm_store, max_concurrent_requests=1) as server:
        # held for as long as the test wants: each of the page's requests is refused with 429
        server.app.context.admission.acquire()
        open_view(page, server, "try")
        expect(page.locator(".banner", has_text="The server is busy")).to_be_visible()
        expect(page.get_by_role("alert").first).to_contain_text("429")
        server.app.context.admission.release()
        vectors_say(page, "6 texts × 384 dimensions")
        expect(page.locator(".banner")).to_have_count(0)


def test_results_stay_while_the_server_is_busy(page: Page, web_server: Served) -> None:
    open_view(page, web_server, "try")
    vectors_say(page, "6 texts × 384 dimensions")
    problem = {"code": "overloaded", "detail": "1024 requests are being served", "status": 429}
    page.route("**/embed", lambda route: route.fulfill(status=429, headers={"retry-after": "1"}, json=problem))
    page.get_by_label("One a line").fill("one text")
    expect(page.locator(".banner", has_text="The server is busy")).to_be_visible()
    expect(page.get_by_role("region", name="Vectors").get_by_role("alert")).to_contain_text("It is asked again in 1 s")
    vectors_say(page, "6 texts × 384 dimensions")
    axe(page)
    page.unroute("**/embed")
    vectors_say(page, "1 text × 384 dimensions")


def test_stopped_server_is_named_until_it_is_back(minilm_store: Path, page: Page) -> None:
    port = free_port()
    with serving(minilm_store, http_port=port) as server:
        open_view(page, server, "try")
        vectors_say(page, "6 texts × 384 dimensions")
    page.get_by_label("One a line").fill("one text\nanother text")
    expect(page.locator(".banner", has_text="The server does not answer")).to_be_visible(timeout=20_000)
    vectors_say(page, "6 texts × 384 dimensions")
    axe(page)
    with serving(minilm_store, http_port=port):
        vectors_say(page, "2 texts × 384 dimensions")
        expect(page.locator(".banner")).to_have_count(0)


def test_key_is_asked_for_and_kept_in_memory_alone(minilm_store: Path, page: Page) -> None:
    with serving(minilm_store, api_keys=(KEY,)) as server:
        open_view(page, server, "try")
        dialog = page.get_by_role("dialog", name="API key")
        expect(dialog).to_be_visible()
        axe(page)
        page.keyboard.type(KEY)
        page.keyboard.press("Enter")
        expect(dialog).to_have_count(0)
        vectors_say(page, "6 texts × 384 dimensions")
        page.get_by_text("Vectors as code").click()
        code = page.locator("details.snippets[open] pre").inner_text()
        assert "$INLAY_API_KEY" in code
        kept = page.evaluate(
            "() => [location.href, document.cookie, ...[localStorage, sessionStorage].map(JSON.stringify)]"
        )
        assert KEY not in "".join([*kept, code])
        page.reload(wait_until="networkidle")
        expect(dialog).to_be_visible()


def test_wrong_key_is_asked_for_again(minilm_store: Path, page: Page) -> None:
    with serving(minilm_store, api_keys=(KEY,)) as server:
        open_view(page, server, "try")
        for _ in range(2):
            expect(page.get_by_role("dialog", name="API key")).to_be_visible()
            page.keyboard.type("wrong")
            page.keyboard.press("Enter")
        expect(page.get_by_role("dialog", name="API key")).to_be_visible()


def test_cancelled_key_dialog_stays_closed(minilm_store: Path, page: Page) -> None:
    with serving(minilm_store, api_keys=(KEY,)) as server:
        page.clock.install()
        open_view(page, server, "models")
        dialog = page.get_by_role("dialog", name="API key")
        dialog.get_by_role("button", name="Cancel").click()
        page.clock.run_for(60_000)
        expect(dialog).to_have_count(0)
        page.get_by_role("button", name="Enter a key").click()
        dialog.get_by_label("Key").fill("wrong")
        page.keyboard.press("Enter")
        expect(dialog.get_by_role("alert")).to_contain_text("does not know the key")
        dialog.get_by_label("Key").fill(KEY)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="in detail")).to_be_visible()


@pytest.mark.parametrize("view", ["try", "positions", "models", "now"])
def test_page_of_a_proxy_is_no_answer(view: str, page: Page, web_server: Served) -> None:
    """Some proxies ask for a login in HTML, with status 200."""
    for path in ("models", "positions", "metrics/history"):
        page.route(f"**/{path}", lambda route: route.fulfill(content_type="text/html", body="<p>Log in"))
    open_view(page, web_server, view)
    expect(page.get_by_role("alert").first).to_contain_text("a proxy answered instead of the server")


def test_502_is_asked_again(page: Page, web_server: Served) -> None:
    page.route("**/models", lambda route: route.fulfill(status=502, content_type="text/html", body="<p>Bad gateway"))
    open_view(page, web_server, "try")
    expect(page.locator(".banner")).to_contain_text("502")
    page.unroute("**/models")
    vectors_say(page, "6 texts × 384 dimensions")


def test_view_comes_once_the_server_answers_again(page: Page, web_server: Served) -> None:
    open_view(page, web_server, "models")
    page.route("**/*", lambda route: route.abort())
    page.get_by_role("link", name="Now", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("This view could not be loaded")
    page.unroute("**/*")
    expect(page.get_by_role("button", name="Send a request")).to_be_visible()


def test_unloaded_model_leaves_the_choice(page: Page, web_server: Served) -> None:
    open_view(page, web_server, f"try?model={RERANKER}")
    models = web_server.http.get("/models").json()["models"]
    rest = {"models": [model for model in models if model["name"] != RERANKER]}
    page.route("**/models", lambda route: route.fulfill(json=rest))
    problem = {"code": "unknown_model", "detail": f"no model '{RERANKER}' here", "status": 404}
    page.route("**/tokenize", lambda route: route.fulfill(status=404, json=problem))
    page.get_by_label("One a line").fill("one text")
    expect(page.get_by_role("alert").first).to_contain_text(f"no model {RERANKER} that reads text")
    page.unroute("**/tokenize")
    vectors_say(page, "1 text × 384 dimensions")
