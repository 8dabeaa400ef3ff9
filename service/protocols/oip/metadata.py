"""What the protocol tells of the server and of its models, as plain dicts for JSON and protobuf alike. Reads cards."""

from typing import Any

from models.artifacts.card import Card
from service.embedding.model import Model
from service.protocols.oip.datatypes import BYTES
from service.protocols.oip.infer import (
    IDS,
    MASK,
    POSITIONS,
    TEXT,
    TYPES,
    VERSION,
)
from service.protocols.oip.padding import LENGTHS
from service.settings import Settings

NAME = "inlay"
PLATFORM = "inlay"
EXTENSIONS = (
    "binary_tensor_data",
    "model_configuration",
    "statistics",
    "parameters",
)
WIDE = ("last_hidden_state", "sentence_embedding")  # as wide as the model; the width of others is not on the card
CONFIGURED = {BYTES: "TYPE_STRING"}  # other datatypes: TYPE_ before their name


def server(version: str, settings: Settings) -> dict[str, Any]:
    """Server metadata, with the extensions that are on."""
    switched = {
        "model_repository": settings.model_control == "explicit",
        "system_shared_memory": settings.shared_memory,
    }
    extensions = [*EXTENSIONS, *[name for name, on in switched.items() if on]]
    return {"name": NAME, "version": version, "extensions": extensions}


def model(found: Model) -> dict[str, Any]:
    """Model metadata; -1 is any size. Padded ids are [B, T]; flat ones, [N] with `lengths`, give [N, d]."""
    return {
        "name": found.card.name,
        "versions": [VERSION],
        "platform": PLATFORM,
        "inputs": inputs(found.card),
        "outputs": outputs(found.card),
    }


def inputs(card: Card) -> list[dict[str, Any]]:
    """Name, datatype and shape of each tensor a model takes."""
    if card.image:
        return []
    tokens = [(name, "INT64", [-1, -1]) for name in (IDS, MASK, TYPES, POSITIONS)]
    extras = [
        (extra.name, "INT64", [-1, -1] if extra.columns == 1 else [-1, -1, extra.columns])
        for extra in card.extras
        if extra.sent
    ]
    texts = [(TEXT, BYTES, [-1])] if card.tokenizer else []
    return [_tensor(*each) for each in (*texts, *tokens, *extras, (LENGTHS, "INT64", [-1]))]


def outputs(card: Card) -> list[dict[str, Any]]:
    """Name, datatype and shape of each tensor a model gives; FP16 and BF16 where the parameter `dtype` says so."""
    found = []
    for name in card.outputs:
        width = card.hidden_size if name in WIDE else -1
        found.append(_tensor(name, "FP32", [-1, width] if name == "sentence_embedding" else [-1, -1, width]))
    return [*found, _tensor(LENGTHS, "INT64", [-1])]


def config(found: Model) -> dict[str, Any]:
    """The model configuration extension, as far as it means something here; sizes of batches are no one's concern."""
    required = [] if found.card.tokenizer else [IDS]
    return {
        "name": found.card.name,
        "platform": "",
        "backend": PLATFORM,
        "max_batch_size": 0,
        "version_policy": {"latest": {"num_versions": 1}},
        "input": [_configured(each) | {"optional": each["name"] not in required} for each in inputs(found.card)],
        "output": [_configured(each) for each in outputs(found.card)],
        "instance_group": [
            {"name": found.card.name, "kind": "KIND_GPU" if found.engine.device == "cuda" else "KIND_CPU", "count": 1}
        ],
    }


def _tensor(name: str, datatype: str, shape: list[int]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape}


def _configured(tensor: dict[str, Any]) -> dict[str, Any]:
    datatype = tensor["datatype"]
    kind = CONFIGURED.get(datatype, f"TYPE_{datatype}")
    return {"name": tensor["name"], "data_type": kind, "dims": tensor["shape"]}
