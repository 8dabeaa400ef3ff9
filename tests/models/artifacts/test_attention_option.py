"""`--attention`: how a decoder attends where its config.json does not say, or says otherwise."""

from pathlib import Path
from typing import Any

import pytest

from models.artifacts.card import Card
from models.artifacts.description import describe
from models.artifacts.export import export
from models.errors import BadCheckpoint, ModelError
from models.families.attention_direction import Attention as Direction
from models.recipes.steps import Attention, layers
from tests.golden_cases import case, write_checkpoint, write_tiny_bert
from tests.vision_cases import write_seen
from tests.whole_models import write_whole

CODE = {"auto_map": {"AutoModel": "modeling_own.OwnModel"}}


def exported(folder: Path, attention: Direction | None, model_type: str = "llama", **changes: Any) -> Card:
    return export(write_whole(folder / "x", model_type, **changes), folder / "out", encoder=True, attention=attention)


def seen(card: Card) -> list[tuple[int | None, int | None]]:
    """How many rows each attention step sees before and behind its own."""
    return [(step.left, step.right) for step in layers(card.encoder) if isinstance(step, Attention)]


GEMMA: dict[str, Any] = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
WINDOWED = {"sliding_window": 8}
# by transformers 5.23: masking_utils, and Gemma3TextConfig, which halves the window of use_bidirectional_attention
CASES: list[tuple[str, dict[str, Any], Direction | None, list[tuple[int | None, int | None]], str]] = [
    ("llama", {}, None, [(None, 0)] * 2, ""),
    ("llama", {}, "causal", [(None, 0)] * 2, "attention is causal, by --attention; config.json says nothing of it"),
    ("llama", {}, "bidirectional", [(None, None)] * 2, "attention is bidirectional, by --attention"),
    ("llama", {"is_causal": False}, None, [(None, None)] * 2, ""),
    ("llama", {"is_causal": False}, "bidirectional", [(None, None)] * 2, ""),
    ("llama", {"is_causal": False}, "causal", [(None, 0)] * 2, "config.json says is_causal False"),
    ("mistral", WINDOWED, "causal", [(7, 0)] * 2, "says nothing of it"),
    ("mistral", WINDOWED, "bidirectional", [(8, 8)] * 2, "says nothing of it"),
    ("gemma3_text", GEMMA, "causal", [(7, 0), (None, 0)], "says nothing of it"),
    ("gemma3_text", GEMMA, "bidirectional", [(4, 4), (None, None)], "says nothing of it"),
    (
        "gemma3_text",
        GEMMA | {"use_bidirectional_attention": True},
        "causal",
        [(7, 0), (None, 0)],
        "config.json says use_bidirectional_attention True",
    ),
    ("gemma3_text", GEMMA | {"use_bidirectional_attention": True}, "bidirectional", [(4, 4), (None, None)], ""),
]


@pytest.mark.parametrize(("model_type", "config", "attention", "rows", "note"), CASES)
def test_blocks_and_masks_attend_as_told(
    model_type: str,
    config: dict[str, Any],
    attention: Direction | None,
    rows: list[tuple[int | None, int | None]],
    note: str,
    tmp_path: Path,
) -> None:
    card = exported(tmp_path, attention, model_type, **config)
    assert seen(card) == rows
    assert {mask.causal for mask in card.encodings.masks.values()} == {rows[0][1] == 0}
    windows = {mask.window for mask in card.encodings.masks.values() if mask.window}
    assert windows == {behind or before + 1 for before, behind in rows if before is not None}
    assert note in " ".join(card.assumed)
    assert bool(note) == bool(card.assumed)
    if note:
        assert note in describe(str(tmp_path / "out"))


def test_code_of_its_own_that_may_attend_otherwise_is_refused(tmp_path: Path) -> None:
    for unsaid in ({}, {"use_bidirectional_attention": None}):
        with pytest.raises(BadCheckpoint, match=r"\d+ says auto_map modeling_own\.OwnModel.*add --attention causal"):
            exported(tmp_path, None, **CODE, **unsaid)
    for attention in ("causal", "bidirectional"):
        assert exported(tmp_path, attention, **CODE).assumed  # type: ignore[arg-type]
    assert not exported(tmp_path, None, **CODE, is_causal=False).assumed
    assert not exported(tmp_path, None, "gemma3_text", **CODE, **GEMMA, use_bidirectional_attention=True).assumed
    assert export(tmp_path / "x", tmp_path / "out", encoder=False).encoder == ()


def test_code_for_heads_alone_is_not_asked_about(tmp_path: Path) -> None:
    """AutoModel gives the usual class then, which the blocks follow."""
    exported(tmp_path, None, auto_map={"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"})


def test_rejects_attention_of_what_is_no_whole_decoder(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="'bert' is none: leave it out"):
        export(write_tiny_bert(tmp_path / "bert"), tmp_path / "out", attention="causal")
    with pytest.raises(BadCheckpoint, match=r"decoders exported whole, and .* is not: mixture of experts"):
        export(write_checkpoint(case("input_afmoe"), tmp_path / "afmoe"), tmp_path / "out", attention="causal")
    with pytest.raises(ModelError, match="leave out --attention"):
        export(write_seen(case("vision_vit"), tmp_path / "vit"), tmp_path / "out", attention="causal")
