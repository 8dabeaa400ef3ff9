"""Inputs that a few families read of each token besides id, position and segment, over HTTP and gRPC."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts.export import export
from proto import embed_pb2 as pb
from tests.golden_cases import case, write_checkpoint, write_folder
from tests.served import Served, array_of, serving

STEM = "layoutlm.embeddings."
AXES = ("x", "y", "h", "w")
WIDTH = 6
Weights = dict[str, NDArray[Any]]


def layoutlm() -> tuple[dict[str, Any], Weights]:
    random = np.random.default_rng(3)
    rows = {"word": 30, "position": 20, "token_type": 2} | {f"{axis}_position": 50 for axis in AXES}
    weights = {f"{STEM}{name}_embeddings.weight": random.normal(size=(n, WIDTH)) for name, n in rows.items()}
    weights |= {
        f"{STEM}LayerNorm.weight": random.normal(size=WIDTH),
        f"{STEM}LayerNorm.bias": random.normal(size=WIDTH),
    }
    config = {"model_type": "layoutlm", "vocab_size": 30, "hidden_size": WIDTH, "max_position_embeddings": 20}
    config |= {"num_attention_heads": 2, "max_2d_position_embeddings": 50}
    return config, {name: value.astype(np.float32) for name, value in weights.items()}


def esm() -> tuple[dict[str, Any], Weights]:
    table = np.random.default_rng(4).normal(size=(30, WIDTH)).astype(np.float32)
    config = {"model_type": "esm", "vocab_size": 30, "hidden_size": WIDTH, "num_attention_heads": 1, "pad_token_id": 1}
    config |= {"position_embedding_type": "rotary", "token_dropout": True, "mask_token_id": 4, "num_hidden_layers": 1}
    return config, {"esm.embeddings.word_embeddings.weight": table}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("extras")
    for name, made in {"layoutlm": layoutlm(), "esm": esm()}.items():
        export(write_folder(folder / name, *made), folder / "store" / name)
    for name in ("input_ernie", "input_xlm", "input_opt", "input_bert"):
        export(write_checkpoint(case(name), folder / name), folder / "store" / name)
    with serving(folder / "store") as running:
        yield running


def posted(served: Served, model: str, **one: Any) -> NDArray[Any]:
    answer = served.post({"model": model, "inputs": [one]}).raise_for_status()
    return np.array(answer.json(), np.float32)[0]


def by_hand(ids: list[int], boxes: list[list[int]]) -> NDArray[Any]:
    """LayoutLMEmbeddings (transformers 5.23) in float64."""
    _, weights = layoutlm()
    table = {name.removeprefix(STEM): value.astype(np.float64) for name, value in weights.items()}
    box = np.array(boxes)
    x = table["word_embeddings.weight"][ids] + table["position_embeddings.weight"][: len(ids)]
    x = x + table["token_type_embeddings.weight"][0]
    places = {"x": (box[:, 0], box[:, 2]), "y": (box[:, 1], box[:, 3])}
    places |= {"h": (box[:, 3] - box[:, 1],), "w": (box[:, 2] - box[:, 0],)}
    for axis, looked_up in places.items():
        for rows in looked_up:
            x = x + table[f"{axis}_position_embeddings.weight"][rows]
    centred = x - x.mean(axis=1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-12)
    rows: NDArray[Any] = normed * table["LayerNorm.weight"] + table["LayerNorm.bias"]
    return rows


BOXES = [[0, 0, 49, 49], [3, 4, 3, 9], [10, 20, 30, 40]]


def test_boxes_are_looked_up_by_corners_width_and_height(served: Served) -> None:
    rows = posted(served, "layoutlm", input_ids=[5, 0, 29], bbox=BOXES)
    np.testing.assert_allclose(rows, by_hand([5, 0, 29], BOXES), atol=2e-6)
    none = posted(served, "layoutlm", input_ids=[5, 0, 29])
    np.testing.assert_allclose(none, by_hand([5, 0, 29], [[0] * 4] * 3), atol=2e-6)


def test_boxes_can_be_sent_over_grpc(served: Served) -> None:
    ids = pb.TokenIds(input_ids=[5, 0, 29], bbox=[value for box in BOXES for value in box])
    [output] = served.stub.Embed(pb.EmbedRequest(model="layoutlm", inputs=[pb.Input(ids=ids)])).outputs
    np.testing.assert_allclose(array_of(output.tensor), by_hand([5, 0, 29], BOXES), atol=2e-6)


def test_sequences_with_and_without_boxes_share_a_batch(served: Served) -> None:
    inputs = [{"input_ids": [5, 0, 29], "bbox": BOXES}, [7, 8]]
    answer = served.post({"model": "layoutlm", "inputs": inputs}).raise_for_status().json()
    np.testing.assert_allclose(np.array(answer[0]), by_hand([5, 0, 29], BOXES), atol=2e-6)
    np.testing.assert_allclose(np.array(answer[1]), by_hand([7, 8], [[0] * 4] * 2), atol=2e-6)


def test_xlm_without_langs_adds_no_language(served: Served) -> None:
    golden = case("input_xlm")
    ids = golden.ids[0]
    weights = {name.removeprefix("transformer."): value.astype(np.float64) for name, value in golden.weights.items()}
    rows = posted(served, "input_xlm", input_ids=ids.tolist(), attention_mask=[1] * len(ids))
    x = weights["embeddings.weight"][ids] + weights["position_embeddings.weight"][: len(ids)]
    centred = x - x.mean(axis=1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-12)
    expected = normed * weights["layer_norm_emb.weight"] + weights["layer_norm_emb.bias"]
    np.testing.assert_allclose(rows, expected, atol=2e-5)


def test_xlm_without_mask_masks_as_many_tokens_as_pads(served: Served) -> None:
    """transformers 5.23: lengths = (input_ids != pad).sum(), wherever the pads are."""
    rows = posted(served, "input_xlm", input_ids=[2, 5, 6, 2, 7])
    assert (np.abs(rows).sum(axis=1) > 0).tolist() == [True, True, True, False, False]


@pytest.mark.parametrize("mask", [None, [1, 1, 1, 1, 0, 0]])
def test_esm_scales_by_the_share_of_masked_tokens(mask: list[int] | None, served: Served) -> None:
    ids, table = [5, 4, 6, 4, 7, 8], esm()[1]["esm.embeddings.word_embeddings.weight"].astype(np.float64)
    sent = {"input_ids": ids} | ({"attention_mask": mask} if mask else {})
    attended = sum(mask) if mask else len(ids)
    expected = table[ids] * (np.array(ids) != 4)[:, None] * 0.88 / (1 - 2 / attended)
    expected *= np.array(mask or [1] * len(ids))[:, None]
    np.testing.assert_allclose(posted(served, "esm", **sent), expected, rtol=1e-5, atol=1e-6)


def test_esm_sequence_of_mask_tokens_is_zero(served: Served) -> None:
    assert not posted(served, "esm", input_ids=[4, 4, 4]).any()


def test_opt_position_ids_count_from_0(served: Served) -> None:
    ids = [5, 6, 7]
    usual = posted(served, "input_opt", input_ids=ids)
    np.testing.assert_array_equal(posted(served, "input_opt", input_ids=ids, position_ids=[0, 1, 2]), usual)
    refused = served.post({"model": "input_opt", "inputs": {"input_ids": ids, "position_ids": [0, 1, 40]}})
    assert refused.status_code == 422
    assert "position_ids[2] is 40; the position table holds 0 to 39" in refused.text


REJECTED: dict[str, tuple[str, dict[str, Any], str]] = {
    "as many": ("layoutlm", {"bbox": BOXES}, "bbox has 3 values where input_ids has 2"),
    "outside": ("layoutlm", {"bbox": [[0, 0, 1, 1], [0, 0, 50, 1]]}, "bbox[1][2] is 50; its table holds 0 to 49"),
    "negative": ("layoutlm", {"bbox": [[0, 0, 1, 1], [-1, 0, 0, 1]]}, "bbox[1][0] is -1"),
    "turned": ("layoutlm", {"bbox": [[0, 0, 1, 1], [0, 5, 1, 4]]}, "bbox[1] is [0, 5, 1, 4]; a box is"),
    "three corners": ("layoutlm", {"bbox": [[0, 0, 1], [0, 0, 1, 1]]}, "bbox[0] has 3 values; a box is four"),
    "no list": ("layoutlm", {"bbox": 3}, "bbox is 3; it is a list of boxes"),
    "a language too many": ("input_xlm", {"langs": [0, 3]}, "langs[1] is 3; its table holds 0 to 2"),
    "a language below": ("input_xlm", {"langs": [0, -1]}, "langs[1] is -1"),
    "a task of another family": ("input_bert", {"task_type_ids": [0, 1]}, "reads no task_type_ids: leave it out"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_rejects_extra_inputs_outside_their_tables(name: str, served: Served) -> None:
    model, sent, message = REJECTED[name]
    answer = served.post({"model": model, "inputs": [{"input_ids": [1, 2], **sent}]})
    assert 400 <= answer.status_code < 500
    assert message in answer.json()["detail"]
