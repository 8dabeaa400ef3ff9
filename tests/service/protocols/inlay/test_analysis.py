"""GET /models/{name}/analysis: what numpy finds in the checkpoint's own table; and turns, taken one at a time."""

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from models.tables.row_blocks import Check
from service.embedding.word_table import TableComputations
from tests.served import Served


def test_analysis_matches_numpy(served: Served, tiny_store: Path) -> None:
    tensors = load_file(tiny_store.parent / "checkpoints/bert/model.safetensors")
    name, table = next((name, each) for name, each in tensors.items() if name.endswith("word_embeddings.weight"))
    analysis = served.http.get("/models/bert/analysis").raise_for_status().json()
    lengths = np.linalg.norm(table.astype(np.float64), axis=1)
    values = np.linalg.svd(table.astype(np.float64), compute_uv=False)
    assert (analysis["table"]["name"], analysis["table"]["shape"]) == (name, list(table.shape))
    assert analysis["table"]["bytes"] == table.nbytes
    norms = [analysis["norms"][key] for key in ("min", "mean", "max", "std")]
    np.testing.assert_allclose(
        norms, [lengths.min(), lengths.mean(), lengths.max(), lengths.std()], rtol=1e-12, atol=1e-12
    )
    assert sum(analysis["norms"]["histogram"]["counts"]) == len(table)
    np.testing.assert_allclose(analysis["spectrum"]["singular_values"], values, rtol=1e-6, atol=1e-6)
    shares = values / values.sum()
    assert analysis["spectrum"]["effective_rank"] == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), rel=1e-6)
    assert analysis["zero_rows"]["count"] == int((lengths == 0).sum())


def test_components_sum_to_the_model(served: Served) -> None:
    analysis = served.http.get("/models/bert/analysis?spectrum=false").json()
    assert "spectrum" not in analysis
    layer, encoder = analysis["components"]["input_layer"], analysis["components"]["encoder"]
    assert sum(part["flops_per_token"] for part in layer) == analysis["flops"]["per_token"]["embedding"]
    assert sum(part["flops_per_token"] for part in layer + encoder) == analysis["flops"]["per_token"]["encoder"]
    assert [part["step"] for part in layer] == ["Embed", "AddType", "AddPosition", "LayerNorm"]


def test_untied_head_is_a_component(served: Served) -> None:
    analysis = served.http.get("/models/llama/analysis?spectrum=false").json()
    rows, width = analysis["table"]["shape"]
    head = analysis["components"]["head"][0]
    assert (head["parameters"], head["flops_per_token"]) == (rows * width, 2 * rows * width)
    assert (
        sum(part["bytes"] for parts in analysis["components"].values() for part in parts) == analysis["memory"]["bytes"]
    )


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/models/bort/analysis", 404, "did you mean 'bert'"),
        ("/models/bert/analysis?spectrum=maybe", 422, "spectrum"),
        ("/models/bert/analysis?spectra=1", 422, 'did you mean "spectrum"'),
    ],
)
def test_rejects_impossible_requests(served: Served, path: str, status: int, says: str) -> None:
    answer = served.http.get(path)
    assert (answer.status_code, says in answer.text.replace('\\"', '"')) == (status, True), answer.text


async def test_computations_take_turns_and_stop_when_cancelled() -> None:
    turns, begun, stopped, go = TableComputations(), threading.Event(), threading.Event(), threading.Event()

    def first(check: Check) -> None:
        begun.set()
        go.wait(30)
        try:
            check()
        except BaseException:
            stopped.set()
            raise

    running = asyncio.create_task(turns.run("rows", first))
    await asyncio.to_thread(begun.wait, 30)
    second = asyncio.create_task(turns.run("rows", lambda check: "second"))
    await asyncio.sleep(0)
    assert not second.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    go.set()
    assert await second == "second"
    assert stopped.is_set()
