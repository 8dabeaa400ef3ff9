"""Exports a static embedding checkpoint to a folder that the service can load: table, two graphs, tokenizer, card.

Like export.py for transformers: compared with the reference, then renamed into place.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from models.artifacts import weights
from models.artifacts.card import Card, Graph
from models.artifacts.comparison import TOLERANCE, largest_differences
from models.artifacts.folder import atomic_folder, finish_folder
from models.artifacts.weights import WrittenWeights
from models.checkpoints import safetensors
from models.checkpoints.checkpoint import read_object
from models.checkpoints.safetensors import Tensor
from models.checkpoints.static import TOKENIZER, StaticCheckpoint
from models.errors import ModelError
from models.graphs import static as static_graph
from models.graphs.builder import GraphBuilder, save
from models.positions.learned import PositionRule
from models.progress import Progress, no_progress
from models.recipes.positional_encodings import Encodings
from models.recipes.static import StaticTable
from models.recipes.steps import Embed


def export(
    source: StaticCheckpoint,
    out: Path,
    name: str,
    origin: str,
    tool: str,
    *,
    dtype: str = weights.KEEP,
    link: bool = False,
    progress: Progress = no_progress,
) -> Card:
    """Write the model to `out` and return its card.

    Args:
        source: the opened checkpoint.
        out: the folder to write.
        name: of the model.
        origin: the checkpoint, as the card records it.
        tool: the exporter, as the card records it.
        dtype: of the table.
        link: as for export.export.
        progress: as for export.export.

    Raises:
        ModelError: the checkpoint cannot be exported, or `out` may not be replaced.
        OSError: a file cannot be written.
    """
    with atomic_folder(out) as folder:
        stored = write_weights(source, folder, dtype, link, progress)
        graphs = write_graphs(source, stored.placed, folder)
        write_tokenizer(source.folder / TOKENIZER, folder / TOKENIZER)
        card = replace(_card(source, stored, graphs), name=name, source=origin, tool=tool)
        progress("comparing with the reference", 0, 0)
        card = replace(card, largest_difference=largest_differences(folder, card))
        return finish_folder(folder, card, progress)


def write_weights(
    source: StaticCheckpoint, folder: Path, dtype: str, link: bool, progress: Progress = no_progress
) -> WrittenWeights:
    """Write the table as `dtype`, the mapping as int64 and the weights as float32; errors as weights.write."""
    table = source.tensors[source.static.table]
    if table.dtype == "I8" and dtype != weights.KEEP:
        raise ModelError(f"{table.name!r} is int8, as Model2Vec quantised it: leave out --dtype {dtype}")
    arrays = safetensors.read(source.tensors.values())
    if (mapping := source.static.mapping) is not None:
        arrays[mapping] = arrays[mapping].astype(np.int64)
    originals = {table.name: table} if link else None
    return weights.write(folder, arrays, {table.name}, dtype=dtype, originals=originals, progress=progress)


def write_graphs(source: StaticCheckpoint, placed: dict[str, Tensor], folder: Path) -> dict[str, Graph]:
    """Emit both graphs, or the tokens' alone where nothing is pooled, and return the card's entries for them."""
    emitters: dict[str, tuple[Callable[[GraphBuilder, StaticTable, int], Any], tuple[str, ...]]] = {}
    emitters["embedding"] = (static_graph.embedding, static_graph.TOKENS)
    if source.sentence.pooling:
        emitters["sentences"] = (static_graph.sentences, static_graph.SENTENCES)
    graphs = {}
    for name, (emit, inputs) in emitters.items():
        model = emit(GraphBuilder(placed), source.static, source.hidden_size)
        save(model, folder / f"{name}.onnx")
        graphs[name] = Graph(f"{name}.onnx", inputs, tuple(output.name for output in model.graph.output))
    return graphs


def write_tokenizer(path: Path, to: Path) -> None:
    """Write the tokenizer without its post-processor: both libraries tokenize with add_special_tokens=False."""
    to.write_text(json.dumps(read_object(path) | {"post_processor": None}, ensure_ascii=False), encoding="utf-8")
    to.chmod(0o644)


def _card(source: StaticCheckpoint, stored: WrittenWeights, graphs: dict[str, Graph]) -> Card:
    """Return the card, its name and origin still empty."""
    static, width = source.static, source.hidden_size
    flops = {"embedding": 0 if static.weights is None else width}
    if "sentences" in graphs:
        flops["sentences"] = flops["embedding"] + width
    plain = static.mapping is None and static.weights is None
    return Card(
        name="",
        family=source.kind,
        hidden_size=width,
        vocab_size=source.vocab_size,
        max_tokens=source.sentence.max_tokens,
        pad_id=None,
        type_rows=0,
        types="none",
        position=PositionRule("arange", 0, None),
        graphs=graphs,
        default_output="sentence_embedding" if "sentences" in graphs else "input_embeddings",
        recipe=(Embed(static.table),) if plain else (),
        encoder=(),
        weights=weights.FILE_NAME,
        tokenizer=TOKENIZER,
        pooling=source.sentence.pooling,
        prompts=source.sentence.prompts,
        default_prompt=source.sentence.default_prompt,
        similarity_function=source.sentence.similarity_function,
        encodings=Encodings(),
        dtype="int8" if source.tensors[static.table].dtype == "I8" else stored.tables[static.table].dtype,
        parameters=stored.parameters(),
        bytes=sum(tensor.bytes for tensor in stored.placed.values()),
        flops_per_token=flops,
        flops_per_token_and_key=0,
        largest_difference={},
        tolerance=TOLERANCE["input"],
        files={},
        source="",
        tool="",
        static=static,
        tables=stored.tables,
        linked=stored.linked,
    )
