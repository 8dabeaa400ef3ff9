"""The names that models answer to over every protocol, and the models that serve requests without a name."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from pydantic import ValidationError

from models.artifacts import card as cards
from proto import embed_pb2, embed_pb2_grpc, tei_pb2, tei_pb2_grpc
from service.errors import StartError, UnknownModel
from service.observability.metrics import Metrics
from service.registry.registry import ModelRegistry, open_registry
from service.settings import Settings
from tests.score_models import CLASSIFIER, EMBEDDER, RANKER
from tests.served import Served, serving

HUB = "sentence-transformers/mini"
NAMES = [EMBEDDER, HUB, "mini", "text-embedding-3-small", "org/alias", "mini:latest", f"{HUB}:latest", "of-card/x"]


def edit(folder: Path, **fields: Any) -> None:
    """Change fields of the card of an exported model."""
    path = folder / cards.FILE_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.fixture(scope="module")
def store(score_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An embedder from the hub, a reranker and a classifier."""
    store = tmp_path_factory.mktemp("names") / "store"
    shutil.copytree(score_store, store)
    edit(store / EMBEDDER, source=f"{HUB}@{'a' * 40}", aliases=["of-card/x"])
    return store


@pytest.fixture(scope="module")
def served(store: Path) -> Iterator[Served]:
    aliases = f"text-embedding-3-small={EMBEDDER}, org/alias={EMBEDDER}"
    with serving(store, default_model=EMBEDDER, aliases=aliases) as service:
        yield service


# ---- names


@pytest.mark.parametrize("name", NAMES)
def test_each_name_is_answered_over_every_protocol(served: Served, name: str) -> None:
    (expected,) = served.http.post("/embed", json={"inputs": "a b", "model": EMBEDDER}).json()
    assert served.http.post("/embed", json={"inputs": "a b", "model": name}).json() == [expected]
    openai = served.http.post("/v1/embeddings", json={"input": "a b", "model": name}).json()
    assert (openai["model"], openai["data"][0]["embedding"]) == (EMBEDDER, expected)
    cohere = {"texts": ["a b"], "model": name, "input_type": "search_document", "embedding_types": ["float"]}
    assert served.http.post("/v2/embed", json=cohere).json()["embeddings"]["float"] == [expected]
    oip = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a b"]}]}
    assert served.http.post(f"/v2/models/{name}/infer", json=oip).json()["outputs"][0]["data"] == expected
    assert served.http.get(f"/models/{name}").json()["name"] == EMBEDDER
    with grpc.insecure_channel(served.rpc_address) as channel:
        message = embed_pb2.EmbedRequest(model=name, inputs=[embed_pb2.Input(text="a b")])
        answer = embed_pb2_grpc.EmbedderStub(channel).Embed(message)
        assert answer.model == EMBEDDER


def test_names_are_listed_with_their_model_as_parent(served: Served) -> None:
    listed = {entry["id"]: entry["parent"] for entry in served.http.get("/v1/models").json()["data"]}
    further = [name for name in NAMES if name != EMBEDDER and not name.endswith(":latest")]
    assert listed == dict.fromkeys((RANKER, CLASSIFIER, EMBEDDER)) | dict.fromkeys(further, EMBEDDER)
    for name, parent in listed.items():
        entry = served.http.get(f"/v1/models/{name}").json()
        assert (entry["id"], entry["parent"]) == (name, parent)


def test_metrics_name_models_by_their_own_names(served: Served) -> None:
    for name in NAMES:
        served.http.post("/embed", json={"inputs": "a b", "model": name})
    text = served.http.get("/metrics").text
    assert f'model="{EMBEDDER}"' in text
    assert not [name for name in NAMES[1:] if f'"{name}"' in text]


def test_unknown_name_with_a_slash_is_not_found(served: Served) -> None:
    for name in ("other/mini", "mini:v1", "org/alias/x", "/mini", "mini/", ":latest"):
        response = served.http.post("/embed", json={"inputs": "a", "model": name})
        assert (response.status_code, "no model" in response.text) == (404, True), name
    assert served.http.post(f"/models/{EMBEDDER}/nothing").status_code == 404
    assert served.http.get(f"/models/{EMBEDDER}/images").status_code == 405


def registry_of(store: Path, **settings: Any) -> ModelRegistry:
    return open_registry(Settings(store=store, device="cpu", threads=1, **settings), Metrics())


def test_last_part_that_two_models_share_names_neither(score_store: Path, tmp_path: Path) -> None:
    for name, source in (("one", "a/mini@1"), ("two", "b/mini@1")):
        shutil.copytree(score_store / EMBEDDER, tmp_path / name)
        edit(tmp_path / name, source=source)
    registry = registry_of(tmp_path)
    assert [registry.get(name).card.name for name in ("a/mini", "b/mini:latest")] == ["one", "two"]
    with pytest.raises(UnknownModel, match="'mini' may be any of 'one', 'two': send the name of one of them"):
        registry.get("mini")


def test_own_names_win_over_those_of_others(score_store: Path, tmp_path: Path) -> None:
    for name, source in (("mini", "here"), ("fast", "b/mini@1"), ("other", "b/mini@1")):
        shutil.copytree(score_store / EMBEDDER, tmp_path / name)
        edit(tmp_path / name, source=source)
    registry = registry_of(tmp_path, aliases="mini=fast,b/mini=other")
    assert [registry.get(name).card.name for name in ("mini", "b/mini")] == ["mini", "other"]


async def test_names_of_unloaded_models_go_with_them(store: Path) -> None:
    registry = registry_of(store)
    with pytest.raises(UnknownModel):
        await registry.unload("mini")  # names of the store alone are unloaded
    await registry.unload(EMBEDDER)
    with pytest.raises(UnknownModel):
        registry.get(HUB)


def test_alias_of_a_model_that_is_not_loaded_stops_the_start(store: Path) -> None:
    with pytest.raises(StartError, match="INLAY_ALIASES names 'nobody', which is not served"):
        registry_of(store, aliases="x=nobody")
    with pytest.raises(ValidationError, match="write ALIAS=NAME"):
        Settings(aliases="x")


# ---- requests without a name


def test_each_route_takes_the_only_model_of_its_kind(served: Served) -> None:
    ranked = served.http.post("/rerank", json={"query": "a", "texts": ["b", "a b"]})
    assert ranked.status_code == 200, ranked.text
    named = {"query": "a", "texts": ["b", "a b"], "model": RANKER}
    assert ranked.json() == served.http.post("/rerank", json=named).json()
    body = {"query": "a", "documents": ["b"]}
    assert served.http.post("/v1/rerank", json=body).json()["model"] == RANKER
    assert served.http.post("/score", json={"text_1": "a", "text_2": "b"}).json()["model"] == RANKER
    assert served.http.post("/classify", json={"input": "a"}).json()["model"] == CLASSIFIER
    predicted = served.http.post("/predict", json={"inputs": "a"}).json()
    assert predicted == served.http.post("/predict", json={"inputs": "a", "model": CLASSIFIER}).json()
    with grpc.insecure_channel(served.rpc_address) as channel:
        ranks = tei_pb2_grpc.RerankStub(channel).Rerank(tei_pb2.RerankRequest(query="a", texts=["b", "a b"])).ranks
        assert [rank.index for rank in ranks] == [entry["index"] for entry in ranked.json()]
        assert len(tei_pb2_grpc.PredictStub(channel).Predict(tei_pb2.PredictRequest(inputs="a")).predictions) == 3


def test_of_several_rerankers_a_named_one_is_the_default(store: Path, tmp_path: Path) -> None:
    shutil.copytree(store, tmp_path / "store")
    shutil.copytree(store / RANKER, tmp_path / "store/another")
    body = {"query": "a", "texts": ["b"]}
    with serving(tmp_path / "store", default_model=EMBEDDER) as service:
        assert service.http.post("/rerank", json=body).status_code == 424
    with serving(tmp_path / "store", default_model=f"{EMBEDDER},{RANKER}") as service:
        assert service.http.post("/rerank", json=body).status_code == 200
        assert service.http.post("/embed", json={"inputs": "a"}).status_code == 200


def test_a_trained_reranker_is_chosen_before_a_random_one(store: Path, tmp_path: Path) -> None:
    shutil.copytree(store, tmp_path / "store")
    shutil.copytree(store / RANKER, tmp_path / "store/another")
    origin = "config.json: initialised"
    source = {"name": "weights", "value": "random, of the head", "origin": origin, "disagrees": None}
    edit(tmp_path / "store/another", provenance=[source])
    body = {"query": "a", "documents": ["b"]}
    with serving(tmp_path / "store", default_model=EMBEDDER) as service:
        assert service.http.post("/v1/rerank", json=body).json()["model"] == RANKER
        listed = [service.http.get(f"/models/{name}").json()["provenance"] for name in ("another", RANKER)]
        assert [source in settings for settings in listed] == [True, False]
    with serving(tmp_path / "store", default_model=f"{EMBEDDER},another") as service:
        assert service.http.post("/v1/rerank", json=body).json()["model"] == "another"
