"""What the fields of a request do, on tiny exported models, judged by the float64 reference engine and by laws."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from models.artifacts.adoption import adopt
from models.artifacts.export import export
from models.positions.rope.table import tabulate
from service.embedding.pooling import POOLINGS, pool
from service.embedding.requests import Cut, Ids, Text
from service.errors import BadInput, BadRequest, EmptyRequest, NotFound, StartError, TooLarge
from service.observability.metrics import Metrics
from service.registry.registry import open_registry
from service.settings import Settings
from tests.embed_requests import embed_request
from tests.golden_cases import case, write_checkpoint, write_json, write_sentence_files, write_tiny_bert
from tests.models.artifacts.test_adoption import TABLE, folder_of, model
from tests.service.registry.registry_service import Service

Make = Callable[..., Service]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiny (a sentence encoder with prompts), plain (an encoder alone), gpt2, llama, roberta."""
    folder = tmp_path_factory.mktemp("encoder")
    tiny = write_tiny_bert(folder / "checkpoint", pooling="mean")
    write_json(tiny / "config_sentence_transformers.json", {"prompts": {"query": "hello "}})
    export(tiny, folder / "store/tiny")
    export(write_tiny_bert(folder / "plain"), folder / "store/plain")
    for name in ("gpt2", "llama", "roberta"):
        export(write_checkpoint(case(f"input_{name}"), folder / name), folder / "store" / name)
    return folder / "store"


@pytest.fixture
def make(store: Path) -> Make:
    def made(model: str = "tiny", **changes: object) -> Service:
        return Service(store, **({"default_model": model, "models": (model,)} | changes))

    return made


def ids(*values: int, **others: list[int]) -> Ids:
    return Ids(np.array(values, np.int64), **{name: np.array(value, np.int64) for name, value in others.items()})


async def rows(service: Service, *inputs: Text | Ids, **fields: object) -> np.ndarray:
    (output,) = (await service.pipeline.embed(embed_request(inputs, **fields))).outputs
    return output.rows


@pytest.mark.parametrize("model", ["tiny", "plain", "gpt2", "llama", "roberta"])
async def test_onnx_runtime_agrees_with_the_reference_engine(make, model):
    onnx, reference = make(model), make(model, engine="reference", models=(model,))
    inputs = [ids(5, 6, 7), ids(8, types=[0]), ids(9, 9, mask=[0, 1], types=[0, 0])]
    inputs = inputs[:1] if model == "gpt2" else inputs
    not_default = {"token_type_embeddings"} if model == "gpt2" else set()
    names = tuple(name for name in onnx.registry.get(None).card.outputs if name not in not_default)
    got, expected = [await each.pipeline.embed(embed_request(inputs, outputs=names)) for each in (onnx, reference)]
    for ours, theirs in zip(got.outputs, expected.outputs, strict=True):
        assert ours.lengths == theirs.lengths
        np.testing.assert_allclose(ours.rows, theirs.rows, atol=1e-5, err_msg=ours.name)


async def test_default_output_is_the_pooled_vector_or_token_rows(make):
    assert (await rows(make("tiny"), Text("hello world"), ids(5))).shape == (2, 32)
    assert (await make("plain").pipeline.embed(embed_request([ids(5, 6)]))).outputs[0].name == "last_hidden_state"
    assert (await make("llama").pipeline.embed(embed_request([ids(5, 6)]))).outputs[0].name == "input_embeddings"


async def test_text_and_its_ids_give_equal_vectors(make):
    service = make()
    tokenizer = service.registry.get(None).tokenizer
    encodings = tokenizer.encode({0: Text("hello world"), 1: Text("hello", "world")}, Cut())
    np.testing.assert_array_equal(await rows(service, Text("hello world")), await rows(service, ids(*encodings[0].ids)))
    np.testing.assert_array_equal(await rows(service, Text("hello", "world")), await rows(service, encodings[1]))
    assert encodings[1].types.any()


async def test_batch_equals_its_items_alone(make):
    service = make()
    inputs = [Text("hello"), ids(5, 6, 7, 8), Text("hello world abc", "def"), ids(9, 9, mask=[0, 1])]
    alone = np.concatenate([await rows(service, each) for each in inputs])
    np.testing.assert_allclose(await rows(service, *inputs), alone, atol=1e-6)
    names = ("input_embeddings",)
    alone = np.concatenate([await rows(service, each, outputs=names) for each in inputs])
    np.testing.assert_array_equal(await rows(service, *inputs, outputs=names), alone)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
async def test_narrow_dtype_is_the_rounded_float32(make, dtype):
    full, narrow = await rows(make(), Text("hello")), await rows(make(), Text("hello"), dtype=dtype)
    assert narrow.dtype.name == dtype
    rounding = {"bfloat16": 2**-8, "float16": 2**-11}[dtype]
    np.testing.assert_allclose(narrow.astype(np.float32), full, rtol=rounding, atol=1e-7)


@pytest.mark.parametrize("mode", POOLINGS)
async def test_request_chooses_its_pooling(make, mode):
    hidden = await rows(make("plain"), ids(5, 6, 7, mask=[0, 1, 1]), outputs=("last_hidden_state",))
    pooled = await rows(make("plain"), ids(5, 6, 7, mask=[0, 1, 1]), pooling=mode, normalize=False)
    np.testing.assert_allclose(pooled[0], pool(mode, hidden, np.array([False, True, True])), atol=1e-6)


async def test_prompt_goes_before_the_text(make):
    prompted = await rows(make(), Text("world"), prompt_name="query")
    np.testing.assert_array_equal(prompted, await rows(make(), Text("hello world")))


async def test_excluded_prompt_is_left_out_of_pooling(tmp_path):
    checkpoint = write_tiny_bert(tmp_path / "checkpoint", pooling="mean")
    config = json.loads((checkpoint / "1_Pooling/config.json").read_text())
    write_json(checkpoint / "1_Pooling/config.json", config | {"include_prompt": False})
    prompts = {"query": "hello ", "long": "hello " * 40}
    write_json(checkpoint / "config_sentence_transformers.json", {"prompts": prompts})
    export(checkpoint, tmp_path / "store/tiny")
    service = Service(tmp_path / "store")
    hidden = await rows(service, Text("hello world"), outputs=("last_hidden_state",))
    prompted = await rows(service, Text("world"), prompt_name="query", normalize=False)
    np.testing.assert_allclose(prompted[0], hidden[2:].mean(axis=0), atol=1e-6)  # [CLS] and "hello" are the prompt's
    sent = ids(2, 6, 7, 3)
    beside = await rows(service, Text("world"), sent, prompt_name="query", normalize=False)
    np.testing.assert_allclose(beside[1], (await rows(service, sent, normalize=False))[0], atol=1e-6)
    with pytest.raises(BadInput, match=r"inputs\[0\] is cut to 24 tokens, all of them its prompt's"):
        await rows(service, Text("world"), prompt_name="long")


async def test_gpt2_adds_segments_only_where_they_are_sent(make):
    service = make("gpt2")
    table = (await rows(service, ids(7), outputs=("token_embeddings",)))[0]
    plain, typed = ids(5, 6), ids(5, 6, types=[7, 7])
    both = await rows(service, plain, typed)
    np.testing.assert_allclose(both[2:] - both[:2], np.stack([table, table]), atol=1e-6)
    with pytest.raises(BadInput, match=r"inputs\[0\] has no token_type_ids"):
        await rows(service, plain, typed, outputs=("token_type_embeddings",))


async def test_rope_rows_equal_the_table(make):
    service = make("llama")
    table = tabulate(service.registry.get(None).card.encodings.ropes["all"].rope, range(3, 7), arithmetic="parity")
    sent = ids(1, 2, positions=[5, 4])
    for name in ("cos", "sin"):
        rope_rows = await rows(service, sent, outputs=(f"rope_{name}",))
        np.testing.assert_allclose(rope_rows, table.outputs[name].whole()[[2, 1]], atol=1.2e-7)
    with pytest.raises(BadRequest, match="tiny has no output 'rope_cos'"):
        await rows(make("tiny"), sent, outputs=("rope_cos",))


async def test_long_inputs_are_truncated_or_rejected_as_requested(make):
    long = Text("hello " * 40)
    assert (await make().pipeline.embed(embed_request([long]))).tokens == 24
    with pytest.raises(BadInput, match=r"inputs\[1\] has 42 tokens; this model reads 24: shorten it"):
        await rows(make(), Text("hello"), long, truncate=False)
    with pytest.raises(BadInput, match=r"inputs\[0\] has 42 tokens"):
        await rows(make(auto_truncate=False), long)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"inputs": []}, EmptyRequest, "inputs is empty"),
        ({"inputs": [ids(1)] * 2049}, TooLarge, "2049 inputs; this server takes 2048"),
        ({"model": "tinny"}, NotFound, "no model 'tinny' here; loaded: .*: did you mean 'tiny'"),
        ({"outputs": ("rope_cos",)}, BadRequest, "tiny has no output 'rope_cos'; it has input_embeddings"),
        ({"dimensions": 33}, BadRequest, "dimensions is 33; send 1 to 32"),
        ({"dimensions": 0}, BadRequest, "dimensions is 0; send 1 to 32"),
        ({"pooling": "median"}, BadRequest, "pooling is 'median'; send one of cls"),
        ({"dtype": "int4"}, BadRequest, "dtype is 'int4'; send one of float32"),
        (
            {"prompt_name": "passage", "inputs": [Text("a")]},
            BadRequest,
            "tiny has the prompts 'query'",
        ),
        ({"outputs": ("input_embeddings",), "normalize": True}, BadRequest, "normalize applies to sentence_embedding"),
        ({"inputs": [ids(1), ids(1, mask=[0])]}, BadInput, r"inputs\[1\].attention_mask is all 0"),
        ({"model": "llama", "inputs": [Text("a")]}, BadRequest, "exported without a tokenizer"),
        ({"model": "llama", "pooling": "mean"}, BadRequest, "llama has no output 'sentence_embedding'"),
    ],
)
async def test_rejects_bad_requests_with_a_remedy(make, fields, error, message):
    with pytest.raises(error, match=message):
        await make(models=("tiny", "llama")).pipeline.embed(embed_request(**{"inputs": [ids(1)]} | fields))


async def test_rejects_too_many_tokens_in_a_request(make):
    with pytest.raises(TooLarge, match="6 tokens; this server takes 5 a request"):
        await rows(make(max_request_tokens=5), ids(1, 2, 3), ids(1, 2, 3))


async def test_rejects_values_too_large_for_float16(make, monkeypatch):
    service = make("llama")
    engine = service.registry.get(None).engine
    monkeypatch.setattr(engine, "run", lambda graph, feeds, outputs: [np.full((1, 32), 1e6, np.float32)])
    with pytest.raises(BadRequest, match="too large for float16: ask for bfloat16 or float32"):
        await rows(service, ids(1), dtype="float16")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"store": Path("nowhere")}, "model store nowhere does not exist"),
        ({"models": ("tiny", "absent")}, "holds no 'absent'; it holds 'gpt2'"),
        ({"default_model": "absent"}, "INLAY_DEFAULT_MODEL names 'absent', which is not served"),
    ],
)
def test_unusable_store_stops_the_start_in_one_line(store, changes, message):
    with pytest.raises(StartError, match=message) as caught:
        open_registry(Settings(**{"store": store, "device": "cpu"} | changes), Metrics())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", b"\0", "tokenizer.json is not a tokenizer.json: expected value"),
        ("embedding.onnx", b"\0", "embedding.onnx cannot be loaded: .*; export the model again"),
    ],
)
def test_damaged_file_that_is_not_verified_stops_the_start(store, tmp_path, file, content, message):
    shutil.copytree(store / "tiny", tmp_path / "tiny")
    damaged = tmp_path / "tiny" / file
    damaged.write_bytes(content * damaged.stat().st_size)
    with pytest.raises(StartError, match=message) as caught:
        open_registry(Settings(store=tmp_path, device="cpu", verify="off"), Metrics())
    assert "\n" not in str(caught.value)


async def test_request_must_name_a_model_when_there_is_no_default(store):
    service = Service(store)
    with pytest.raises(BadRequest, match="holds several models and none is the default: send \"model\", one of 'gpt2'"):
        await rows(service, ids(1))


async def test_adopted_model_pads_batches_and_renames_outputs(tmp_path):
    source = folder_of(tmp_path / "source", model(hidden="token_embeddings"))
    write_sentence_files(source, "mean")
    adopt(source, tmp_path / "store/adopted")
    service = Service(tmp_path / "store")
    inputs = [ids(5, 6, 7), ids(8), ids(9, 3, mask=[1, 0])]
    hidden = await rows(service, *inputs, outputs=("last_hidden_state",))
    np.testing.assert_array_equal(hidden, TABLE[[5, 6, 7, 8, 9, 3]])
    pooled = await rows(service, *inputs, normalize=False)
    np.testing.assert_allclose(pooled, [TABLE[5:8].mean(axis=0), TABLE[8], TABLE[9]], atol=1e-6)
    with pytest.raises(BadRequest, match="has no output 'input_embeddings'; it has last_hidden_state"):
        await rows(service, *inputs, outputs=("input_embeddings",))


async def test_adopted_model_that_pools_gives_its_own_vectors(tmp_path):
    adopt(folder_of(tmp_path / "source", model(hidden=None, pooled=True)), tmp_path / "store/adopted")
    service = Service(tmp_path / "store")
    pooled = await rows(service, ids(5, 6, 7), ids(8), normalize=False)
    np.testing.assert_allclose(pooled, [TABLE[5:8].mean(axis=0), TABLE[8]], atol=1e-6)
    with pytest.raises(BadRequest, match="gives sentence vectors as they are: leave it out"):
        await rows(service, ids(5), pooling="cls")


async def test_model_that_cuts_left_keeps_the_end_of_texts(tmp_path: Path) -> None:
    checkpoint = write_tiny_bert(tmp_path / "x", pooling="mean")
    write_json(checkpoint / "tokenizer_config.json", {"truncation_side": "left"})
    export(checkpoint, tmp_path / "store/tiny")
    service = Service(tmp_path / "store", default_model="tiny")
    long = Text("a b c d e f " * 20)
    read = await rows(service, long, max_tokens=9)
    np.testing.assert_array_equal(read, await rows(service, long, max_tokens=9, truncation_direction="left"))
    assert not np.array_equal(read, await rows(service, long, max_tokens=9, truncation_direction="right"))


@pytest.mark.parametrize("text", ["hello mars", "hello " * 40 + "mars"])
async def test_unknown_character_without_a_token_is_bad_input(text: str, tmp_path: Path) -> None:
    checkpoint = write_tiny_bert(tmp_path / "x", pooling="mean")
    data = json.loads((checkpoint / "tokenizer.json").read_text())
    data["model"]["unk_token"] = "[NONE]"
    write_json(checkpoint / "tokenizer.json", data)
    export(checkpoint, tmp_path / "store/tiny")
    service = Service(tmp_path / "store", default_model="tiny")
    assert (await rows(service, Text("hello world"))).shape == (1, 32)
    with pytest.raises(BadInput, match="hold a character that this model's vocabulary does not have"):
        await rows(service, Text(text), truncate=True)
