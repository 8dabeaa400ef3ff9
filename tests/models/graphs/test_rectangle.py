"""The form of encoders for GPUs, on the CPU: against the float64 reference, for all that steps of blocks can say."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts.graph_files import FOR_GPUS
from models.checkpoints import safetensors
from models.graphs import rectangle
from models.graphs.builder import GraphBuilder
from models.graphs.encoder import encoder
from models.graphs.projections import Float32, Narrow
from service.embedding.pooling import pool
from tests.block_recipes import CASES, ROPES, TABLE, WIDTH
from tests.models.graphs.test_block_vocabulary import TOLERANCE, Blocks, Sequences, tasks
from tests.onnx_sessions import open_session
from tests.sweeps import sampled

MEDIAN_COSINE = 0.999  # in float16, of rows of 16 values; a router may choose another expert for a row
Floats = NDArray[np.float32]


class Form:
    """The form for GPUs of a case's blocks."""

    def __init__(self, blocks: Blocks, folder: Path, element: str) -> None:
        self.blocks, self.masked = blocks, rectangle.FLOAT16_MASKED if element == "FLOAT16" else rectangle.MASKED
        placed = safetensors.read_header(folder / "weights.safetensors")
        projections = Float32() if element == "FLOAT" else Narrow(element)
        builder = GraphBuilder(placed, FOR_GPUS)
        model = encoder(builder, (TABLE,), blocks.blocks, WIDTH, projections, ROPES, sent=True)
        entry = {"session.model_external_initializers_file_folder_path": str(folder)}
        self.session = open_session(model.SerializeToString(), entry)

    def run(self, texts: Sequences, pooling: str = "mean") -> tuple[list[Floats], Floats]:
        """Return the rows of each of several sequences that are run together, and their vectors."""
        lengths = np.array([len(ids) for ids, _ in texts])
        mask = np.concatenate([mask for _, mask in texts])
        feeds = {
            "ids": np.concatenate([ids for ids, _ in texts]),
            "mask": mask,
            "positions": np.concatenate([np.arange(length) for length in lengths]),
            "lengths": lengths,
            "task_ids": np.concatenate([tasks(length) for length in lengths]),
            **rectangle.feeds(mask, lengths, pooling, self.masked),
        }
        hidden, vectors = self.session.run(None, {each.name: feeds[each.name] for each in self.session.get_inputs()})
        return np.split(np.asarray(hidden, np.float32), np.cumsum(lengths)[:-1]), np.asarray(vectors, np.float32)

    def batches(self) -> list[Sequences]:
        """All texts; one; two of one length; short ones; texts without a masked row; one that is masked whole."""
        texts = self.blocks.texts
        return [texts, texts[4:5], [texts[4]] * 2, texts[:4], texts[:10], texts[-1:]]


@pytest.fixture(scope="module", params=sampled(CASES, 5))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Blocks, Path]:
    folder = tmp_path_factory.mktemp("rectangle")
    return Blocks(request.param, folder), folder


def test_float32_gives_what_the_reference_gives(case: tuple[Blocks, Path]) -> None:
    form = Form(*case, "FLOAT")
    for texts in form.batches():
        rows, _ = form.run(texts)
        for got, (ids, mask) in zip(rows, texts, strict=True):
            expected = form.blocks.expected(ids, mask)
            assert np.abs(got - expected).max() <= TOLERANCE * max(1.0, np.abs(expected).max()), len(ids)


def test_float16_comes_close_where_rows_are_attended_to(case: tuple[Blocks, Path]) -> None:
    form = Form(*case, "FLOAT16")
    for texts in (form.blocks.texts, form.blocks.texts[:10]):
        rows, _ = form.run(texts)
        for got, (ids, mask) in zip(rows, texts, strict=True):
            if mask.any():
                one, other = got[mask], form.blocks.expected(ids, mask)[mask]
                lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
                assert np.median((one * other).sum(axis=1) / lengths) > MEDIAN_COSINE, len(ids)


@pytest.mark.parametrize("mode", rectangle.SHARES)
def test_vectors_are_those_that_the_service_pools(mode: str, tmp_path: Path) -> None:
    form = Form(Blocks("key heads", tmp_path), tmp_path, "FLOAT")
    texts = [text for text in form.blocks.texts if text[1].any()]
    rows, vectors = form.run(texts, mode)
    for own, vector, (_, mask) in zip(rows, vectors, texts, strict=True):
        np.testing.assert_allclose(vector, pool(mode, own, mask), rtol=1e-4, atol=1e-5)
