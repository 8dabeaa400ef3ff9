"""Models whose token vectors are wider than the rows between their blocks."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from models.artifacts import card as cards
from models.artifacts.export import export
from models.artifacts.verification import verify
from tests.golden_cases import write_json
from tests.served import Served, serving
from tests.whole_models import write_whole

KEYS = {"global_head_dim": 16, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 16, "embedding_dim": 48}
RATES = {"rope_type": "default", "rope_theta": 10000.0}
IDS = [5, 6, 7]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wider")
    ropes = {"full_attention": RATES, "sliding_attention": RATES}
    checkpoint = write_whole(folder / "x", "embedding_gemma2_text", rope_parameters=ropes, sliding_window=4, **KEYS)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    write_json(
        checkpoint / "modules.json", [{"idx": place, "name": str(place)} | own for place, own in enumerate(modules)]
    )
    write_json(checkpoint / "1_Pooling/config.json", {"word_embedding_dimension": 48, "pooling_mode_mean_tokens": True})
    export(checkpoint, folder / "store/wider")
    return folder / "store"


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    with serving(folder) as running:
        yield running


def test_the_card_states_both_widths(folder: Path) -> None:
    card = cards.read(folder / "wider")
    assert (card.hidden_size, card.token_width, card.sentence_width, card.answer_width) == (16, 48, 48, 48)
    assert verify(folder / "wider") == card.largest_difference


def test_sentences_are_means_of_token_vectors(served: Served) -> None:
    answer = served.post({"inputs": [IDS], "outputs": ["last_hidden_state"]}).raise_for_status().json()
    rows = np.array(answer["outputs"]["last_hidden_state"])
    vector = np.array(served.post({"inputs": [IDS]}).raise_for_status().json())[0]
    assert vector.shape == (48,)
    mean = rows.reshape(-1, 48).mean(axis=0)
    assert np.abs(vector - mean / np.linalg.norm(mean)).max() < 1e-6


def test_dimensions_go_up_to_the_width_of_tokens(served: Served) -> None:
    assert len(served.post({"inputs": [IDS], "pooling": "cls", "dimensions": 48}).raise_for_status().json()[0]) == 48
    assert served.post({"inputs": [IDS], "dimensions": 49}).status_code == 422


def test_metadata_states_the_width(served: Served) -> None:
    outputs = served.http.get("/v2/models/wider").raise_for_status().json()["outputs"]
    assert {each["name"]: each["shape"][-1] for each in outputs if each["name"] != "lengths"}["last_hidden_state"] == 48
    model = served.http.get("/models").raise_for_status().json()["models"][0]
    assert (model["hidden_size"], model["sentence_width"]) == (16, 48)
