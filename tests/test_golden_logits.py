"""Every golden case with logits: checkpoint → export → reference, head.onnx and HTTP, against transformers' own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts import card as cards
from models.artifacts import weights
from models.artifacts.comparison import Session
from models.artifacts.export import export
from models.reference import head as head_reference
from tests.golden_cases import Case, cases, write_checkpoint
from tests.served import Served, serving
from tests.sweeps import sampled

CASES = [case for case in cases("input_layer") if "logits" in case.arrays]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them, exported."""
    folder = tmp_path_factory.mktemp("logits")
    for case in CASES:
        export(write_checkpoint(case, folder / "checkpoints" / case.name), folder / "store" / case.name, side=case.side)
    return folder / "store"


@pytest.fixture(scope="module")
def served(store: Path) -> Iterator[Served]:
    with serving(store, default_model="input_bert") as service:
        yield service


def check(case: Case, logits: NDArray[Any]) -> None:
    expected = case.arrays["logits"]
    np.testing.assert_allclose(logits.reshape(expected.shape), expected, **case.tolerance["logits"])
    # the tolerance is for other machines; ours differ from float64 by rounding alone
    np.testing.assert_allclose(logits.reshape(expected.shape), expected, rtol=0, atol=1e-5)


def rows(case: Case) -> NDArray[np.float32]:
    hidden = case.arrays["head_in"]
    return hidden.reshape(-1, hidden.shape[-1])


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_the_reference_gives_the_logits_of_transformers(case: Case, store: Path) -> None:
    card = cards.read(store / case.name)
    assert card.head is not None
    assert card.no_head_reason is None
    assert card.head.vocab_size == case.arrays["logits"].shape[-1]
    check(case, head_reference.logits(card.head, weights.tensors(store / case.name, card), rows(case)))


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_the_graph_gives_the_logits_of_transformers(case: Case, store: Path) -> None:
    session = Session(store / case.name / "head.onnx")
    check(case, session.run({"hidden": rows(case)}, ("logits",))["logits"])


@pytest.mark.parametrize("case", sampled(CASES, 5), ids=repr)
def test_the_service_gives_the_logits_of_transformers(case: Case, served: Served) -> None:
    hidden, expected = case.arrays["head_in"], case.arrays["logits"]
    answer = served.http.post(f"/models/{case.name}/logits", json={"hidden": hidden.tolist()}).raise_for_status()
    assert answer.json()["shapes"] == {"logits": list(expected.shape)}
    check(case, np.array(answer.json()["logits"]))
    best = served.http.post(f"/models/{case.name}/logits", json={"hidden": hidden.tolist(), "top_k": 3}).json()
    ids = np.array(best["ids"])
    np.testing.assert_allclose(np.take_along_axis(expected, ids, -1), -np.sort(-expected)[..., :3], atol=1e-5)
    shares = np.exp(expected.astype(np.float64) - expected.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(best["probabilities"], np.take_along_axis(shares, ids, -1), rtol=2e-5, atol=1e-9)
