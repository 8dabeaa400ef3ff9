"""Golden input layers over tensors: what transformers gives for a padded batch, at every real token; zeros at pads."""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from models.artifacts.export import export
from tests.golden_cases import Case, case, write_checkpoint, write_folder
from tests.oip_bodies import infer
from tests.served import Served, serving

# one family for each way to number positions, to read a mask and to add segments
CASES = [
    case(f"input_{name}")
    for name in ("bert", "roberta", "opt", "xlm", "ernie", "gpt2", "t5_encoder", "modernbert", "xlnet", "llama")
]
COUNTING_PADS = ("input_bert", "input_xlm", "input_ernie", "input_gpt2")  # in transformers; here, where they are sent
FED = ("token_type_ids", "task_type_ids", "langs")
each_case = pytest.mark.parametrize("golden", CASES, ids=repr)
WIDTH = 6


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("golden")
    for golden in CASES:
        export(write_checkpoint(golden, folder / golden.name), folder / "store" / golden.name)
    random = np.random.default_rng(3)
    rows = {"word": 30, "position": 20, "token_type": 2}
    rows |= {f"{axis}_position": 50 for axis in "xyhw"}
    stem = "layoutlm.embeddings."
    weights = {f"{stem}{name}_embeddings.weight": random.normal(size=(n, WIDTH)) for name, n in rows.items()}
    weights |= {f"{stem}LayerNorm.{name}": random.normal(size=WIDTH) for name in ("weight", "bias")}
    config = {"model_type": "layoutlm", "vocab_size": 30, "hidden_size": WIDTH, "max_position_embeddings": 20}
    config |= {"num_attention_heads": 2, "max_2d_position_embeddings": 50}
    narrow = {name: values.astype(np.float32) for name, values in weights.items()}
    export(write_folder(folder / "layoutlm", config, narrow), folder / "store/layoutlm")
    with serving(folder / "store") as running:
        yield running


@each_case
def test_a_padded_batch_gives_the_golden_rows(served: Served, golden: Case) -> None:
    inputs = [("input_ids", "INT64", golden.ids), ("attention_mask", "INT64", golden.mask)]
    inputs += [(name, "INT64", golden.arrays[name]) for name in FED if name in golden.arrays]
    if golden.name in COUNTING_PADS:
        inputs.append(("position_ids", "INT64", np.broadcast_to(np.arange(golden.ids.shape[1]), golden.ids.shape)))
    rows = infer(served.http, inputs, golden.name)["input_embeddings"]
    real = golden.mask.astype(bool)
    expected = golden.arrays["hidden_states"]
    assert rows.shape == expected.shape
    np.testing.assert_allclose(rows[real], expected[real], **golden.tolerance["hidden_states"])
    first, last = real.argmax(axis=1)[:, None], real.shape[1] - real[:, ::-1].argmax(axis=1)[:, None]
    places = np.arange(real.shape[1])[None]
    assert not rows[(places < first) | (places >= last)].any()


@each_case
def test_the_same_rows_padded_on_the_left_are_the_same_bits(served: Served, golden: Case) -> None:
    names = [name for name in FED if name in golden.arrays]
    fed = {"input_ids": golden.ids, "attention_mask": golden.mask} | {name: golden.arrays[name] for name in names}
    lengths = golden.mask.sum(axis=1)
    fed["attention_mask"] = (np.arange(golden.ids.shape[1])[None] < lengths[:, None]).astype(np.int64)
    moved = {name: np.copy(values) for name, values in fed.items()}
    for name, row in product(fed, range(len(lengths))):
        moved[name][row] = np.roll(fed[name][row], -lengths[row])
    right = infer(served.http, [(name, "INT64", each) for name, each in fed.items()], golden.name)
    left = infer(served.http, [(name, "INT64", each) for name, each in moved.items()], golden.name)
    for row, length in enumerate(lengths):
        own = right["input_embeddings"][row, :length]
        assert left["input_embeddings"][row, -length:].tobytes() == own.tobytes()


def test_boxes_lie_beside_padded_ids(served: Served) -> None:
    boxes = [[[0, 0, 49, 49], [3, 4, 3, 9], [9, 9, 9, 9]], [[10, 20, 30, 40], [7, 7, 0, 0], [0, 0, 0, 0]]]
    ids, mask = [[5, 0, 7], [29, 0, 0]], [[1, 1, 1], [1, 0, 0]]
    tensors = [("input_ids", ids), ("attention_mask", mask), ("bbox", boxes)]
    rows = infer(served.http, [(name, "INT64", each) for name, each in tensors], "layoutlm")["input_embeddings"]
    inputs = [{"input_ids": ids[0], "bbox": boxes[0]}, {"input_ids": [29], "bbox": boxes[1][:1]}]
    expected = served.post({"model": "layoutlm", "inputs": inputs}).json()
    np.testing.assert_allclose(rows[0], expected[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(rows[1, :1], expected[1], rtol=1e-6, atol=1e-6)
    assert {"name": "bbox", "datatype": "INT64", "shape": [-1, -1, 4]} in served.http.get("/v2/models/layoutlm").json()[
        "inputs"
    ]
