"""A real Prometheus scrapes a real service: promtool accepts it, and every query of dashboard and rules has data."""

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any

import grpc
import httpx
import pytest
import yaml

from proto import embed_pb2 as pb
from proto.embed_pb2_grpc import EmbedderStub
from tests.observe.processes import Running, running
from tests.observe.queries import CHART_FILES, OBSERVE, drawn, read, rules

pytestmark = pytest.mark.observe
SECONDS = 60
KEY = "correct-horse-battery"
COMPARES = re.compile(r" (==|<|>) ")


@pytest.fixture(scope="module")
def service(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two workers with a vector cache and a key under light load: valid and invalid requests, REST and gRPC."""
    log = tmp_path_factory.mktemp("service") / "log"
    flags = ["--workers", "2", "--vector-cache-bytes", "1000000", "--api-keys", f"observed:{KEY}"]
    with running(store, log, *flags) as process:
        stop = Event()
        thread = Thread(target=ask, args=(process, stop))
        thread.start()
        yield process
        stop.set()
        thread.join()


def ask(service: Running, stop: Event) -> None:
    with (
        httpx.Client(base_url=service.url, headers={"authorization": f"Bearer {KEY}"}) as client,
        grpc.insecure_channel(service.rpc_address) as channel,
    ):
        stub = EmbedderStub(channel)
        while not stop.wait(0.05):
            client.post("/embed", json={"inputs": ["a sentence", "another one"]})
            client.post("/embed", json={"inputs": []})
            metadata = [("authorization", f"Bearer {KEY}")]
            stub.Embed(pb.EmbedRequest(inputs=[pb.Input(text="a third")]), metadata=metadata)


class Prometheus:
    """The HTTP API of a running Prometheus."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url)

    def get(self, path: str, **parameters: str) -> Any:
        answer = self._client.get(f"/api/v1/{path}", params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def has(self, expression: str) -> bool:
        result = self.get("query", query=expression)["result"]
        return any(each["value"][1] != "NaN" for each in result)

    def close(self) -> None:
        self._client.close()


@contextmanager
def scraping(program: str, folder: Path, target: str) -> Iterator[Prometheus]:
    """Run Prometheus with deploy/observe/prometheus.yml, scraping this target every second."""
    config = read("prometheus.yml")
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(CHART_FILES / "alerts.yml", folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([program, *arguments, f"--web.listen-address=127.0.0.1:{port}"], stderr=log)
    server = Prometheus(f"http://127.0.0.1:{port}")
    try:
        until(lambda: ready(port), folder / "log")
        yield server
    finally:
        server.close()
        process.terminate()
        process.wait(SECONDS)


def ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def until(holds: Any, log: Path) -> None:
    ends = monotonic() + SECONDS
    while not holds():
        assert monotonic() < ends, log.read_text()[-2000:]


@pytest.fixture(scope="module")
def scraped(prometheus: str, service: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has scraped the service twice and evaluated every rule since."""
    folder = tmp_path_factory.mktemp("prometheus")
    with scraping(prometheus, folder, service.url.removeprefix("http://")) as server:
        until(lambda: server.has("count_over_time(inlay_workers[1m]) > 4"), folder / "log")
        yield server


def test_promtool_accepts_the_metrics(promtool: str, service: Running) -> None:
    shown = httpx.get(f"{service.url}/metrics").text
    checked = subprocess.run([promtool, "check", "metrics"], input=shown, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [("check", "config", "prometheus.yml"), ("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")],
    ids=" ".join,
)
def test_promtool_accepts_the_files(arguments: tuple[str, ...], promtool: str, tmp_path: Path) -> None:
    for path in (CHART_FILES / "alerts.yml", *OBSERVE.glob("*.yml")):  # side by side, as the container has them
        shutil.copy(path, tmp_path)
    checked = subprocess.run([promtool, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(("title", "expression"), list(drawn()))
def test_every_query_of_the_dashboard_has_data(title: str, expression: str, scraped: Prometheus) -> None:
    filled = (
        expression.replace("$__rate_interval", "30s")
        .replace("$model", ".*")
        .replace("$namespace", ".*")
        .replace("$job", ".*")
    )
    assert "$" not in filled
    until(lambda: scraped.has(filled), CHART_FILES / "alerts.yml")


def test_dashboard_lists_the_served_models(scraped: Prometheus) -> None:
    series = scraped.get("series", **{"match[]": "inlay_model_bytes"})
    assert {each["model"] for each in series} == {"bert", "llama"}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_every_rule_has_data(rule: dict[str, Any], scraped: Prometheus) -> None:
    """Comparisons return 0 or 1 instead of filtering (`bool`), and offsets are removed, so that there is data."""
    expression = re.sub(r" offset \w+", "", COMPARES.sub(r" \1 bool ", rule["expr"]))
    until(lambda: scraped.has(expression), CHART_FILES / "alerts.yml")


def test_prometheus_evaluates_every_rule_and_no_alert_fires(scraped: Prometheus) -> None:
    def evaluated() -> list[dict[str, Any]]:
        return [rule for group in scraped.get("rules")["groups"] for rule in group["rules"]]

    until(lambda: {rule["health"] for rule in evaluated()} == {"ok"}, CHART_FILES / "alerts.yml")
    assert len(evaluated()) == len(rules())
    assert [rule["name"] for rule in evaluated() if rule.get("state") == "firing"] == []


def test_queries_give_the_ratios_of_the_traffic(scraped: Prometheus) -> None:
    """Valid and invalid requests come in turn, so their counts differ by one at most."""

    def ratio(query: str) -> float:
        return float(scraped.get("query", query=query)["result"][0]["value"][1])

    good = 'sum(inlay_requests_total{method="/embed",status="200"})'
    bad = 'sum(inlay_requests_total{method="/embed",status="400"})'
    assert abs(ratio(f"{good} - {bad}")) <= 1
    assert ratio("sum(inlay_workers_ready)") == 2
    assert json.dumps(scraped.get("targets")["activeTargets"][0]["lastError"]) == '""'
