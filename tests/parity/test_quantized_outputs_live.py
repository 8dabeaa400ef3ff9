"""Types of vectors against quantize_embeddings, and input_type against encode_query and encode_document."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.util.quantization import quantize_embeddings

from models.artifacts import card as cards
from models.artifacts.export import export
from service.bulk.calibration import calibrated
from service.embedding.quantization import PRECISIONS, quantized
from service.embedding.requests import EmbedOptions, Text
from service.settings import Settings
from tests.embed_requests import embed_request
from tests.parity.conftest import Ledger
from tests.sentence_chains import HIDDEN, NORMALIZE, dense, write_chain
from tests.service.registry.registry_service import Service

pytestmark = pytest.mark.parity

TEXTS = ["hello world", "a", "Hello WORLD abc de f", "b c d e f g h i j " * 6, "world, hello: a b", "d e"]
OTHERS = [*TEXTS, "j i h", "f g", "a a a a", "e"]
CHAINS: dict[str, tuple[Any, ...]] = {
    "mean": ("mean",),
    "mean, normalize": ("mean", NORMALIZE),
    "cls, normalize": ("cls", NORMALIZE),
    "dense of 20": ("mean", dense(HIDDEN, 20), NORMALIZE),
    "dense of 48": ("max", dense(HIDDEN, 48)),
}
BOTH = {"query": "hello: ", "document": "a b: "}
PROMPTS: dict[str, dict[str, Any]] = {
    "both": {"prompts": BOTH},
    "both and a default": {"prompts": BOTH | {"sts": "c "}, "default_prompt_name": "sts"},
    "query alone": {"prompts": {"query": "hello: "}},
    "neither, and a default": {"prompts": {"sts": "c "}, "default_prompt_name": "sts"},
    "none": {},
}


def vectors(store: Path, texts: list[str], **fields: Any) -> NDArray[Any]:
    request = embed_request([Text(text) for text in texts], truncate=True, **fields)
    (output,) = asyncio.run(Service(store).pipeline.embed(request)).outputs
    return output.rows


@pytest.mark.parametrize("name", CHAINS)
def test_types_are_those_of_quantize_embeddings(name: str, tmp_path: Path) -> None:
    """Of the same float vectors, with the ranges of a calibration set: bit for bit."""
    place = write_chain(tmp_path / "x", *CHAINS[name])
    store = tmp_path / "store"
    export(place, store / "tiny")
    (tmp_path / "texts.txt").write_text("\n".join(OTHERS))
    found = calibrated(
        store / "tiny", str(tmp_path / "texts.txt"), None, EmbedOptions(), Settings(store=store, threads=1)
    )
    assert cards.read(store / "tiny").calibration == found
    floats, others = vectors(store, TEXTS), vectors(store, OTHERS)
    for precision in PRECISIONS:
        got = vectors(store, TEXTS, dtype=precision)
        expected = quantize_embeddings(floats, precision, calibration_embeddings=others)  # type: ignore[arg-type]
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
        alone = [vectors(store, [text], dtype=precision) for text in TEXTS]
        np.testing.assert_array_equal(np.concatenate(alone), expected)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("width", [1, 8, 20, 384])
def test_formulas_over_random_vectors(precision: str, width: int) -> None:
    """Inside and outside the ranges, at their ends, and in dimensions of one value."""
    generator = np.random.default_rng(width)
    for scale in (1e-3, 1.0, 1e3):
        sample = (scale * generator.normal(size=(40, width))).astype(np.float32)
        ranges = np.stack([sample.min(axis=0), sample.max(axis=0)])
        ranges[1, ::7] = ranges[0, ::7]
        own = np.concatenate([sample, 3 * sample, ranges, np.zeros_like(ranges)])
        expected = quantize_embeddings(own, precision, ranges=ranges)  # type: ignore[arg-type]
        np.testing.assert_array_equal(quantized(own, precision, ranges), expected)


@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("chain", ["mean", "mean, normalize"])
def test_input_types_are_encode_query_and_encode_document(
    name: str, chain: str, tmp_path: Path, ledger: Ledger
) -> None:
    place = write_chain(tmp_path / "x", *CHAINS[chain], **PROMPTS[name])
    export(place, tmp_path / "store/tiny")
    theirs = SentenceTransformer(str(place), device="cpu")
    for use, encode in (("query", theirs.encode_query), ("document", theirs.encode_document)):
        got = vectors(tmp_path / "store", TEXTS, input_type=use)
        ledger.check("input_type", use, float(np.abs(got - encode(TEXTS)).max()), 1e-5)


def test_a_passage_prompt_stands_for_a_document_prompt(tmp_path: Path, ledger: Ledger) -> None:
    """The one difference: sentence-transformers' empty placeholder, `document`, hides a model's `passage` (6.2)."""
    place = write_chain(tmp_path / "x", "mean", prompts={"query": "hello: ", "passage": "a b: "})
    export(place, tmp_path / "store/tiny")
    theirs = SentenceTransformer(str(place), device="cpu")
    got = vectors(tmp_path / "store", TEXTS, input_type="document")
    expected = theirs.encode(TEXTS, prompt_name="passage")
    ledger.check("input_type", "passage", float(np.abs(got - expected).max()), 1e-5)
    assert np.abs(theirs.encode_document(TEXTS) - expected).max() > 1e-3
