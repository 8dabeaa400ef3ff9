"""The view Now: the hour that the server keeps, as it changes."""

import re
import time
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import httpx

from tests.served import Served, serving
from tests.web.browser import DRAWN, Page, axe, expect
from tests.web.conftest import DEMO, open_view


def number(page: Page, name: str) -> str:
    """The figure of that name at the top of the view."""
    return page.locator(".totals div").filter(has=page.get_by_text(name, exact=True)).locator("dd").inner_text()


def send_one(page: Page) -> None:
    page.get_by_role("button", name="Send a request").click()
    page.get_by_text(re.compile(r"Answered in \d+ ms")).wait_for()


def hour(**members: Any) -> dict[str, Any]:
    """An answer of GET /metrics/history: an hour of samples, the last of which has these members."""
    none = {"routes": {}, "models": {}, "refusals": {}, "latency": None, "slowest": []}
    none |= dict.fromkeys(("requests_in_flight", "queue_tokens", "queue_items", "worker_private_bytes"), 0)
    none |= {"seconds": 10.0, "workers": 4, "workers_ready": 3}
    now = time.time()
    samples = [none | {"at": now - 10 * (360 - each)} for each in range(361)]
    samples[-1] |= members
    return {"sample_seconds": 10.0, "worker": 2, "samples": samples}


def told(page: Page, answer: dict[str, Any]) -> None:
    """Let the page see this history in place of the server's."""
    page.route("**/metrics/history", lambda route: route.fulfill(json=answer))


def test_a_request_is_counted_and_drawn(opened: Callable[[str], Page]) -> None:
    page = opened("now")
    send_one(page)
    routes = page.get_by_role("region", name="By route")
    expect(routes.get_by_role("rowheader", name="/embed", exact=True)).to_be_visible(timeout=30_000)
    expect(page.get_by_role("region", name="Requests", exact=True).locator(".u-legend")).to_contain_text("/embed")
    expect(page.get_by_role("region", name="By model").get_by_role("row").filter(has_text=DEMO)).to_be_visible()


def test_figures_are_there_when_the_view_opens(page: Page, web_server: Served) -> None:
    """Of an hour in which nobody looked."""
    route, model = {"requests": 30, "timed": 30, "timed_seconds": 6.0}, {"requests": 30, "batches": 10, "inputs": 60}
    model |= {"tokens": 600, "tokenize": 0.3, "queue": 1.5, "run": 3.0, "encode": 0.6}
    latency = {"p50": 0.1, "p95": 0.3, "p99": 0.4}
    figures = {"routes": {"/embed": route}, "models": {"m": model}, "latency": latency, "refusals": {"overloaded": 3}}
    told(page, hour(**figures, queue_tokens=512, worker_private_bytes=2**30))
    open_view(page, web_server, "now")
    shown = {"requests": "30", "p50, latest": "100 ms", "p99, latest": "400 ms", "refused or failed": "3 (10 %)"}
    shown |= {"waiting tokens now": "512", "memory now": "1,024 MiB", "workers ready": "3 of 4"}
    assert {name: number(page, name) for name in shown} == shown
    row = page.get_by_role("region", name="By model").get_by_role("row").filter(has_text="m").last
    expect(row.get_by_role("cell")).to_have_text(["30", "0.17", "6", "10 ms", "50 ms", "100 ms", "20 ms"])
    expect(page.get_by_role("region", name="By route").get_by_role("cell")).to_have_text(["30", "0", "200 ms"])
    expect(page.get_by_role("region", name="Batch size").locator(".u-legend")).to_contain_text("6")
    expect(page.get_by_text("Of all 4 workers together, as worker 2 has kept them")).to_be_visible()
    axe(page)


def test_slowest_requests_are_explained_by_their_stages(page: Page, web_server: Served) -> None:
    slow = {"at": time.time(), "protocol": "http", "method": "/embed", "status": "200", "model": "m", "tokens": 12}
    slow |= {"request_id": "order-17", "seconds": 2.0}
    waited = slow | {"stages": {"tokenize": 0.1, "queue": 1.5, "run": 0.3, "encode": 0.0}}
    refused = slow | {"seconds": 1.0, "status": "504", "stages": {}, "request_id": "order-18"}
    told(page, hour(slowest=[waited, refused]))
    open_view(page, web_server, "now")
    items = page.get_by_role("region", name="Slowest requests").locator(".slowest > li")
    expect(items.nth(0)).to_contain_text("75 % waiting in the queue")
    expect(items.nth(1)).to_contain_text("100 % before and around the model: No model was run")
    items.nth(0).get_by_text("Its stages and id").click()
    expect(items.nth(0)).to_contain_text("order-17")
    expect(items.nth(0)).to_contain_text("1,500 ms")
    axe(page)


def test_time_and_model_are_chosen_and_in_the_link(page: Page, web_server: Served) -> None:
    model = {"requests": 1, "batches": 1, "inputs": 1, "tokens": 5, "run": 0.1}
    told(page, hour(models={"one": model, "two": model}))
    open_view(page, web_server, "now")
    page.get_by_role("combobox", name="Model").select_option("two")
    page.get_by_role("combobox", name="Time").select_option(label="15 minutes")
    rows = page.get_by_role("region", name="By model").get_by_role("rowheader")
    expect(rows).to_have_text(["two"])
    assert page.url.endswith("#/now?model=two&minutes=15")


def test_refusals_are_shown_by_their_reason(web_server: Served, opened: Callable[[str], Page]) -> None:
    web_server.http.post("/embed", json={"inputs": "hi", "poling": "cls"})
    page = opened("now")
    legend = page.get_by_role("region", name="Refusals and errors").locator(".u-legend")
    expect(legend).to_contain_text("unknown_field")


def test_pause_stops_asking(page: Page, web_server: Served) -> None:
    page.clock.install()
    open_view(page, web_server, "now")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Go on")).to_be_visible()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.fast_forward(60_000)
    assert [url for url in asked if url.endswith("/metrics/history")] == []
    with page.expect_request("**/metrics/history"):
        page.get_by_role("button", name="Go on").click()


def test_says_that_metrics_have_another_port(page: Page, web_server: Served) -> None:
    page.route("**/metrics/history", lambda route: route.fulfill(status=404, json={"detail": "no such path"}))
    open_view(page, web_server, "now")
    expect(page.get_by_role("alert")).to_contain_text("INLAY_MANAGEMENT_PORT")


def test_charts_stay_when_the_server_stops_and_go_on(page: Page, web_server: Served) -> None:
    open_view(page, web_server, "now")
    legend = page.get_by_role("region", name="Queue").locator(".u-legend")
    legend.wait_for()
    page.route("**/*", lambda route: route.abort())
    expect(page.get_by_text("The server does not answer.", exact=False).first).to_be_visible()
    expect(legend).to_be_visible()
    page.unroute("**/*")
    expect(page.locator(".banner")).to_have_count(0)


def test_times_of_charts_are_hours_of_the_day(page: Page, web_server: Served) -> None:
    page.add_init_script(f"({DRAWN})()")
    told(page, hour(requests_in_flight=1))
    open_view(page, web_server, "now")
    page.wait_for_function("() => window.drawn.size > 5")
    drawn = page.evaluate("[...window.drawn]")
    times = sorted(text for text in drawn if ":" in text)
    assert len(times) >= 4
    assert [text for text in drawn if re.search(r"20\d\d|[ap]m", text)] == []
    assert [text for text in times if not re.fullmatch(r"\d\d:\d\d:\d\d", text)] == []


def test_curves_without_values_have_no_legend(opened: Callable[[str], Page]) -> None:
    page = opened("now")
    expect(page.get_by_role("region", name="Queue").locator(".u-legend")).to_contain_text("tokens")
    assert [text for text in page.locator(".u-legend").all_inner_texts() if "none" in text] == []


def test_gaps_are_explained(page: Page, web_server: Served) -> None:
    told(page, hour(latency={"p50": 0.1, "p95": 0.1, "p99": 0.1}))
    open_view(page, web_server, "now")
    latency = page.get_by_role("region", name="Latency of successful requests")
    expect(latency).to_contain_text("A gap: no request was answered in that time.")
    expect(page.get_by_role("region", name="Batch size")).to_contain_text("Nothing in this time.")


def test_csv_has_the_times_and_curves(opened: Callable[[str], Page]) -> None:
    page = opened("now")
    queue = page.get_by_role("region", name="Queue")
    expect(queue.locator(".u-legend")).to_contain_text("tokens")
    with page.expect_download() as started:
        queue.get_by_role("button", name="CSV").click()
    lines = started.value.path().read_text().splitlines()
    assert lines[0] == "seconds since 1970,tokens,inputs"
    assert float(lines[1].split(",")[0]) > 1e9


def test_picture_holds_every_curve(opened: Callable[[str], Page]) -> None:
    page = opened("now")
    latency = page.get_by_role("region", name="Latency of successful requests")
    send_one(page)
    expect(latency.locator(".u-legend")).to_contain_text("p99")
    with page.expect_download() as started:
        latency.get_by_role("button", name="SVG").click()
    root = ElementTree.parse(started.value.path()).getroot()
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"p50", "p95", "p99", "ms", "time"} <= set(texts)


def test_works_with_several_workers_and_keys(page: Page, web_server: Served) -> None:
    """The figures need a key, which is kept out of every store."""
    with serving(
        web_server.app.context.settings.store, default_model="all-MiniLM-L6-v2", api_keys=("secret",)
    ) as guarded:
        open_view(page, guarded, "now")
        dialog = page.get_by_role("dialog", name="API key")
        dialog.get_by_label("Key").fill("secret")
        dialog.get_by_role("button", name="Use it").click()
        expect(page.locator(".totals")).to_contain_text("1 of 1")
        page.get_by_role("button", name="Send a request").click()
        page.get_by_text(re.compile(r"Answered in \d+ ms")).wait_for()
        kept = page.evaluate(
            "() => JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])"
        )
    assert "secret" not in kept


def test_query_of_each_chart_names_a_metric(opened: Callable[[str], Page], web_server: Served) -> None:
    page = opened("now")
    page.get_by_text("The same in Prometheus and Grafana").click()
    queries = page.locator("td code").filter(has_text="inlay_").all_inner_texts()
    metrics = httpx.get("http://{}:{}/metrics".format(*web_server.address), trust_env=False).text
    named = {name for query in queries for name in re.findall(r"inlay_\w+", query)}
    assert len(named) > 5
    assert [name for name in named if name not in metrics] == []


def test_fits_every_width_and_theme(opened: Callable[[str], Page], screenshots: Callable[[Page, str], None]) -> None:
    page = opened("now")
    send_one(page)
    expect(page.get_by_role("region", name="By route").get_by_role("table")).to_be_visible(timeout=30_000)
    screenshots(page, "now")
