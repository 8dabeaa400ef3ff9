"""Every model type runs whole or has a phrase that says why it does not."""

import pytest

from models.families import FAMILIES
from models.families.uncovered import UNCOVERED, uncovered

WITHOUT_BLOCK = [name for name, family in FAMILIES.items() if not family.block and family.side != "decoder"]


def test_every_family_without_a_block_has_a_phrase() -> None:
    assert [name for name in WITHOUT_BLOCK if name not in UNCOVERED] == []


def test_a_family_that_runs_whole_has_no_phrase() -> None:
    assert [name for name in UNCOVERED if name not in WITHOUT_BLOCK] == []


@pytest.mark.parametrize(
    ("model_type", "phrase"),
    [
        ("glm4_moe", "mixture of experts"),
        ("qwen3_moe", None),
        ("mamba", "state-space layers"),
        ("whisper", "an encoder's output is attended to"),
        ("bert", None),
    ],
)
def test_a_phrase_says_what_is_not_computed(model_type: str, phrase: str | None) -> None:
    assert uncovered(model_type, FAMILIES[model_type]) == phrase


def test_a_decoder_attends_to_its_encoder() -> None:
    decoder = FAMILIES["bart"].decoder
    assert decoder is not None
    assert uncovered("bart", decoder) == "an encoder's output is attended to"
