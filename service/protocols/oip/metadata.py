"""Describes the server and its models as the protocol and Triton do, for JSON and protobuf alike."""

from typing import Any

from models.artifacts.card import CLASS_LOGITS, IMAGE_VECTOR, MULTI_VECTOR, SPARSE, Card
from service.embedding.model import Model
from service.protocols.oip.data_plane import VERSION
from service.protocols.oip.infer import (
    IDS,
    MASK,
    POSITIONS,
    QUERY,
    SCORES,
    SPARSE_INDICES,
    SPARSE_LENGTHS,
    TYPES,
    score_activation,
    text_names,
)
from service.protocols.oip.padding import LENGTHS
from service.protocols.oip.tensors import BYTES
from service.settings import Settings

NAME = "inlay"
EXTENSIONS = ("binary_tensor_data", "model_configuration", "statistics", "parameters")


def server(version: str, settings: Settings) -> dict[str, Any]:
    """Return the server's metadata, with the extensions that are on."""
    optional = {
        "model_repository": settings.model_control == "explicit",
        "system_shared_memory": settings.shared_memory,
    }
    extensions = [*EXTENSIONS, *[name for name, on in optional.items() if on]]
    return {"name": NAME, "version": version, "extensions": extensions}


def model_metadata(model: Model) -> dict[str, Any]:
    """Return a model's metadata; -1 is any size. Padded ids are [B, T]; flat ones, [N] with `lengths`, give [N, d]."""
    return {
        "name": model.card.name,
        "versions": [VERSION],
        "platform": NAME,
        "inputs": inputs(model.card),
        "outputs": outputs(model.card),
    }


def inputs(card: Card) -> list[dict[str, Any]]:
    """Return name, datatype and shape of each tensor that a model takes."""
    if card.image:
        return []
    tokens = [(name, "INT64", [-1, -1]) for name in (IDS, MASK, TYPES, POSITIONS)]
    extras = [
        (extra.name, "INT64", [-1, -1] if extra.columns == 1 else [-1, -1, extra.columns])
        for extra in card.extras
        if extra.sent
    ]
    texts = [(name, BYTES, [1 if name == QUERY else -1]) for name in text_names(card)]
    return [_tensor(*description) for description in (*texts, *tokens, *extras, (LENGTHS, "INT64", [-1]))]


def outputs(card: Card) -> list[dict[str, Any]]:
    """Return name, datatype and shape of each tensor that a model gives, in FP32 unless the request says otherwise."""
    vectors = dict.fromkeys(("sentence_embedding", IMAGE_VECTOR), card.default_width)
    widths = {"last_hidden_state": card.token_width, **vectors}  # of others unknown
    if card.classifier and CLASS_LOGITS in card.outputs:
        vectors[CLASS_LOGITS] = widths[CLASS_LOGITS] = len(card.classifier.labels)
    if card.multi_vector:
        widths[MULTI_VECTOR] = card.multi_vector.modules.width
    tensors = []
    for name in card.outputs:
        if name == SPARSE:
            tensors += [_tensor(name, "FP32", [-1]), _tensor(SPARSE_INDICES, "INT32", [-1])]
            tensors.append(_tensor(SPARSE_LENGTHS, "INT64", [-1]))
            continue
        width = widths.get(name, -1)
        tensors.append(_tensor(name, "FP32", [-1, width] if name in vectors else [-1, -1, width]))
    if score_activation(card):
        tensors.append(_tensor(SCORES, "FP32", [-1, widths[CLASS_LOGITS]]))
    return [*tensors, _tensor(LENGTHS, "INT64", [-1])]


def model_config(model: Model) -> dict[str, Any]:
    """Return the part of Triton's model configuration that applies; batches form by load, so it has no batch sizes."""
    card = model.card
    required = [] if card.tokenizer else [IDS]
    kind = "KIND_GPU" if model.engine.device == "cuda" else "KIND_CPU"
    return {
        "name": card.name,
        "platform": "",
        "backend": NAME,
        "max_batch_size": 0,
        "version_policy": {"latest": {"num_versions": 1}},
        "input": [_configured(tensor) | {"optional": tensor["name"] not in required} for tensor in inputs(card)],
        "output": [_configured(tensor) for tensor in outputs(card)],
        "instance_group": [{"name": card.name, "kind": kind, "count": 1}],
    }


def _tensor(name: str, datatype: str, shape: list[int]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape}


def _configured(tensor: dict[str, Any]) -> dict[str, Any]:
    datatype = tensor["datatype"]
    kind = "TYPE_STRING" if datatype == BYTES else f"TYPE_{datatype}"
    return {"name": tensor["name"], "data_type": kind, "dims": tensor["shape"]}
