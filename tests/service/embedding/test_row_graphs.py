"""Models that pool one row run a graph that computes no other behind the last attention: its values, bits, sessions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.artifacts import card as cards
from models.artifacts.export import export
from models.recipes.graph_names import ONE_ROW
from service.embedding.outputs.kind import HIDDEN, POOLED
from service.embedding.requests import EmbedOptions, Ids
from service.embedding.tokenize.packing import Work, pack
from service.registry.loading import run_of
from service.runtime.onnx import OnnxEngine
from tests.embed_requests import embed_request
from tests.service.registry.registry_service import Service
from tests.whole_models import write_whole

MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {  # the model_type, its pooling, other keys of its config
    "bert": ("bert", "cls", {}),
    "distilbert": ("distilbert", "cls", {"dim": 16, "n_heads": 4, "n_layers": 2, "hidden_dim": 32}),
    "deberta": ("deberta-v2", "cls", {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    "modernbert": ("modernbert", "cls", {"num_hidden_layers": 3, "local_attention": 8}),
    "mpnet": ("mpnet", "cls", {}),
    "qwen3": ("qwen3", "lasttoken", {}),
}
LENGTHS = (1, 2, 5, 12, 13, 40, 600)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("row_graphs")
    for name, (model_type, pooling, config) in MODELS.items():
        export(write_whole(folder / name, model_type, **config), folder / "store" / name, pooling=pooling)
    return folder / "store"


def sequences() -> list[Ids]:
    draw = np.random.default_rng(7)
    plain = [Ids(draw.integers(3, 40, length)) for length in LENGTHS]
    masks = [np.array(mask) for mask in ([0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 0, 1, 0])]
    return plain + [Ids(draw.integers(3, 40, 5), mask=mask) for mask in masks]


async def vectors(service: Service, inputs: list[Ids], name: str, *outputs: str) -> list[np.ndarray[Any, Any]]:
    request = embed_request(inputs, name, outputs or (POOLED,), normalize=False)
    return [output.rows for output in (await service.pipeline.embed(request)).outputs]


@pytest.mark.parametrize("name", MODELS)
async def test_one_row_equals_whole_encoder_bitwise_in_any_batch(name: str, store: Path) -> None:
    service = Service(store, models=(name,))
    model = service.registry.get(name)
    assert model.card.row_graphs is not None
    assert model.plan(EmbedOptions((POOLED,)), "").typed == {"encoder": (ONE_ROW,)}
    inputs = sequences()
    (together,) = await vectors(service, inputs, name)
    for number, alone in enumerate(inputs):
        (row,) = await vectors(service, [alone], name)
        np.testing.assert_array_equal(row[0], together[number])
    pooled, _ = await vectors(service, inputs, name, POOLED, HIDDEN)  # of the rows of the whole encoder
    np.testing.assert_allclose(together, pooled, rtol=0, atol=2e-5)


def test_one_row_and_all_rows_share_a_batch_but_no_run(store: Path) -> None:
    model = Service(store, models=("bert",)).registry.get("bert")
    run = run_of(model.engine, model.card, "encoder", 4096)
    packed = [pack(model.card, [sequence]) for sequence in sequences()[:4]]
    outputs = (ONE_ROW,), (HIDDEN,), (HIDDEN,), (ONE_ROW,)
    works = [Work(own, names) for own, names in zip(packed, outputs, strict=True)]
    for work, rows in zip(works, run(works), strict=True):
        (alone,) = run([work])
        assert rows.keys() == alone.keys() == set(work.outputs)
        np.testing.assert_array_equal(rows[work.outputs[0]], alone[work.outputs[0]])


async def test_the_graph_of_all_rows_is_opened_when_it_is_needed(store: Path) -> None:
    service = Service(store, models=("bert",))
    engine = service.registry.get("bert").engine
    assert isinstance(engine, OnnxEngine)
    await vectors(service, sequences(), "bert")
    assert "encoder_row.onnx" in engine.opened
    assert "encoder" not in engine.opened
    await vectors(service, sequences(), "bert", HIDDEN)
    assert "encoder" in engine.opened


def test_models_that_pool_other_rows_have_no_such_graph(tmp_path: Path) -> None:
    bert = write_whole(tmp_path / "bert", "bert")
    for pooling in ("mean", "none"):
        assert export(bert, tmp_path / pooling, pooling=pooling).row_graphs is None
        assert not (tmp_path / pooling / "encoder_row.onnx").exists()
    assert cards.read(tmp_path / "mean").row_graphs is None
