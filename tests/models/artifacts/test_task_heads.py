"""Classification heads of checkpoints: what an export finds of them, refuses, and says where it finds none."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.artifacts import card as cards
from models.artifacts.card import Card
from models.artifacts.description import describe
from models.artifacts.export import export
from models.artifacts.random_checkpoint import add_head, create
from models.artifacts.verification import verify
from models.errors import BadCheckpoint, ModelError
from models.families import FAMILIES
from models.families.classifiers import CLASSIFIERS
from tests.classifier_models import SIZES, configure, rewrite, tensors, write_classifier
from tests.golden_cases import write_json, write_tiny_bert
from tests.sweeps import sampled

SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"
SEQUENCE = [
    name for name, spec in CLASSIFIERS.items() if spec.layers and name not in ("jina_bert", "xlm_roberta_flash")
]


def exported(folder: Path, **options: Any) -> Card:
    return export(folder, folder.parent / "out", **options)


@pytest.mark.parametrize("model_type", sampled(SEQUENCE, 4))
def test_every_family_exports_the_head_that_create_writes(model_type: str, tmp_path: Path) -> None:
    own = {"num_key_value_heads": 2} if "num_key_value_heads" in FAMILIES[model_type].defaults else {}
    own |= {"rotary_dim": 4} if model_type == "gptj" else {}
    write_classifier(tmp_path / "x", model_type, 3, **own)
    card = exported(tmp_path / "x")
    assert card.classifier is not None, card.no_classifier_reason
    assert card.classifier.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert (card.default_output, card.vocab_size, card.hidden_size) == (
        "class_logits",
        SIZES["vocab_size"],
        SIZES["hidden_size"],
    )
    assert cards.read(tmp_path / "out") == card
    assert verify(tmp_path / "out")["class_logits"] < 1e-5


def test_one_side_of_bart_classifies_nothing(tmp_path: Path) -> None:
    write_classifier(tmp_path / "x", "bart", 3)
    with pytest.raises(BadCheckpoint, match="it classifies its decoder's rows, and the encoder alone is exported"):
        exported(tmp_path / "x", side="encoder")
    card = exported(tmp_path / "x", pooling="mean")
    assert (card.classifier, card.side) == (None, "encoder")
    assert "its decoder's rows" in (card.no_classifier_reason or "")


def test_an_unknown_head_leaves_the_rest_and_a_reason(tmp_path: Path) -> None:
    write_tiny_bert(tmp_path / "x", pooling="mean", architectures=["BertForSequenceClassification"])
    card = exported(tmp_path / "x")
    assert card.classifier is None
    assert "pooler.dense.weight" in (card.no_classifier_reason or "")
    assert card.default_output == "sentence_embedding"
    assert "class_logits" not in card.outputs
    assert "none: the checkpoint holds no pooler.dense.weight" in describe(str(tmp_path / "out"))
    assert "none: the checkpoint holds no pooler.dense.weight" in describe(str(tmp_path / "x"))


def test_a_family_without_a_known_head_exports_its_rows(tmp_path: Path) -> None:
    sizes = tmp_path / "sizes.json"
    write_json(
        sizes, SIZES | {"num_key_value_heads": 2, "head_dim": 8, "architectures": ["XForSequenceClassification"]}
    )
    create(tmp_path / "x", model_type="granite", config=write_plain(sizes), whole=True)
    configure(tmp_path / "x", architectures=["GraniteForSequenceClassification"])
    with pytest.raises(BadCheckpoint, match=r"published as Granite\w+ \(.*whose scores cannot"):
        exported(tmp_path / "x", encoder=True)
    card = exported(tmp_path / "x", encoder=True, pooling="none")
    assert "'granite' classifies texts is not known" in (card.no_classifier_reason or "")
    assert "last_hidden_state" in card.outputs


@pytest.mark.parametrize(
    ("model_type", "name", "reason"),
    [
        ("mbart", "MBartForSequenceClassification", "how model_type 'mbart' classifies texts is not known"),
        ("qwen3", "JinaVLForRanking", "how JinaVLForRanking ranks is not known"),
    ],
)
def test_checkpoints_for_scores_alone_are_not_exported_without(
    model_type: str, name: str, reason: str, tmp_path: Path
) -> None:
    sizes = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 64}
    sizes |= {"decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 64}
    write_json(tmp_path / "sizes.json", SIZES | {"num_key_value_heads": 2, "head_dim": 8} | sizes)
    create(tmp_path / "x", model_type=model_type, config=tmp_path / "sizes.json", whole=True)
    configure(tmp_path / "x", architectures=[name])
    with pytest.raises(BadCheckpoint, match=f"x is published as {name} .*config.json:1.* cannot be exported: {reason}"):
        exported(tmp_path / "x")
    assert exported(tmp_path / "x", pooling="mean").default_output == "sentence_embedding"


def write_plain(sizes: Path) -> Path:
    write_json(sizes, SIZES | {"num_key_value_heads": 2, "head_dim": 8})
    return sizes


def test_a_checkpoint_of_another_class_has_no_reason(tmp_path: Path) -> None:
    card = exported(write_tiny_bert(tmp_path / "x", architectures=["BertModel"]))
    assert (card.classifier, card.no_classifier_reason) == (None, None)


def test_without_its_blocks_a_model_does_not_classify(tmp_path: Path) -> None:
    card = exported(write_classifier(tmp_path / "x"), encoder=False)
    assert card.classifier is None
    assert "leaves its blocks out" in (card.no_classifier_reason or "")
    assert card.default_output == "input_embeddings"


def test_a_causal_classifier_is_exported_whole(tmp_path: Path) -> None:
    write_classifier(tmp_path / "x", "qwen2", 2, num_key_value_heads=2)
    card = exported(tmp_path / "x")
    assert card.encoder
    assert card.classifier is not None
    assert (card.classifier.pooling, card.classifier.pad_id) == ("lasttoken", 0)
    assert card.row_graphs is None  # which row that is depends on the ids


@pytest.mark.parametrize(
    ("name", "shape"),
    [("classifier.weight", (2, 16)), ("classifier.bias", (3,)), ("bert.pooler.dense.weight", (32, 16))],
)
def test_rejects_a_head_of_other_shapes(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    write_classifier(tmp_path / "x", labels=2)
    rewrite(tmp_path / "x", tensors(tmp_path / "x") | {name: np.zeros(shape, np.float32)})
    with pytest.raises(BadCheckpoint, match=name):
        exported(tmp_path / "x")


@pytest.mark.parametrize("keys", [{"id2label": {"0": "a", "1": "b", "2": "c"}}, {"id2label": {"1": "a", "2": "b"}}])
def test_rejects_labels_that_are_not_the_heads(keys: dict[str, Any], tmp_path: Path) -> None:
    configure(write_classifier(tmp_path / "x", labels=2), **keys)
    with pytest.raises(BadCheckpoint, match="id2label"):
        exported(tmp_path / "x")


def test_labels_and_problem_type_are_on_the_card(tmp_path: Path) -> None:
    folder = write_classifier(tmp_path / "x", labels=2)
    configure(folder, id2label={"1": "yes", "0": "no"}, problem_type="multi_label_classification")
    classifier = exported(folder).classifier
    assert classifier is not None
    assert (classifier.labels, classifier.problem_type) == (("no", "yes"), "multi_label_classification")
    configure(folder, problem_type="other")
    with pytest.raises(BadCheckpoint, match="problem_type 'other'"):
        exported(folder)


@pytest.mark.parametrize(
    ("labels", "config", "beside", "activation"),
    [
        (1, {}, None, "sigmoid"),
        (3, {}, None, "identity"),
        (1, {"sentence_transformers": {"activation_fn": IDENTITY}}, None, "identity"),
        (1, {"sbert_ce_default_activation_function": IDENTITY}, None, "identity"),
        (3, {"sentence_transformers": {"activation_fn": SIGMOID}}, None, "sigmoid"),
        (1, {"sentence_transformers": {"activation_fn": SIGMOID}}, IDENTITY, "identity"),
        (1, {"sentence_transformers": {"activation_fn": IDENTITY}}, "own.package.Function", "identity"),
        (1, {"sentence_transformers": {"activation_fn": "own.package.Function"}}, None, "sigmoid"),
        (1, {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}, None, "tanh"),
        (1, {}, "torch.nn.modules.activation.ReLU", "relu"),
    ],
)
def test_scores_are_activated_as_by_a_cross_encoder(
    labels: int, config: dict[str, Any], beside: str | None, activation: str, tmp_path: Path
) -> None:
    folder = write_classifier(tmp_path / "x", labels=labels)
    configure(folder, **config)
    if beside:
        write_json(folder / "config_sentence_transformers.json", {"activation_fn": beside})
    classifier = exported(folder).classifier
    assert classifier is not None
    assert classifier.activation == activation


def test_an_activation_that_is_not_computed_is_refused(tmp_path: Path) -> None:
    folder = write_classifier(tmp_path / "x")
    configure(folder, sentence_transformers={"activation_fn": "torch.nn.modules.activation.Softplus"})
    with pytest.raises(BadCheckpoint, match=r"scores cannot be exported: its scores are torch.*Softplus"):
        exported(folder)
    assert exported(folder, encoder=False).default_output == "input_embeddings"


def test_token_classification_gives_logits_of_tokens(tmp_path: Path) -> None:
    folder = write_classifier(
        tmp_path / "x",
        labels=None,
        architectures=["BertForTokenClassification"],
        id2label={"0": "O", "1": "B", "2": "I"},
    )
    assert "classifier.weight" in tensors(folder)
    assert not any("pooler" in name for name in tensors(folder))
    card = exported(folder)
    assert card.classifier is not None
    assert (card.classifier.pooling, card.classifier.labels, card.default_output) == (
        None,
        ("O", "B", "I"),
        "token_class_logits",
    )
    assert "class_logits" not in card.outputs


def test_a_head_is_added_to_a_copy_of_a_checkpoint(tmp_path: Path) -> None:
    base = write_tiny_bert(tmp_path / "base", pooling="mean")
    add_head(tmp_path / "x", base, 2, seed=5)
    add_head(tmp_path / "again", base, 2, seed=5)
    add_head(tmp_path / "other", base, 2, seed=6)
    held, kept = tensors(tmp_path / "x"), tensors(base)
    for name, tensor in kept.items():
        np.testing.assert_array_equal(held[f"bert.{name}"], tensor)
    drawn = set(held) - {f"bert.{name}" for name in kept}
    assert drawn == {"bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias"}
    np.testing.assert_array_equal(held["classifier.weight"], tensors(tmp_path / "again")["classifier.weight"])
    assert (held["classifier.weight"] != tensors(tmp_path / "other")["classifier.weight"]).any()
    assert exported(tmp_path / "x").default_output == "class_logits"


def test_rejects_a_head_for_a_family_that_has_none(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="'granite' classifies is not known"):
        create(tmp_path / "x", model_type="granite", config=write_plain(tmp_path / "sizes.json"), labels=1)
    with pytest.raises(ModelError, match="--labels 0"):
        create(tmp_path / "x", model_type="bert", labels=0)
