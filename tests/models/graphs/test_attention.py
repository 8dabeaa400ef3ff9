"""The forms of attention, chosen by what a batch holds, give a text the same bits, in float32 and int8 encoders."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts.export import export
from models.artifacts.int8_encoder import Int8Options
from models.graphs import attention, row_layout
from models.graphs.row_layout import MOST_ONE_BY_ONE, SHORT
from tests.golden_cases import WORDS, case, write_folder, write_tiny_bert
from tests.onnx_sessions import open_session
from tests.sweeps import sampled

Float32s = NDArray[np.float32]
LONGEST, VOCABULARY = 40, len(WORDS)
MASKED = 5


class Encoder:
    """The encoder of an exported model, and texts that it was run on alone."""

    def __init__(self, folder: Path) -> None:
        self.session = open_session(folder / "encoder.onnx")
        self.random = np.random.default_rng(11)
        self.texts = [
            self.random.integers(0, VOCABULARY, length) for length in [*range(1, LONGEST), *range(1, LONGEST)]
        ]
        self.alone = [self.run([text]) for text in self.texts]

    def run(self, texts: list[NDArray[np.int64]], masked: int | None = None) -> Float32s:
        """Return the rows of a batch, in which `masked` rows of the last text are masked; None: no rows."""
        ids = np.concatenate(texts)
        mask = np.ones(len(ids), bool)
        mask[len(ids) - (masked or 0) :] = False
        lengths = [len(text) for text in texts]
        feeds = {
            "ids": ids,
            "positions": np.concatenate([np.arange(length) for length in lengths]),
            "types": np.zeros_like(ids),
            "mask": mask,
            "lengths": np.array(lengths),
        }
        rows: list[Any] = self.session.run(None, {each.name: feeds[each.name] for each in self.session.get_inputs()})
        return np.asarray(rows[0], np.float32)

    def assert_same(self, chosen: list[int], masked: bool = False) -> None:
        """Assert that every text has the bits in a batch that it has alone; `masked`: beside a masked text."""
        others = [self.random.integers(0, VOCABULARY, 2 * MASKED)] if masked else []
        rows = self.run([self.texts[number] for number in chosen] + others, MASKED if masked else None)
        start = 0
        for number in chosen:
            end = start + len(self.texts[number])
            np.testing.assert_array_equal(rows[start:end], self.alone[number])
            start = end


def write_mpnet(folder: Path) -> None:
    """A tiny encoder whose scores have a bias, for texts of LONGEST tokens."""
    golden, random = case("encoder_mpnet"), np.random.default_rng(13)
    tables = {"embeddings.word_embeddings.weight": VOCABULARY, "embeddings.position_embeddings.weight": LONGEST}
    weights = {name: random.normal(0, 0.4, (rows, 16)).astype(np.float32) for name, rows in tables.items()}
    config = golden.config | {"vocab_size": VOCABULARY, "max_position_embeddings": LONGEST}
    write_folder(folder, config, golden.weights | weights)


@pytest.fixture(scope="module", params=["float32", "int8", "flash", "biased"])
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """Encoders, one of which takes every sequence longer than SHORT for a long one."""
    folder = tmp_path_factory.mktemp("encoder")
    if request.param == "biased":
        write_mpnet(folder / "x")
        export(folder / "x", folder / "out")
        return Encoder(folder / "out")
    int8 = Int8Options(min_cosine=0.5) if request.param == "int8" else None
    with pytest.MonkeyPatch.context() as patch:
        for module in (attention, row_layout):
            patch.setattr(module, "LONG", SHORT if request.param == "flash" else LONGEST)
        export(write_tiny_bert(folder / "x", max_position_embeddings=LONGEST), folder / "out", int8=int8)
    return Encoder(folder / "out")


def test_texts_of_one_length_keep_their_bits(encoder: Encoder) -> None:
    for number in range(LONGEST - 1):
        encoder.assert_same([number, number + LONGEST - 1])


def test_texts_one_by_one_keep_their_bits(encoder: Encoder) -> None:
    encoder.assert_same(list(range(SHORT, SHORT + MOST_ONE_BY_ONE)))


def test_padded_texts_keep_their_bits(encoder: Encoder) -> None:
    encoder.assert_same(list(range(SHORT)))
    encoder.assert_same([SHORT - 1] * MOST_ONE_BY_ONE + [0])


def test_masked_text_keeps_its_bits(encoder: Encoder) -> None:
    for own in (10, LONGEST - 1):
        masked = encoder.random.integers(0, VOCABULARY, own)
        alone = encoder.run([masked], MASKED)
        for others in ([3], [LONGEST - 2], [3, LONGEST - 2, 20]):
            texts = [encoder.texts[number] for number in others]
            np.testing.assert_array_equal(encoder.run([*texts, masked], MASKED)[-own:], alone)


def test_masked_neighbour_changes_no_bits(encoder: Encoder) -> None:
    encoder.assert_same(list(range(0, LONGEST, 3)), masked=True)


@pytest.mark.parametrize("seed", sampled(range(20), 20))
def test_random_batches_change_no_bits(seed: int, encoder: Encoder) -> None:
    random = np.random.default_rng(seed)
    for _ in range(100):
        longest = int(random.choice([4, SHORT, 30, LONGEST - 1]))
        numbers = random.integers(0, longest, random.integers(1, MOST_ONE_BY_ONE))
        encoder.assert_same([int(number) for number in numbers], masked=bool(random.random() < 0.2))
