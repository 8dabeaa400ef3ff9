"""Tensors in and out: padding, texts and options; each row equals that of its sequence alone."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.protocols.oip.infer import placed, places_of
from tests.oip_bodies import infer
from tests.served import Served

ROWS = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]
TOKENS = {"outputs": [{"name": "last_hidden_state"}]}
TOLERANCE = {"rtol": 1e-4, "atol": 1e-6}  # two batches of one encoder: sums of another order


def alone(served: Served, **members: Any) -> list[NDArray[Any]]:
    return [next(iter(infer(served.http, [("input_ids", "INT64", [row])], **members).values()))[0] for row in ROWS]


def padded(side: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    ids, mask = np.full((3, 6), 26), np.zeros((3, 6), np.int64)
    for index, row in enumerate(ROWS):
        start = {"right": 0, "left": 6 - len(row), "both": 1}[side]
        ids[index, start : start + len(row)] = row
        mask[index, start : start + len(row)] = 1
    return ids, mask


@pytest.mark.parametrize("side", ["right", "left", "both"])
@pytest.mark.parametrize("datatype", ["INT64", "INT32", "BOOL"])
def test_padded_rows_equal_unpadded_rows_and_pads_are_zero(served: Served, side: str, datatype: str) -> None:
    ids, mask = padded(side)
    inputs = [("input_ids", "INT64", ids), ("attention_mask", datatype, mask)]
    tokens = infer(served.http, inputs, **TOKENS)["last_hidden_state"]
    pooled = infer(served.http, inputs)["sentence_embedding"]
    assert tokens.shape == (3, 6, 32)
    assert not tokens[mask == 0].any()
    for index, expected in enumerate(alone(served, **TOKENS)):
        np.testing.assert_allclose(tokens[index, mask[index] == 1], expected, **TOLERANCE)
    np.testing.assert_allclose(pooled, alone(served), **TOLERANCE)


def test_rows_of_the_input_layer_do_not_depend_on_padding_at_all(served: Served) -> None:
    options = {"outputs": [{"name": "input_embeddings"}]}
    for side in ("right", "left"):
        ids, mask = padded(side)
        inputs = [("input_ids", "INT64", ids), ("attention_mask", "INT64", mask)]
        rows = infer(served.http, inputs, **options)["input_embeddings"]
        for index, expected in enumerate(alone(served, **options)):
            assert rows[index, mask[index] == 1].tobytes() == expected.tobytes()


def test_types_and_positions_lose_the_same_padding(served: Served) -> None:
    ids, mask = padded("left")
    types, positions = np.full(ids.shape, 9), np.full(ids.shape, 999)
    for index, row in enumerate(ROWS):
        types[index, -len(row) :] = 1
        positions[index, -len(row) :] = np.arange(3, 3 + len(row))
    options = {"outputs": [{"name": "input_embeddings"}]}
    inputs = [("input_ids", ids), ("attention_mask", mask), ("token_type_ids", types), ("position_ids", positions)]
    rows = infer(served.http, [(name, "INT64", values) for name, values in inputs], **options)["input_embeddings"]
    for index, row in enumerate(ROWS):
        one = {"input_ids": row, "token_type_ids": [1] * len(row), "position_ids": list(range(3, 3 + len(row)))}
        answer = served.post({"inputs": one, "outputs": "input_embeddings"}).json()
        expected = np.array(answer["outputs"]["input_embeddings"][0], np.float32)
        np.testing.assert_allclose(rows[index, -len(row) :], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("datatype", ["INT64", "INT32", "UINT32", "UINT64"])
def test_ids_may_be_of_any_integer_datatype_wide_enough(served: Served, datatype: str) -> None:
    expected = alone(served)[0]
    vector = infer(served.http, [("input_ids", datatype, [ROWS[0]])])["sentence_embedding"][0]
    assert np.array_equal(vector, expected)


def test_a_mask_with_a_hole_reaches_the_model(served: Served) -> None:
    inputs = [("input_ids", "INT64", [[5, 6, 7, 0]]), ("attention_mask", "INT64", [[1, 0, 1, 0]])]
    own = {"input_ids": [5, 6, 7], "attention_mask": [1, 0, 1]}
    expected = served.post({"inputs": own}).json()[0]
    np.testing.assert_allclose(infer(served.http, inputs)["sentence_embedding"][0], expected, rtol=1e-5, atol=1e-7)
    tokens = infer(served.http, inputs, **TOKENS)["last_hidden_state"]
    assert tokens[0, 1].any()
    assert not tokens[0, 3].any()


@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_token_rows_of_texts_are_padded_on_the_right(served: Served, shape: tuple[int, ...]) -> None:
    texts = np.array([b"a b c", b"d"], object).reshape(shape)
    inputs = [("text", "BYTES", texts)]
    body = [(name, datatype, values.reshape(-1)) for name, datatype, values in inputs]
    expected = served.post({"inputs": ["a b c", "d"]}).json()
    np.testing.assert_allclose(infer(served.http, body)["sentence_embedding"], expected, rtol=1e-5, atol=1e-7)
    rows = infer(served.http, body, outputs=[{"name": "input_embeddings"}, {"name": "lengths"}])
    assert rows["lengths"].tolist() == [5, 3]  # with [CLS] and [SEP]
    assert rows["input_embeddings"].shape == (2, 5, 32)
    assert not rows["input_embeddings"][1, 3:].any()
    assert rows["input_embeddings"][1, :3].any()


def test_a_text_and_its_ids_give_the_same_numbers(served: Served) -> None:
    ids = infer(served.http, [("text", "BYTES", [b"a b"])], **TOKENS)["last_hidden_state"]
    assert ids.shape == (1, 4, 32)
    token_ids = [[2, 5, 6, 3]]  # [CLS] a b [SEP]
    assert np.array_equal(infer(served.http, [("input_ids", "INT64", token_ids)], **TOKENS)["last_hidden_state"], ids)


@pytest.mark.parametrize(("dtype", "datatype"), [("float16", "FP16"), ("bfloat16", "BF16"), ("FP16", "FP16")])
def test_narrow_outputs_are_the_wide_ones_rounded_once(served: Served, dtype: str, datatype: str) -> None:
    inputs = [("input_ids", "INT64", [ROWS[0]])]
    wide = infer(served.http, inputs)["sentence_embedding"]
    narrow = infer(served.http, inputs, parameters={"dtype": dtype})["sentence_embedding"]
    assert np.array_equal(narrow, wide.astype(narrow.dtype))
    assert narrow.dtype.itemsize == 2


OPTIONS: list[dict[str, Any]] = [
    {"normalize": False},
    {"dimensions": 8},
    {"pooling": "cls"},
    {"pooling": "last-token", "normalize": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_mean_what_they_mean_on_embed(served: Served, options: dict[str, Any]) -> None:
    vector = infer(served.http, [("input_ids", "INT64", [ROWS[0]])], parameters=options)["sentence_embedding"]
    expected = served.post({"inputs": [ROWS[0]]} | options).json()
    np.testing.assert_allclose(vector, expected, rtol=1e-6, atol=1e-8)


def test_truncated_tokens_are_zeros(served: Served) -> None:
    longest = 40  # rows of the position table
    ids = np.arange(48)[None] % 20 + 5
    for direction, kept in (("right", slice(0, longest)), ("left", slice(48 - longest, 48))):
        options = {"truncate": True, "truncation_direction": direction}
        rows = infer(served.http, [("input_ids", "INT64", ids)], parameters=options, **TOKENS)["last_hidden_state"]
        expected = infer(served.http, [("input_ids", "INT64", ids[:, kept])], **TOKENS)["last_hidden_state"]
        assert rows.shape == (1, 48, 32)
        assert rows[:, kept].tobytes() == expected.tobytes()
        assert np.count_nonzero(rows.any(axis=2)) == longest


def test_unknown_parameters_are_ignored_as_triton_does(served: Served) -> None:
    inputs = [("input_ids", "INT64", [ROWS[0]])]
    unknown = {"priority": 1, "sequence_id": 3, "sequence_start": True, "mine": "x"}
    assert np.array_equal(infer(served.http, inputs, parameters=unknown)["sentence_embedding"][0], alone(served)[0])


@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=5).filter(any), min_size=1, max_size=6))
def test_rows_are_put_back_where_their_tokens_were(mask: list[list[bool]]) -> None:
    real = np.array(mask)
    places = places_of(real.shape, real.reshape(-1).astype(np.int64))
    for row, kept in zip(real, places, strict=True):  # from the first real token to the last
        first, *_, last = [*np.flatnonzero(row), np.flatnonzero(row)[-1]]
        assert np.flatnonzero(kept).tolist() == list(range(first, last + 1))
    rows = np.arange(real.size, dtype=np.float32)[places.ravel()][:, None] + 1
    back = placed(rows, places.sum(axis=1).tolist(), places, False)
    assert back.reshape(-1).tolist() == [place + 1 if kept else 0 for place, kept in enumerate(places.ravel())]
