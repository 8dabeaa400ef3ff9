"""When the blocks of decoders are exported, and what is said where they are not."""

import json
from pathlib import Path
from typing import Any

import pytest

from models.artifacts.description import blocks_summary, describe
from models.artifacts.export import export
from models.artifacts.text_export import MAY_BE_WHOLE
from models.errors import BadCheckpoint, ReferenceMismatch
from models.reference import interpreter
from tests.golden_cases import case, write_checkpoint, write_json, write_sentence_files
from tests.whole_models import write_whole


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write_whole(tmp_path / "llama", "llama")


def test_a_decoder_is_exported_whole_where_it_pools(llama: Path, tmp_path: Path) -> None:
    assert export(llama, tmp_path / "option", pooling="lasttoken").encoder
    write_sentence_files(llama, "lasttoken")
    assert export(llama, tmp_path / "files").encoder


def test_a_decoder_is_exported_whole_on_request(llama: Path, tmp_path: Path) -> None:
    card = export(llama, tmp_path / "out", encoder=True)
    assert "last_hidden_state" in card.outputs
    assert card.no_blocks_reason is None
    assert blocks_summary(card) is None


def test_the_card_of_an_input_layer_says_how_to_get_the_rest(llama: Path, tmp_path: Path) -> None:
    card = export(llama, tmp_path / "out")
    assert card.encoder == ()
    assert card.no_blocks_reason == MAY_BE_WHOLE
    assert f"input layer alone: {MAY_BE_WHOLE}" in describe(str(tmp_path / "out"))
    assert "blocks: exported if it pools" in describe(str(llama))


def test_blocks_are_left_out_on_request(llama: Path, tmp_path: Path) -> None:
    assert export(llama, tmp_path / "out", encoder=False).no_blocks_reason == "--encoder none leaves its blocks out"
    with pytest.raises(BadCheckpoint, match=r"--encoder none leaves its blocks out; export that with --pooling none"):
        export(llama, tmp_path / "out", encoder=False, pooling="lasttoken")


def test_blocks_that_are_not_computed_are_refused(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(case("input_afmoe"), tmp_path / "x")
    with pytest.raises(BadCheckpoint, match=r"'afmoe'\) cannot be exported whole: mixture of experts, gated attention"):
        export(checkpoint, tmp_path / "out", encoder=True)
    assert export(checkpoint, tmp_path / "out").no_blocks_reason == "mixture of experts, gated attention"
    assert "mixture of experts" in describe("afmoe")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads 3; it must be a number that divides"),
        ({"intermediate_size": 8}, "has shape"),
        ({"hidden_act": "xielu"}, "hidden_act 'xielu'"),
        ({"rope_scaling": {"rope_type": "ntk", "factor": 2.0}}, "is computed in several ways under one name"),
    ],
)
def test_faulty_blocks_of_a_decoder_cost_the_blocks_alone(
    changes: dict[str, object], fault: str, llama: Path, tmp_path: Path
) -> None:
    """A decoder's input layer, which is all that most exports of it hold, reads none of this."""
    write_json(llama / "config.json", {**_config(llama), **changes})
    assert fault in (export(llama, tmp_path / "out").no_blocks_reason or "")
    with pytest.raises(BadCheckpoint, match=fault):
        export(llama, tmp_path / "whole", encoder=True)


@pytest.mark.parametrize(("faults", "family"), [(1, "mixtral"), (1, "llama"), (9, "mixtral")])
def test_a_row_with_another_expert_than_in_float64_is_allowed(
    faults: int, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other check inputs no two experts' scores are equal but for rounding; a wrong graph differs in all."""
    checkpoint = write_whole(tmp_path / "x", family, num_local_experts=4)
    encode, left = interpreter.encode, [1.0] * faults

    def other(*given: Any, **more: Any) -> Any:
        return encode(*given, **more) + (left.pop() if left else 0.0)

    monkeypatch.setattr(interpreter, "encode", other)
    if family == "llama" or faults > 1:
        with pytest.raises(ReferenceMismatch):
            export(checkpoint, tmp_path / "out", encoder=True)
    else:
        assert export(checkpoint, tmp_path / "out", encoder=True).encoder


def test_key_heads_are_as_many_as_heads_by_default(tmp_path: Path) -> None:
    """Source: transformers 5.23, LlamaConfig."""
    checkpoint = write_whole(tmp_path / "x", "llama", num_key_value_heads=None)
    config = _config(checkpoint)
    del config["num_key_value_heads"]
    write_json(checkpoint / "config.json", config)
    assert export(checkpoint, tmp_path / "out", encoder=True).encoder


def _config(folder: Path) -> dict[str, object]:
    config: dict[str, object] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config
