"""A classification head of random weights: its tensors, and its keys in config.json."""

import re
from collections.abc import Mapping
from typing import Any

from models.artifacts.random_layout import DrawnTensor
from models.errors import ModelError
from models.families import classifier_fitting
from models.families.classifiers import CLASSIFIERS

_DEFAULT_LABELS = 2  # of transformers, where a config names none


def with_labels(config: Mapping[str, Any], model_type: str, labels: int | None) -> dict[str, Any]:
    """Return a config that names a class for sequence classification with so many labels; None: unchanged.

    Raises:
        ModelError: the labels are fewer than 1.
    """
    if labels is None:
        return dict(config)
    if labels < 1:
        raise ModelError(f"--labels {labels} must be a number from 1")
    name = "".join(part.capitalize() for part in re.split("[-_]", model_type)) + classifier_fitting.SEQUENCE_CLASS
    numbered = {str(number): f"LABEL_{number}" for number in range(labels)}
    kept = {key: value for key, value in config.items() if key not in ("num_labels", "problem_type")}
    return kept | {
        "architectures": [name],
        "id2label": numbered,
        "label2id": {kept: int(n) for n, kept in numbered.items()},
    }


def tensors(
    config: Mapping[str, Any],
    model_type: str,
    prefix: str,
    width: int,
    held: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, DrawnTensor]:
    """Return the tensors of the head that a config names, by the names of transformers; none where it names none.

    Args:
        config: config.json.
        model_type: model_type of the family.
        prefix: prefix of the base class's tensors.
        width: columns of the hidden states.
        held: shapes of tensors that are there by name; those of the head's shapes are left out.

    Raises:
        ModelError: how the model_type classifies is not known here.
    """
    if not classifier_fitting.is_classifier(config):
        return {}
    spec = CLASSIFIERS.get(model_type)
    layers = () if spec is None else classifier_fitting.layers_of(spec, config)
    if not layers:
        raise ModelError(f"how model_type {model_type!r} classifies is not known here; leave the labels out")
    named = config.get("id2label")
    labels = len(named) if isinstance(named, Mapping) else int(config.get("num_labels") or _DEFAULT_LABELS)
    made: dict[str, DrawnTensor] = {}
    for layer in layers:
        rows, place = labels if layer is layers[-1] else width, prefix * layer.in_base
        drawn = {f"{layer.stem}.weight": DrawnTensor((rows, width), rows, width)}
        if layer.biased:
            drawn[f"{layer.stem}.bias"] = DrawnTensor((rows,), rows, 1, 0.0)
        if layer.norm:
            drawn[f"{layer.norm}.weight"] = DrawnTensor((rows,), rows, 1, 1.0)
        made |= {place + name: tensor for name, tensor in drawn.items() if not _held(name, tensor.shape, held or {})}
    return made


def _held(name: str, shape: tuple[int, ...], held: Mapping[str, tuple[int, ...]]) -> bool:
    return any((each == name or each.endswith(f".{name}")) and there == shape for each, there in held.items())
