"""Exports a checkpoint to a folder that the service can load: weights, graphs, tokenizer, card.

The graphs are compared with the reference before the folder is renamed into place. A failure, or a stop, leaves nothing
behind. torch is not needed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from models.artifacts import sparse_export, static_export, text_export, vision_export, weights
from models.artifacts.card import Card
from models.artifacts.folder import Target
from models.artifacts.int8_encoder import Int8Options
from models.artifacts.overwrite_checks import check_name, check_target
from models.artifacts.text_export import TextOptions
from models.checkpoints import sentence_transformers, sparse_modules
from models.checkpoints.hub import Progress, no_progress
from models.checkpoints.located import LocatedCheckpoint, lines_in_errors
from models.checkpoints.static import find_static_folder, open_static
from models.errors import ModelError
from models.families.attention_direction import Attention
from models.families.opening import AdapterOptions, located
from models.vision.fitting import tower


def export(
    checkpoint: Path | str,
    out: Path,
    *,
    name: str | None = None,
    pooling: str | None = None,
    dtype: str = weights.KEEP,
    side: str | None = None,
    route: str | None = None,
    assume: bool = False,
    encoder: bool | None = None,
    attention: Attention | None = None,
    int8: Int8Options | None = None,
    reranker: str | None = None,
    aliases: Iterable[str] = (),
    base: str | None = None,
    adapters: Mapping[str, str] = MappingProxyType({}),
    progress: Progress = no_progress,
) -> Card:
    """Write a checkpoint's model to `out` and return its card.

    Args:
        checkpoint: a folder, a .gguf file, or a hub id: org/name, org/name@revision; an adapter of the peft library is
            merged into its base.
        out: the folder to write.
        name: name of the model; None: the folder's name.
        pooling: a sentence-transformers mode, "splade", "none", or None for what the checkpoint's files say.
        dtype: storage type of the tables, one of weights.TABLE_DTYPES.
        side: half of a checkpoint that holds two: text, vision, encoder or decoder.
        route: of a Router or Asym of sentence-transformers, the route that is exported, such as query or document; of
            a checkpoint with an adapter for each task (jina-embeddings-v4), the task.
        assume: treat an unknown model_type as a plain decoder, where it fits one.
        encoder: whether the blocks are written; None: unless the model is a decoder whose files and `pooling` do not
            say that it pools; of an image tower where its blocks are covered.
        attention: attention of a decoder exported whole, instead of what its config says.
        int8: options of blocks in int8; None: in float32.
        reranker: of a causal model: the entries of its vocabulary, joined by a comma, whose logits make the score of a
            pair: the first's less the second's; None: what its files say.
        aliases: further names that the model answers to where it is served.
        base: of an adapter, the model that it was trained on; None: the one that its files name.
        adapters: folders or hub ids of peft adapters that are kept beside the weights, by the names of their tasks.
        progress: called with what is being done, bytes done and bytes in all.

    Raises:
        ModelError: the checkpoint cannot be exported, or `out` may not be replaced.
        OSError: a file cannot be written.
    """
    out = out.absolute()
    check_target(out, Path(checkpoint))
    if name is not None:
        check_name(name)
    options = TextOptions(
        checkpoint=str(checkpoint),
        pooling=pooling,
        dtype=dtype,
        side=side,
        assume=assume,
        encoder=encoder,
        attention=attention,
        int8=int8,
        reranker=reranker,
    )
    with (
        located(checkpoint, progress, adapters=AdapterOptions(base, adapters), route=route) as place,
        lines_in_errors(sentence_transformers.weights_folder(place.folder)),
    ):
        return _exported(place, options, Target(out, name or out.name, place.name, progress, tuple(aliases)))


def _exported(place: LocatedCheckpoint, options: TextOptions, target: Target) -> Card:
    """Write what the checkpoint holds: static embeddings, a table of weights, an image tower, or a text model."""
    of_blocks = {
        "--encoder float32": options.encoder,
        "--encoder int8": options.int8,
        "--attention": options.attention,
    }
    if static_folder := find_static_folder(place.folder):
        _check_unused(of_blocks, options.checkpoint, "has no encoder: it looks vectors up")
        source = open_static(place.folder, static_folder, options.pooling)
        return static_export.export(source, target, options.dtype)
    sparse_files = sparse_modules.find(place.folder, options.pooling)
    if sparse_files and sparse_files.table is not None and not sparse_files.splade:
        _check_unused(of_blocks, options.checkpoint, "has no encoder: it looks weights up")
        return sparse_export.export(place, sparse_files.table, target)
    sentence_transformers.check_first_modules(place.folder)
    checkpoint = place.checkpoint()
    if image_tower := tower(checkpoint.config, options.side):
        of_text = {option: value for option, value in of_blocks.items() if option != "--encoder float32"}
        _check_unused(of_text, options.checkpoint, "is an image tower, whose blocks are exported in float32")
        if options.dtype != weights.KEEP:
            raise ModelError(f"{options.checkpoint}: no table of it is looked up, so leave out --dtype")
        return vision_export.export(checkpoint, image_tower, target, options.encoder)
    if sparse_files:
        options = replace(options, pooling="none")
    return text_export.export(place, checkpoint, sparse_files, options, target)


def _check_unused(options: Mapping[str, Any], checkpoint: str, reason: str) -> None:
    """Raise ModelError, with this reason, if an option of blocks is used for a model without blocks."""
    if used := [option for option, value in options.items() if value]:
        raise ModelError(f"{checkpoint} {reason}; leave out {' and '.join(used)}")
