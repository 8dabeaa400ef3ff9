"""What /metrics shows is what prometheus_client's own instruments would show, and it is small."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from time import perf_counter

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from service.error_status import STATUSES
from service.observability.metric_families import RUN_SECONDS, STAGES
from service.observability.metric_store import Key, MetricStore
from service.observability.metrics import MOST_OBSERVED, Metrics
from service.request_context import RequestContext, StageTimes


def samples(text: str, name: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name.removeprefix(name), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(name) and not sample.name.endswith("_created")
    }


def show(metrics: Metrics, model: str, weight_bytes: int = 1, graphs: Sequence[str] = ()) -> dict[Key, float]:
    """Show a loaded model, and return its gauges."""
    metrics.loaded(model)
    gauges: dict[Key, float] = {("inlay_model_workers", model): 1, ("inlay_model_bytes", model): weight_bytes}
    gauges |= {("inlay_queue_tokens", model, graph): 0 for graph in graphs}
    metrics.watch(lambda: gauges)
    return gauges


@pytest.mark.parametrize("values", [[0.0003], [0.00030001, 5, 11, 1e9], [0, 0.3, 0.3, 0.30000001]])
def test_histogram_counts_as_prometheus_client_does(values):
    metrics, registry = Metrics(), CollectorRegistry()
    theirs = Histogram("run_seconds", "x", ["model", "graph"], buckets=RUN_SECONDS, registry=registry).labels("m", "g")
    show(metrics, "m")
    run = metrics.runs("m", "g")
    for value in values:
        run(1, 1, 0, value)
        theirs.observe(value)
    expected = samples(generate_latest(registry).decode(), "run_seconds")
    assert samples(metrics.text().decode(), "inlay_engine_run_seconds") == expected
    assert expected


def test_runs_items_and_requests_are_counted_by_label():
    metrics = Metrics()
    metrics.runs("m", "encoder")(3, 50, 0.1, 0.2)
    metrics.request("http", "embed", "200", 0.01)
    metrics.request("http", "embed", "422", 0.01)
    show(metrics, "m", 1000)
    text = metrics.text().decode()
    labels = (("graph", "encoder"), ("model", "m"))
    assert samples(text, "inlay_engine_run_seconds")[("_count", labels)] == 1
    assert samples(text, "inlay_batch_items")[("_sum", labels)] == 3
    assert len(samples(text, "inlay_requests_total")) == 2
    assert samples(text, "inlay_model_bytes")[("", (("model", "m"),))] == 1000


def test_only_successful_requests_are_timed():
    metrics = Metrics()
    for protocol, status in [("http", "200"), ("http", "206"), ("http", "422"), ("grpc", "OK"), ("grpc", "INTERNAL")]:
        metrics.request(protocol, "embed", status, 0.01)
    seen = shown(metrics, "inlay_request_seconds")
    assert seen[("_count", (("method", "embed"), ("protocol", "http")))] == 2
    assert seen[("_count", (("method", "embed"), ("protocol", "grpc")))] == 1


def test_a_graph_is_shown_from_its_first_run_on():
    metrics = Metrics()
    show(metrics, "m")
    run, labels = metrics.runs("m", "embedding"), (("graph", "embedding"), ("model", "m"))
    assert shown(metrics, "inlay_engine_run_seconds") == {}
    run(1, 1, 0, 0.1)
    assert shown(metrics, "inlay_engine_run_seconds")[("_count", labels)] == 1


def test_key_use_is_counted_by_model_within_the_bound():
    metrics, names = Metrics(), ["a", "b"]
    show(metrics, "m")
    metrics.show_keys(lambda name: name if name in names else "other")
    for name, status in (("a", "200"), ("b", "429"), ("c", "200"), ("d", "499")):
        context = RequestContext()
        context.show_key(name)
        if status == "200":
            metrics.passes([context], "m", [3], StageTimes(0, 0, 0.2))
            metrics.passes([context], "m", [4], StageTimes(0, 0, 0.2))
        metrics.request("http", "/embed", status, 0.5, context)
    metrics.request("http", "/embed", "200", 0.5)  # without a key
    seen = {kind: shown(metrics, f"inlay_key_{kind}_total") for kind in ("requests", "seconds", "tokens", "refusals")}

    def row(*values: float) -> dict[tuple[str, str], float]:
        return dict(zip([("a", "m"), ("b", ""), ("other", "m"), ("other", "")], values, strict=True))

    by_key = {
        kind: {(dict(labels)["key"], dict(labels)["model"]): value for (_, labels), value in found.items()}
        for kind, found in seen.items()
    }
    assert by_key == {
        "requests": row(1, 1, 1, 1),
        "seconds": row(0.5, 0.5, 0.5, 0.5),
        "tokens": row(7, 0, 7, 0),
        "refusals": row(0, 1, 0, 0),
    }


def test_exemplars_are_the_last_traced_values_of_their_buckets():
    metrics = Metrics()
    for trace, seconds in (("aa", 0.02), ("bb", 0.025), ("", 0.2)):
        context = RequestContext()
        context.trace_id, context.passes = trace, [] if trace else None
        metrics.request("http", "/embed", "200", seconds, context)
    families = {
        family.name: family for family in openmetrics.text_string_to_metric_families(metrics.openmetrics().decode())
    }
    assert families["inlay_requests"].type == "counter"
    found = {
        sample.labels["le"]: sample.exemplar
        for sample in families["inlay_request_seconds"].samples
        if sample.exemplar is not None
    }
    assert {le: (each.labels, each.value) for le, each in found.items()} == {"0.03": ({"trace_id": "bb"}, 0.025)}
    assert b"trace_id" not in metrics.text()


def shown(metrics: Metrics, name: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return samples(metrics.text().decode(), name)


@pytest.mark.parametrize("value", ["", 'a "quoted" name', "back\\slash", "two\nlines", "\\n", "ü 字"])
def test_labels_survive_the_parser_of_prometheus_client(value):
    metrics = Metrics()
    show(metrics, value, 7)
    assert shown(metrics, "inlay_model_bytes") == {("", (("model", value),)): 7}


@pytest.mark.parametrize("value", [0, 1e-9, 2**53, 0.1 + 0.2, float("inf"), -1.5])
def test_numbers_are_shown_exactly(value):
    metrics = Metrics()
    metrics.watch(lambda: {("inlay_requests_in_flight",): value})
    assert shown(metrics, "inlay_requests_in_flight") == {("", ()): value}


def test_help_and_type_stand_once_before_their_samples():
    metrics = Metrics()
    lines = metrics.text().decode().splitlines()
    titles = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(set(titles)) == len(titles)
    assert [line.split()[2] for line in lines if line.startswith("# HELP")] == titles
    assert lines[-1].startswith("inlay_build_info{")


def test_errors_are_shown_before_the_first_request():
    reasons = {dict(labels)["reason"] for _, labels in shown(Metrics(), "inlay_refusals")}
    assert reasons == set(STATUSES)


def test_counters_of_a_model_continue_when_it_comes_back():
    metrics = Metrics()
    gauges = show(metrics, "m", graphs=("encoder",))
    metrics.runs("m", "encoder")(3, 50, 0.1, 0.2)
    failed = metrics.counter("inlay_run_failures", "m", "encoder")
    labels = (("graph", "encoder"), ("model", "m"))
    failed()
    assert shown(metrics, "inlay_run_failures") == {("_total", labels): 1}
    failed()  # and nobody looks before the model goes
    before = dict(gauges)
    gauges.clear()
    assert 'model="m"' not in metrics.text().decode()
    failed()  # of a request that was still under way
    gauges.update(before)
    metrics.counter("inlay_run_failures", "m", "encoder")()
    assert shown(metrics, "inlay_run_failures") == {("_total", labels): 4}
    assert shown(metrics, "inlay_engine_run_seconds")[("_count", labels)] == 1


def test_start_time_is_that_of_the_oldest_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with closing(MetricStore(tmp_path)) as one, closing(MetricStore(tmp_path, 1)) as another:
        monkeypatch.setattr("time.time", lambda: 1000.5)
        first = Metrics(one)
        monkeypatch.setattr("time.time", lambda: 2000.5)
        second = Metrics(another)
        second.save()
        assert shown(first, "process_start_time_seconds") == {("", ()): 1000.5}
        assert shown(second, "process_start_time_seconds") == {("", ()): 1000.5}


def test_stages_of_a_request_are_counted_under_its_model():
    metrics = Metrics()
    show(metrics, "m")
    context = RequestContext()
    metrics.passes([context], "m", [3], StageTimes(0.002, 0.02, 0.2))
    for _ in range(2):  # a response is written once
        context.written(perf_counter())
    seen = shown(metrics, "inlay_stage_seconds")
    assert {stage: seen[("_count", (("model", "m"), ("stage", stage)))] for stage in STAGES} == dict.fromkeys(STAGES, 1)
    assert seen[("_sum", (("model", "m"), ("stage", "run")))] == 0.2


def test_token_ids_have_no_tokenize_stage():
    metrics = Metrics()
    show(metrics, "m")
    metrics.passes([RequestContext()], "m", [3], StageTimes(0.0, 0.02, 0.2))
    stages = {dict(labels)["stage"] for _, labels in shown(metrics, "inlay_stage_seconds")}
    assert stages == {"queue", "run"}


def test_worker_shows_its_memory_cpu_time_and_files():
    seen = {name: value for name, value in shown(Metrics(), "inlay_worker").items() if name[1]}
    assert set(seen) == {(name, (("worker", "0"),)) for name in ("_private_bytes", "_cpu_seconds_total", "_open_files")}
    assert all(value > 0 for value in seen.values())


def test_what_nobody_scrapes_is_counted_too():
    """Values gather only up to a bound, also those of one long stream."""
    store = MetricStore()
    metrics = Metrics(store)
    for _ in range(2 * MOST_OBSERVED):
        metrics.passes([RequestContext()], "m", [3], StageTimes(0.0, 0.0, 0.2))
        metrics.request("http", "/positions", "200", 0.01)
    (snapshot,) = store.snapshots()
    for key in (("inlay_stage_seconds", "m", "run"), ("inlay_request_seconds", "/positions", "http")):
        assert sum(snapshot.counters[key][:-1]) > MOST_OBSERVED, key
