"""What of a family is exported follows from the checkpoint's config and tensors."""

import json
from pathlib import Path

import pytest

from models.artifacts.export import export
from tests.golden_cases import case, write_checkpoint


@pytest.mark.parametrize("key", ["num_hidden_groups", "inner_group_num"])
def test_blocks_of_another_form_are_left_out(key: str, tmp_path: Path) -> None:
    folder = write_checkpoint(case("encoder_albert"), tmp_path / "x")
    whole = export(folder, tmp_path / "whole")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {key: 2}))
    card = export(folder, tmp_path / "out")
    assert set(whole.outputs) - set(card.outputs) == {"last_hidden_state"}
