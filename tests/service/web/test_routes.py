"""GET / and the files of the web page."""

from pathlib import Path

import httpx
import pytest

from tests.served import Here, serving_here

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


def client_of(here: Here) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url="http://{}:{}".format(*here.address), trust_env=False, timeout=60)


async def test_browsers_get_the_page_and_programs_json(tiny_store: Path) -> None:
    async with serving_here(tiny_store) as here, client_of(here) as client:
        page = await client.get("/", headers=BROWSER)
        assert page.headers["content-type"].startswith("text/html")
        assert "accept" in page.headers["vary"].lower()
        assert (await client.get("/")).json()["service"] == "inlay"


async def test_page_is_told_where_the_documentation_is(tiny_store: Path) -> None:
    told = b'<meta name="documentation" content="https://docs.example/?a=1&amp;b=&quot;">'
    async with serving_here(tiny_store, docs_url='https://docs.example/?a=1&b="') as here, client_of(here) as client:
        assert told in (await client.get("/", headers=BROWSER)).content
    async with serving_here(tiny_store) as here, client_of(here) as client:
        assert b"documentation" not in (await client.get("/", headers=BROWSER)).content


async def test_page_allows_scripts_of_this_origin_alone(tiny_store: Path) -> None:
    async with serving_here(tiny_store) as here, client_of(here) as client:
        for path in ("/", "/web/app.js"):
            policy = (await client.get(path, headers=BROWSER)).headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self'" in policy
            assert "unsafe" not in policy


async def test_files_are_not_sent_twice(tiny_store: Path) -> None:
    async with serving_here(tiny_store) as here, client_of(here) as client:
        for headers in ({}, {"accept-encoding": "gzip"}):
            first = await client.get("/web/style.css", headers=headers)
            again = await client.get("/web/style.css", headers={**headers, "if-none-match": first.headers["etag"]})
            assert (first.status_code, again.status_code, again.content) == (200, 304, b"")


@pytest.mark.parametrize(
    "path", ["/web/nothing.js", "/web/../routes.py", "/web/%2e%2e/routes.py", "/web/vendor/README.md"]
)
async def test_other_files_are_not_served(tiny_store: Path, path: str) -> None:
    async with serving_here(tiny_store) as here, client_of(here) as client:
        answer = await client.get(path)
    assert answer.status_code == 404
    assert answer.json()["code"] == "not_found"


async def test_page_can_be_switched_off(tiny_store: Path) -> None:
    async with serving_here(tiny_store, web=False) as here, client_of(here) as client:
        assert (await client.get("/", headers=BROWSER)).json()["service"] == "inlay"
        assert (await client.get("/web/app.js")).status_code == 404


async def test_page_is_served_without_key_and_over_the_limit(tiny_store: Path) -> None:
    async with (
        serving_here(tiny_store, api_keys=("secret",), max_concurrent_requests=1) as here,
        client_of(here) as client,
    ):
        here.context.admission.acquire()
        assert (await client.get("/", headers=BROWSER)).status_code == 200
        assert (await client.get("/web/app.js")).status_code == 200
        here.context.admission.release()
