"""Describes the server and its models as the protocol and Triton do, for JSON and protobuf alike."""

from typing import Any

from models.artifacts.card import CLASS_LOGITS, IMAGE_VECTOR, MULTI_VECTOR, SPARSE, Card
from models.recipes.heads import ScoreActivation
from service.embedding.model import Model
from service.embedding.ranking import classifies, label_activation, reads_pairs
from service.settings import Settings

NAME = "inlay"
VERSION = "1"  # of every model
EXTENSIONS = ("binary_tensor_data", "model_configuration", "statistics", "parameters")
ONE_TEXT, PAIRS = {"text": [-1]}, {"text_pair": [-1], "query": [1], "documents": [-1]}
TOKENS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
Tensors = list[dict[str, Any]]


def server(version: str, settings: Settings) -> dict[str, Any]:
    """Return the server's metadata, with the extensions that are on."""
    repository = ["model_repository"] if settings.model_control == "explicit" else []
    return {"name": NAME, "version": version, "extensions": [*EXTENSIONS, *repository]}


def model_metadata(model: Model) -> dict[str, Any]:
    """Return a model's metadata; -1 is any size. Padded ids are [B, T]; flat ones, [N] with `lengths`, give [N, d]."""
    card = model.card
    inputs = [] if card.image else input_tensors(card)
    described = {"name": card.name, "versions": [VERSION], "platform": NAME}
    return {**described, "inputs": inputs, "outputs": _output_tensors(card)}


def model_config(model: Model) -> dict[str, Any]:
    """Return the part of Triton's model configuration that applies; batches form by load, so it has no batch sizes."""
    card, described = model.card, model_metadata(model)
    kind = "KIND_GPU" if model.engine.device == "cuda" else "KIND_CPU"
    required = [] if card.tokenizer else ["input_ids"]
    return {
        "name": card.name,
        "platform": "",
        "backend": NAME,
        "max_batch_size": 0,
        "version_policy": {"latest": {"num_versions": 1}},
        "input": [_configured(tensor) | {"optional": tensor["name"] not in required} for tensor in described["inputs"]],
        "output": [_configured(tensor) for tensor in described["outputs"]],
        "instance_group": [{"name": card.name, "kind": kind, "count": 1}],
    }


def input_tensors(card: Card) -> Tensors:
    """Return name, datatype and shape of each tensor of texts or token ids that a model takes."""
    texts = (ONE_TEXT | PAIRS if reads_pairs(card) else ONE_TEXT) if card.tokenizer else {}
    tokens = {name: [-1, -1] for name in TOKENS}
    for extra in card.extras:
        if extra.sent:
            tokens[extra.name] = [-1, -1] if extra.columns == 1 else [-1, -1, extra.columns]
    return _tensors("BYTES", texts) + _tensors("INT64", tokens | {"lengths": [-1]})


def _output_tensors(card: Card) -> Tensors:
    """Return name, datatype and shape of each tensor that a model gives, in FP32 unless the request says otherwise."""
    vectors = [-1, card.default_width]
    shapes = {"last_hidden_state": [-1, -1, card.token_width], "sentence_embedding": vectors, IMAGE_VECTOR: vectors}
    if card.classifier:
        shapes[CLASS_LOGITS] = [-1, len(card.classifier.labels)]
    if card.multi_vector:
        shapes[MULTI_VECTOR] = [-1, -1, card.multi_vector.modules.width]
    tensors = []
    for name in card.outputs:
        tensors += _tensors("FP32", {name: [-1] if name == SPARSE else shapes.get(name, [-1, -1, -1])})
        if name == SPARSE:
            tensors += _tensors("INT32", {f"{name}_indices": [-1]}) + _tensors("INT64", {f"{name}_lengths": [-1]})
    if score_activation(card):
        tensors += _tensors("FP32", {"scores": shapes[CLASS_LOGITS]})
    return tensors + _tensors("INT64", {"lengths": [-1]})


def sources(card: Card) -> dict[str, str]:
    """Return the model's output that a tensor is made of, by the names of the tensors that are not outputs."""
    parts = {f"{SPARSE}_indices": SPARSE, f"{SPARSE}_lengths": SPARSE}
    return parts | {"scores": CLASS_LOGITS} if score_activation(card) else parts


def has_row_per_token(output: str) -> bool:
    """Return whether an output that is not pooled has one row for each token of a sequence."""
    return output != MULTI_VECTOR


def score_activation(card: Card) -> ScoreActivation | None:
    """Return what makes `scores` of a model's logits; None: it gives a text none."""
    if card.classifier is None or not classifies(card):
        return None
    return card.classifier.activation if card.classifier.ranks else label_activation(card.classifier)


def _tensors(datatype: str, shapes: dict[str, list[int]]) -> Tensors:
    return [{"name": name, "datatype": datatype, "shape": shape} for name, shape in shapes.items()]


def _configured(tensor: dict[str, Any]) -> dict[str, Any]:
    kind = tensor["datatype"].replace("BYTES", "STRING")
    return {"name": tensor["name"], "data_type": f"TYPE_{kind}", "dims": tensor["shape"]}
