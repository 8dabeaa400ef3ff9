"""A sentence through every protocol, to a ModernBERT and to the text sides of CLIP and SigLIP.

test_last_token.py does the same with a Qwen 3.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts.export import export
from models.checkpoints import safetensors
from models.reference import interpreter as reference
from tests.golden_cases import Case, cases, write_sentence_files
from tests.last_token import TEXTS, ids_of, write_tokenizer
from tests.roads import EITHER, TEXT_ALONE, Roads, roads_to
from tests.served import serving
from tests.test_dual_encoders import write as write_dual
from tests.whole_models import write_whole

TOLERANCE = 1e-6


@dataclass(frozen=True)
class Embedder:
    """An exported model, and what it has to give."""

    name: str
    store: Path
    texts: tuple[str, ...]
    vectors: NDArray[np.float64]


def modernbert(folder: Path) -> Embedder:
    """Three layers, of which two slide; the vectors of the float64 reference, which parity holds to transformers."""
    checkpoint = write_whole(folder / "checkpoint", "modernbert", num_hidden_layers=3, local_attention=4)
    write_sentence_files(checkpoint, "mean")
    write_tokenizer(checkpoint / "tokenizer.json")
    card = export(checkpoint, folder / "store/modernbert")
    weights = safetensors.tensors_of(folder / "store/modernbert/weights.safetensors")
    vectors = []
    for text in TEXTS[1:5]:
        ids = np.array(ids_of(text))
        places, mask = np.arange(len(ids)), np.ones(len(ids), bool)
        rows = reference.run(card.recipe, weights, ids, places, None)["input_embeddings"]
        lengths = np.array([len(ids)])
        hidden = reference.encode(card.encoder, weights, rows, mask, lengths, places, card.encodings.ropes)
        vectors.append(hidden.mean(axis=0))
    return Embedder("modernbert", folder / "store", TEXTS[1:5], np.array(vectors))


def dual(golden: Case, folder: Path) -> Embedder:
    """The text side of a dual encoder; the vectors of transformers."""
    export(write_dual(golden, folder / "checkpoint"), folder / f"store/{golden.name}", side="text")
    return Embedder(golden.name, folder / "store", tuple(golden.params["texts"]), golden.arrays["text_vectors"])


@pytest.fixture(scope="module", params=["modernbert", *cases("whole_dual_encoder")], ids=str)
def embedder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    folder = tmp_path_factory.mktemp("roads")
    return modernbert(folder) if request.param == "modernbert" else dual(request.param, folder)


@pytest.fixture(scope="module")
def roads(embedder: Embedder) -> Iterator[Roads]:
    with serving(embedder.store) as running, roads_to(running, embedder.name) as clients:
        yield clients


@pytest.mark.parametrize("name", EITHER | TEXT_ALONE)
def test_every_road_gives_the_same_vector(name: str, roads: Roads, embedder: Embedder) -> None:
    road = (EITHER | TEXT_ALONE)[name]
    for text, vector in zip(embedder.texts, embedder.vectors, strict=True):
        assert np.abs(road(roads, text) - vector / np.linalg.norm(vector)).max() <= TOLERANCE
