"""The demo model end to end: checkpoint → export → service → HTTP and gRPC, judged by numbers of transformers."""

import base64
import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from models.artifacts import card as cards
from proto import embed_pb2 as pb
from service.embedding.requests import Cut, Text
from service.embedding.tokenize.tokenizer import Tokenizer
from tests.minilm_golden import Case, cases, checkpoint, origin
from tests.served import Served, array_of, serving
from tests.sweeps import sampled

INPUT_LAYER = 1e-6
HIDDEN = 5e-6
HIDDEN_MASKED = 3e-5  # rows of masked pads: there transformers' own float32 lies up to 1.9e-5 from its float64
POOLED = 3e-6
UNIT = 1e-6

ALL = cases()
NAMED = {case.name: case for case in ALL}
TEXTS = [case for case in ALL if not case.is_ids]
EVERYTHING = ("input_embeddings", "last_hidden_state", "sentence_embedding")
each_case = pytest.mark.parametrize("case", sampled(ALL, 5), ids=lambda case: case.name)
each_text = pytest.mark.parametrize("case", sampled(TEXTS, 5), ids=lambda case: case.name)


@pytest.fixture(scope="module")
def served(minilm_store: Path) -> Iterator[Served]:
    with serving(minilm_store) as running:
        yield running


@pytest.fixture(scope="module")
def tokenizer(minilm_store: Path) -> Tokenizer:
    card = cards.read(minilm_store / "minilm")
    assert card.tokenizer is not None
    return Tokenizer(minilm_store / "minilm" / card.tokenizer)


@pytest.fixture(scope="module")
def tables() -> dict[str, NDArray[Any]]:
    loaded: dict[str, NDArray[Any]] = safetensors.numpy.load_file(checkpoint() / "model.safetensors")
    return loaded


class Answers(dict[str, dict[str, list[NDArray[Any]]]]):
    """Each case alone, asked for once: input layer, last hidden state and the pooled vector as it is."""

    def __init__(self, served: Served) -> None:
        self.served = served

    def __missing__(self, name: str) -> dict[str, list[NDArray[Any]]]:
        self[name] = ask(self.served, [NAMED[name]], EVERYTHING, normalize=False)
        return self[name]


@pytest.fixture(scope="module")
def answers(served: Served) -> Answers:
    return Answers(served)


def ask(served: Served, some: list[Case], outputs: tuple[str, ...], **fields: Any) -> dict[str, list[NDArray[Any]]]:
    """The named outputs over JSON, one array an input."""
    body = {"inputs": [case.input for case in some], "outputs": outputs, "truncation_direction": some[0].direction}
    document = served.post(body | fields).raise_for_status().json()
    assert document["usage"] == {"tokens": sum(len(case.input_ids) for case in some)}
    return {name: [np.array(rows, np.float32) for rows in each] for name, each in document["outputs"].items()}


def grpc_input(case: Case) -> pb.Input:
    if case.is_ids:
        return pb.Input(ids=pb.TokenIds(**case.input))
    if isinstance(case.input, list):
        return pb.Input(pair=pb.TextPair(first=case.input[0], second=case.input[1]))
    return pb.Input(text=case.input)


def grpc_request(some: list[Case], **fields: Any) -> pb.EmbedRequest:
    direction = pb.LEFT if some[0].direction == "left" else pb.RIGHT
    return pb.EmbedRequest(inputs=[grpc_input(case) for case in some], truncation_direction=direction, **fields)


def furthest(got: NDArray[Any], expected: NDArray[Any]) -> float:
    assert got.shape == expected.shape
    return float(np.abs(got.astype(np.float64) - expected).max(initial=0))


# ---- against the judge


def test_golden_numbers_are_of_the_installed_checkpoint() -> None:
    hashes = origin()["checkpoint_sha256"]
    assert hashes == {name: hashlib.sha256((checkpoint() / name).read_bytes()).hexdigest() for name in hashes}


@each_text
def test_ids_and_segment_ids_equal_transformers(tokenizer: Tokenizer, case: Case) -> None:
    text = Text(case.input) if isinstance(case.input, str) else Text(*case.input)
    cut = Cut(direction="left" if case.direction == "left" else "right", most=256)
    got = tokenizer.encode({0: text}, cut)[0]
    assert got.types is not None
    assert (got.ids.tolist(), got.types.tolist()) == (case.input_ids, case.token_type_ids)


@each_case
def test_input_layer_rows_are_those_of_transformers(answers: Answers, case: Case) -> None:
    [rows] = answers[case.name]["input_embeddings"]
    assert len(rows) == len(case.input_ids)
    assert furthest(rows[case.rows], case.arrays["input_embeddings"]) <= INPUT_LAYER


@each_case
def test_last_hidden_rows_are_those_of_transformers(answers: Answers, case: Case) -> None:
    [rows] = answers[case.name]["last_hidden_state"]
    assert len(rows) == len(case.input_ids)
    attended = np.array(case.attention_mask, bool)[case.rows]
    got, expected = rows[case.rows], case.arrays["last_hidden_state"]
    assert furthest(got[attended], expected[attended]) <= HIDDEN
    assert furthest(got[~attended], expected[~attended]) <= HIDDEN_MASKED


@each_case
def test_pooled_vectors_are_those_of_sentence_transformers(answers: Answers, case: Case) -> None:
    [vector] = answers[case.name]["sentence_embedding"]
    assert furthest(vector, case.arrays["pooled"]) <= POOLED


@each_case
def test_default_output_is_sentence_transformers_unit_vector(served: Served, case: Case) -> None:
    body = {"inputs": [case.input], "truncation_direction": case.direction}
    [vector] = served.post(body).raise_for_status().json()
    assert furthest(np.array(vector, np.float32), case.unit) <= UNIT


@pytest.mark.parametrize("name", [case.name for case in ALL if "dimensions_128" in case.arrays])
def test_dimensions_cut_then_normalise(served: Served, name: str) -> None:
    case = NAMED[name]
    [vector] = served.post({"inputs": [case.input], "dimensions": 128}).raise_for_status().json()
    assert furthest(np.array(vector, np.float32), case.arrays["dimensions_128"]) <= UNIT


@pytest.mark.parametrize(
    ("name", "mode"),
    [(case.name, key.removeprefix("pooling:")) for case in ALL for key in case.arrays if key.startswith("pooling:")],
)
def test_every_pooling_is_that_of_sentence_transformers(served: Served, name: str, mode: str) -> None:
    case = NAMED[name]
    body = {"inputs": [case.input], "pooling": mode, "normalize": False}
    [vector] = served.post(body).raise_for_status().json()
    expected = case.arrays[f"pooling:{mode}"]
    assert furthest(np.array(vector, np.float32), expected) <= POOLED * max(1.0, float(np.abs(expected).max()))


@each_case
def test_component_embeddings_are_rows_of_the_checkpoint(
    served: Served, tables: dict[str, NDArray[Any]], case: Case
) -> None:
    positions = case.input.get("position_ids") if case.is_ids else None
    rows = {
        "token_embeddings": ("word_embeddings", case.input_ids),
        "position_embeddings": ("position_embeddings", positions or list(range(len(case.input_ids)))),
        "token_type_embeddings": ("token_type_embeddings", case.token_type_ids),
    }
    got = ask(served, [case], tuple(rows))
    for output, (table, indices) in rows.items():
        np.testing.assert_array_equal(got[output][0], tables[f"embeddings.{table}.weight"][indices], err_msg=output)


# ---- too long


LIMITS = [("over_257", 257), ("over_257_left", 257), ("long", None), ("pair_long", None), ("pair_long_second", None)]


@pytest.mark.parametrize(("name", "tokens"), LIMITS)
def test_rejects_text_over_256_tokens_unless_truncated(served: Served, name: str, tokens: int | None) -> None:
    answer = served.post({"inputs": ["fine", NAMED[name].input, "fine too"], "truncate": False})
    problem = answer.json()
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert (problem["code"], problem["index"]) == ("too_long", 1)
    assert "inputs[1]" in problem["detail"]
    assert "256" in problem["detail"]
    assert tokens is None or str(tokens) in problem["detail"]


def test_accepts_text_of_256_tokens_without_truncation(served: Served) -> None:
    case = NAMED["limit_256"]
    [vector] = served.post({"inputs": case.input, "truncate": False}).raise_for_status().json()
    assert furthest(np.array(vector, np.float32), case.unit) <= UNIT


# ---- every way out says the same


SAFETENSORS_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
MIXED = [NAMED[name] for name in ("fox", "empty", "chinese", "pair", "ids_pad_left", "ids_all", "sentence_11")]


@pytest.mark.parametrize("output", EVERYTHING)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_format_carries_the_same_numbers(served: Served, output: str, dtype: str) -> None:
    body = {"inputs": [case.input for case in MIXED], "outputs": [output], "dtype": dtype}
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    octets = served.post(body, "application/octet-stream").raise_for_status()
    shape = tuple(int(size) for size in octets.headers["inlay-shape"].split(","))
    lengths = [int(length) for length in octets.headers["inlay-lengths"].split(",")]
    rows = np.frombuffer(octets.content, kind).reshape(shape)
    parts = np.split(rows, np.cumsum(lengths)[:-1])
    pooled = output == "sentence_embedding"
    assert octets.headers["inlay-dtype"] == dtype
    assert lengths == [1 if pooled else len(case.input_ids) for case in MIXED]

    document = served.post(body).raise_for_status().json()["outputs"][output]
    tensors = dict(safetensors.deserialize(served.post(body, "application/vnd.safetensors").raise_for_status().content))
    encoded = served.post(body | {"encoding_format": "base64"}).raise_for_status().json()["outputs"][output]
    message = served.stub.Embed(grpc_request(MIXED, outputs=[output], dtype=dtype.upper())).outputs[0]
    assert list(message.lengths) == lengths
    np.testing.assert_array_equal(array_of(message.tensor), rows)
    for index, part in enumerate(parts):
        own = part[0] if pooled else part
        np.testing.assert_array_equal(np.array(document[index], np.float32), own.astype(np.float32))
        tensor = tensors[f"{index}/{output}"]
        assert (tensor["dtype"], tuple(tensor["shape"])) == (SAFETENSORS_DTYPES[dtype], own.shape)
        np.testing.assert_array_equal(np.frombuffer(tensor["data"], kind).reshape(own.shape), own)
        data = np.frombuffer(base64.b64decode(encoded[index]["data"]), kind)
        np.testing.assert_array_equal(data.reshape(encoded[index]["shape"]), own)
    if dtype != "bfloat16":
        npy = np.load(io.BytesIO(served.post(body, "application/x-npy").raise_for_status().content))
        assert npy.dtype == kind
        np.testing.assert_array_equal(npy, rows)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_float32_rounded_once(served: Served, dtype: str) -> None:
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    body = {"inputs": NAMED["fox"].input, "outputs": ["input_embeddings"]}
    exact, rounded = (
        served.post(body | {"dtype": name}, "application/octet-stream").raise_for_status().content
        for name in ("float32", dtype)
    )
    np.testing.assert_array_equal(np.frombuffer(rounded, kind), np.frombuffer(exact, np.float32).astype(kind))


@each_case
def test_grpc_gives_the_pooled_vector_of_sentence_transformers(served: Served, case: Case) -> None:
    response = served.stub.Embed(grpc_request([case]))
    [output] = response.outputs
    assert (response.model, response.tokens) == ("minilm", len(case.input_ids))
    assert (output.name, list(output.lengths)) == ("sentence_embedding", [1])
    assert furthest(array_of(output.tensor)[0], case.unit) <= UNIT


def test_default_output_in_base64_equals_floats(served: Served) -> None:
    body = {"inputs": [case.input for case in MIXED]}
    encoded = served.post(body | {"encoding_format": "base64"}).raise_for_status().json()
    vectors = np.array(served.post(body).raise_for_status().json(), np.float32)
    np.testing.assert_array_equal([np.frombuffer(base64.b64decode(text), np.float32) for text in encoded], vectors)


# ---- one request, one answer, whatever the form


@each_text
def test_a_text_and_its_ids_give_identical_vectors(served: Served, case: Case) -> None:
    as_ids: dict[str, Any] = {"input_ids": case.input_ids, "token_type_ids": case.token_type_ids}
    forms = [case.input, as_ids] + ([] if any(case.token_type_ids) else [case.input_ids])
    vectors = [
        served.post({"inputs": [form], "truncation_direction": case.direction}).raise_for_status().content
        for form in forms
    ]
    assert len(set(vectors)) == 1


@pytest.mark.parametrize("first", sampled(range(4), 4))
def test_cases_in_one_request_give_what_each_gives_alone(served: Served, answers: Answers, first: int) -> None:
    together = [case for case in ALL if case.direction == "right"][first::4]
    got = ask(served, together, EVERYTHING, normalize=False)
    for index, case in enumerate(together):
        alone = answers[case.name]
        np.testing.assert_array_equal(got["input_embeddings"][index], alone["input_embeddings"][0], err_msg=case.name)
        assert furthest(got["last_hidden_state"][index], alone["last_hidden_state"][0]) <= HIDDEN
        assert furthest(got["sentence_embedding"][index], alone["sentence_embedding"][0]) <= POOLED


def test_stream_keeps_its_order_and_survives_a_bad_request(served: Served) -> None:
    requests = [grpc_request([case]) for case in MIXED]
    requests.insert(2, pb.EmbedRequest(inputs=[pb.Input(text="fine"), pb.Input(ids=pb.TokenIds(input_ids=[30522]))]))
    results = list(served.stub.EmbedStream(iter(requests)))
    refusal = results.pop(2).error
    assert (refusal.code, refusal.index) == ("out_of_range", 1)
    assert "30521" in refusal.message
    for case, result in zip(MIXED, results, strict=True):
        assert furthest(array_of(result.response.outputs[0].tensor)[0], case.unit) <= UNIT
