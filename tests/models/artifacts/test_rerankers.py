"""Causal rerankers: which tokens make their score, how their text is made, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.artifacts import card as cards
from models.artifacts import chat_templates
from models.artifacts.card import Card
from models.artifacts.description import warnings
from models.artifacts.export import export
from models.artifacts.known_rerankers import KNOWN, QWEN3
from models.artifacts.rerankers import WEIGHT
from models.artifacts.weights import tensors as stored
from models.errors import BadCheckpoint, ModelError
from models.recipes.heads import PairTemplate
from tests.classifier_models import tensors
from tests.golden_cases import write_json, write_tiny_bert
from tests.reranker_models import IDS, TEMPLATE, configure_modules, write_reranker

YES_NO = {"true_token_id": IDS["yes"], "false_token_id": IDS["no"], "module_input_name": "causal_logits"}
OWN = PairTemplate("<|im_start|> judge ", " : ", " : ", " <|im_end|> system", "a b")
PLAIN = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}system"


def exported(folder: Path, **options: Any) -> Card:
    return export(folder, folder.parent / "out", **options)


def row(card: Card, folder: Path) -> Any:
    return stored(folder.parent / "out", card)[WEIGHT]


def test_files_of_a_logit_score_make_a_reranker(tmp_path: Path) -> None:
    folder = write_reranker(tmp_path / "x", score=YES_NO)
    card = exported(folder)
    assert card.classifier is not None, card.no_classifier_reason
    assert card.classifier.template == OWN
    assert (card.classifier.pooling, card.classifier.activation, card.classifier.ranks) == (
        "lasttoken",
        "sigmoid",
        True,
    )
    assert card.default_output == "class_logits"
    assert card.row_graphs is not None
    assert card.row_graphs.row == "last"
    table = tensors(folder)["model.embed_tokens.weight"]
    np.testing.assert_array_equal(row(card, folder)[0], table[IDS["yes"]] - table[IDS["no"]])
    assert cards.read(tmp_path / "out") == card


def test_one_token_alone_is_a_score(tmp_path: Path) -> None:
    folder = write_reranker(tmp_path / "x", score=YES_NO | {"false_token_id": None})
    table = tensors(folder)["model.embed_tokens.weight"]
    np.testing.assert_array_equal(row(exported(folder), folder)[0], table[IDS["yes"]])


@pytest.mark.parametrize(
    "score",
    [{"true_token_id": 99, "false_token_id": None}, {"true_token_id": "yes"}, YES_NO | {"module_input_name": "logits"}],
)
def test_rejects_a_score_of_no_tokens(score: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match=r"token|module_input_name"):
        exported(write_reranker(tmp_path / "x", score=score))


def test_the_default_prompt_is_the_instruction(tmp_path: Path) -> None:
    folder = write_reranker(tmp_path / "x", score=YES_NO)
    configure_modules(folder, prompts={"own": "c d"}, default_prompt_name="own")
    card = exported(folder)
    assert card.classifier is not None
    assert card.classifier.template is not None
    assert card.classifier.template.instruction == "c d"
    assert (card.prompts, card.default_prompt) == ({}, None)


def test_a_template_that_has_no_place_for_an_instruction(tmp_path: Path) -> None:
    card = exported(write_reranker(tmp_path / "x", PLAIN, score=YES_NO))
    assert card.classifier is not None
    assert card.classifier.template == PairTemplate("", "query ", " document ", " system")


def test_content_may_be_a_list_of_parts(tmp_path: Path) -> None:
    template = TEMPLATE.replace(".content", ".content[0].text").replace(
        "attribute='content'", "attribute='content.0.text'"
    )
    card = exported(write_reranker(tmp_path / "x", template, score=YES_NO))
    assert card.classifier is not None
    assert card.classifier.template == OWN


@pytest.mark.parametrize(
    "template",
    [
        None,
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
        "{{ raise_exception('no') }}",
        "{% if %}",
        "{{ ''.__class__.__mro__ }}{{ messages[0].content }}",
        "x" * 70_000,
        "{% set x = 'x' * 3000000000 %}{{ x }}",
        "{% for m in messages %}{{ m.content }}{{ 'x' * 2000000 }}{% endfor %}",
    ],
    ids=["none", "other roles", "raises", "no template", "attributes", "long", "memory", "much"],
)
def test_a_template_that_carries_no_pair_is_the_reason(template: str | None, tmp_path: Path) -> None:
    folder = write_reranker(tmp_path / "x", template, score=YES_NO)
    reason = "does not carry a query and a document"
    with pytest.raises(BadCheckpoint, match=f"as a reranker, whose scores cannot be exported: .*{reason}"):
        exported(folder)
    card = exported(folder, pooling="none")
    assert (card.classifier, reason in (card.no_classifier_reason or "")) == (None, True)


def test_bare_checkpoint_ranks_by_option_and_qwen3s_template(tmp_path: Path) -> None:
    folder = write_reranker(tmp_path / "x", None)
    assert exported(folder).classifier is None
    card = exported(folder, reranker="yes,no")
    assert card.classifier is not None
    assert card.classifier.template == QWEN3
    write_json(folder / "tokenizer_config.json", {"chat_template": TEMPLATE})
    card = exported(folder, reranker="yes,no")
    assert card.classifier is not None
    assert card.classifier.template == OWN


CHATML = "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }} <|im_end|> {% endfor %}"


def test_a_chat_template_of_any_role_is_no_prompt_of_pairs(tmp_path: Path) -> None:
    classifier = exported(write_reranker(tmp_path / "x", CHATML), reranker="yes,no").classifier
    assert classifier is not None
    assert classifier.template == QWEN3
    other = write_reranker(tmp_path / "y", CHATML, model_type="qwen2")
    with pytest.raises(BadCheckpoint, match=r"no file of y says how it reads a pair: .* --reranker qwen3-reranker or"):
        exported(other, reranker="yes,no")


@pytest.mark.parametrize("name", ["Qwen3-Reranker-0.6B", "ctxl-rerank-v2-1b"])
def test_known_rerankers_are_found_by_their_name(name: str, tmp_path: Path) -> None:
    card = exported(write_reranker(tmp_path / name, CHATML, architectures=["Qwen3ForCausalLM"]))
    assert card.classifier is not None
    known = next(row for row in KNOWN.values() if row.named in name.lower())
    assert card.classifier.template == known.template
    origins = {each.name: each.origin for each in card.provenance}
    assert origins["head"] == origins["template"] == f"the card of {known.card}"
    assert exported(tmp_path / name, encoder=False).classifier is None


def test_a_template_other_than_the_card_s_warns(tmp_path: Path) -> None:
    card = exported(write_reranker(tmp_path / "Qwen3-Reranker", architectures=["Qwen3ForCausalLM"]))
    assert card.classifier is not None
    assert card.classifier.template == OWN
    assert [warning for warning in warnings(card) if "the card of Qwen/Qwen3-Reranker-0.6B says" in warning]


def test_known_rerankers_are_chosen_by_option(tmp_path: Path) -> None:
    folder = write_reranker(tmp_path / "x", None)
    card = exported(folder, reranker="ctxl-rerank")
    assert card.classifier is not None
    np.testing.assert_array_equal(row(card, folder)[0], tensors(folder)["model.embed_tokens.weight"][0])
    with pytest.raises(BadCheckpoint, match="--reranker 'Yes' must be one or two entries of the vocabulary"):
        exported(folder, reranker="zerank")


@pytest.mark.parametrize("option", ["yes,no,a", "yes,nay", ""])
def test_rejects_tokens_that_are_not_there(option: str, tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="--reranker"):
        exported(write_reranker(tmp_path / "x"), reranker=option)


def test_rejects_the_option_for_a_model_without_logits(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="no output head"):
        exported(write_tiny_bert(tmp_path / "x"), reranker="a,b")


def test_capped_logits_are_the_reason(tmp_path: Path) -> None:
    folder = write_reranker(tmp_path / "x", score=YES_NO, model_type="gemma2", final_logit_softcapping=30.0)
    with pytest.raises(BadCheckpoint, match="hidden states times a matrix alone"):
        exported(folder, encoder=True)
    assert exported(folder, pooling="none").no_blocks_reason  # as any decoder that pools nothing


def test_a_template_that_does_not_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_templates, "SECONDS", 1)
    endless = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
    assert chat_templates.rendered(endless, {}, [[], []]) == [None, None]


def test_a_template_without_jinja2_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "process.py"
    script.write_text("import sys; sys.exit(3)")
    monkeypatch.setattr(chat_templates, "SCRIPT", script)
    with pytest.raises(ModelError, match="jinja2: install it"):
        chat_templates.rendered("x", {}, [[]])
