"""Similarity of texts and images in a dual encoder: scaled products of unit vectors."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.checkpoints.checkpoint import Checkpoint, read_tensors
from models.errors import BadCheckpoint

KINDS = {"clip": "softmax", "siglip": "sigmoid", "siglip2": "sigmoid", "jina_clip": "softmax"}
Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Similarity:
    """The last step of a dual encoder.

    Attributes:
        kind: softmax: an image's probabilities over the texts sum to 1 (CLIP); sigmoid: each pair has its own (SigLIP).
        scale: exp of the checkpoint's logit_scale.
        bias: the checkpoint's logit_bias; 0 where it has none.
    """

    kind: str
    scale: float
    bias: float


def read_similarity(checkpoint: Checkpoint) -> Similarity | None:
    """Return the similarity of a dual encoder's checkpoint; None where the checkpoint has one side only.

    Raises:
        BadCheckpoint: scale or bias is not a finite number.
    """
    kind = KINDS.get(checkpoint.model_type)
    names = [name for name in ("logit_scale", "logit_bias") if name in checkpoint.tensors]
    if kind is None or "logit_scale" not in names:
        return None
    numbers = {name: _number(name, array) for name, array in read_tensors(checkpoint, names).items()}
    if not -40 < numbers["logit_scale"] < 40:
        raise BadCheckpoint(f"logit_scale is {numbers['logit_scale']:g}; its exponential must be a usable factor")
    return Similarity(kind, math.exp(numbers["logit_scale"]), numbers.get("logit_bias", 0.0))


def _number(name: str, array: NDArray[Any]) -> float:
    value = float(array.reshape(-1)[0]) if array.size == 1 else math.nan
    if not math.isfinite(value):
        raise BadCheckpoint(f"{name!r} is not one finite number; the checkpoint is damaged")
    return value


def compared(similarity: Similarity, texts: NDArray[Any], images: NDArray[Any]) -> dict[str, Matrix]:
    """Return logits and probabilities of every pair.

    Args:
        similarity: similarity of the model.
        texts: [texts, d], of any length; a zero vector stays zero.
        images: [images, d], likewise.

    Returns:
        float64 logits_per_text [texts, images], logits_per_image [images, texts] and probabilities [images, texts].

    Source: transformers 5.23: CLIPModel, SiglipModel.
    """
    logits = similarity.scale * (_unit(texts) @ _unit(images).T) + similarity.bias
    per_image = logits.T
    if similarity.kind == "softmax":
        raised = np.exp(per_image - per_image.max(axis=1, keepdims=True))
        probabilities = raised / raised.sum(axis=1, keepdims=True)
    else:
        probabilities = np.exp(-np.logaddexp(0.0, -per_image))
    return {"logits_per_text": logits, "logits_per_image": per_image, "probabilities": probabilities}


def _unit(vectors: NDArray[Any]) -> Matrix:
    wide = vectors.astype(np.float64)
    length = np.sqrt((wide**2).sum(axis=1, keepdims=True))
    unit: Matrix = wide / np.where(length == 0.0, 1.0, length)
    return unit
