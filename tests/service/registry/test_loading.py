"""What a loaded model runs: batches whose bits do not depend on what else they hold, whatever the settings."""

from pathlib import Path

import numpy as np

from models.artifacts.export import export
from models.graphs.row_layout import LONG, MOST_ONE_BY_ONE
from service.embedding.execution import EXACT_TOKENS
from service.embedding.pipeline import EmbeddingPipeline
from service.embedding.requests import Ids
from service.observability.metrics import Metrics
from service.registry.registry import open_registry
from service.settings import Settings
from tests.embed_requests import embed_request
from tests.golden_cases import WORDS, tiny_bert, tiny_config, write_folder


async def test_large_batch_changes_no_bits_of_a_long_text(tmp_path: Path) -> None:
    weights = tiny_bert(positions=LONG + 10)
    write_folder(tmp_path / "checkpoint", tiny_config(weights), weights)
    export(tmp_path / "checkpoint", tmp_path / "store" / "a")
    settings = Settings(store=tmp_path / "store", device="cpu", threads=1, max_batch_tokens=10 * EXACT_TOKENS)
    embedder = EmbeddingPipeline(open_registry(settings, Metrics()), settings)
    random = np.random.default_rng(3)
    lengths = [LONG + 5, *range(3, 3 + MOST_ONE_BY_ONE)]
    inputs = [Ids(random.integers(0, len(WORDS), length)) for length in lengths]
    together = (await embedder.embed(embed_request(inputs, outputs=("last_hidden_state",)))).outputs[0].rows
    alone = [
        (await embedder.embed(embed_request([each], outputs=("last_hidden_state",)))).outputs[0].rows for each in inputs
    ]
    np.testing.assert_array_equal(together, np.concatenate(alone))


def test_bound_of_exact_batches_is_that_of_the_graph() -> None:
    assert EXACT_TOKENS == MOST_ONE_BY_ONE * LONG
