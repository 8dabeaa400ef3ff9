"""Describes the server and its models as the protocol and Triton do, for JSON and protobuf alike."""

from typing import Any

from models.artifacts.card import Card
from service.embedding.model import Model
from service.embedding.ranking import reads_pairs, text_activation
from service.embedding.requests import EmbedOptions
from service.protocols.inlay.needs import reads_images
from service.settings import Settings

NAME = "inlay"
VERSION = "1"  # of every model
EXTENSIONS = ("binary_tensor_data", "model_configuration", "statistics", "parameters")
TOKENS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
Tensors = list[dict[str, Any]]


def server_metadata(version: str, settings: Settings) -> dict[str, Any]:
    """Return the server's metadata, with its extensions."""
    repository = ["model_repository"] if settings.model_control == "explicit" else []
    return {"name": NAME, "version": version, "extensions": [*EXTENSIONS, *repository]}


def model_metadata(model: Model) -> dict[str, Any]:
    """Return a model's metadata; -1 is any size. Padded ids are [B, T]; flat ones, [N] with `lengths`, give [N, d]."""
    inputs = [] if reads_images(model) else input_tensors(model.card)
    described = {"name": model.card.name, "versions": [VERSION], "platform": NAME}
    return {**described, "inputs": inputs, "outputs": _output_tensors(model)}


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
    texts = {"text": [-1]} | ({"text_pair": [-1]} if reads_pairs(card) else {}) if card.tokenizer else {}
    tokens = {name: [-1, -1] for name in TOKENS}
    for extra in card.extras:
        if extra.sent:
            tokens[extra.name] = [-1, -1] if extra.columns == 1 else [-1, -1, extra.columns]
    return _tensors("BYTES", texts) + _tensors("INT64", tokens | {"lengths": [-1]})


def _output_tensors(model: Model) -> Tensors:
    """Return name, datatype and shape of each tensor that a model returns, in FP32 by default."""
    tensors, card = [], model.card
    for name in card.outputs:
        (kind,), width = model.plan(EmbedOptions((name,)), "").kinds, card.known_width(name) or -1
        shape = [-1] if kind.sparse else [-1, width] if kind.pooled else [-1, -1, width]
        tensors += _tensors("FP32", {name: shape})
        if kind.sparse:
            tensors += _tensors("INT32", {f"{name}_indices": [-1]}) + _tensors("INT64", {f"{name}_lengths": [-1]})
    if text_activation(card):
        tensors += _tensors("FP32", {"scores": [-1, card.known_width(card.classifier_output) or -1]})
    return tensors + _tensors("INT64", {"lengths": [-1]})


def _tensors(datatype: str, shapes: dict[str, list[int]]) -> Tensors:
    return [{"name": name, "datatype": datatype, "shape": shape} for name, shape in shapes.items()]


def _configured(tensor: dict[str, Any]) -> dict[str, Any]:
    kind = tensor["datatype"].replace("BYTES", "STRING")
    return {"name": tensor["name"], "data_type": f"TYPE_{kind}", "dims": tensor["shape"]}
