"""What /metrics shows is what prometheus_client's own instruments would show."""

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from service.metrics import SECONDS, Metrics


def samples(text: str, name: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name.removeprefix(name), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(name) and not sample.name.endswith("_created")
    }


@pytest.mark.parametrize("values", [[], [0.0001], [0.00010001, 5, 11, 1e9], [0, 0.3, 0.3, 0.30000001]])
def test_a_histogram_counts_as_the_library_s_own_does(values):
    metrics, registry = Metrics(), CollectorRegistry()
    theirs = Histogram("run_seconds", "x", ["model", "graph"], buckets=SECONDS, registry=registry).labels("m", "g")
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
    metrics.loaded("m", 1000)
    text = metrics.text().decode()
    labels = (("graph", "encoder"), ("model", "m"))
    assert samples(text, "inlay_engine_runs")[("_total", labels)] == 1
    assert samples(text, "inlay_batch_items")[("_sum", labels)] == 3
    assert samples(text, "inlay_batch_items")[("_bucket", (*labels[:1], ("le", "4.0"), *labels[1:]))] == 1
    assert len(samples(text, "inlay_requests")) == 2
    assert samples(text, "inlay_model_bytes")[("", (("model", "m"),))] == 1000


def test_a_graph_that_never_ran_shows_zeros_so_that_rates_start_right():
    metrics = Metrics()
    metrics.runs("m", "embedding")
    assert (
        samples(metrics.text().decode(), "inlay_engine_runs")[("_total", (("graph", "embedding"), ("model", "m")))] == 0
    )
