"""A decoder that embeds, through the whole road: last-token pooling, prompts, padding on either side, the cut."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts import card as cards
from models.artifacts.card import Card
from models.artifacts.export import export
from models.checkpoints import safetensors
from models.reference import interpreter as reference
from proto import tei_pb2 as tei
from tests.last_token import LONGEST, PROMPT, TEXTS, ids_of, write_embedder
from tests.roads import EITHER, TEXT_ALONE, Road, Roads, embed, exactly, own_request, own_vector, roads_to
from tests.served import serving

NAME = "embedder"
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("last")
    export(write_embedder(folder / "checkpoint"), folder / "store" / NAME)
    return folder / "store"


@pytest.fixture(scope="module")
def card(store: Path) -> Card:
    return cards.read(store / NAME)


@pytest.fixture(scope="module")
def roads(store: Path) -> Iterator[Roads]:
    with serving(store) as running, roads_to(running, NAME) as clients:
        yield clients


def vector_of(card: Card, folder: Path, ids: list[int]) -> NDArray[np.float64]:
    """The unit vector of the last row, by the float64 reference, which tests/parity holds to transformers."""
    weights = safetensors.tensors_of(folder / "weights.safetensors")
    numbers, places = np.array(ids), np.arange(len(ids))
    rows = reference.run(card.recipe, weights, numbers, places, None)["input_embeddings"]
    mask, lengths = np.ones(len(ids), bool), np.array([len(ids)])
    last = reference.encode(card.encoder, weights, rows, mask, lengths, places, card.encodings.ropes)[-1]
    unit: NDArray[np.float64] = last / np.linalg.norm(last)
    return unit


def test_the_files_of_the_checkpoint_are_read(card: Card) -> None:
    assert card.pooling is not None
    assert (card.pooling.mode, card.pooling.normalize) == ("lasttoken", True)
    assert card.prompts == {"query": PROMPT, "document": ""}
    assert (card.default_prompt, card.max_tokens) == (None, LONGEST)


@pytest.mark.parametrize("name", EITHER | TEXT_ALONE)
def test_every_road_gives_the_vector_of_the_closing_token(name: str, roads: Roads, card: Card, store: Path) -> None:
    road: Road = (EITHER | TEXT_ALONE)[name]
    for text in TEXTS[1:]:
        expected = vector_of(card, store / NAME, ids_of(text))
        assert np.abs(road(roads, text) - expected).max() <= TOLERANCE
        if name in EITHER:
            np.testing.assert_array_equal(road(roads, ids_of(text)), road(roads, text))


@pytest.mark.parametrize("text", TEXTS[1:])
def test_a_prompt_is_put_before_queries_alone(text: str, roads: Roads, card: Card, store: Path) -> None:
    expected = {name: vector_of(card, store / NAME, ids_of(prompt + text)) for name, prompt in card.prompts.items()}
    for name, vector in expected.items():
        got = {
            "HTTP": exactly(embed(roads, [text], prompt_name=name).json()[0]),
            "inlay.v1": own_vector(roads.own.Embed(own_request(roads, text, prompt_name=name))),
            "tei.v1": exactly(
                roads.tei.Embed(tei.EmbedRequest(inputs=text, truncate=True, prompt_name=name)).embeddings
            ),
        }
        for road, own in got.items():
            assert np.abs(own - vector).max() <= TOLERANCE, (road, name)
    np.testing.assert_array_equal(
        embed(roads, [text]).json()[0], embed(roads, [text], prompt_name="document").json()[0]
    )


def ids(tokens: list[int], left: int = 0, right: int = 0) -> dict[str, Any]:
    """Token ids with padding that is masked."""
    return {
        "input_ids": [0] * left + tokens + [0] * right,
        "attention_mask": [0] * left + [1] * len(tokens) + [0] * right,
    }


@pytest.mark.parametrize("text", TEXTS)
def test_padding_on_either_side_changes_nothing(text: str, roads: Roads) -> None:
    tokens = ids_of(text)
    [plain] = embed(roads, [{"input_ids": tokens}]).json()
    for left, right in ((0, 1), (1, 0), (5, 0), (0, 5), (2, 3), (300, 0), (0, 300)):
        [padded] = embed(roads, [ids(tokens, left, right)]).json()
        assert np.abs(exactly(padded) - exactly(plain)).max() <= TOLERANCE, (left, right)


def test_a_cut_text_keeps_its_closing_token(roads: Roads) -> None:
    long = TEXTS[5]
    assert len(ids_of(long)) == LONGEST < len(long.split())
    answer = embed(roads, [long])
    assert answer.headers["inlay-truncated-inputs"] == "0"
    np.testing.assert_array_equal(answer.json()[0], embed(roads, [{"input_ids": ids_of(long)}]).json()[0])


def test_a_batch_gives_the_bits_that_a_text_has_alone(roads: Roads) -> None:
    together = embed(roads, list(TEXTS)).json()
    assert [embed(roads, [text]).json()[0] for text in TEXTS] == together
