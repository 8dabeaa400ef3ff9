"""What steps of blocks can say, as ONNX: against the float64 reference, and the same bits alone as in a batch."""

from dataclasses import fields
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts.comparison import Session
from models.graphs.row_layout import MOST_ONE_BY_ONE
from models.recipes.steps import (
    Attention,
    Disentangled,
    DistanceBias,
    Experts,
    FeedForward,
    Recipe,
    ScoreBias,
    ShortConvolution,
    layers,
)
from models.reference import interpreter as reference
from tests.block_recipes import CASES, ROPES, TABLE, TASK_COUNT, VOCABULARY, made, write_graph
from tests.sweeps import sampled

LENGTHS = (1, 2, 12, 13, 64, 65, 256, 257, 300, 600)
TOLERANCE = 2e-5  # of float32 sums; the reference is float64
Ids, Mask = NDArray[np.int64], NDArray[np.bool_]
Sequences = list[tuple[Ids, Mask]]


def tasks(length: int) -> Ids:
    """The task of a sequence, at each of its tokens: -1 is none."""
    return np.full(length, length % (TASK_COUNT + 1) - 1)


class Blocks:
    """The blocks of a case, as a graph and by the reference."""

    def __init__(self, name: str, folder: Path) -> None:
        self.blocks, self.weights = made(name)
        self.session = Session(write_graph(folder, self.blocks, self.weights))
        self.random = np.random.default_rng(23)

    @cached_property
    def texts(self) -> Sequences:
        """A sequence of each length, and masked ones: some rows, the first rows, all rows."""
        plain = [self.text(length) for length in LENGTHS]
        masks = [self.random.random(length) < 0.6 for length in (9, 65, 300)]
        masks += [np.arange(length) >= length // 2 for length in (12, 270)]
        return [*plain, *(self.text(len(mask), mask) for mask in masks), self.text(7, np.zeros(7, bool))]

    def text(self, length: int, mask: Mask | None = None) -> tuple[Ids, Mask]:
        return self.random.integers(0, VOCABULARY, length), np.ones(length, bool) if mask is None else mask

    def rows(self, texts: Sequences) -> list[NDArray[np.float32]]:
        """The rows of each of several sequences that are run together."""
        lengths = [len(ids) for ids, _ in texts]
        feeds = {
            "ids": np.concatenate([ids for ids, _ in texts]),
            "mask": np.concatenate([mask for _, mask in texts]),
            "positions": np.concatenate([np.arange(length) for length in lengths]),
            "lengths": np.array(lengths),
            "task_ids": np.concatenate([tasks(length) for length in lengths]),
        }
        hidden = self.session.run({name: feeds[name] for name in self.session.inputs}, ["last_hidden_state"])
        return np.split(hidden["last_hidden_state"], np.cumsum(lengths)[:-1])

    def expected(self, ids: Ids, mask: Mask) -> NDArray[np.float64]:
        places = np.arange(len(ids))
        rows = reference.run((TABLE,), self.weights, ids, places, None)["input_embeddings"]
        lengths = np.array([len(ids)])
        inputs = mask, lengths, places, ROPES, tasks(len(ids))
        return reference.encode(self.blocks, self.weights, rows, *inputs, ids=ids)


@pytest.fixture(scope="module", params=sampled(CASES, 3))
def blocks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Blocks:
    return Blocks(request.param, tmp_path_factory.mktemp("blocks"))


def test_the_graph_gives_what_the_reference_gives(blocks: Blocks) -> None:
    for ids, mask in blocks.texts:
        expected = blocks.expected(ids, mask)
        (got,) = blocks.rows([(ids, mask)])
        assert np.abs(got - expected).max() <= TOLERANCE * max(1.0, np.abs(expected).max()), len(ids)


def test_a_sequence_has_the_same_bits_in_every_batch(blocks: Blocks) -> None:
    alone = [blocks.rows([text])[0] for text in blocks.texts]
    short = [number for number, (ids, _) in enumerate(blocks.texts) if len(ids) <= 256]
    tiny = [number for number in short if len(blocks.texts[number][0]) <= 12]
    long = list(range(len(blocks.texts)))
    batches = [long, long[::-1], short, tiny, [*short] * 5, [*tiny] * 9, *([number] * 3 for number in long[:9])]
    assert len(short) * 5 > MOST_ONE_BY_ONE < len(tiny) * 9
    for batch in batches:
        for number, rows in zip(batch, blocks.rows([blocks.texts[number] for number in batch]), strict=True):
            assert rows.tobytes() == alone[number].tobytes(), (len(alone[number]), len(batch))


def seen_rows(blocks: Recipe, length: int) -> Mask:
    """Whether a query's row depends on a key's, by the bounds of the attention steps."""
    reached = np.eye(length, dtype=bool)
    distances = np.arange(length) - np.arange(length)[:, None]
    for step in layers(blocks):
        if isinstance(step, Attention):
            left, right = (length if bound is None else bound for bound in (step.left, step.right))
            reached = ((distances >= -left) & (distances <= right)) @ reached
        elif isinstance(step, ShortConvolution):
            left, size = step.convolution.left, step.convolution.size
            reached = ((distances >= -left) & (distances < size - left)) @ reached
    return reached


def test_rows_depend_on_what_the_bounds_let_them_see(blocks: Blocks) -> None:
    length = 40
    ids, mask = blocks.text(length)
    (before,) = blocks.rows([(ids, mask)])
    for place in (0, 11, length - 1):
        changed = ids.copy()
        changed[place] = (changed[place] + 1) % VOCABULARY
        (after,) = blocks.rows([(changed, mask)])
        moved = (before != after).any(axis=1)
        assert not (moved & ~seen_rows(blocks.blocks, length)[:, place]).any()
        assert moved[place]


def test_cases_use_all_that_steps_of_blocks_can_say() -> None:
    steps = [step for name in CASES for step in layers(made(name)[0])]
    for kind in (Attention, FeedForward, Experts):
        own = [step for step in steps if isinstance(step, kind)]
        for field in fields(kind):
            apart = ("heads", "inner", "windowed")  # windows are those of an image tower: test_image_rows.py
            assert len({str(getattr(step, field.name)) for step in own}) > 1 or field.name in apart, field.name
    biases = {type(step.bias) for step in steps if isinstance(step, Attention)}
    assert biases == {type(None), ScoreBias, DistanceBias, Disentangled}
