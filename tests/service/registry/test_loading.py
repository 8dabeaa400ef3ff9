"""A model is loaded from the files that were exported; what it runs gives the same bits whatever a batch holds."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.artifacts import hash_checks
from models.artifacts.export import export
from models.errors import BadCard
from models.graphs.row_layout import LONG, MOST_ONE_BY_ONE
from service.embedding.execution import EXACT_TOKENS
from service.embedding.pipeline import EmbeddingPipeline
from service.embedding.requests import Ids
from service.observability.metrics import Metrics
from service.registry.registry import open_registry
from service.settings import Settings
from tests.embed_requests import embed_request
from tests.golden_cases import WORDS, tiny_bert, tiny_config, write_folder
from tests.service.registry.registry_service import Service, write


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """The weights of the only model of a store, which was loaded once."""
    write(tmp_path / "store", "a")
    Service(tmp_path / "store")
    return tmp_path / "store/a/weights.safetensors"


@pytest.mark.parametrize("content", [bytes, os.urandom])
def test_other_weights_of_the_same_size_are_refused(content: Any, weights: Path) -> None:
    held = weights.read_bytes()
    header = 8 + int.from_bytes(held[:8], "little")
    weights.write_bytes(held[:header] + content(len(held) - header))
    for setting in ("changed", "always"):
        with pytest.raises(BadCard, match=f"{weights} is not the file its card was written for"):
            Service(weights.parents[1], verify=setting)
    Service(weights.parents[1], verify="off")


def test_damaged_graph_is_named_by_its_hash(weights: Path) -> None:
    graph = weights.with_name("encoder.onnx")
    graph.write_bytes(bytes(graph.stat().st_size))
    with pytest.raises(BadCard, match=f"{graph} is not the file its card was written for"):
        Service(weights.parents[1])


def test_files_are_read_again_when_they_changed_alone(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    hashes = hash_checks.hashes
    monkeypatch.setattr(hash_checks, "hashes", lambda *given: read.extend(given[1]) or hashes(*given))
    Service(weights.parents[1])
    assert read == []
    os.utime(weights)
    weights.with_name("tokenizer.json").rename(weights.with_name("aside"))
    weights.with_name("tokenizer.json").write_bytes(weights.with_name("aside").read_bytes())
    Service(weights.parents[1])
    assert sorted(read) == ["tokenizer.json", "weights.safetensors"]
    read.clear()
    Service(weights.parents[1], verify="always")
    assert len(read) > 2


def test_list_of_checked_files_appears_whole(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, seen = set(weights.parent.iterdir()), []
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda *paths: seen.append(set(weights.parent.iterdir())) or replace(*paths))
    os.utime(weights)
    Service(weights.parents[1])
    assert seen == [kept]
    assert {path.name for path in weights.parents[1].iterdir()} == {"a"}


@pytest.mark.parametrize("content", [b"", b"[]", b"\0", b'{"weights.safetensors": 3}'])
def test_damaged_list_of_checked_files_is_written_again(content: bytes, weights: Path) -> None:
    checked = weights.with_name(".checked.json")
    before = checked.read_bytes()
    checked.write_bytes(content)
    Service(weights.parents[1])
    assert checked.read_bytes() == before


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
