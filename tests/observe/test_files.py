"""The queries of deploy/observe/ name existing metrics and labels. test_prometheus.py runs them (make observe)."""

import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from service.observability.metric_families import BY_NAME, FAMILIES
from service.observability.metrics import Metrics
from service.request_context import RequestContext, StageTimes
from tests.observe.queries import METRIC, RECORDED, ROOT, dashboard, drawn, read, rules

SCRAPED = {"namespace", "job", "instance", "alertname", "alertstate", "version"}
"""Labels that come from Prometheus."""


@pytest.fixture(scope="module")
def samples() -> dict[str, set[str]]:
    """The names of all samples after one request, with their label names."""
    metrics = Metrics()
    metrics.show_keys(lambda name: name)
    metrics.runs("m", "encoder")(1, 1, 0.1, 0.1)
    for name in ("inlay_run_failures", "inlay_stuck_runs"):
        metrics.counter(name, "m", "encoder")
    metrics.loaded("m")
    context = RequestContext()
    context.show_key("k")
    metrics.passes([context], "m", [1], StageTimes(0.1, 0.1, 0.1))
    metrics.request("http", "embed", "200", 0.1, context)
    metrics.ignored(1)
    metrics.load_took("m", 0.1)
    metrics.evicted("memory")
    values = {"model": "m", "graph": "encoder", "python": "3", "version": "1"}
    gauges = [family for family in FAMILIES if family.kind == "gauge" or "heavy" in family.name]
    metrics.watch(lambda: {(each.name, *[values[label] for label in each.labels]): 1 for each in gauges})
    labels_by_name: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            labels_by_name.setdefault(sample.name, set()).update(sample.labels)
    return labels_by_name


def queries_and_rules() -> list[str]:
    return [*(expression for _, expression in drawn()), *(rule["expr"] for rule in rules())]


@pytest.mark.parametrize("expression", queries_and_rules())
def test_every_metric_in_a_query_is_shown_with_its_labels(expression: str, samples: dict[str, set[str]]) -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    assert set(RECORDED.findall(expression)) <= recorded
    names = set(METRIC.findall(expression))
    assert names <= set(samples)
    labels = set().union(*[samples[name] for name in names], SCRAPED)
    grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")}
    matched = set(re.findall(r"[{,]\s*(\w+)(?:=~|!~|!=|=)", expression))
    assert grouped | matched <= labels


def test_every_family_is_shown_and_used_by_a_query(samples: dict[str, set[str]]) -> None:
    names = {family.name: re.compile(rf"\b{family.name}(_bucket|_count|_sum|_total)?\b") for family in FAMILIES}
    assert {name for name, pattern in names.items() if not any(map(pattern.fullmatch, samples))} == set()
    assert {name for name, pattern in names.items() if not any(map(pattern.search, queries_and_rules()))} == set()


def test_thresholds_in_seconds_are_bounds_of_the_histogram() -> None:
    """Prometheus interpolates between bounds: if all batches wait 0.35 s, it reports 0.93 where the next bound is 1."""
    bounds_compared = 0
    for rule in rules():
        names = re.findall(r"(inlay_\w+)_bucket", rule["expr"])
        seconds = re.findall(r'le="([\d.]+)"', rule["expr"])
        if "histogram_quantile" in rule["expr"]:
            seconds += re.findall(r"[<>] ([\d.]+)$", rule["expr"])
        bounds_compared += len(seconds)
        assert [each for name in names for each in seconds if float(each) not in BY_NAME[name].bounds] == []
    assert bounds_compared


def test_every_alert_has_a_firing_and_a_quiet_test() -> None:
    tests = [check for each in read("alerts_test.yml")["tests"] for check in each["promql_expr_test"]]
    for rule in rules():
        if "alert" in rule:
            own = [check for check in tests if f'alertname="{rule["alert"]}"' in check["expr"]]
            assert {bool(check["exp_samples"]) for check in own} == {True, False}, rule["alert"]


def test_every_alert_has_a_severity_and_an_action() -> None:
    for rule in rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("critical", "warning")
            assert set(rule["annotations"]) == {"summary", "action"}


def test_dashboard_uses_the_provisioned_data_source() -> None:
    (source,) = read("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    uids = set(re.findall(r"'uid': '(\w+)'", str(dashboard()["panels"])))
    assert uids == {source["uid"]}
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)


def test_panels_do_not_overlap_and_queries_have_letters() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not own & taken
        taken |= own
        letters = [target["refId"] for target in panel.get("targets", ())]
        assert len(set(letters)) == len(letters)


def test_opening_inlay_does_not_open_prometheus_or_grafana() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for name, each in services.items():
        own = "OBSERVE_BIND" if "observe" in each.get("profiles", ()) else "BIND"
        assert [port for port in each.get("ports", ()) if not port.startswith(f"${{{own}:-127.0.0.1}}:")] == [], name


def test_compose_mounts_existing_files_where_they_are_read() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    observing = {name: each for name, each in services.items() if "observe" in each.get("profiles", ())}
    assert set(observing) == {"prometheus", "grafana"}
    mounts = [volume.split(":") for each in observing.values() for volume in each["volumes"]]
    bound = {source: target for source, target, *_ in mounts if source.startswith("./")}
    assert all((ROOT / source).exists() for source in bound)
    assert all(mount[2:] == ["ro"] for mount in mounts if mount[0] in bound)
    (provider,) = read("grafana/provisioning/dashboards/inlay.yml")["providers"]
    assert Path(bound["./deploy/helm/inlay/files/dashboard.json"]).parent == Path(provider["options"]["path"])
    (source,) = read("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    ((target,),) = [each["targets"] for each in read("prometheus.yml")["scrape_configs"][0]["static_configs"]]
    assert target.split(":")[0] in services
    assert Path(bound["./deploy/helm/inlay/files/alerts.yml"]).name in read("prometheus.yml")["rule_files"]
