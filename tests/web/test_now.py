"""The view Now: what /metrics says, as it changes."""

import re
from collections.abc import Callable
from xml.etree import ElementTree

import httpx

from tests.served import Served, serving
from tests.web.browser import DRAWN, Page, axe, expect
from tests.web.conftest import open_view


def number(page: Page, name: str) -> str:
    """The figure of that name at the top of the view."""
    return page.locator(".totals div").filter(has=page.get_by_text(name, exact=True)).locator("dd").inner_text()


def test_a_request_is_counted_and_drawn(opened: Callable[[str], Page]) -> None:
    page = opened("now")
    page.get_by_role("button", name="Send a request").click()
    page.get_by_text(re.compile(r"Answered in \d+ ms")).wait_for()
    routes = page.get_by_role("region", name="Since the start, by route")
    expect(routes.get_by_role("row").filter(has_text="/embed")).to_contain_text("200:")
    expect(page.get_by_role("region", name="Requests", exact=True).locator(".u-legend")).to_contain_text("/embed")
    page.wait_for_function("() => !document.querySelectorAll('.totals dd')[1].textContent.includes('–')")


def test_rates_and_quantiles_are_those_of_prometheus(opened: Callable[[str], Page]) -> None:
    """Against histogram_quantile and rate computed by hand from two texts."""
    page = opened("now")
    answer = page.evaluate(
        """async () => {
          const { Scrape, parseMetrics, quantile, mean, rate, rates } = await import("/web/lib/prometheus.js");
          const text = (a, b, c, sum, requests) => `# HELP x y
h_bucket{le="0.1",method="/a"} ${a}
h_bucket{le="1.0",method="/a"} ${b}
h_bucket{le="+Inf",method="/a"} ${c}
h_sum{method="/a"} ${sum}
h_count{method="/a"} ${c}
r_total{method="a\\\\"b"} ${requests}
`;
          const before = new Scrape(100, parseMetrics(text(1, 2, 2, 0.5, 7)));
          const after = new Scrape(104, parseMetrics(text(3, 10, 12, 20.5, 3)));
          return {
            half: quantile(0.5, before, after, "h"),
            last: quantile(0.99, before, after, "h"),
            none: quantile(0.5, after, after, "h"),
            mean: mean(before, after, "h"),
            rate: rate(before, after, "r_total"),
            labels: [...rates(before, after, "r_total", "method").keys()],
          };
        }"""
    )
    assert answer["half"] == 0.1 + 0.9 * (5 - 2) / 6  # 10 observations: 2 to 0.1, 6 to 1, 2 above
    assert answer["last"] == 1  # the last finite bound
    assert answer["none"] is None
    assert answer["mean"] == 2
    assert answer["rate"] == 0.75  # 3 since a restart, in 4 s
    assert answer["labels"] == ['a"b']


def test_refusals_are_shown_by_their_reason(web_server: Served, opened: Callable[[str], Page]) -> None:
    page = opened("now")
    web_server.http.post("/embed", json={"inputs": "hi", "poling": "cls"})
    legend = page.get_by_role("region", name="Refusals and errors").locator(".u-legend")
    expect(legend).to_contain_text("unknown_field")
    assert number(page, "refused or failed") != "0"


def test_pause_stops_asking(opened: Callable[[str], Page]) -> None:
    page = opened("now")
    page.get_by_role("button", name="Pause").click()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(2500)
    assert [url for url in asked if url.endswith("/metrics")] == []
    with page.expect_request("**/metrics"):
        page.get_by_role("button", name="Go on").click()


def test_says_that_metrics_have_another_port(page: Page, web_server: Served) -> None:
    page.route("**/metrics", lambda route: route.fulfill(status=404, json={"detail": "no such path"}))
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


def test_charts_show_five_minutes_from_the_start(page: Page, web_server: Served) -> None:
    page.add_init_script(f"({DRAWN})()")
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


def test_gaps_of_batches_are_explained(opened: Callable[[str], Page]) -> None:
    page = opened("now")
    page.wait_for_timeout(2500)
    page.get_by_role("button", name="Send a request").click()
    batches = page.get_by_role("region", name="Batch size")
    expect(batches).to_contain_text("A gap: no batch ran in that time.", timeout=15_000)


def test_measurements_stay_while_another_view_is_shown(opened: Callable[[str], Page]) -> None:
    page = opened("now")
    queue = page.get_by_role("region", name="Queue")
    expect(queue).to_contain_text("Nothing in this time.")
    page.get_by_role("link", name="Models", exact=True).click()
    page.get_by_role("heading", level=1).filter(has_text="Models").wait_for()
    page.get_by_role("link", name="Now", exact=True).click()
    assert "Waiting" not in queue.inner_text()


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
    page.get_by_role("button", name="Send a request").click()
    expect(latency.locator(".u-legend")).to_contain_text("p99")
    with page.expect_download() as started:
        latency.get_by_role("button", name="SVG").click()
    root = ElementTree.parse(started.value.path()).getroot()
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"p50", "p95", "p99", "seconds", "time"} <= set(texts)


def test_works_with_several_workers_and_keys(page: Page, web_server: Served) -> None:
    """Metrics need no key; the button's request asks for one, and it is kept out of every store."""
    with serving(
        web_server.app.context.settings.store, default_model="all-MiniLM-L6-v2", api_keys=("secret",)
    ) as guarded:
        open_view(page, guarded, "now")
        expect(page.locator(".totals")).to_contain_text("1 of 1")
        page.get_by_role("button", name="Send a request").click()
        dialog = page.get_by_role("dialog", name="API key")
        dialog.get_by_label("Key").fill("secret")
        dialog.get_by_role("button", name="Use it").click()
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
    for _ in range(3):
        page.get_by_role("button", name="Send a request").click()
        page.get_by_text(re.compile(r"Answered in \d+ ms")).wait_for()
        page.wait_for_timeout(2100)
    axe(page)
    screenshots(page, "now")
