"""The classifier of an adopted graph that returns logits: their number, and what config.json says about them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.artifacts.adopted_pooling import AdoptedGraph, output_width
from models.artifacts.card import CLASS_LOGITS, TOKEN_CLASS_LOGITS
from models.checkpoints import sentence_transformers
from models.errors import BadCheckpoint
from models.families import classifier_fitting
from models.families.head_fitting import MissingHead
from models.recipes.heads import Classifier

IN_GRAPH = "graph"  # the pooling of logits that a graph gives of texts


def output(config: Mapping[str, Any]) -> str | None:
    """Return the output that a graph's logits are served as; None if config.json names no classifier."""
    if not classifier_fitting.is_classifier(config):
        return None
    return TOKEN_CLASS_LOGITS if classifier_fitting.of_tokens(config) else CLASS_LOGITS


def classifier(config: Mapping[str, Any], graph: AdoptedGraph, folder: Path) -> Classifier | None:
    """Return the classifier of an adopted graph; None if the graph gives no logits of labels.

    Args:
        config: config.json.
        graph: the graph.
        folder: folder of the sentence-transformers files.

    Raises:
        BadCheckpoint: config.json has another number of labels, or an activation that is not computed.
    """
    name = output(config)
    if name is None or name not in graph.entry.outputs:
        return None
    count = output_width(graph, name)
    stated = sentence_transformers.activation(folder)
    try:
        activation, _ = classifier_fitting.activation(config, count, stated)
    except MissingHead as missing:
        raise BadCheckpoint(str(missing)) from missing
    labels, problem = classifier_fitting.labels(config, count), classifier_fitting.problem_type(config)
    return Classifier(IN_GRAPH if name == CLASS_LOGITS else None, None, labels, activation, problem)
