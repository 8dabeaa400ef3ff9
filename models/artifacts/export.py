"""Exports a checkpoint to a folder that the service can load: weights, graphs, tokenizer, card.

The graphs are compared with the reference before the folder is renamed into place. A failure, or a stop, leaves nothing
behind. torch is not needed.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from models import VERSION
from models.artifacts import (
    multi_vectors,
    sentence_vectors,
    sparse_export,
    sparse_vectors,
    static_export,
    task_heads,
    text_vectors,
    tokenizer,
    vision_export,
    weights,
)
from models.artifacts.card import Card, Graph
from models.artifacts.comparison import TOLERANCE, largest_differences
from models.artifacts.folder import atomic_folder, finish_folder
from models.artifacts.graph_files import write_graphs, write_row_graphs
from models.artifacts.int8_encoder import CALIBRATION, Calibration, Int8Options, calibrate, measure
from models.artifacts.multi_vectors import MultiVectorHead
from models.artifacts.overwrite_checks import check_name, check_target
from models.artifacts.sentence_vectors import ToVector
from models.artifacts.task_heads import TaskHeads
from models.artifacts.weights import WrittenWeights
from models.checkpoints import sentence_modules, sentence_transformers, sparse_modules
from models.checkpoints.checkpoint import Checkpoint
from models.checkpoints.located import LocatedCheckpoint
from models.checkpoints.sentence_modules import StoredModules
from models.checkpoints.sentence_transformers import SentenceFiles
from models.checkpoints.static import find_static_folder, open_static
from models.errors import BadCheckpoint, ModelError
from models.families.attention_direction import Attention, stated_attention
from models.families.block_filling import with_layer_mean
from models.families.fitting import FittedModel, fit
from models.families.opening import located
from models.progress import Progress, no_progress
from models.recipes import cost
from models.recipes.steps import Scale, tables
from models.tables import int8_matrices
from models.vision import similarity
from models.vision.fitting import tower

TOKENIZER = "tokenizer.json"
MAY_BE_WHOLE = "--pooling lasttoken or --encoder float32 exports it whole"


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
    encoder: bool | None = None,
    attention: Attention | None = None,
    int8: Int8Options | None = None,
    reranker: str | None = None,
    progress: Progress = no_progress,
) -> Card:
    """Write a checkpoint's model to `out` and return its card.

    Args:
        checkpoint: a folder, a .gguf file, or a hub id: org/name, org/name@revision.
        out: the folder to write.
        name: of the model; None: the folder's name.
        pooling: a sentence-transformers mode, "splade", "none", or None for what the checkpoint's files say.
        dtype: what the tables are stored as: one of weights.TABLE_DTYPES.
        link: serve the tables in place, from the checkpoint's own file.
        force: replace an exported model even where other files lie in its folder; they are deleted.
        side: which half of a checkpoint that holds two: text, vision, encoder or decoder.
        assume: treat an unknown model_type as a plain decoder, where it fits one.
        encoder: whether the blocks are written; None: unless the model is a decoder whose files and `pooling` do not
            say that it pools; of an image tower where its blocks are covered.
        attention: of a decoder exported whole: how it attends, instead of what its config says.
        int8: how the blocks are written in int8; None: in float32.
        reranker: of a causal model: the entries of its vocabulary, joined by a comma, whose logits make the score of a
            pair: the first's less the second's; None: what its files say.
        progress: called with what is being done, bytes done and bytes in all.

    Raises:
        ModelError: the checkpoint cannot be exported, or `out` may not be replaced.
        OSError: a file cannot be written.
    """
    out = out.absolute()
    check_target(out, Path(checkpoint), force)
    if name is not None:
        check_name(name)
    of_blocks = {"--encoder float32": encoder, "--encoder int8": int8, "--attention": attention}
    with located(checkpoint, progress) as place:
        if static_folder := find_static_folder(place.folder):
            _check_no_blocks(of_blocks, checkpoint, "has no encoder: it looks vectors up")
            static = open_static(place.folder, static_folder, pooling)
            return static_export.export(
                static, out, name or out.name, place.name, tool_version(), dtype=dtype, link=link, progress=progress
            )
        sparse_files = sparse_modules.find(place.folder, pooling)
        if sparse_files and sparse_files.table is not None and not sparse_files.splade:
            _check_no_blocks(of_blocks, checkpoint, "has no encoder: it looks weights up")
            return sparse_export.export(place, sparse_files.table, out, name or out.name, tool_version(), progress)
        if sparse_files:
            pooling = "none"
        source = place.checkpoint()
        if image_tower := tower(source.config, side):
            of_text = {option: value for option, value in of_blocks.items() if option != "--encoder float32"}
            _check_no_blocks(of_text, checkpoint, "is an image tower, whose blocks are exported in float32")
            if dtype != weights.KEEP or link:
                raise ModelError(f"{checkpoint}: no table of it is looked up, so leave out --dtype and --link")
            return vision_export.export(source, image_tower, out, name or out.name, tool_version(), progress, encoder)
        fitted = fit(source, side, assume, attention)
        sentence = files = sentence_transformers.read(place.folder, pooling)
        if pooling is None and encoder is not False:
            sentence = text_vectors.with_own_vector(files, fitted, source)
        if encoder is None and sentence_transformers.is_late_interaction(place.folder):
            encoder = True
        heads = task_heads.find(source, fitted, place.folder, files, reranker)
        fitted = _with_blocks(fitted, encoder, sentence, int8, checkpoint, bool(heads))
        _check_attention(fitted, attention, source)
        if sentence.pooling and not fitted.encoder:
            raise BadCheckpoint(
                f"{checkpoint} (model_type {fitted.model_type!r}) pools token vectors, but its input layer alone is "
                f"exported: {fitted.no_blocks_reason}; export that with --pooling none"
            )
        if sentence.pooling and not pooling:
            mean = sentence_modules.layer_mean(place.folder, source.config, place.fetch_module)
            fitted = _with_layer_mean(fitted, mean)
            heads = TaskHeads(no_classifier_reason=fitted.no_head_reason) if heads and mean else heads
        found = StoredModules() if pooling else _modules(place, fitted, files)
        if sentence is not files:
            found = text_vectors.projection(fitted, source)
        if heads and not fitted.encoder:
            heads = TaskHeads(no_classifier_reason=fitted.no_blocks_reason)
        several = multi_vectors.find(place, source, fitted)
        found_sparse = sparse_vectors.find(place, source, fitted, sparse_files)
        heads = replace(heads, multi_vector=several, sparse=found_sparse)
        vector = sentence_vectors.to_vector(sentence.pooling, found)
        with atomic_folder(out) as folder:
            calibration = _calibration(source, fitted, sentence, vector, folder, int8, progress) if int8 else None
            stored = write_weights(source, fitted, folder, dtype, link, progress, calibration, found, heads)
            card = replace(
                _write_parts(source, fitted, sentence, stored, folder),
                name=name or out.name,
                source=place.name,
                modules=sentence_vectors.described(found),
                classifier=heads.classifier,
                row_graphs=write_row_graphs(folder, fitted, stored.placed, sentence.pooling, heads),
                no_classifier_reason=heads.no_classifier_reason,
                sparse=found_sparse.sparse if found_sparse else None,
            )
            if heads and not sentence.pooling:
                card = replace(card, default_output=heads.default_output)
            if heads.classifier and heads.classifier.template:  # which holds the prompt
                card = replace(card, prompts={}, default_prompt=None)
            if several:
                card = _with_multi_vectors(card, several, folder)
            sentence_vectors.write_graph(folder, card.modules, stored.placed)
            task_heads.write_graphs(folder, card, stored.placed)
            progress("comparing with the reference", 0, 0)
            if int8 and calibration:
                quantized = measure(folder, fitted, vector, calibration, int8.min_cosine)
                card = replace(card, quantized=quantized)
            return finish_folder(folder, replace(card, largest_difference=largest_differences(folder, card)), progress)


def _with_multi_vectors(card: Card, several: MultiVectorHead, folder: Path) -> Card:
    """Return the card of a late-interaction model, whose tokenizer is to read its markers as one token each."""
    if several.markers:
        tokenizer.add_markers(folder, several.markers)
    most = multi_vectors.longest(several.multi_vector, card.max_tokens, card.position.longest())
    prompts = card.prompts | several.prompts
    return replace(card, multi_vector=several.multi_vector, prompts=prompts, max_tokens=most)


def _with_blocks(
    fitted: FittedModel,
    encoder: bool | None,
    sentence: SentenceFiles,
    int8: Int8Options | None,
    checkpoint: Path | str,
    classifies: bool,
) -> FittedModel:
    """Return the plan, without its blocks where they are not to be written."""
    requested = encoder or int8 is not None
    if not fitted.encoder:
        if requested:
            raise BadCheckpoint(
                f"{checkpoint} (model_type {fitted.model_type!r}) cannot be exported whole: {fitted.no_blocks_reason}; "
                "its input layer can, with --encoder none"
            )
        return fitted
    reads_blocks = fitted.family.causal is not True or sentence.pooling is not None or classifies
    if requested or (encoder is None and reads_blocks):
        return fitted
    reason = "--encoder none leaves its blocks out" if encoder is False else MAY_BE_WHOLE
    return replace(fitted, encoder=(), no_blocks_reason=reason)


def _with_layer_mean(fitted: FittedModel, mean: tuple[int, tuple[float, ...]] | None) -> FittedModel:
    """Return the plan, whose blocks give the mean of several layers where there is one."""
    if mean is None:
        return fitted
    blocks = with_layer_mean(fitted.family, fitted.encoder, *mean)
    return replace(fitted, encoder=blocks, head=None, no_head_reason="its token vectors are means of several layers")


def _check_attention(fitted: FittedModel, attention: Attention | None, source: Checkpoint) -> None:
    """Raise BadCheckpoint if a decoder's files leave open how it attends, or `attention` is of no blocks."""
    if attention and not fitted.encoder:
        raise BadCheckpoint(
            f"--attention is of decoders exported whole, and {source.name} is not: {fitted.no_blocks_reason}"
        )
    if attention or not fitted.encoder or fitted.family.causal is not True:
        return
    code = source.config.get("auto_map")
    if isinstance(code, Mapping) and "AutoModel" in code and not stated_attention(fitted.config):
        raise BadCheckpoint(
            f"{source.name} names code of its own (auto_map: {code['AutoModel']}), which may attend to later tokens "
            "where the usual class does not, and config.json does not say: add --attention causal or bidirectional"
        )


def _check_no_blocks(of_blocks: Mapping[str, Any], checkpoint: Path | str, reason: str) -> None:
    """Raise ModelError if an option of blocks is used for a model that has none, for this reason."""
    if used := [option for option, value in of_blocks.items() if value]:
        raise ModelError(f"{checkpoint} {reason}; leave out {' and '.join(used)}")


def _modules(place: LocatedCheckpoint, fitted: FittedModel, sentence: SentenceFiles) -> StoredModules:
    """Return the modules behind the pooling that the files describe."""
    if sentence.pooling is None:
        return StoredModules()
    inner = fitted.token_width * len(sentence.pooling.modes)
    return sentence_modules.read_modules(place.folder, inner, place.fetch_module)


def _calibration(
    source: Checkpoint,
    fitted: FittedModel,
    sentence: SentenceFiles,
    vector: ToVector,
    folder: Path,
    int8: Int8Options,
    progress: Progress,
) -> Calibration:
    """Return what the float32 encoder gives, which is written to a folder inside `folder` for that."""
    with TemporaryDirectory(prefix=".float32-", dir=folder) as name:
        full = Path(name)
        stored = write_weights(source, fitted, full, weights.KEEP, False, progress)
        tokenizer.copy(source.folder, full, sentence.lowercase)
        progress("calibrating", 0, 0)
        longest = max_input_tokens(fitted.position.longest(), sentence, source.folder)
        filling = text_vectors.filling(fitted, source.folder, longest)
        return calibrate(full, stored.placed, fitted, vector, longest, int8.calibration or CALIBRATION, filling)


def _write_parts(
    source: Checkpoint, fitted: FittedModel, sentence: SentenceFiles, stored: WrittenWeights, folder: Path
) -> Card:
    """Write graphs and tokenizer; return the card, its name still empty."""
    graphs = write_graphs(folder, fitted, stored.placed)
    has_tokenizer = tokenizer.copy(source.folder, folder, sentence.lowercase)
    return _card(source, fitted, sentence, graphs, stored, has_tokenizer)


def write_weights(
    source: Checkpoint,
    fitted: FittedModel,
    folder: Path,
    dtype: str,
    link: bool,
    progress: Progress = no_progress,
    calibration: Calibration | None = None,
    modules: StoredModules | None = None,
    heads: TaskHeads | None = None,
) -> WrittenWeights:
    """Write the tensors of the plan, of the modules and of the heads, the blocks in int8 if calibrated.

    Raises:
        BadCheckpoint, ModelError: as weights.write does.
    """
    table_names = tables(fitted.recipe + fitted.per_layer)
    if fitted.head and fitted.head.matrix not in table_names:
        table_names = (*table_names, fitted.head.matrix)
    if link and source.fetch:
        raise BadCheckpoint(f"{source.name} was fetched in parts: there is no file to serve it from, leave out --link")
    originals = {name: source.tensors[name] for name in table_names} if link else None
    arrays = fitted.read(source)
    if calibration:
        arrays = int8_matrices.quantized(arrays, fitted.encoder, calibration.largest)
    if modules:
        arrays = {**arrays, **sentence_vectors.arrays(modules)}
    if heads:
        arrays = {**arrays, **task_heads.arrays(heads)}
    return weights.write(folder, arrays, table_names, dtype=dtype, originals=originals, progress=progress)


def _card(
    source: Checkpoint,
    fitted: FittedModel,
    sentence: SentenceFiles,
    graphs: dict[str, Graph],
    stored: WrittenWeights,
    has_tokenizer: bool,
) -> Card:
    width = fitted.config.count("hidden_size")
    max_tokens = max_input_tokens(fitted.position.longest(), sentence, source.folder)
    flops = {"embedding": cost.flops_per_token(fitted.recipe, fitted.shapes, width)}
    if fitted.encoder:
        flops["encoder"] = flops["embedding"] + cost.flops_per_token(fitted.encoder, fitted.shapes, width)
    if fitted.head:
        flops["head"] = fitted.head.flops_per_row
    return Card(
        name="",
        family=fitted.model_type,
        hidden_size=width,
        vocab_size=fitted.config.count("vocab_size"),
        max_tokens=max_tokens,
        pad_id=fitted.pad_id,
        type_rows=fitted.type_rows,
        types=fitted.types,
        position=fitted.position,
        graphs=graphs,
        default_output=_default_output(sentence, fitted),
        recipe=fitted.recipe,
        encoder=fitted.encoder,
        weights=weights.FILE_NAME,
        tokenizer=TOKENIZER if has_tokenizer else None,
        pooling=sentence.pooling,
        prompts=_task_prompts(fitted) | sentence.prompts,
        default_prompt=sentence.default_prompt,
        encodings=fitted.encodings,
        dtype=stored.tables[tables(fitted.recipe)[0]].dtype,
        parameters=stored.parameters(),
        bytes=sum(tensor.bytes for tensor in stored.placed.values()),
        flops_per_token=flops,
        flops_per_token_and_key=cost.flops_per_token_and_key(fitted.encoder, width),
        largest_difference={},
        tolerance=TOLERANCE["encoder" if fitted.encoder else "input"],
        files={},
        source=source.folder.resolve().name,
        tool=tool_version(),
        tables=stored.tables,
        linked=stored.linked,
        extras=fitted.extras,
        mask_from=fitted.family.mask_from,
        per_layer=fitted.per_layer,
        side=fitted.family.side,
        assumed=fitted.assumed,
        head=fitted.head,
        no_head_reason=fitted.no_head_reason,
        no_blocks_reason=fitted.no_blocks_reason,
        prompt_embeds_output=_handed_over(fitted),
        similarity=similarity.read_similarity(source),
        similarity_function=sentence.similarity_function,
        filling=text_vectors.filling(fitted, source.folder, max_tokens),
        tasks=fitted.tasks,
        default_task=_default_task(fitted, sentence.default_prompt),
        encoder_width=fitted.token_width if fitted.token_width != width else None,
        reads_segments=sentence_transformers.reads_segments(source.folder),
    )


def _default_task(fitted: FittedModel, default_prompt: str | None) -> str | None:
    """Return the task of requests that name none: config.json's, else that of the default prompt; None: no adapter."""
    named = fitted.config.get("default_task")
    if fitted.tasks and named is not None and named not in fitted.tasks:
        raise BadCheckpoint(
            f"config.json says default_task {named!r}; its lora_adaptations are {', '.join(fitted.tasks)}"
        )
    return next((task for task in fitted.tasks if task == (named or default_prompt)), None)


def _task_prompts(fitted: FittedModel) -> dict[str, str]:
    """Return the prompt that config.json has for each task, which its code puts before texts of the task."""
    texts = fitted.config.get("task_instructions") or {}
    if not fitted.tasks:
        return {}
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise BadCheckpoint("config.json: task_instructions must be an object of texts")
    return {task: texts[task] for task in fitted.tasks if task in texts}


def _default_output(sentence: SentenceFiles, fitted: FittedModel) -> str:
    if sentence.pooling:
        return "sentence_embedding"
    return "last_hidden_state" if fitted.encoder else "input_embeddings"


def _handed_over(fitted: FittedModel) -> str:
    """Return the family's prompt_embeds_output for this checkpoint; where nothing scales, rows are unscaled already."""
    output = fitted.family.prompt_embeds_output
    scales = any(isinstance(step, Scale) for step in fitted.recipe)
    return "token_embeddings" if output == "unscaled_embeddings" and not scales else output


def max_input_tokens(positions: int | None, sentence: SentenceFiles, folder: Path) -> int | None:
    """Return the longest input in tokens: what the positions allow, or less if the model's files say so; None: any."""
    stated = sentence.max_tokens or sentence_transformers.tokenizer_max_tokens(folder)
    limits = [limit for limit in (positions, stated) if limit is not None]
    return min(limits) if limits else None


def tool_version() -> str:
    """Return the version of this tool and of the two libraries its graphs depend on."""
    import onnx
    import onnxruntime

    return f"inlay {VERSION} (onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__})"
