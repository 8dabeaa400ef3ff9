"""Gradients over HTTP against differences and the chain rule written out, in every format, and every refusal."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load, load_file

from models.artifacts.export import export
from models.checkpoints.safetensors import tensors_of
from tests.golden_cases import case, write_checkpoint, write_folder
from tests.served import Served, serving

Floats = NDArray[np.float64]
PATH = "/models/bert/gradient"
IDS = [[2, 25, 25, 3], [2, 26, 3, 0]]
FLAT = [*IDS[0], *IDS[1]]
TYPES = [[0, 0, 1, 1], [0, 0, 0, 1]]
WIDTH = 32


@pytest.fixture(scope="module")
def weights(tiny_store: Path) -> dict[str, Floats]:
    """Of the export, in float64."""
    return {name: each.astype(np.float64) for name, each in tensors_of(tiny_store / "bert/weights.safetensors").items()}


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A service over one model whose output matrix is its word table, and that table."""
    folder = tmp_path_factory.mktemp("tied")
    golden = case("input_llama_tied")
    export(write_checkpoint(golden, folder / "x"), folder / "store/tied")
    with serving(folder / "store") as service:
        yield service, golden.weights["model.embed_tokens.weight"].astype(np.float64)


def ask(served: Served, path: str = PATH, **body: Any) -> dict[str, Any]:
    answer = served.http.post(path, json={"dtype": "float64"} | body)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def named(weights: dict[str, Floats], end: str) -> tuple[str, Floats]:
    return next((name, each) for name, each in weights.items() if name.endswith(end))


def expected(weights: dict[str, Floats], upstream: Floats) -> tuple[Floats, Floats, Floats]:
    """LayerNorm backward, written out for one row after another: of its input, its weight and its bias."""
    word, position, kind = (
        named(weights, f"{name}_embeddings.weight")[1] for name in ("word", "position", "token_type")
    )
    weight, eps = named(weights, "embeddings.LayerNorm.weight")[1], 1e-12
    ids, types = np.array(IDS).ravel(), np.array(TYPES).ravel()
    x = word[ids] + position[np.tile(np.arange(4), 2)] + kind[types]
    rows, scale = np.empty_like(x), np.zeros(WIDTH)
    for row, (value, gradient) in enumerate(zip(x, upstream, strict=True)):
        centred = value - value.mean()
        sigma = np.sqrt((centred**2).mean() + eps)
        jacobian = (np.eye(WIDTH) - 1 / WIDTH - np.outer(centred, centred) / (WIDTH * sigma**2)) / sigma
        rows[row] = jacobian @ (gradient * weight)
        scale += gradient * centred / sigma
    return rows, scale, upstream.sum(axis=0)


def test_gradient_reaches_every_table_through_the_norm(served: Served, weights: dict[str, Floats]) -> None:
    upstream = np.random.default_rng(0).standard_normal((8, WIDTH))
    gradients = ask(served, input_ids=IDS, token_type_ids=TYPES, gradient=upstream.tolist())
    rows, scale, shift = expected(weights, upstream)
    ids, types = np.array(IDS).ravel(), np.array(TYPES).ravel()
    kept = np.unique(ids[ids != 0])  # 0 is the padding row
    assert gradients["token_indices"] == kept.tolist()
    for name, index, indices in (
        ("token", ids, kept),
        ("position", np.tile(np.arange(4), 2), np.arange(4)),
        ("segment", types, np.arange(2)),
    ):
        assert gradients[f"{name}_indices"] == indices.tolist()
        dense = np.zeros((30, WIDTH))
        np.add.at(dense, index, rows)
        np.testing.assert_allclose(gradients[f"{name}_rows"], dense[indices], atol=1e-12)
    name, _ = named(weights, "embeddings.LayerNorm.weight")
    np.testing.assert_allclose(gradients[f"parameter/{name}"], scale, atol=1e-12)
    np.testing.assert_allclose(gradients[f"parameter/{name.replace('weight', 'bias')}"], shift, atol=1e-12)
    assert set(gradients["tables"]) == {"token", "position", "segment"}
    unpadded = ask(served, input_ids=IDS, token_type_ids=TYPES, gradient=upstream.tolist(), padding=False)
    assert unpadded["token_indices"][0] == 0
    np.testing.assert_allclose(unpadded["token_rows"][0], rows[ids == 0].sum(axis=0), atol=1e-12)


def test_packed_sequences_equal_a_rectangle(served: Served) -> None:
    upstream = np.random.default_rng(1).standard_normal((8, WIDTH))
    apart = ask(served, input_ids=IDS, gradient=upstream.reshape(2, 4, WIDTH).tolist())
    joined = ask(served, input_ids=FLAT, lengths=[4, 4], gradient=upstream.tolist())
    one = ask(served, input_ids=FLAT, gradient=upstream.tolist())
    assert apart == joined
    assert one["position_indices"] == list(range(8))
    places = ask(served, input_ids=FLAT, position_ids=[0, 1, 2, 3, 0, 1, 2, 3], gradient=upstream.tolist())
    assert places == apart


def test_every_format_carries_the_same_numbers(served: Served) -> None:
    upstream = np.random.default_rng(2).standard_normal((4, WIDTH)).astype(np.float32)
    body = {"input_ids": IDS[0], "gradient": upstream.tolist()}
    plain = ask(served, **body)
    binary = served.http.post(PATH, json=body | {"dtype": "float64", "format": "safetensors"})
    tensors = load(binary.content)
    assert tensors["token_indices"].dtype == np.int64
    np.testing.assert_array_equal(tensors["token_rows"], plain["token_rows"])
    npy = served.http.post(PATH, json=body | {"dtype": "float64", "format": "npy", "output": "token_rows"})
    np.testing.assert_array_equal(np.load(io.BytesIO(npy.content)), plain["token_rows"])
    encoded = {"dtype": "float32", "shape": upstream.shape, "data": base64.b64encode(upstream.tobytes()).decode()}
    assert ask(served, input_ids=IDS[0], gradient=encoded)["token_rows"] == plain["token_rows"]


def test_different_gradients_have_different_responses(served: Served) -> None:
    bodies = [{"input_ids": [2, 3], "gradient": [[value] * WIDTH] * 2, "format": "safetensors"} for value in (1.0, 2.0)]
    bodies += [bodies[0] | {"input_ids": [2, 4]}, bodies[0] | {"padding": False}]
    answers = [served.http.post(PATH, json=body) for body in bodies]
    assert len({answer.headers["etag"] for answer in answers}) == 4
    assert load(answers[2].content)["token_indices"].tolist() == [2, 4]
    assert served.http.post(PATH, json=bodies[0]).headers["etag"] == answers[0].headers["etag"]


def judged(table: Floats, hidden: Floats, targets: list[int]) -> tuple[float, Floats]:
    """Loss and dL/dlogits.T @ hidden of the mean cross-entropy."""
    logits = hidden @ table.T
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    loss = -np.log(shares[np.arange(len(targets)), targets]).mean()
    shares[np.arange(len(targets)), targets] -= 1
    return float(loss), shares.T @ hidden / len(targets)


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A service over the golden gradient cases: each table the words of a model that adds nothing to them."""
    folder = tmp_path_factory.mktemp("golden")
    for name in ("grad_tied", "grad_seed004_example2"):
        table = case(name).arrays["E"].astype(np.float32)
        rows, width = table.shape
        config = {"model_type": "mpt", "vocab_size": rows, "d_model": width, "n_heads": 1, "n_layers": 1}
        checkpoint = write_folder(folder / name, config, {"transformer.wte.weight": table})
        export(checkpoint, folder / "store" / name)
    with serving(folder / "store") as service:
        yield service


def test_tied_gradient_matches_the_golden_one(golden: Served) -> None:
    """Within what float32 leaves of the golden table's float64."""
    arrays = case("grad_tied").arrays
    hidden = np.tanh(arrays["E"][arrays["ids"]] @ arrays["W"])
    output = {"hidden": hidden.tolist(), "targets": arrays["targets"].tolist(), "rows": "all"}
    gradients = ask(golden, "/models/grad_tied/gradient", **output)
    assert gradients["loss"] == pytest.approx(float(arrays["loss"]), abs=1e-6)
    np.testing.assert_allclose(gradients["token_rows"], arrays["dE_out"], atol=1e-6)
    upstream = np.array(gradients["hidden_gradient"]) * (1 - hidden**2) @ arrays["W"].T
    both = output | {"input_ids": arrays["ids"].tolist(), "gradient": upstream.tolist()}
    np.testing.assert_allclose(
        ask(golden, "/models/grad_tied/gradient", **both)["token_rows"], arrays["dE_tied"], atol=1e-6
    )


def test_tied_gradient_matches_a_worked_example(golden: Served) -> None:
    arrays = case("grad_seed004_example2").arrays
    body = {"hidden": [arrays["h"].tolist()], "targets": [1], "rows": "all"}
    gradients = ask(golden, "/models/grad_seed004_example2/gradient", **body)
    np.testing.assert_allclose(gradients["token_rows"], arrays["dE_out"], atol=1e-6)


def test_tied_table_sums_both_sides(tied: tuple[Served, Floats]) -> None:
    served, table = tied
    random = np.random.default_rng(3)
    hidden, upstream = random.standard_normal((3, table.shape[1])), random.standard_normal((4, table.shape[1]))
    ids, targets = [5, 7, 5, 9], [7, 1, 20]
    loss, dense = judged(table, hidden, targets)
    output = {"hidden": hidden.tolist(), "targets": targets}
    both = output | {"input_ids": ids, "gradient": upstream.tolist()}
    total = dense.copy()
    np.add.at(total, ids, upstream)
    gradients = ask(served, "/models/tied/gradient", **both)
    assert gradients["loss"] == pytest.approx(loss, abs=1e-12)
    assert gradients["token_indices"] == [1, 5, 7, 9, 20]
    np.testing.assert_allclose(gradients["token_rows"], total[[1, 5, 7, 9, 20]], atol=1e-12)
    every = ask(served, "/models/tied/gradient", **both, rows="all")
    np.testing.assert_allclose(every["token_rows"], total, atol=1e-12)
    some = ask(served, "/models/tied/gradient", **output, rows=[30, 2, 30])
    assert some["token_indices"] == [2, 30]
    np.testing.assert_allclose(some["token_rows"], dense[[2, 30]], atol=1e-12)
    summed = ask(served, "/models/tied/gradient", **output, reduction="sum")
    assert summed["loss"] == pytest.approx(3 * loss, abs=1e-12)
    np.testing.assert_allclose(summed["hidden_gradient"], 3 * np.array(gradients["hidden_gradient"]), atol=1e-12)


ROW = [0.0] * WIDTH


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "there is nothing to differentiate"),
        ({"input_ids": [1]}, "input_ids and gradient go together"),
        ({"gradient": [ROW]}, "input_ids and gradient go together"),
        ({"hidden": [ROW]}, "hidden and targets go together"),
        ({"input_ids": [99], "gradient": [ROW]}, "input_ids[0] is 99; the vocabulary holds"),
        ({"input_ids": [-1], "gradient": [ROW]}, "input_ids[0] is -1"),
        ({"input_ids": [1, 2], "gradient": [ROW]}, "2 tokens of bert take [2, 32]"),
        ({"input_ids": [1], "gradient": [[1.0]]}, "1 tokens of bert take [1, 32]"),
        ({"input_ids": [1], "gradient": [[None]]}, "only numbers can stand"),
        ({"input_ids": [1.5], "gradient": [ROW]}, "only integers can stand"),
        ({"input_ids": [[1], [1, 2]], "gradient": [ROW]}, "different lengths"),
        ({"input_ids": [1], "gradient": [ROW], "lengths": [2]}, "lengths sum to 2"),
        ({"input_ids": [1], "gradient": [ROW], "lengths": [1, 0]}, "they are 1 or more"),
        (
            {"input_ids": [1], "gradient": [ROW], "token_type_ids": [0, 0]},
            "token_type_ids has shape [1, 2]; with input_ids of [1, 1]",
        ),
        ({"input_ids": [1], "gradient": [ROW], "token_type_ids": [9]}, "the segment table holds"),
        ({"input_ids": [1], "gradient": [ROW], "position_ids": [999]}, "the position table holds"),
        ({"input_ids": [1], "gradient": [ROW], "rows": "all"}, "rows are chosen of the output side"),
        ({"input_ids": [1], "gradient": [ROW], "rows": [1]}, "rows are chosen of the output side"),
        ({"input_ids": [1], "gradient": [ROW], "rows": "some"}, "touched: those of input_ids and targets"),
        ({"input_ids": [1], "gradient": [ROW], "reduction": "none"}, "one of mean, sum"),
        ({"input_ids": [1], "gradient": [ROW], "gradients": 1}, 'did you mean "gradient"'),
    ],
)
def test_rejects_impossible_requests(served: Served, body: dict[str, Any], says: str) -> None:
    answer = served.http.post(PATH, json=body)
    assert (answer.status_code, says in answer.json()["detail"]) == (422, True), answer.text


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"targets": [1, 2]}, "2 targets and model.embed_tokens.weight"),
        ({"targets": [9999]}, "a target is 9999"),
        ({"targets": [-1]}, "a target is -1"),
        ({"targets": [-100]}, "every target is -100"),
        ({"targets": [1], "rows": [-1]}, "a row is -1"),
        ({"targets": [1], "rows": [9999]}, "a row is 9999"),
    ],
)
def test_rejects_a_loss_without_targets(tied: tuple[Served, Floats], body: dict[str, Any], says: str) -> None:
    served, table = tied
    answer = served.http.post("/models/tied/gradient", json={"hidden": [[0.0] * table.shape[1]]} | body)
    assert (answer.status_code, says in answer.json()["detail"]) == (422, True), answer.text


def test_rejects_a_loss_of_an_untied_model(served: Served, tiny_store: Path) -> None:
    width = load_file(tiny_store.parent / "checkpoints/llama/model.safetensors")["model.embed_tokens.weight"].shape[1]
    answer = served.http.post("/models/llama/gradient", json={"hidden": [[0.0] * width], "targets": [1]})
    assert (answer.status_code, "llama is not tied" in answer.text) == (422, True), answer.text
