"""What calibration records of the inputs of an encoder's products."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.artifacts.comparison import Session
from models.artifacts.export import export
from models.checkpoints import safetensors
from models.graphs.builder import GraphBuilder, save
from models.graphs.encoder import encoder
from models.graphs.projections import Recorded
from models.recipes.steps import Recipe
from tests.golden_cases import case, write_checkpoint


def test_product_that_layers_share_records_the_largest_of_all(tmp_path: Path) -> None:
    golden = case("encoder_albert")
    card = export(write_checkpoint(golden, tmp_path / "x"), tmp_path / "out")

    def recorded(blocks: Recipe) -> dict[str, NDArray[np.float32]]:
        records = Recorded()
        placed = safetensors.read_header(tmp_path / "out/weights.safetensors")
        graph = encoder(GraphBuilder(placed), card.recipe, blocks, card.hidden_size, records)
        save(graph, tmp_path / "out/recorded.onnx")
        session = Session(tmp_path / "out/recorded.onnx")
        ids = golden.ids.reshape(-1)
        feeds = {"ids": ids, "positions": np.arange(len(ids)) % 11, "types": np.zeros_like(ids)}
        feeds |= {"mask": np.ones(len(ids), bool), "lengths": np.full(len(golden.ids), 11)}
        return session.run({name: feeds[name] for name in session.inputs}, list(records.largest))

    first, both = recorded(card.encoder[:4]), recorded(card.encoder)
    assert first.keys() == both.keys()
    for name, values in first.items():
        assert (both[name] >= values).all()
        assert (both[name] > values).any()
