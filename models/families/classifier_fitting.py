"""Fits the classification head of a model_type to one checkpoint: tensors, pooling, labels, problem type."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from models.checkpoints.checkpoint import Checkpoint
from models.checkpoints.safetensors import Tensor
from models.checkpoints.sentence_modules import StoredModules
from models.errors import BadCheckpoint
from models.families.classifiers import CLASSIFIERS, LATE, ClassifierSpec, LayerSpec
from models.families.config import ACTIVATIONS
from models.families.head_fitting import MissingHead
from models.recipes.heads import ProblemType, ScoreActivation
from models.recipes.sentence_modules import Dense, Module
from models.recipes.steps import LayerNorm, Linear

SEQUENCE_CLASS, TOKEN_CLASS = "ForSequenceClassification", "ForTokenClassification"
_SCORE_ACTIVATIONS: dict[str, ScoreActivation] = {  # classes of torch.nn
    **{"Sigmoid": "sigmoid", "Identity": "identity", "Softmax": "softmax"},
    **{"Tanh": "tanh", "ReLU": "relu"},
}
_POOLINGS = {"cls": "cls", "bos": "cls", "first": "cls", "mean": "mean", LATE: "mean"}
_POOLINGS |= {"lasttoken": "lasttoken", "last": "lasttoken"}


@dataclass(frozen=True, slots=True)
class FittedClassifier:
    """The classification head of a checkpoint.

    Attributes:
        layers: layers with their tensors.
        pooling, late: as in Classifier.
    """

    layers: StoredModules
    pooling: str | None
    late: bool = False


def is_classifier(config: Mapping[str, Any]) -> bool:
    """Return whether config.json names a class for sequence or token classification."""
    return _class_of(config) is not None


def of_tokens(config: Mapping[str, Any]) -> bool:
    """Return whether config.json names a class for token classification."""
    return _class_of(config) == TOKEN_CLASS


def find(checkpoint: Checkpoint, model_type: str, width: int) -> FittedClassifier:
    """Return the classification head of a checkpoint whose config names a class that has one.

    Args:
        checkpoint: config and tensor headers of the checkpoint.
        model_type: model_type of the checkpoint's text tower.
        width: columns of its hidden states.

    Raises:
        MissingHead: how it classifies is not computed, or the file does not hold the head.
        BadCheckpoint: the head is there in other shapes.
    """
    each = of_tokens(checkpoint.config)
    spec = CLASSIFIERS.get(model_type)
    layers = () if spec is None else layers_of(spec, checkpoint.config)
    if spec is None or not layers:
        kind = "tokens" if each else "texts"
        raise MissingHead(f"how model_type {model_type!r} classifies {kind} is not known here")
    values = {**spec.defaults, **checkpoint.config}
    for key, only in spec.required_values.items():
        if not each and values[key] != only:
            raise MissingHead(f"config.json says {key} {values[key]!r}, and only {only!r} is computed")
    pooling = None if each else str(_value(spec.pooling, values))
    if pooling is not None and pooling not in _POOLINGS:
        raise MissingHead(f"config.json says {spec.pooling} {pooling!r}, which is not computed")
    found = _modules(checkpoint, spec, layers, values, width)
    return FittedClassifier(found, pooling and _POOLINGS[pooling], pooling == LATE)


def layers_of(spec: ClassifierSpec, config: Mapping[str, Any]) -> tuple[LayerSpec, ...]:
    """Return the layers of the head whose class config.json names; empty: there is no such class."""
    return spec.tokens if of_tokens(config) else spec.layers


def labels(config: Mapping[str, Any], count: int) -> tuple[str, ...]:
    """Return the names of the labels, LABEL_0 and so on where config.json names none.

    Raises:
        BadCheckpoint: config.json has another number of labels than the head.
    """
    named = config.get("id2label")
    if not isinstance(named, Mapping):
        if (stated := config.get("num_labels")) not in (None, count):
            raise BadCheckpoint(f"config.json says num_labels {stated!r}, and the classification head has {count} rows")
        return tuple(f"LABEL_{number}" for number in range(count))
    by_number = {str(number): str(name) for number, name in named.items()}
    if set(by_number) != {str(number) for number in range(count)}:
        raise BadCheckpoint(
            f"config.json: id2label has {len(by_number)} labels, and the classification head has {count} rows; it must "
            f"name 0 to {count - 1}"
        )
    return tuple(by_number[str(number)] for number in range(count))


def problem_type(config: Mapping[str, Any]) -> ProblemType | None:
    """Return the problem type; None if config.json does not say. BadCheckpoint for an unknown word."""
    stated = config.get("problem_type")
    allowed: tuple[ProblemType, ...] = get_args(ProblemType)
    if stated is not None and stated not in allowed:
        raise BadCheckpoint(f"config.json says problem_type {stated!r}; it must be one of {', '.join(allowed)}")
    return next((known for known in allowed if known == stated), None)


def activation(config: Mapping[str, Any], count: int, stated: Any = None) -> tuple[ScoreActivation, str]:
    """Return the activation that sentence-transformers applies to the logits, and what says so.

    Args:
        config: config.json.
        count: of the labels, by which it chooses where the files name nothing that it would load.
        stated: the activation_fn of config_sentence_transformers.json, which comes first.

    Raises:
        MissingHead: it would load an activation that is not computed here.

    Source: sentence-transformers 6.2, CrossEncoder._parse_model_config and get_default_activation_fn: of other packages
        than torch it loads nothing.
    """
    nested = config.get("sentence_transformers")
    if isinstance(nested, Mapping) and "activation_fn" in nested:
        key, named = "sentence_transformers.activation_fn", nested["activation_fn"]
    else:
        key = "sbert_ce_default_activation_function"
        named = config.get(key)
    for path, origin in ((stated, "config_sentence_transformers.json"), (named, f"config.json: {key}")):
        if path is None or not str(path).startswith("torch."):
            continue
        name = str(path).rpartition(".")[2]
        if name not in _SCORE_ACTIVATIONS:
            raise MissingHead(f"its scores are {path} of the logits; computed: {', '.join(_SCORE_ACTIVATIONS)}")
        return _SCORE_ACTIVATIONS[name], origin
    return ("sigmoid" if count == 1 else "identity"), f"no file; the usual one of {count} label{'s' * (count > 1)}"


def _class_of(config: Mapping[str, Any]) -> str | None:
    names = [str(name) for name in config.get("architectures") or ()]
    return next((kind for kind in (SEQUENCE_CLASS, TOKEN_CLASS) for name in names if name.endswith(kind)), None)


def _modules(
    checkpoint: Checkpoint, spec: ClassifierSpec, layers: tuple[LayerSpec, ...], values: Mapping[str, Any], width: int
) -> StoredModules:
    steps: list[Module] = []
    tensors: dict[str, Tensor] = {}
    inner = width
    for layer in layers:
        linear = _linear(checkpoint, layer.stem, inner, tensors)
        inner = tensors[linear.weight].shape[0]
        named = _value(layer.activation, values) or "linear"
        if named not in ACTIVATIONS:
            raise MissingHead(f"config.json says {layer.activation} {named!r}, which is not computed")
        steps.append(Dense(linear, ACTIVATIONS[named]))
        if layer.norm:
            steps.append(_norm(checkpoint, layer.norm, inner, float(values[spec.eps]), tensors))
    if checkpoint.fetch:
        checkpoint.fetch(list(tensors.values()))
    return StoredModules(tuple(steps), tensors, width, inner)


def _linear(checkpoint: Checkpoint, stem: str, width: int, tensors: dict[str, Tensor]) -> Linear:
    name = _find(f"{stem}.weight", checkpoint)
    tensor = checkpoint.tensors[name]
    if len(tensor.shape) != 2 or tensor.shape[1] != width or not tensor.shape[0]:
        raise BadCheckpoint(f"{name!r} has shape {list(tensor.shape)}; it must be [any, {width}]")
    bias = _beside(name, tensor.shape[0], checkpoint)
    tensors |= {each: checkpoint.tensors[each] for each in (name, bias) if each}
    return Linear(name, bias)


def _norm(checkpoint: Checkpoint, stem: str, width: int, eps: float, tensors: dict[str, Tensor]) -> LayerNorm:
    name = _find(f"{stem}.weight", checkpoint)
    if (shape := checkpoint.tensors[name].shape) != (width,):
        raise BadCheckpoint(f"{name!r} has shape {list(shape)}; it must be [{width}]")
    bias = _beside(name, width, checkpoint)
    tensors |= {each: checkpoint.tensors[each] for each in (name, bias) if each}
    return LayerNorm(name, bias, eps)


def _beside(weight: str, width: int, checkpoint: Checkpoint) -> str | None:
    """Return the bias beside a weight; None: the file holds none."""
    bias = weight.removesuffix("weight") + "bias"
    if bias not in checkpoint.tensors:
        return None
    if (shape := checkpoint.tensors[bias].shape) != (width,):
        raise BadCheckpoint(f"{bias!r} has shape {list(shape)}; it must be [{width}]")
    return bias


def _find(name: str, checkpoint: Checkpoint) -> str:
    """Return the file's name of a tensor, alone or after one prefix."""
    behind = [held for held in checkpoint.tensors if held == name or held.endswith(f".{name}")]
    exact = [name] if name in behind else behind
    if not exact:
        raise MissingHead(f"the checkpoint holds no {name}: it was saved without its classification head")
    if len(exact) > 1:
        raise BadCheckpoint(f"{checkpoint.name} classifies, and holds several tensors called {name!r}")
    return exact[0]


def _value(named: str, values: Mapping[str, Any]) -> Any:
    return named[1:] if named.startswith("=") else values.get(named)
