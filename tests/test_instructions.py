"""A request's own instruction, over every protocol that has one; judged by texts with the template before them."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts.export import export
from proto import open_inference_pb2 as oip
from service.embedding.tokenize.prompts import LONGEST_INSTRUCTION
from tests.golden_cases import write_json, write_tiny_bert
from tests.roads import Roads, embed, exactly, first, own_request, own_vector, raw, roads_to, tensor
from tests.served import serving

TEXT, INSTRUCTION = "a b c", "d e"
QWEN3 = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
MODELS = {  # the prompts of published models, and what is before a text with INSTRUCTION
    "qwen3": ({"query": QWEN3, "document": ""}, f"Instruct: {INSTRUCTION}\nQuery:"),
    "e5-instruct": ({}, f"Instruct: {INSTRUCTION}\nQuery: "),
    "bge": ({"web": "<instruct>Given a query\n<query>"}, f"<instruct>{INSTRUCTION}\n<query>"),
}


@pytest.fixture(scope="module")
def roads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Roads]:
    folder = tmp_path_factory.mktemp("instructions")
    for name, (prompts, _) in {**MODELS, "plain": ({"query": "query: "}, "")}.items():
        write_tiny_bert(folder / name, pooling="mean")
        write_json(folder / name / "config_sentence_transformers.json", {"prompts": prompts})
        export(folder / name, folder / "store" / name)
    write_tiny_bert(folder / "instructor", pooling="mean")
    settings = {"prompts": {"stored": INSTRUCTION}}
    write_json(folder / "instructor/config_sentence_transformers.json", settings)
    write_json(folder / "instructor/1_Pooling/config.json", {"pooling_mode": "mean", "include_prompt": False})
    export(folder / "instructor", folder / "store/instructor")
    with serving(folder / "store", default_model="qwen3") as running, roads_to(running, "qwen3") as clients:
        yield clients


def vector(roads: Roads, text: str, **fields: str) -> NDArray[np.float32]:
    return exactly(embed(roads, [text], **fields).json()[0])


@pytest.mark.parametrize("model", MODELS)
def test_an_instruction_has_the_form_of_the_model_s_prompts(model: str, roads: Roads) -> None:
    got = vector(roads, TEXT, model=model, instruction=INSTRUCTION)
    np.testing.assert_array_equal(got, vector(roads, MODELS[model][1] + TEXT, model=model))
    assert np.abs(got - vector(roads, TEXT, model=model)).max() > 1e-3


def test_an_instruction_that_is_not_pooled_stands_as_it_is(roads: Roads) -> None:
    got = vector(roads, TEXT, model="instructor", instruction=INSTRUCTION)
    np.testing.assert_array_equal(got, vector(roads, TEXT, model="instructor", prompt_name="stored"))
    assert np.abs(got - vector(roads, INSTRUCTION + TEXT, model="instructor")).max() > 1e-3


def _oip(roads: Roads) -> NDArray[np.float32]:
    described, data = tensor(TEXT)
    message = oip.ModelInferRequest.InferInputTensor(**described)
    request = oip.ModelInferRequest(model_name="qwen3", inputs=[message], raw_input_contents=[data])
    request.parameters["instruction"].string_param = INSTRUCTION
    return raw(roads.oip.ModelInfer(request).raw_output_contents[0])


ROADS: dict[str, Callable[[Roads], NDArray[np.float32]]] = {
    "/v1/embeddings": lambda roads: exactly(
        first(roads.post("/v1/embeddings", {"model": "qwen3", "input": TEXT, "instruction": INSTRUCTION}))
    ),
    "OIP gRPC": _oip,
    "inlay.v1": lambda roads: own_vector(roads.own.Embed(own_request(roads, TEXT, instruction=INSTRUCTION))),
}


@pytest.mark.parametrize("name", ROADS)
def test_every_protocol_reads_an_instruction(name: str, roads: Roads) -> None:
    np.testing.assert_array_equal(ROADS[name](roads), vector(roads, TEXT, instruction=INSTRUCTION))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": "plain", "instruction": "a"}, "no prompt of plain holds an instruction: leave it out, or put"),
        ({"instruction": "a", "prompt_name": "query"}, "is sent, and so is prompt_name"),
        ({"instruction": "a" * (LONGEST_INSTRUCTION + 1)}, f"has {LONGEST_INSTRUCTION + 1} characters"),
    ],
)
def test_instructions_that_cannot_be_followed_are_refused(fields: dict[str, str], said: str, roads: Roads) -> None:
    answer = roads.http.post("/embed", json={"inputs": [TEXT], **fields})
    assert answer.status_code in (400, 422)
    assert said in answer.text
