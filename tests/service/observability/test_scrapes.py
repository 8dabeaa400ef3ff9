"""What a scrape shows over the wire: what each key used, the size with many models, formats by Accept."""

import shutil
from pathlib import Path

import grpc
import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from proto import embed_pb2 as pb
from tests.served import Served, serving

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
KEYS = {"a": "correct-horse-battery", "b": "staple-0123456789", "c": "paper-0123456789"}
IDS = {"inputs": [[2, 5, 3]], "outputs": ["input_embeddings"]}


def key_use(service: Served) -> dict[str, dict[tuple[str, str], float]]:
    """Numbers of the families of keys by key and model, without `inlay_key_`."""
    text = service.http.get("/metrics").text
    return {
        family.name.removeprefix("inlay_key_"): {
            (sample.labels["key"], sample.labels["model"]): sample.value for sample in family.samples
        }
        for family in text_string_to_metric_families(text)
        if family.name.startswith("inlay_key_")
    }


def test_what_keys_use_is_counted_over_both_protocols(tiny_store: Path) -> None:
    keys = ",".join(f"{name}:{key}" for name, key in KEYS.items())
    with serving(tiny_store, default_model="bert", api_keys=keys, key_metrics=2) as service:
        headers = {name: {"authorization": f"Bearer {key}"} for name, key in KEYS.items()}
        sent = [("a", "/embed", IDS, 200), ("a", "/embed", {"inputs": ["a", "b"]}, 200), ("b", "/embed", {}, 422)]
        sent += [("c", "/v1/embeddings", {"input": "a", "model": "bert"}, 200)]
        for name, path, body, status in sent:
            assert service.http.post(path, json=body, headers=headers[name]).status_code == status
        assert service.http.post("/embed", json=IDS).status_code == 401
        metadata = [("authorization", f"Bearer {KEYS['a']}")]
        requests = iter([pb.EmbedRequest(inputs=[pb.Input(text="a")])] * 3)
        assert len(list(service.stub.EmbedStream(requests, metadata=metadata))) == 3
        with pytest.raises(grpc.RpcError):
            service.stub.Embed(pb.EmbedRequest(), metadata=metadata)
        use = key_use(service)
    assert use["requests"] == {("a", "bert"): 5, ("a", ""): 1, ("b", ""): 1, ("other", "bert"): 1}
    assert use["tokens"] == {("a", "bert"): 3 + 6 + 9, ("a", ""): 0, ("b", ""): 0, ("other", "bert"): 3}
    assert use["refusals"] == {("a", "bert"): 0, ("a", ""): 1, ("b", ""): 1, ("other", "bert"): 0}
    assert use["seconds"][("a", "bert")] > 0


def test_tokens_of_logits_and_gradients_are_counted(tiny_store: Path) -> None:
    with serving(tiny_store, default_model="bert", api_keys=f"a:{KEYS['a']}") as service:
        headers = {"authorization": f"Bearer {KEYS['a']}"}
        layer = {"input_ids": [[2, 5, 3]], "gradient": [[[0.5] * 32] * 3]}
        states = {"hidden": [[[0.5] * service.app.context.registry.models["llama"].card.hidden_size] * 2], "top_k": 1}
        for path, body in (("llama/logits", states), ("bert/gradient", layer)):
            answer = service.http.post(f"/models/{path}", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
        assert key_use(service)["tokens"] == {("a", "llama"): 2, ("a", "bert"): 3}


def test_keys_are_not_shown_where_none_are_wanted(tiny_store: Path) -> None:
    with serving(tiny_store, default_model="bert", api_keys=f"a:{KEYS['a']}", key_metrics=0) as service:
        headers = {"authorization": f"Bearer {KEYS['a']}"}
        assert service.http.post("/embed", json=IDS, headers=headers).status_code == 200
        assert not any(use for use in key_use(service).values())


def test_ten_models_in_use_are_under_60_kb(tiny_store: Path, tmp_path: Path) -> None:
    names = [f"all-MiniLM-L{number}-v2" for number in range(10)]  # as long as names are
    for name in names:
        shutil.copytree(tiny_store / "bert", tmp_path / name)
    with serving(tmp_path, default_model=names[0]) as service:
        for name in names:
            for path, body in (("/embed", {"inputs": "a"}), ("/v1/embeddings", {"input": "a"})):
                assert service.http.post(path, json={**body, "model": name}).status_code == 200
        text = service.http.get("/metrics").text
    assert all(f'inlay_engine_run_seconds_count{{model="{name}"' in text for name in names)
    assert len(text) <= 60_000


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (PROMETHEUS, "application/openmetrics-text; version=1.0.0; charset=utf-8"),
        ("text/plain;version=0.0.4", "text/plain; version=0.0.4; charset=utf-8"),
        ("*/*", "text/plain; version=0.0.4; charset=utf-8"),
        ("application/openmetrics-text;q=0,*/*", "text/plain; version=0.0.4; charset=utf-8"),
        ("application/json", "text/plain; version=0.0.4; charset=utf-8"),
    ],
)
def test_accept_chooses_the_format(accept: str, content_type: str, served: Served) -> None:
    response = served.http.get("/metrics", headers={"accept": accept})
    assert response.headers["content-type"] == content_type
    parser = openmetrics if "openmetrics" in content_type else None
    families = (parser.text_string_to_metric_families if parser else text_string_to_metric_families)(response.text)
    assert {family.name for family in families} >= {"inlay_requests", "inlay_workers"}
