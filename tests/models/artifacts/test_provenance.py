"""The card's provenance: what an export took from which file, and where two places disagree."""

import re
from pathlib import Path

import pytest

from models.artifacts import card as cards
from models.artifacts.adoption import adopt
from models.artifacts.description import warnings
from models.artifacts.export import export
from models.checkpoints.provenance import Setting
from service.cli.main import main
from tests.golden_cases import write_sentence_files, write_tiny_bert
from tests.models.artifacts.test_adoption import folder_of, model
from tests.reranker_models import write_reranker
from tests.score_models import write_classifier
from tests.sentence_chains import write_chain
from tests.static_golden import static_case
from tests.vision_cases import export_seen, seen


def by_name(card: cards.Card) -> dict[str, tuple[str, str]]:
    return {each.name: (each.value, each.origin) for each in card.provenance}


def test_settings_name_the_file_that_they_are_from(tmp_path: Path) -> None:
    folder = write_chain(tmp_path / "x", "cls", prompts={"query": "q: "}, default_prompt_name="query")
    card = export(folder, tmp_path / "out")
    assert by_name(card)["pooling"] == ("cls", "1_Pooling/config.json")
    assert by_name(card)["prompt"] == ("query ('q: ')", "config_sentence_transformers.json")
    assert by_name(card)["longest input"][0] == f"{card.max_tokens} tokens"
    assert cards.read(tmp_path / "out") == card
    assert warnings(card) == []


def test_an_option_against_the_files_warns(tmp_path: Path) -> None:
    card = export(write_chain(tmp_path / "x", "cls"), tmp_path / "out", pooling="mean")
    (setting,) = [each for each in card.provenance if each.name == "pooling"]
    assert setting == Setting("pooling", "mean", "--pooling", "1_Pooling/config.json says cls")
    assert warnings(card) == ["pooling is mean by --pooling, but 1_Pooling/config.json says cls"]


def test_heads_name_class_activation_and_template(tmp_path: Path) -> None:
    write_classifier(tmp_path / "x", ("a", "b"))
    settings = by_name(export(tmp_path / "x", tmp_path / "out"))
    assert settings["head"] == ("BertForSequenceClassification", "config.json: architectures")
    assert settings["activation"] == ("identity", "no file; the usual one of 2 labels")
    write_reranker(tmp_path / "ranker", score={"true_token_id": 3, "false_token_id": 4})
    settings = by_name(export(tmp_path / "ranker", tmp_path / "ranks"))
    assert settings["head"] == ("logit of 'yes' minus that of 'no'", "LogitScore")
    assert settings["template"] == (
        "'<|im_start|> judge a b : QUERY : DOCUMENT <|im_end|> system'",
        "chat_template.jinja",
    )


def test_export_prints_the_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny_bert(tmp_path / "x", pooling="mean")
    assert main(["export", str(tmp_path / "x"), str(tmp_path / "out"), "--pooling", "cls"]) == 0
    printed = capsys.readouterr()
    assert re.search("^pooling +--pooling", printed.out, re.MULTILINE)
    assert "warning: pooling is cls by --pooling, but 1_Pooling/config.json says mean" in printed.err


def test_adopted_static_and_image_models_say_it_too(tmp_path: Path) -> None:
    onnx = folder_of(tmp_path / "onnx", model())
    write_sentence_files(onnx, "cls")
    adopted = by_name(adopt(onnx, tmp_path / "adopted"))
    assert adopted["pooling"] == ("cls, normalised", "1_Pooling/config.json")
    static = by_name(export(static_case("model2vec_mapping").folder, tmp_path / "static"))
    assert static["pooling"] == ("mean, normalised", "config.json")
    assert static["longest input"][0] == "512 tokens"
    (tower,) = [each for each in seen() if each.name == "vision_clip"]
    image = by_name(
        export_seen(tower, tmp_path / "tower", tmp_path / "image", {"image_processor_type": "CLIPImageProcessor"})
    )
    assert image["pictures"][1] == "preprocessor_config.json"
    assert image["vector"][1] == "the model's family"
