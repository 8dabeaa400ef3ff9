"""Decides how an adopted graph's tokens become a sentence vector: by its own output, or pooled as the files say.

Source: sentence-transformers 6.2, whose modules.json is the order in which modules run behind the transformer.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from models.artifacts.card import Graph
from models.artifacts.comparison import CheckInputs, Session, alone
from models.artifacts.sentence_vectors import ToVector, to_vector
from models.checkpoints import sentence_modules, sentence_transformers
from models.checkpoints.sentence_modules import Fetch, StoredModules, on_disk
from models.checkpoints.sentence_transformers import GRAPH, Pooling, SentenceFiles
from models.errors import BadCheckpoint
from models.recipes.graph_names import HIDDEN, POOLED

LEAST_COSINE = 0.9999  # of vectors that are the same but for float16 and the order of additions
NO_MODULES = StoredModules()


@dataclass(frozen=True, slots=True)
class AdoptedGraph:
    """A graph to adopt, and the inputs on which its outputs are compared.

    Attributes:
        entry: the card's.
        session: runs it.
        inputs: inputs of the comparison.
        hidden_size: columns of its token rows.
    """

    entry: Graph
    session: Session
    inputs: CheckInputs
    hidden_size: int


def decide(
    source: Path, sentence: SentenceFiles, graph: AdoptedGraph, chosen: str | None, fetch: Fetch = on_disk
) -> tuple[Pooling | None, StoredModules]:
    """Return how sentence vectors are made, and the modules that the service runs after pooling.

    The pooling is None where there are token vectors alone, or no file says more of the graph's.

    Args:
        source: the folder to adopt.
        sentence: the sentence-transformers files except those of the pooling.
        graph: the graph.
        chosen: the operator's choice: a mode, "none", "graph", or None for what the files say.
        fetch: as in sentence_modules.read_modules.

    Raises:
        BadCheckpoint: the files describe what neither the graph's output nor pooling and modules give.
    """
    outputs, name = graph.entry.outputs, graph.entry.file
    if POOLED not in outputs:
        if chosen == GRAPH:
            raise BadCheckpoint(f"{name} gives no {POOLED}: leave out --pooling {GRAPH}")
        pooling = sentence_transformers.read_pooling(source, chosen)
        if pooling is None or chosen is not None:
            return pooling, NO_MODULES
        return pooling, described_modules(source, pooling, graph.hidden_size, fetch)
    if chosen not in (None, GRAPH):
        if HIDDEN not in outputs:
            raise BadCheckpoint(f"{name} gives {POOLED} alone: leave out --pooling {chosen}")
        return sentence_transformers.read_pooling(source, chosen), NO_MODULES
    pooling = sentence_transformers.described_pooling(source)
    if pooling is None:
        return None, NO_MODULES
    if chosen is None and can_compute(source, fetch):
        if HIDDEN in outputs:
            found = described_modules(source, pooling, graph.hidden_size, fetch)
            _check_same(source, pooling, found, graph)
            return pooling, found
        if sentence_modules.behind_pooling(source):
            raise _unknown_origin(source, graph)
    elif chosen is None:
        _check_holds_all(source, pooling, graph)
    return _in_graph(source, pooling, sentence), NO_MODULES


def can_compute(source: Path, fetch: Fetch = on_disk) -> bool:
    """Return whether the folder's files suffice to make vectors of token rows."""
    kinds = [kind for kind, _ in sentence_transformers.modules(source)]
    known = kinds[:2] == ["Transformer", "Pooling"] and set(kinds[2:]) <= set(sentence_transformers.BEHIND_POOLING)
    return known and sentence_modules.hold_weights(source, fetch)


def described_modules(source: Path, pooling: Pooling, hidden_size: int, fetch: Fetch = on_disk) -> StoredModules:
    """Return the modules after pooling that the files describe; errors as sentence_modules.read_modules."""
    return sentence_modules.read_modules(source, hidden_size * len(pooling.modes), fetch)


def _in_graph(source: Path, pooling: Pooling, sentence: SentenceFiles) -> Pooling:
    """Return the graph's own pooling; BadCheckpoint where prompts must not be pooled, since it pools every token."""
    if not pooling.include_prompt and any(sentence.prompts.values()):
        raise BadCheckpoint(
            f"{source} leaves its prompts out of pooling (include_prompt false), and the graph's {POOLED} pools every "
            f"token: export it with token_embeddings too, or take the prompts out of config_sentence_transformers.json"
        )
    return replace(pooling, in_graph=True)


def _check_same(source: Path, pooling: Pooling, found: StoredModules, graph: AdoptedGraph) -> None:
    """Raise BadCheckpoint unless the graph's vector has the direction of the one that the files describe.

    A graph may also leave out all modules behind pooling: they run here.
    """
    cosine = _cosine(to_vector(pooling, found), graph)
    if max(cosine, _cosine(to_vector(pooling, NO_MODULES), graph)) < LEAST_COSINE:
        behind = ", ".join(kind for kind, _ in sentence_modules.behind_pooling(source))
        raise BadCheckpoint(
            f"{graph.entry.file} gives another {POOLED} than {source / 'modules.json'} describes ({pooling.mode} "
            f"pooling{behind and f', {behind}'}), with a cosine of {cosine:.4f}: "
            + ("" if behind else f"--pooling {pooling.mode} takes the files', ")
            + f"--pooling {GRAPH} the graph's"
        )


def _check_holds_all(source: Path, pooling: Pooling, graph: AdoptedGraph) -> None:
    """Raise BadCheckpoint unless the graph's vector is known to include the modules after pooling."""
    if HIDDEN not in graph.entry.outputs:
        raise _unknown_origin(source, graph)
    if _cosine(to_vector(pooling, NO_MODULES), graph) >= LEAST_COSINE:
        raise BadCheckpoint(
            f"{source / 'modules.json'} has {_behind(source)} behind pooling, and the {POOLED} of {graph.entry.file} "
            f"is that of {pooling.mode} pooling without them: export all modules, or add their model.safetensors"
        )


def _unknown_origin(source: Path, graph: AdoptedGraph) -> BadCheckpoint:
    """Return the error for a graph of which it is unknown whether it holds the modules after pooling."""
    return BadCheckpoint(
        f"{source / 'modules.json'} has {_behind(source)} behind pooling, and whether {graph.entry.file} computes them "
        f"cannot be seen from its {POOLED} alone: if it is their output, adopt it with --pooling {GRAPH}"
    )


def _behind(source: Path) -> str:
    kinds = [kind for kind, _ in sentence_transformers.modules(source)]
    return ", ".join(kinds[2:]) or ", ".join(kinds)


def _cosine(described: ToVector, graph: AdoptedGraph) -> float:
    """Return the least cosine between the graph's vectors and those described, over single sequences."""
    names = [graph.entry.rename.get(name, name) for name in (HIDDEN, POOLED)]
    least = 1.0
    for feeds in alone(graph.entry, graph.inputs):
        hidden, vector = (graph.session.run(feeds, names)[name][0].astype(np.float64) for name in names)
        expected = described(hidden)
        if vector.shape != expected.shape:
            return -1.0
        lengths = float(np.linalg.norm(expected) * np.linalg.norm(vector))
        least = min(least, float(expected @ vector) / lengths if lengths else 1.0)
    return least


def output_width(graph: AdoptedGraph, output: str = POOLED) -> int:
    """Return how wide the graph's sentence vectors are, or another output."""
    name = graph.entry.rename.get(output, output)
    return int(graph.session.run(next(alone(graph.entry, graph.inputs)), [name])[name].shape[-1])
