"""What is measured of one server: names of metrics, forms of answers, processor time, bodies of the mix."""

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.fleet import against_server, measure, traffic
from loadtest.fleet.replica import BATCH_TOKENS
from loadtest.servers import RunningServer, ServerSpec
from loadtest.user_mix import MOST_TOKENS
from tests.served import Served, serving


@pytest.fixture(scope="module")
def minilm(minilm_store: Path) -> Iterator[Served]:
    with serving(minilm_store) as running:
        yield running


def running(served: Served) -> RunningServer:
    return RunningServer(ServerSpec("inlay", ("http",), ()), os.getpid(), {"http": served.address[1]})


def test_metrics_that_are_read_exist(minilm: Served) -> None:
    measure.measure_point(running(minilm), "minilm", (16,), 0.0)  # series appear with their first value
    found = measure.scrape(minilm.address[1])
    assert measure.RUN_SECONDS.format(model="minilm") in found
    assert found[measure.PRIVATE_BYTES] > 0


def test_point_has_a_run_within_its_processor_time_and_latency(minilm: Served) -> None:
    point = measure.measure_point(running(minilm), "minilm", (16, 24), 0.0)
    assert point.tokens == (16, 24)
    assert 0 < point.run < point.wall
    assert point.processor > 0


def test_answers_take_fewer_bytes_from_json_to_raw(minilm: Served) -> None:
    for form in measure.sizes(running(minilm), "minilm").values():
        assert form["answer, JSON"] > form["answer, base64"] > form["answer, bytes"] > 0


def test_points_are_within_a_batch_and_the_model() -> None:
    assert all(sum(tokens) <= BATCH_TOKENS and max(tokens) <= MOST_TOKENS for tokens in measure.points())
    assert len(measure.points()) == len(set(measure.points()))


def test_bodies_are_the_requests_of_the_mix() -> None:
    sent = [json.loads(base64.b64decode(body)) for body in against_server.bodies("a")]
    lengths = [tuple(len(text.split()) + 2 for text in document["input"]) for document in sent]
    assert lengths == traffic.pool(4)[: against_server.BODIES]
