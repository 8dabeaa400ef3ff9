"""Which prompt and task an input_type brings: what encode_query and encode_document (sentence-transformers 6.2) say."""

from pathlib import Path

import numpy as np
import pytest

from models.artifacts.card import Card
from models.artifacts.export import export
from service.embedding.requests import Text
from service.embedding.tokenize.prompts import NO_TASK, SPELLINGS, USES, prompt_of, task_of
from service.errors import StartError
from tests.embed_requests import embed_request
from tests.golden_cases import write_json, write_tiny_bert
from tests.service.registry.registry_service import Service

NAMED = {"query": "q: ", "document": "d: "}
NOMIC = {"search_query": "sq: ", "search_document": "sd: ", "classification": "c: ", "clustering": "k: "}
E5 = {"query": "query: ", "passage": "passage: ", "document": ""}


def card(prompts: dict[str, str], default: str | None = None, tasks: tuple[str, ...] = ()) -> Card:
    fields = {"name": "m", "prompts": prompts, "default_prompt": default, "tasks": tasks, "default_task": None}
    fields |= {"text_ending": ()}
    made = object.__new__(Card)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


@pytest.mark.parametrize(
    ("prompts", "input_type", "expected"),
    [
        (NAMED, "query", "q: "),
        (NAMED, "document", "d: "),
        (NAMED, "clustering", ""),
        (NOMIC, "query", "sq: "),
        (NOMIC, "document", "sd: "),
        (NOMIC, "classification", "c: "),
        (NOMIC, "clustering", "k: "),
        (E5, "document", "passage: "),
        ({"corpus": "x: "}, "document", "x: "),
        ({"s2p_query": "s: "}, "query", "s: "),
        ({"query": "q: ", "search_query": "sq: "}, "query", "q: "),
        ({}, "query", ""),
    ],
)
def test_an_input_type_brings_the_prompt_of_its_use(prompts, input_type, expected):
    assert prompt_of(card(prompts), None, None, input_type) == expected


def test_input_type_without_prompt_suppresses_default_prompt():
    model = card({"sts": "s: "}, default="sts")
    assert prompt_of(model, None) == "s: "
    assert prompt_of(model, None, None, "query") == ""


def test_a_named_prompt_or_task_wins():
    model = card(NAMED | {"other": "o: ", "t": "t: "}, tasks=("t", "retrieval.query"))
    assert prompt_of(model, "other", None, "query") == "o: "
    assert prompt_of(model, None, "t", "query") == "t: "
    assert task_of(model, "t", None, "query") == 0


def test_a_task_of_the_use_comes_with_it():
    model = card({"retrieval.query": "rq: "}, tasks=("retrieval.query", "retrieval.passage"))
    assert (prompt_of(model, None, None, "query"), task_of(model, None, None, "query")) == ("rq: ", 0)
    assert (prompt_of(model, None, None, "document"), task_of(model, None, None, "document")) == ("", 1)
    assert task_of(model, None, None, "clustering") == NO_TASK
    assert task_of(model, None, None) == NO_TASK


def test_every_spelling_names_a_use():
    assert set(SPELLINGS.values()) == set(USES)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prompts")
    checkpoint = write_tiny_bert(folder / "tiny", pooling="mean")
    saved = {"prompts": {"query": "hello ", "passage": "a b "}, "default_prompt_name": "query"}
    write_json(checkpoint / "config_sentence_transformers.json", saved)
    export(checkpoint, folder / "store/tiny")
    return folder / "store"


@pytest.mark.parametrize("cache", [0, 1 << 20])
async def test_requests_are_read_behind_the_prompt_and_kept_apart(cache, store):
    service = Service(store, vector_cache_bytes=cache)

    async def vector(text, **fields):
        (output,) = (await service.pipeline.embed(embed_request([Text(text)], **fields))).outputs
        return output.rows

    for _ in range(2):  # the second time of what is kept
        for input_type, prompt in (("query", "hello "), ("document", "a b "), ("clustering", "")):
            expected = await vector(f"{prompt}world", input_type="classification")  # which has no prompt
            np.testing.assert_array_equal(await vector("world", input_type=input_type), expected)
        default = await vector("world")
        np.testing.assert_array_equal(default, await vector("world", input_type="query"))
        assert (default != await vector("world", input_type="document")).any()


@pytest.mark.parametrize(
    ("settings", "before"), [({"default_prompt": "a b "}, "a b "), ({"default_prompt_name": "query"}, "c ")]
)
async def test_the_settings_give_a_default_prompt(settings: dict[str, str], before: str, tmp_path: Path):
    write_tiny_bert(tmp_path / "x", pooling="mean")
    write_json(tmp_path / "x/config_sentence_transformers.json", {"prompts": {"query": "c ", "other": "d "}})
    export(tmp_path / "x", tmp_path / "store/x")

    async def vector(text: str, service: Service, **options: str) -> bytes:
        result = await service.pipeline.embed(embed_request([Text(text)], "x", **options))
        return result.outputs[0].rows.tobytes()

    plain, changed = Service(tmp_path / "store"), Service(tmp_path / "store", **settings)
    assert await vector("e", changed) == await vector(f"{before}e", plain)
    assert await vector("e", changed, prompt_name="other") == await vector("d e", plain)
    with pytest.raises(StartError, match="INLAY_DEFAULT_PROMPT_NAME is 'none such', and x has the prompts 'query'"):
        Service(tmp_path / "store", default_prompt_name="none such")


def test_a_conversation_keeps_its_begin_for_every_use() -> None:
    made = card({"default": "<|im_start|>user\n"}, "default")
    object.__setattr__(made, "text_ending", (1, 2))
    assert prompt_of(made, None, None, "query") == "<|im_start|>user\n"
