"""prompt_embeds and input_embeds over HTTP and gRPC: the rows vLLM and sglang take, in files torch reads.

That torch and vLLM do read them is tests/parity/test_prompt_embeds.py; here zipfile and pickletools look inside.
"""

import base64
import io
import pickletools
import zipfile
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from models.artifacts.export import export
from proto import embed_pb2 as pb
from service.protocols.inlay.prompt_embeds import ALIGNMENT, torch_file
from tests.golden_cases import case, write_checkpoint
from tests.served import Served, array_of, serving

KINDS = {"FloatStorage": "<f4", "HalfStorage": "<f2", "BFloat16Storage": ml_dtypes.bfloat16}
HANDED_OVER = {
    "input_afmoe": "unscaled_embeddings",
    "input_ctrl": "unscaled_embeddings",
    "input_gemma_bf16": "token_embeddings",
    "input_llama": "token_embeddings",
}
ROWS = np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5


def unpacked(file: bytes) -> Any:
    """The tensor of a torch-save file, by what its pickle says of it."""
    with zipfile.ZipFile(io.BytesIO(file)) as archive:
        assert archive.testzip() is None
        names = [entry.filename for entry in archive.infolist()]
        assert names == ["archive/data.pkl", "archive/byteorder", "archive/data/0", "archive/version"]
        assert all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())
        assert (archive.read("archive/byteorder"), archive.read("archive/version")) == (b"little", b"3\n")
        data, pickled = archive.read("archive/data/0"), archive.read("archive/data.pkl")
    steps = [(step.name, argument) for step, argument, _ in pickletools.genops(pickled)]
    kinds = [argument.split()[1] for name, argument in steps if name == "GLOBAL"]
    assert (kinds[0], kinds[2]) == ("_rebuild_tensor_v2", "OrderedDict")
    count, offset, rows, width, *strides = [argument for name, argument in steps if name in ("BININT", "LONG1")]
    assert (count, offset, strides) == (rows * width, 0, [width, 1])
    return np.frombuffer(data, KINDS[kinds[1]]).reshape(rows, width)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Models whose embedding module scales, whose forward does, and that scale nothing."""
    folder = tmp_path_factory.mktemp("others")
    for name in HANDED_OVER:
        export(write_checkpoint(case(name), folder / f"checkpoints/{name}"), folder / "store" / name)
    with serving(folder / "store") as running:
        yield running


def rows_of(served: Served, inputs: Any, output: str, model: str | None = None, dtype: str = "float32") -> list[Any]:
    answer = served.post({"inputs": inputs, "outputs": [output], "model": model, "dtype": dtype}).json()
    return [np.array(rows) for rows in answer["outputs"][output]]


def handed(served: Served, encoding: str, inputs: Any, **more: Any) -> Any:
    response = served.post({"inputs": inputs, "encoding_format": encoding, **more})
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("kind", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(2, 3), (1, 1), (300, 257)])
def test_file_holds_the_tensor_with_aligned_values(kind: Any, shape: tuple[int, int]) -> None:
    rows = np.random.default_rng(1).standard_normal(shape).astype(kind)
    file = bytes(torch_file(rows))
    np.testing.assert_array_equal(unpacked(file).astype(np.float32), rows.astype(np.float32))
    assert file.index(rows.tobytes()) % ALIGNMENT == 0


def test_equal_rows_have_equal_files() -> None:
    assert torch_file(ROWS) == torch_file(ROWS.copy())


def test_prompt_embeds_are_a_file_of_token_rows_per_input(served: Served) -> None:
    answer = handed(served, "prompt_embeds", ["a b", "c"])
    tensors = [unpacked(base64.b64decode(each)) for each in answer["prompt_embeds"]]
    expected = rows_of(served, ["a b", "c"], "token_embeddings")
    assert set(answer) == {"model", "prompt_embeds", "usage"}
    assert answer["usage"]["tokens"] == sum(map(len, expected))
    for got, rows in zip(tensors, expected, strict=True):
        np.testing.assert_array_equal(got, np.float32(rows))


def test_rows_have_the_models_dtype_unless_one_is_sent(others: Served) -> None:
    for dtype, kind in ((None, ml_dtypes.bfloat16), ("float16", np.float16), ("float32", np.float32)):
        more = {} if dtype is None else {"dtype": dtype}
        answer = handed(others, "prompt_embeds", [[3, 4]], model="input_gemma_bf16", **more)
        assert unpacked(base64.b64decode(answer["prompt_embeds"][0])).dtype == kind


def test_scales_rows_as_the_embedding_module_does(others: Served) -> None:
    golden = case("input_gemma_bf16")  # of transformers: the rows before the first block
    answer = handed(others, "prompt_embeds", golden.ids.tolist(), model="input_gemma_bf16")
    tensors = [unpacked(base64.b64decode(each)).astype(np.float32) for each in answer["prompt_embeds"]]
    np.testing.assert_array_equal(np.stack(tensors), golden.arrays["hidden_states"])


@pytest.mark.parametrize("name", ["input_afmoe", "input_ctrl"])
def test_leaves_positions_and_norms_to_the_receiver(others: Served, name: str) -> None:
    golden = case(name)
    table = golden.weights[next(key for key in golden.weights if key.endswith(("embed_tokens.weight", "w.weight")))]
    answer = handed(others, "input_embeds", golden.ids.tolist(), model=name)
    np.testing.assert_array_equal(np.float32(answer["input_embeds"]), table[golden.ids])
    scaled = rows_of(others, golden.ids.tolist(), "token_embeddings", name)
    np.testing.assert_allclose(scaled, table[golden.ids] * np.sqrt(table.shape[1]), rtol=1e-6, atol=1e-6)


def test_input_embeds_nest_as_sglang_reads_them(served: Served) -> None:
    bare, several = handed(served, "input_embeds", [5, 6]), handed(served, "input_embeds", [[5, 6], [7]])
    expected = rows_of(served, [[5, 6], [7]], "token_embeddings")
    np.testing.assert_array_equal(bare["input_embeds"], expected[0])
    assert type(bare["input_embeds"][0][0]) is float  # sglang tells one input from many by that
    for got, rows in zip(several["input_embeds"], expected, strict=True):
        np.testing.assert_array_equal(got, rows)
    assert len(handed(served, "input_embeds", [[5, 6]])["input_embeds"]) == 1


@pytest.mark.parametrize("field", ["outputs", "pooling", "dimensions", "normalize"])
@pytest.mark.parametrize("encoding", ["prompt_embeds", "input_embeds"])
def test_rejects_fields_that_ask_for_other_rows(served: Served, encoding: str, field: str) -> None:
    value: Any = {"outputs": "token_embeddings", "pooling": "cls", "dimensions": 4, "normalize": True}[field]
    response = served.post({"inputs": "a", "encoding_format": encoding, field: value})
    assert response.status_code == 422
    assert response.json()["detail"].startswith(f"{field} is sent; {encoding} decides")


@pytest.mark.parametrize("dtype", [pb.DTYPE_UNSPECIFIED, pb.FLOAT16])
def test_grpc_sends_the_same_files_and_rows(served: Served, dtype: Any) -> None:
    name = {pb.DTYPE_UNSPECIFIED: "float32", pb.FLOAT16: "float16"}[dtype]
    inputs = [pb.Input(ids=pb.TokenIds(input_ids=ids)) for ids in ([5, 6], [7])]
    body = {"inputs": inputs, "dtype": dtype}
    files = served.stub.Embed(pb.EmbedRequest(encoding=pb.PROMPT_EMBEDS, **body))
    in_json = handed(served, "prompt_embeds", [[5, 6], [7]], dtype=name)
    assert list(files.prompt_embeds) == [base64.b64decode(each) for each in in_json["prompt_embeds"]]
    assert (files.model, files.tokens, len(files.outputs)) == ("bert", 3, 0)
    rows = served.stub.Embed(pb.EmbedRequest(encoding=pb.INPUT_EMBEDS, **body))
    assert (list(rows.prompt_embeds), len(rows.outputs)) == ([], 1)
    stacked = np.concatenate([unpacked(each) for each in files.prompt_embeds])
    np.testing.assert_array_equal(array_of(rows.outputs[0].tensor), stacked)


def test_grpc_stream_sends_files(served: Served) -> None:
    message = pb.EmbedRequest(inputs=[pb.Input(text="a b")], encoding=pb.PROMPT_EMBEDS)
    (answer,) = served.stub.EmbedStream(iter([message]))
    assert answer.response == served.stub.Embed(message)


def test_model_summary_names_the_output_behind_prompt_embeds(others: Served) -> None:
    prompt_embeds_output = {
        model["name"]: model["prompt_embeds_output"] for model in others.http.get("/models").json()["models"]
    }
    assert prompt_embeds_output == HANDED_OVER


def test_model_summary_says_why_blocks_are_missing(others: Served, served: Served) -> None:
    reason = others.http.get("/models/input_afmoe").json()["no_blocks_reason"]
    assert reason == "mixture of experts, gated attention"
    assert served.http.get("/models/bert").json()["no_blocks_reason"] is None
