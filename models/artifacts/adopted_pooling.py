"""Decides how an adopted graph's tokens become a sentence vector: by its own output, or pooled as the files say.

Source: sentence-transformers 6.2, whose modules.json is the order in which modules run behind the transformer.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import Graph
from models.artifacts.comparison import CheckInputs, Session
from models.checkpoints import sentence_transformers
from models.checkpoints.sentence_transformers import GRAPH, Pooling, SentenceFiles
from models.errors import BadCheckpoint

HIDDEN = "last_hidden_state"
POOLED = "sentence_embedding"
LEAST_COSINE = 0.9999  # of vectors that are the same but for float16 and the order of additions
Vector = NDArray[np.float64]

POOLINGS: dict[str, Callable[[Vector], Vector]] = {
    "cls": lambda rows: rows[0],
    "mean": lambda rows: rows.mean(axis=0),
    "max": lambda rows: rows.max(axis=0),
    "lasttoken": lambda rows: rows[-1],
    "mean_sqrt_len_tokens": lambda rows: rows.sum(axis=0) / np.sqrt(len(rows)),
    "weightedmean": lambda rows: np.arange(1, len(rows) + 1) @ rows / np.arange(1, len(rows) + 1).sum(),
}


def decide(
    source: Path, sentence: SentenceFiles, graph: Graph, session: Session, inputs: CheckInputs, chosen: str | None
) -> Pooling | None:
    """Return how sentence vectors are made; None: there are token vectors alone, or no file says more of the graph's.

    Args:
        source: the folder to adopt.
        sentence: its files but for the pooling.
        graph: the card's entry of the graph; `session` runs it.
        inputs: what to run where outputs are compared.
        chosen: what the operator chose: a mode, "none", "graph", or None for what the files say.

    Raises:
        BadCheckpoint: the files describe what neither the graph's output nor pooling gives.
    """
    if POOLED not in graph.outputs:
        if chosen == GRAPH:
            raise BadCheckpoint(f"{graph.file} gives no {POOLED}: leave out --pooling {GRAPH}")
        return sentence_transformers.read_pooling(source, chosen)
    gives_tokens = HIDDEN in graph.outputs
    if chosen not in (None, GRAPH):
        if not gives_tokens:
            raise BadCheckpoint(f"{graph.file} gives {POOLED} alone: leave out --pooling {chosen}")
        return sentence_transformers.read_pooling(source, chosen)
    kinds = [kind for kind, _ in sentence_transformers.modules(source)]
    own = sentence_transformers.described_pooling(source)
    if own is None:
        return None
    if chosen is None:
        sentence_transformers.check_dimensions(source)
    if chosen is None and sentence_transformers.is_computed(kinds):
        if gives_tokens:
            _check_same(source, own, graph, session, inputs)
            return own
    elif chosen is None:
        _check_holds_all(source, kinds, own, graph, session, inputs)
    return _in_graph(source, own, sentence)


def _in_graph(source: Path, own: Pooling, sentence: SentenceFiles) -> Pooling:
    """Return the graph's own pooling; BadCheckpoint where prompts must not be pooled, since it pools every token."""
    if not own.include_prompt and any(sentence.prompts.values()):
        raise BadCheckpoint(
            f"{source} leaves its prompts out of pooling (include_prompt false), and the graph's {POOLED} pools every "
            f"token: export it with token_embeddings too, or take the prompts out of config_sentence_transformers.json"
        )
    return replace(own, in_graph=True)


def _check_same(source: Path, own: Pooling, graph: Graph, session: Session, inputs: CheckInputs) -> None:
    """Raise BadCheckpoint unless the graph's vector has the direction of the one that the files describe."""
    if (cosine := _cosine(own, graph, session, inputs)) < LEAST_COSINE:
        raise BadCheckpoint(
            f"{graph.file} gives another {POOLED} than {source / 'modules.json'} describes ({own.mode} pooling), with "
            f"a cosine of {cosine:.4f}: --pooling {own.mode} takes the files', --pooling {GRAPH} the graph's"
        )


def _check_holds_all(
    source: Path, kinds: list[str], own: Pooling, graph: Graph, session: Session, inputs: CheckInputs
) -> None:
    """Raise BadCheckpoint unless the graph's vector is known to have passed the modules behind pooling."""
    behind = ", ".join(kinds[2:]) or ", ".join(kinds)
    remedy = f"if it is their output, adopt it with --pooling {GRAPH}"
    if HIDDEN not in graph.outputs:
        raise BadCheckpoint(
            f"{source / 'modules.json'} has {behind} behind pooling, and whether {graph.file} computes them cannot be "
            f"seen from its {POOLED} alone: {remedy}"
        )
    if _cosine(own, graph, session, inputs) >= LEAST_COSINE:
        raise BadCheckpoint(
            f"{source / 'modules.json'} has {behind} behind pooling, and the {POOLED} of {graph.file} is that of "
            f"{own.mode} pooling without them: export all modules"
        )


def _cosine(own: Pooling, graph: Graph, session: Session, inputs: CheckInputs) -> float:
    """Return the least cosine between the graph's vector and its pooled token rows, over sequences alone."""
    names = [graph.rename.get(name, name) for name in (HIDDEN, POOLED)]
    least = 1.0
    for feeds in _alone(graph, inputs):
        hidden, vector = (session.run(feeds, names)[name][0].astype(np.float64) for name in names)
        pooled = POOLINGS[own.mode](hidden)
        if vector.shape != pooled.shape:
            return -1.0
        lengths = float(np.linalg.norm(pooled) * np.linalg.norm(vector))
        least = min(least, float(pooled @ vector) / lengths if lengths else 1.0)
    return least


def _alone(graph: Graph, inputs: CheckInputs) -> Iterator[dict[str, NDArray[Any]]]:
    flat = {"input_ids": inputs.ids, "token_type_ids": inputs.types, "position_ids": inputs.positions}
    flat["attention_mask"] = np.ones(len(inputs.ids), np.int64)
    for end, length in zip(np.cumsum(inputs.lengths), inputs.lengths, strict=True):
        yield {name: flat[name][None, end - length : end] for name in graph.inputs}
