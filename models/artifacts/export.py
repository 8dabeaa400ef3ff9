"""A checkpoint becomes a folder the service can load: weights, graphs, tokenizer, card.

The graphs are compared with the reference, then the folder is renamed into place. A failure, or a stop, leaves nothing
behind. Needs no torch.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from models import VERSION
from models.artifacts import static_export, tokenizer, vision_export, weights
from models.artifacts.card import HEAD, Card, Graph
from models.artifacts.comparison import TOLERANCE, largest_differences
from models.artifacts.folder import atomic_folder, finish_folder
from models.artifacts.overwrite_checks import check_name, check_target
from models.artifacts.weights import WrittenWeights
from models.checkpoints import sentence_transformers
from models.checkpoints.checkpoint import Checkpoint, read_tensors
from models.checkpoints.opening import located
from models.checkpoints.safetensors import Tensor
from models.checkpoints.sentence_transformers import SentenceFiles
from models.checkpoints.static import find_static_folder, open_static
from models.errors import BadCheckpoint, ModelError
from models.families import cost
from models.families.fitting import Plan, plan
from models.families.recipe import Recipe, Scale, tables
from models.graphs import head as head_graph
from models.graphs import input_layer
from models.graphs.builder import GraphBuilder, save
from models.graphs.encoder import encoder
from models.graphs.positions.rope import rope
from models.positions.rope.frequencies import frequencies
from models.progress import Progress, no_progress
from models.vision import similarity
from models.vision.fitting import tower

TOKENIZER = "tokenizer.json"


def export(
    checkpoint: Path | str,
    out: Path,
    *,
    name: str | None = None,
    pooling: str | None = None,
    dtype: str = weights.KEEP,
    link: bool = False,
    force: bool = False,
    side: str | None = None,
    assume: bool = False,
    progress: Progress = no_progress,
) -> Card:
    """Write a checkpoint's model to `out` and return its card.

    Args:
        checkpoint: a folder, a .gguf file, or a hub id: org/name, org/name@revision.
        name: what the model is called; None: the folder's name.
        pooling: a sentence-transformers mode, "none", or None for what the checkpoint's files say.
        dtype: what the tables are stored as: one of weights.TABLE_DTYPES.
        link: serve the tables in place, from the checkpoint's own file.
        force: replace an exported model also where other files lie in its folder, which are lost.
        side: which half of a checkpoint that holds two: text, vision, encoder or decoder.
        assume: take a model_type no row knows for a plain decoder, where it fits one.
        progress: called with what is being done, bytes done and bytes in all.

    Raises:
        ModelError
        OSError: the disk refuses.
    """
    out = out.absolute()
    check_target(out, Path(checkpoint), force)
    if name is not None:
        check_name(name)
    with located(checkpoint, progress) as found:
        if place := find_static_folder(found.folder):
            static = open_static(found.folder, place, pooling)
            return static_export.export(
                static, out, name or out.name, found.name, tool_version(), dtype=dtype, link=link, progress=progress
            )
        source = found.checkpoint()
        if seen := tower(source.config, side):
            if dtype != weights.KEEP or link:
                raise ModelError(f"{checkpoint}: no table of it is looked up, so leave out --dtype and --link")
            return vision_export.export(source, seen, out, name or out.name, tool_version(), progress)
        planned = plan(source, side, assume)
        sentence = sentence_transformers.read(found.folder, pooling)
        if sentence.pooling and not planned.encoder:
            raise BadCheckpoint(
                f"{checkpoint} pools token vectors, but of model_type {planned.model_type!r} with these tensors only "
                "the input layer can be exported; export that with --pooling none"
            )
        with atomic_folder(out) as folder:
            held = write_weights(source, planned, folder, dtype, link, progress)
            written = write_graphs(folder, planned, held.placed)
            has_tokenizer = tokenizer.copy(source.folder, folder, sentence.lowercase)
            card = _card(name or out.name, source, planned, sentence, written, held, has_tokenizer)
            progress("comparing with the reference", 0, 0)
            differences = largest_differences(folder, card)
            card = replace(card, largest_difference=differences, source=found.name)
            return finish_folder(folder, card, progress)


def write_weights(
    source: Checkpoint, planned: Plan, folder: Path, dtype: str, link: bool, progress: Progress = no_progress
) -> WrittenWeights:
    """Write the plan's tensors, and no others; raises what weights.write does."""
    found = tables(planned.recipe + planned.per_layer)
    if planned.head and planned.head.matrix not in found:
        found = (*found, planned.head.matrix)
    if link and source.fetch:
        raise BadCheckpoint(f"{source.name} was fetched in parts: there is no file to serve it from, leave out --link")
    originals = {name: source.tensors[name] for name in found} if link else None
    arrays = read_tensors(source, planned.tensors)
    return weights.write(folder, arrays, found, dtype=dtype, originals=originals, progress=progress)


def write_graphs(folder: Path, planned: Plan, placed: dict[str, Tensor]) -> dict[str, Graph]:
    """Emit every graph the model has; the card's entries for them."""
    width = planned.config.count("hidden_size")
    written: dict[str, Graph] = {}

    def add(name: str, model: Any, inputs: tuple[str, ...]) -> None:
        save(model, folder / f"{name}.onnx")
        written[name] = Graph(f"{name}.onnx", inputs, tuple(output.name for output in model.graph.output))

    def add_input_layer(recipe: Recipe, suffix: str) -> None:
        add("embedding" + suffix, input_layer.embedding(GraphBuilder(placed), recipe, width), input_layer.inputs_of(recipe))
        read = input_layer.inputs_of(input_layer.components_of(recipe))
        add("components" + suffix, input_layer.components(GraphBuilder(placed), recipe), read)

    if planned.types == "optional":
        add_input_layer(input_layer.without_types(planned.recipe), "")
        add_input_layer(planned.recipe, "_typed")
    else:
        add_input_layer(planned.recipe, "")
    if planned.per_layer:
        add("per_layer", input_layer.per_layer(GraphBuilder(placed), planned.per_layer), ("ids",))
    for table in planned.encodings.ropes.values():
        suffix = table.graph.removeprefix("rope")
        add(table.graph, rope(frequencies(table.rope, "parity"), suffix), ("positions",))
    if planned.encoder:
        model = encoder(GraphBuilder(placed), planned.recipe, planned.encoder, width)
        add("encoder", model, (*input_layer.inputs_of(planned.recipe), "mask", "lengths"))
    if planned.head:
        save(head_graph.head(GraphBuilder(placed), planned.head), folder / f"{HEAD}.onnx")
    return written


def _card(
    name: str,
    source: Checkpoint,
    planned: Plan,
    sentence: SentenceFiles,
    written: dict[str, Graph],
    held: WrittenWeights,
    has_tokenizer: bool,
) -> Card:
    width = planned.config.count("hidden_size")
    flops = {"embedding": cost.flops_per_token(planned.recipe, planned.shapes, width)}
    if planned.encoder:
        flops["encoder"] = flops["embedding"] + cost.flops_per_token(planned.encoder, planned.shapes, width)
    if planned.head:
        flops["head"] = planned.head.flops_per_row
    return Card(
        name=name,
        family=planned.model_type,
        hidden_size=width,
        vocab_size=planned.config.count("vocab_size"),
        max_tokens=max_input_tokens(planned.position.longest(), sentence, source.folder),
        pad_id=planned.pad_id,
        type_rows=planned.type_rows,
        types=planned.types,
        position=planned.position,
        graphs=written,
        default_output=_default_output(sentence, planned),
        recipe=planned.recipe,
        encoder=planned.encoder,
        weights=weights.FILE_NAME,
        tokenizer=TOKENIZER if has_tokenizer else None,
        pooling=sentence.pooling,
        prompts=sentence.prompts,
        default_prompt=sentence.default_prompt,
        encodings=planned.encodings,
        dtype=held.tables[tables(planned.recipe)[0]].dtype,
        parameters=held.parameters(),
        bytes=sum(tensor.bytes for tensor in held.placed.values()),
        flops_per_token=flops,
        flops_per_token_and_key=cost.flops_per_token_and_key(planned.encoder, width),
        largest_difference={},
        tolerance=TOLERANCE["encoder" if planned.encoder else "input"],
        files={},
        source=source.folder.resolve().name,
        tool=tool_version(),
        tables=held.tables,
        linked=held.linked,
        extras=planned.extras,
        mask_from=planned.family.mask_from,
        per_layer=planned.per_layer,
        side=planned.family.side,
        assumed=planned.assumed,
        head=planned.head,
        headless=planned.headless,
        handed_over=_handed_over(planned),
        similarity=similarity.of(source),
    )


def _default_output(sentence: SentenceFiles, planned: Plan) -> str:
    if sentence.pooling:
        return "sentence_embedding"
    return "last_hidden_state" if planned.encoder else "input_embeddings"


def _handed_over(planned: Plan) -> str:
    """The family's handed_over, as the checkpoint has it: where nothing scales, every row is unscaled."""
    said = planned.family.handed_over
    scales = any(isinstance(step, Scale) for step in planned.recipe)
    return "token_embeddings" if said == "unscaled_embeddings" and not scales else said


def max_input_tokens(positions: int | None, sentence: SentenceFiles, folder: Path) -> int | None:
    """Tokens of the longest input: what the positions allow, cut to what the files of the model say."""
    said = sentence.max_tokens or sentence_transformers.tokenizer_max_tokens(folder)
    limits = [limit for limit in (positions, said) if limit is not None]
    return min(limits) if limits else None


def tool_version() -> str:
    """What wrote a card: this tool and the two libraries its graphs depend on."""
    import onnx
    import onnxruntime

    return f"inlay {VERSION} (onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__})"
