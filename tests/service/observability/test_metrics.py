"""What /metrics shows is what prometheus_client's own instruments would show."""

from contextlib import closing
from pathlib import Path
from weakref import ref

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from service.embedding.requests import Times
from service.error_status import STATUSES
from service.observability.counter_store import Shared
from service.observability.metric_definitions import SECONDS, STAGES
from service.observability.metrics import Metrics
from service.observability.stage_times import Stages, written


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


def shown(metrics: Metrics, name: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return samples(metrics.text().decode(), name)


@pytest.mark.parametrize("value", ["", 'a "quoted" name', "back\\slash", "two\nlines", "\\n", "ü 字"])
def test_a_label_comes_back_from_the_library_s_parser_as_it_was(value):
    metrics = Metrics()
    metrics.loaded(value, 7)
    assert shown(metrics, "inlay_model_bytes") == {("", (("model", value),)): 7}


@pytest.mark.parametrize("value", [0, 1e-9, 2**53, 0.1 + 0.2, float("inf"), -1.5])
def test_a_number_comes_back_exactly(value):
    metrics = Metrics()
    metrics.watch("inlay_requests_in_flight", {}, lambda: value)
    assert shown(metrics, "inlay_requests_in_flight") == {("", ()): value}


def test_every_help_and_type_stands_once_and_before_its_samples():
    metrics = Metrics()
    metrics.expect("http", ["embed"])
    lines = metrics.text().decode().splitlines()
    titles = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(set(titles)) == len(titles)
    assert [line.split()[2] for line in lines if line.startswith("# HELP")] == titles
    assert lines[-1].startswith("inlay_build_info{")


def test_usual_answers_and_every_refusal_are_shown_before_the_first_request():
    metrics = Metrics()
    metrics.expect("grpc", ["Embed"])
    requests = shown(metrics, "inlay_requests_total")
    assert {dict(labels)["status"] for _, labels in requests} >= {"OK", "RESOURCE_EXHAUSTED", "CANCELLED"}
    reasons = {dict(labels)["reason"] for _, labels in shown(metrics, "inlay_refusals")}
    assert reasons == {code for code in STATUSES}
    assert set(requests.values()) == {0}


def test_an_answer_nobody_expected_is_counted_too():
    metrics = Metrics()
    metrics.expect("http", ["embed"])
    metrics.request("http", "embed", "418", 0.1)
    counted = {dict(labels)["status"]: value for (_, labels), value in shown(metrics, "inlay_requests_total").items()}
    assert (counted["418"], counted["200"]) == (1, 0)


class Queue:
    def __init__(self, waiting: int) -> None:
        self.waiting_cost, self.waiting_items = waiting, 1


def test_a_model_s_numbers_come_and_go_with_it_and_its_counts_go_on():
    metrics, queue = Metrics(), Queue(30)
    metrics.runs("m", "encoder")(3, 50, 0.1, 0.2)
    failed = metrics.counter("inlay_run_failures", "m", "encoder")
    metrics.loaded("m", 1000, {"encoder": queue})
    labels = (("graph", "encoder"), ("model", "m"))
    assert shown(metrics, "inlay_queue_tokens") == {("", labels): 30}
    failed()
    assert shown(metrics, "inlay_run_failures") == {("_total", labels): 1}
    failed()  # and nobody looks before the model goes
    metrics.unloaded("m")
    assert 'model="m"' not in metrics.text().decode()
    failed()  # of a request that was still under way
    again = Queue(2)
    metrics.loaded("m", 1000, {"encoder": again})
    metrics.counter("inlay_run_failures", "m", "encoder")()
    assert shown(metrics, "inlay_queue_tokens") == {("", labels): 2}
    assert shown(metrics, "inlay_run_failures") == {("_total", labels): 4}
    assert shown(metrics, "inlay_engine_runs")[("_total", labels)] == 1


def test_an_exchanged_model_s_queue_takes_the_place_of_the_old_one_which_is_not_kept_alive():
    metrics, old, new = Metrics(), Queue(30), Queue(2)
    metrics.loaded("m", 1000, {"encoder": old})
    metrics.loaded("m", 2000, {"encoder": new})
    gone = ref(old)
    del old
    assert gone() is None
    assert list(shown(metrics, "inlay_queue_tokens").values()) == [2]
    assert list(shown(metrics, "inlay_model_bytes").values()) == [2000]


def test_of_a_graph_that_the_new_version_has_not_the_queue_is_no_longer_shown_and_the_counts_stay():
    metrics, queues = Metrics(), [Queue(1), Queue(30), Queue(2)]
    metrics.loaded("m", 1000, {"embedding": queues[0], "encoder": queues[1]})
    metrics.counter("inlay_run_failures", "m", "encoder")()
    metrics.loaded("m", 1000, {"embedding": queues[2]})
    assert shown(metrics, "inlay_queue_tokens") == {("", (("graph", "embedding"), ("model", "m"))): 2}
    assert shown(metrics, "inlay_run_failures") == {("_total", (("graph", "encoder"), ("model", "m"))): 1}


def test_what_is_refused_at_the_gate_is_shown_from_the_start_as_a_request_and_a_refusal():
    metrics = Metrics()
    refused = metrics.gate("http")
    requests = shown(metrics, "inlay_requests_total")
    assert {dict(labels)["status"]: value for (_, labels), value in requests.items()} == {
        "401": 0,
        "403": 0,
        "429": 0,
        "503": 0,
    }
    refused("key_limited", "429", 0.0001)
    labels = (("method", "gate"), ("protocol", "http"), ("status", "429"))
    assert shown(metrics, "inlay_requests_total")[("", labels)] == 1
    assert shown(metrics, "inlay_refusals")[("_total", (("reason", "key_limited"),))] == 1


def test_the_start_of_the_service_is_that_of_its_oldest_worker_whatever_the_clock_is_set_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with closing(Shared(tmp_path)) as one, closing(Shared(tmp_path)) as another:
        monkeypatch.setattr("time.time", lambda: 1000.5)
        first = Metrics(one)
        monkeypatch.setattr("time.time", lambda: 2000.5)
        second = Metrics(another)
        second.ask()
        assert shown(first, "process_start_time_seconds") == {("", ()): 1000.5}
        assert shown(second, "process_start_time_seconds") == {("", ()): 1000.5}


def test_the_stages_of_a_request_are_counted_under_its_model():
    metrics = Metrics()
    stages = Stages(metrics)
    stages.embedded("m", 3, Times(0.002, 0.02, 0.2))
    written()
    written()  # an answer is written once
    seen = shown(metrics, "inlay_stage_seconds")
    assert {stage: seen[("_count", (("model", "m"), ("stage", stage)))] for stage in STAGES} == dict.fromkeys(STAGES, 1)
    assert seen[("_sum", (("model", "m"), ("stage", "run")))] == 0.2


def test_ids_alone_are_not_tokenised():
    metrics = Metrics()
    Stages(metrics).embedded("m", 3, Times(0.0, 0.02, 0.2))
    assert shown(metrics, "inlay_stage_seconds")[("_count", (("model", "m"), ("stage", "tokenise")))] == 0


def test_a_process_tells_of_its_memory_its_time_and_its_files():
    seen = {name: value for name, value in shown(Metrics(), "inlay_worker").items() if name[1]}
    assert set(seen) == {(name, (("worker", "0"),)) for name in ("_private_bytes", "_cpu_seconds_total", "_open_files")}
    assert all(value > 0 for value in seen.values())
