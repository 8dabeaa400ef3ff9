"""Exports a static embedding checkpoint to a folder that the service can load: table, two graphs, tokenizer, card.

Like export.py for transformers: compared with the reference, then renamed into place.
"""

from pathlib import Path
from typing import Any

import numpy as np

from models.artifacts import tokenizer, weights
from models.artifacts.card import Card, Graph
from models.artifacts.comparison import TOLERANCE
from models.artifacts.folder import Target, atomic_folder, finish_folder
from models.artifacts.graph_files import save_graphs
from models.artifacts.verification import compare_graphs
from models.artifacts.weights import WrittenWeights
from models.checkpoints import safetensors
from models.checkpoints.hub import Progress, no_progress
from models.checkpoints.safetensors import Tensor
from models.checkpoints.static import TOKENIZER, StaticCheckpoint
from models.errors import ModelError
from models.graphs import static as static_graph
from models.graphs.builder import GraphBuilder
from models.recipes.steps import Embed


def export(source: StaticCheckpoint, target: Target, dtype: str = weights.KEEP) -> Card:
    """Write the model to the target and return its card.

    Args:
        source: the opened checkpoint.
        target: folder to write to.
        dtype: dtype of the table.

    Raises:
        ModelError: the checkpoint cannot be exported, or the target may not be replaced.
        OSError: a file cannot be written.
    """
    with atomic_folder(target.out) as folder:
        stored = write_weights(source, folder, dtype, target.progress)
        graphs = save_graphs(folder, _graphs(source, stored.placed))
        tokenizer.write_bare(source.tokenizer, folder)
        card = compare_graphs(folder, _card(source, stored, graphs), target.progress)
        return finish_folder(folder, card, target)


def write_weights(
    source: StaticCheckpoint, folder: Path, dtype: str, progress: Progress = no_progress
) -> WrittenWeights:
    """Write the table as `dtype`, the mapping as int64 and the weights as float32; errors as weights.write."""
    table = source.tensors[source.static.table]
    if table.dtype == "I8" and dtype != weights.KEEP:
        raise ModelError(f"{table.name!r} is int8, as Model2Vec quantised it: leave out --dtype {dtype}")
    arrays = safetensors.read(source.tensors.values())
    if (mapping := source.static.mapping) is not None:
        arrays[mapping] = arrays[mapping].astype(np.int64)
    return weights.write(folder, arrays, {table.name}, dtype=dtype, progress=progress)


def _graphs(source: StaticCheckpoint, placed: dict[str, Tensor]) -> dict[str, Any]:
    """Return both graphs by name, or only that of the tokens if nothing is pooled."""
    emitters = {"embedding": static_graph.embedding}
    if source.sentence.pooling:
        emitters["sentences"] = static_graph.sentences
    return {name: emit(GraphBuilder(placed), source.static, source.hidden_size) for name, emit in emitters.items()}


def _card(source: StaticCheckpoint, stored: WrittenWeights, graphs: dict[str, Graph]) -> Card:
    static, width, sentence = source.static, source.hidden_size, source.sentence
    flops = {"embedding": 0 if static.weights is None else width}
    if "sentences" in graphs:
        flops["sentences"] = flops["embedding"] + width
    plain = static.mapping is None and static.weights is None
    return Card(
        family=source.kind,
        hidden_size=width,
        vocab_size=source.vocab_size,
        max_tokens=sentence.max_tokens,
        graphs=graphs,
        default_output="sentence_embedding" if "sentences" in graphs else "input_embeddings",
        recipe=(Embed(static.table),) if plain else (),
        weights=weights.FILE_NAME,
        tokenizer=TOKENIZER,
        pooling=sentence.pooling,
        prompts=sentence.prompts,
        default_prompt=sentence.default_prompt,
        dtype="int8" if source.tensors[static.table].dtype == "I8" else stored.tables[static.table].dtype,
        parameters=stored.parameters(),
        bytes=stored.bytes,
        flops_per_token=flops,
        tolerance=TOLERANCE["input"],
        tables=stored.tables,
        static=static,
        similarity_function=sentence.similarity_function,
        provenance=source.read_from,
    )
