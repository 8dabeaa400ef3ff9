"""A checkpoint becomes a folder the service can load: weights, graphs, tokenizer, card.

The graphs are compared with the reference, then the folder is renamed into place. A failure, or a stop, leaves nothing
behind. Needs no torch.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models import VERSION, compare, cost, graphs, safetensors, sentence_transformers, tokenizer
from models.card import Card, Graph
from models.checkpoint import Checkpoint, check_finite, open_checkpoint, read_tensors
from models.encoder_graph import encoder
from models.errors import BadCheckpoint
from models.folder import Progress, check_target, finish, folder_in_place, no_progress
from models.onnx_graph import GraphBuilder, save
from models.plan import Plan, plan
from models.position_graphs.rope import rope
from models.positions.rope.frequencies import frequencies
from models.recipe import AddPosition, AddType, Embed, Recipe, tensors
from models.safetensors import Source, Tensor
from models.sentence_transformers import SentenceFiles

WEIGHTS = "weights.safetensors"
TOKENIZER = "tokenizer.json"
_DTYPE_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def export(
    checkpoint: Path,
    out: Path,
    *,
    name: str | None = None,
    pooling: str | None = None,
    force: bool = False,
    progress: Progress = no_progress,
) -> Card:
    """Write a checkpoint folder's model to `out` and return its card.

    name      what the model is called; None: the folder's name
    pooling   a sentence-transformers mode, "none", or None for what the checkpoint's files say
    force     replace a folder that is no export
    progress  called with what is being done, bytes done and bytes in all
    raises    ModelError; OSError where the disk refuses
    """
    out = out.absolute()
    check_target(out, checkpoint, force)
    source = open_checkpoint(checkpoint)
    planned = plan(source)
    sentence = sentence_transformers.read(checkpoint, pooling)
    if sentence.pooling and not planned.encoder:
        raise BadCheckpoint(
            f"{checkpoint} pools token vectors, but of model_type {planned.model_type!r} with these tensors only the "
            "input layer can be exported; export that with --pooling none"
        )
    with folder_in_place(out) as folder:
        placed = write_weights(source, planned, folder / WEIGHTS, progress)
        written = write_graphs(folder, planned, placed)
        has_tokenizer = tokenizer.copy(checkpoint, folder, sentence.lowercase)
        card = _card(name or out.name, source, planned, sentence, written, placed, has_tokenizer)
        progress("comparing with the reference", 0, 0)
        card = replace(card, largest_difference=compare.largest_differences(folder, card))
        return finish(folder, card, progress)


def write_weights(source: Checkpoint, planned: Plan, path: Path, progress: Progress = no_progress) -> dict[str, Tensor]:
    """Copy the recipe's tensors, and no others, into one file, the big ones first.

    Tables keep the checkpoint's dtype: rows are cast after the lookup. All else is widened to float32, exactly, because
    ONNX Runtime would otherwise keep a second, widened copy of it in every process.
    """
    tables = {step.table for step in planned.recipe if isinstance(step, Embed | AddType | AddPosition)}
    arrays = read_tensors(source, planned.tensors)
    total, done = sum(array.nbytes for array in arrays.values()), 0

    def chunks(name: str, dtype: str) -> Iterator[NDArray[Any]]:
        nonlocal done
        for start, rows in safetensors.row_chunks(arrays[name]):
            check_finite(name, source.tensors[name].dtype, start, rows)
            yield rows.astype(safetensors.DTYPES[dtype], copy=False)
            done += rows.nbytes
            progress("writing weights", done, total)

    sources = []
    for name in sorted(arrays, key=lambda name: -arrays[name].nbytes):
        dtype = source.tensors[name].dtype if name in tables else "F32"
        sources.append(Source(name, dtype, source.tensors[name].shape, chunks(name, dtype)))
    return safetensors.write(path, sources)


def write_graphs(folder: Path, planned: Plan, placed: dict[str, Tensor]) -> dict[str, Graph]:
    """Emit every graph the model has; the card's entries for them."""
    width = planned.config.count("hidden_size")
    written: dict[str, Graph] = {}

    def add(name: str, model: Any, inputs: tuple[str, ...]) -> None:
        save(model, folder / f"{name}.onnx")
        written[name] = Graph(f"{name}.onnx", inputs, tuple(output.name for output in model.graph.output))

    def add_input_layer(recipe: Recipe, suffix: str) -> None:
        add("embedding" + suffix, graphs.embedding(GraphBuilder(placed), recipe, width), graphs.inputs_of(recipe))
        add("components" + suffix, graphs.components(GraphBuilder(placed), recipe, width), graphs.inputs_of(recipe))

    if planned.types == "optional":
        add_input_layer(graphs.untyped(planned.recipe), "")
        add_input_layer(planned.recipe, "_typed")
    else:
        add_input_layer(planned.recipe, "")
    for table in planned.encodings.ropes.values():
        suffix = table.graph.removeprefix("rope")
        add(table.graph, rope(frequencies(table.rope, "parity"), suffix), ("positions",))
    if planned.encoder:
        model = encoder(GraphBuilder(placed), planned.recipe, planned.encoder, width)
        add("encoder", model, (*graphs.inputs_of(planned.recipe), "mask", "lengths"))
    return written


def _card(
    name: str,
    source: Checkpoint,
    planned: Plan,
    sentence: SentenceFiles,
    written: dict[str, Graph],
    placed: dict[str, Tensor],
    has_tokenizer: bool,
) -> Card:
    width = planned.config.count("hidden_size")
    flops = {"embedding": cost.flops_per_token(planned.recipe, planned.shapes, width)}
    if planned.encoder:
        flops["encoder"] = flops["embedding"] + cost.flops_per_token(planned.encoder, planned.shapes, width)
    return Card(
        name=name,
        family=planned.model_type,
        hidden_size=width,
        vocab_size=planned.config.count("vocab_size"),
        max_tokens=longest_input(planned.position.longest(), sentence, source.folder),
        pad_id=planned.pad_id,
        type_rows=planned.type_rows,
        types=planned.types,
        position=planned.position,
        graphs=written,
        default_output=_default_output(sentence, planned),
        recipe=planned.recipe,
        encoder=planned.encoder,
        weights=WEIGHTS,
        tokenizer=TOKENIZER if has_tokenizer else None,
        pooling=sentence.pooling,
        prompts=sentence.prompts,
        default_prompt=sentence.default_prompt,
        encodings=planned.encodings,
        dtype=_DTYPE_NAMES[placed[tensors(planned.recipe)[0]].dtype],
        parameters=sum(int(np.prod(tensor.shape)) for tensor in placed.values()),
        bytes=sum(tensor.bytes for tensor in placed.values()),
        flops_per_token=flops,
        flops_per_token_and_key=cost.flops_per_token_and_key(planned.encoder, width),
        largest_difference={},
        tolerance=compare.TOLERANCE["encoder" if planned.encoder else "input"],
        files={},
        source=source.folder.resolve().name,
        tool=tool(),
    )


def _default_output(sentence: SentenceFiles, planned: Plan) -> str:
    if sentence.pooling:
        return "sentence_embedding"
    return "last_hidden_state" if planned.encoder else "input_embeddings"


def longest_input(positions: int | None, sentence: SentenceFiles, folder: Path) -> int | None:
    """Tokens of the longest input: what the positions allow, cut to what the files of the model say."""
    said = sentence.max_tokens or sentence_transformers.tokenizer_max_tokens(folder)
    limits = [limit for limit in (positions, said) if limit is not None]
    return min(limits) if limits else None


def tool() -> str:
    """What wrote a card: this tool and the two libraries its graphs depend on."""
    import onnx
    import onnxruntime

    return f"inlay {VERSION} (onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__})"
