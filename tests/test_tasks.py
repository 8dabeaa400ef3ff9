"""A model with adapters of several tasks, through every protocol; judged by the plain model of each task."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts import card as cards
from models.artifacts.description import describe
from models.artifacts.export import export
from models.artifacts.int8_encoder import Int8Options
from proto import open_inference_pb2 as oip
from proto import tei_pb2 as tei
from service.embedding.requests import Ids, Text
from tests.embed_requests import embed_request
from tests.golden_cases import write_json
from tests.roads import Roads, embed, exactly, first, own_request, own_vector, raw, roads_to, tensor
from tests.served import serving
from tests.service.registry.registry_service import Service
from tests.task_models import PROMPTS, TASKS, write

NAME, TOLERANCE = "adapted", 1e-5
TEXT = "a b search c d"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`adapted`, and each task's plain model under the task's name."""
    folder = tmp_path_factory.mktemp("tasks")
    export(write(folder / NAME), folder / "store" / NAME)
    for task in TASKS:
        export(write(folder / task, task), folder / "store" / task)
    return folder / "store"


@pytest.fixture(scope="module")
def roads(store: Path) -> Iterator[Roads]:
    with serving(store, default_model=NAME) as running, roads_to(running, NAME) as clients:
        yield clients


def plain(roads: Roads, task: str, inputs: Any) -> NDArray[np.float32]:
    """The vector of a task's plain model."""
    return exactly(embed(roads, inputs, model=task).json()[0])


def oip_json(roads: Roads, **parameters: str) -> NDArray[np.float32]:
    body = {"inputs": [tensor(TEXT)[0] | {"data": [TEXT]}], "parameters": parameters}
    [output] = roads.post(f"/v2/models/{NAME}/infer", body).json()["outputs"]
    return exactly(output["data"]).reshape(-1)


def oip_rpc(roads: Roads, **parameters: str) -> NDArray[np.float32]:
    described, data = tensor(TEXT)
    message = oip.ModelInferRequest.InferInputTensor(**described)
    request = oip.ModelInferRequest(model_name=NAME, inputs=[message], raw_input_contents=[data])
    for name, value in parameters.items():
        request.parameters[name].string_param = value
    [contents] = roads.oip.ModelInfer(request).raw_output_contents
    return raw(contents)


def openai(roads: Roads, **fields: str) -> NDArray[np.float32]:
    return exactly(first(roads.post("/v1/embeddings", {"model": NAME, "input": TEXT} | fields)))


NAMED: dict[str, Callable[[Roads, str], NDArray[np.float32]]] = {
    "/embed, task": lambda roads, task: exactly(embed(roads, [TEXT], task=task).json()[0]),
    "/embed, prompt_name": lambda roads, task: exactly(embed(roads, [TEXT], prompt_name=task).json()[0]),
    "/v1/embeddings, task": lambda roads, task: openai(roads, task=task),
    "OIP, task": lambda roads, task: oip_json(roads, task=task),
    "OIP, prompt_name": lambda roads, task: oip_json(roads, prompt_name=task),
    "OIP gRPC, task": lambda roads, task: oip_rpc(roads, task=task),
    "inlay.v1, task": lambda roads, task: own_vector(roads.own.Embed(own_request(roads, TEXT, task=task))),
    "inlay.v1, prompt_name": lambda roads, task: own_vector(
        roads.own.Embed(own_request(roads, TEXT, prompt_name=task))
    ),
    "tei.v1, prompt_name": lambda roads, task: exactly(
        roads.tei.Embed(tei.EmbedRequest(inputs=TEXT, truncate=True, prompt_name=task)).embeddings
    ),
}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", NAMED)
def test_every_protocol_chooses_the_task(name: str, task: str, roads: Roads) -> None:
    vector = NAMED[name](roads, task)
    assert np.abs(vector - plain(roads, task, [PROMPTS[task] + TEXT])).max() <= TOLERANCE
    np.testing.assert_array_equal(vector, NAMED["/embed, task"](roads, task))


def test_a_request_without_a_task_gets_no_adapter(roads: Roads) -> None:
    none = exactly(embed(roads, [TEXT]).json()[0])
    vectors = [none, *(exactly(embed(roads, [TEXT], task=task, prompt_name="passage").json()[0]) for task in TASKS)]
    apart = [np.abs(one - other).max() for number, one in enumerate(vectors) for other in vectors[:number]]
    assert min(apart) > 100 * TOLERANCE


def test_a_named_prompt_goes_before_that_of_the_task(roads: Roads) -> None:
    vector = exactly(embed(roads, [TEXT], task="query", prompt_name="passage").json()[0])
    assert np.abs(vector - plain(roads, "query", [TEXT])).max() <= TOLERANCE


@pytest.mark.parametrize("output", [None, "last_hidden_state", "token_embeddings", "input_embeddings"])
@pytest.mark.parametrize("ids", [[5], [5, 6, 7, 8, 9, 30], [*range(2, 40)], [*range(40)] * 15], ids=len)
def test_token_ids_get_the_adapters_of_a_task(ids: list[int], output: str | None, roads: Roads) -> None:
    options = {} if output is None else {"outputs": output}

    def rows(**members: Any) -> NDArray[np.float32]:
        answer = embed(roads, [ids], **options, **members).json()
        return exactly(answer["outputs"][output][0] if output else answer[0])

    for task in TASKS:
        got, expected = rows(task=task), rows(model=task)
        assert np.abs(got - expected).max() <= TOLERANCE * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("task", [None, *TASKS])
def test_a_row_of_the_input_layer_keeps_its_bits(task: str | None, roads: Roads) -> None:
    """It depends on its id and task alone, since the model has no positions."""
    fields: dict[str, Any] = {"outputs": ["input_embeddings"], "task": task}
    sequences = [[5], [*range(40)] * 15, [5, 6]]
    rows = embed(roads, sequences, **fields).json()["outputs"]["input_embeddings"]
    for number in (3, 5, 6):
        ((alone,),) = embed(roads, [[number]], **fields).json()["outputs"]["input_embeddings"]
        assert all(
            row == alone
            for ids, own in zip(sequences, rows, strict=True)
            for id_, row in zip(ids, own, strict=True)
            if id_ == number
        )


def test_the_input_layer_alone_has_adapters(store: Path, tmp_path: Path) -> None:
    checkpoint = store.parent / NAME
    card = export(checkpoint, tmp_path / "store" / NAME, encoder=False, pooling="none")
    assert (card.default_output, card.tasks) == ("input_embeddings", TASKS)
    with serving(tmp_path / "store") as running, roads_to(running, NAME) as own:
        got = exactly(embed(own, [[5, 6, 7]], task="query").json()[0])
    with serving(store, default_model="query") as running, roads_to(running, "query") as judge:
        expected = exactly(
            embed(judge, [[5, 6, 7]], outputs=["input_embeddings"]).json()["outputs"]["input_embeddings"][0]
        )
    assert np.abs(got - expected).max() <= TOLERANCE


async def test_tasks_that_share_a_batch_keep_their_bits(store: Path) -> None:
    texts = [Text(TEXT), Text("a"), Text("x y z"), Text("o " * 12)]
    wanted = [(text, task) for text in texts for task in (None, *TASKS)]

    async def vector(service: Service, text: Text, task: str | None) -> bytes:
        result = await service.pipeline.embed(embed_request([text], NAME, task=task))
        return result.outputs[0].rows.tobytes()

    for cached in (0, 1 << 20):
        service = Service(store, vector_cache_bytes=cached)
        alone = [await vector(Service(store), text, task) for text, task in wanted[:4]]
        alone += [await vector(service, text, task) for text, task in wanted[4:]]
        together = await asyncio.gather(*(vector(service, text, task) for text, task in wanted))
        assert together == alone
        assert len(set(alone)) == len(wanted)


async def test_the_reference_engine_computes_adapters(store: Path) -> None:
    inputs = [Ids(np.array([5, 6, 7])), Text(TEXT)]
    names = ("sentence_embedding", "input_embeddings", "token_embeddings")
    request = embed_request(inputs, NAME, outputs=names, task="clustering")
    got, expected = [
        await Service(store, engine=engine, models=(NAME,)).pipeline.embed(request) for engine in ("onnx", "reference")
    ]
    for ours, theirs in zip(got.outputs, expected.outputs, strict=True):
        np.testing.assert_allclose(ours.rows, theirs.rows, atol=TOLERANCE, err_msg=ours.name)


def test_an_int8_encoder_has_float32_adapters(store: Path, tmp_path: Path) -> None:
    export(store.parent / NAME, tmp_path / "store" / NAME, int8=Int8Options(min_cosine=0.9))
    with serving(tmp_path / "store") as running, roads_to(running, NAME) as own:
        vectors = {task: exactly(embed(own, [TEXT], task=task).json()[0]) for task in TASKS}
    with serving(store, default_model=NAME) as running, roads_to(running, NAME) as judge:
        for task, vector in vectors.items():
            expected = plain(judge, task, [PROMPTS[task] + TEXT])
            others = [plain(judge, other, [PROMPTS[task] + TEXT]) for other in TASKS if other != task]
            assert vector @ expected > 0.98
            assert vector @ expected > max(vector @ other for other in others)


# ---- what names the tasks, and errors


def test_models_and_cards_name_their_tasks(roads: Roads, store: Path) -> None:
    summary = roads.http.get(f"/models/{NAME}").json()
    assert (summary["tasks"], summary["default_task"]) == (list(TASKS), None)
    assert roads.http.get("/models/query").json()["tasks"] == []
    assert cards.read(store / NAME).tasks == TASKS
    assert f"tasks          {', '.join(TASKS)}" in describe(str(store / NAME))
    assert f"tasks: {', '.join(TASKS)}" in describe(str(store.parent / NAME))


WRONG = {
    "adapted": "task is 'none such'; adapted has the tasks 'query', 'passage', 'clustering'",
    "query": "task is 'none such'; query has no tasks: leave it out",
}


@pytest.mark.parametrize("model", WRONG)
def test_unknown_tasks_are_refused(model: str, roads: Roads) -> None:
    def answer(path: str, body: dict[str, Any]) -> httpx.Response:
        return roads.http.post(path, json=body)

    fields = {"model": model, "task": "none such"}
    answers = {
        "/embed": answer("/embed", {"inputs": TEXT, **fields}),
        "/embed, ids": answer("/embed", {"inputs": [5], "outputs": ["input_embeddings"], **fields}),
        "/v1/embeddings": answer("/v1/embeddings", {"input": TEXT, **fields}),
        "OIP": answer(
            f"/v2/models/{model}/infer",
            {"inputs": [tensor(TEXT)[0] | {"data": [TEXT]}], "parameters": {"task": "none such"}},
        ),
    }
    for name, got in answers.items():
        assert got.status_code in (400, 422), name
        assert WRONG[model] in got.text.replace("\\'", "'"), name
    with pytest.raises(grpc.RpcError, match=r"task is 'none such'") as error:
        roads.own.Embed(own_request(roads, TEXT, task="none such"))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("places", [("config.json", {"default_task": "query"}), ("prompts", {})])
async def test_files_name_the_task_of_requests_without_one(
    places: tuple[str, Any], store: Path, tmp_path: Path
) -> None:
    where, changes = places
    folder = write(tmp_path / "x", changes=changes)
    if where == "prompts":
        write_json(folder / "config_sentence_transformers.json", {"prompts": PROMPTS, "default_prompt_name": "query"})
    assert export(folder, tmp_path / "store" / NAME).default_task == "query"

    async def vector(**fields: Any) -> bytes:
        result = await Service(tmp_path / "store").pipeline.embed(embed_request([Text(TEXT)], NAME, **fields))
        return result.outputs[0].rows.tobytes()

    assert await vector() == await vector(task="query") == await vector(prompt_name="query")
    assert await vector() != await vector(task="passage")
