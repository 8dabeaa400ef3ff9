"""Exports a model that reads text: its input layer, blocks and heads, as its files and the caller say."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from models.artifacts import (
    image_towers,
    multi_vectors,
    sentence_vectors,
    sparse_vectors,
    task_heads,
    text_vectors,
    tokenizer,
    weights,
)
from models.artifacts.card import Card
from models.artifacts.comparison import TOLERANCE
from models.artifacts.folder import Target, atomic_folder, finish_folder
from models.artifacts.graph_files import save_graphs, write_graphs, write_module_graphs, write_row_graphs
from models.artifacts.image_towers import ImageTower
from models.artifacts.int8_encoder import CALIBRATION, Calibration, Int8Options, calibrate, measure
from models.artifacts.sentence_vectors import ToVector
from models.artifacts.task_heads import TaskHeads
from models.artifacts.verification import compare_graphs
from models.artifacts.weights import WrittenWeights
from models.checkpoints import late_interaction, sentence_modules, sentence_transformers
from models.checkpoints.checkpoint import Checkpoint
from models.checkpoints.hub import Progress
from models.checkpoints.located import LocatedCheckpoint
from models.checkpoints.page_texts import page_texts
from models.checkpoints.provenance import Setting, random_weights
from models.checkpoints.sentence_modules import StoredModules
from models.checkpoints.sentence_transformers import Pooling, SentenceFiles
from models.checkpoints.sparse_modules import SparseFiles
from models.errors import BadCheckpoint
from models.families.attention_direction import Attention, stated_attention
from models.families.block_filling import with_layer_mean
from models.families.fitting import FittedModel, fit
from models.recipes import cost
from models.recipes.extra_inputs import IMAGE_ROWS
from models.recipes.steps import Scale, tables
from models.tables import int8_matrices
from models.vision import similarity
from models.vision.tower_fitting import fit_token_tower

MAY_BE_WHOLE = "--pooling lasttoken or --encoder float32 exports it whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """The options of `export` for models of text; see its arguments."""

    checkpoint: str
    pooling: str | None
    dtype: str
    side: str | None
    assume: bool
    encoder: bool | None
    attention: Attention | None
    int8: Int8Options | None
    reranker: str | None

    @property
    def settled(self) -> bool:
        """Whether the caller chose a pooling or left the blocks out, so that what the files say of heads is unused."""
        return self.pooling is not None or self.encoder is False


@dataclass(frozen=True, slots=True)
class TextModel:
    """The parts of a checkpoint that are exported.

    Attributes:
        source: the checkpoint.
        fitted: the fitted family, without blocks if these are not written.
        sentence: what the files of sentence-transformers, or else the family, say about sentence vectors.
        modules: modules after the pooling, with their tensors.
        heads: heads that read its hidden states.
        read_from: where the settings of texts and vectors were read.
        images: the tower whose images the model reads among its tokens; None: it reads none.
        ending: ids behind every text.
    """

    source: Checkpoint
    fitted: FittedModel
    sentence: SentenceFiles
    modules: StoredModules
    heads: TaskHeads
    read_from: tuple[Setting, ...]
    images: ImageTower | None = None
    ending: tuple[int, ...] = ()

    @property
    def max_tokens(self) -> int | None:
        """The longest input in tokens; None: no limit."""
        return tokenizer.longest_input(self.fitted.position.longest(), self.sentence, self.source.folder)

    @property
    def vector(self) -> ToVector:
        """The function that makes a text's vector of its rows."""
        return sentence_vectors.to_vector(self.sentence.pooling, self.modules)


def export(
    place: LocatedCheckpoint,
    source: Checkpoint,
    sparse_files: SparseFiles | None,
    options: TextOptions,
    target: Target,
) -> Card:
    """Write the model to the target and return its card.

    Args:
        place: place of the checkpoint, with the files of sentence-transformers.
        source: config and tensors of the checkpoint.
        sparse_files: what the files or the caller say of SPLADE; None: nothing.
        options: options of the caller.
        target: folder to write to.

    Raises:
        ModelError: the checkpoint cannot be exported as the caller wants it.
        OSError: a file cannot be written.
    """
    model = _with_images(_chosen(place, source, sparse_files, options), options.side)
    with atomic_folder(target.out) as folder:
        calibration = _calibration(model, options.int8, folder, target.progress) if options.int8 else None
        stored = _write_weights(model, options, calibration, folder, target.progress)
        card = _with_files(_card(model, stored), model, stored, folder)
        if options.int8 and calibration:
            quantized = measure(folder, model.fitted, model.vector, calibration, options.int8.min_cosine)
            card = replace(card, quantized=quantized)
        return finish_folder(folder, compare_graphs(folder, card, target.progress), target)


def _chosen(
    place: LocatedCheckpoint, source: Checkpoint, sparse_files: SparseFiles | None, options: TextOptions
) -> TextModel:
    """Return the parts of the checkpoint that are exported."""
    fitted = fit(source, options.side, options.assume, options.attention, classifies=not options.settled)
    files = sentence_transformers.read(place.folder, options.pooling)
    if sentence_transformers.is_instructor(place.name, source.model_type):
        files = sentence_transformers.without_prompt(files)
    sentence = files if options.settled else text_vectors.with_own_vector(files, fitted, source)
    heads = task_heads.find(source, fitted, place.folder, files, options.reranker)
    fitted = _checked_blocks(place, source, fitted, options, sentence, bool(heads))
    if sentence.pooling and not options.pooling:
        fitted, heads = _with_layer_mean(fitted, heads, place, source)
    own = text_vectors.projection(fitted, source) if sentence is not files else None
    modules = _modules(place, fitted, None if options.pooling else files.pooling) if own is None else own
    if heads and not fitted.encoder:
        heads = TaskHeads(no_classifier_reason=fitted.no_blocks_reason)
    sparse = sparse_vectors.find(place, source, fitted, sparse_files)
    heads = replace(heads, multi_vector=multi_vectors.find(place, source, fitted), sparse=sparse)
    heads = _checked(heads, options, sentence, source)
    read_from = (
        *random_weights(source.config),
        *sentence_transformers.provenance(place.folder, options.pooling, sentence),
    )
    if ending := tokenizer.own_ending(source.folder, fitted.config.data):
        read_from += (Setting("ending", str(list(ending)), "config.json: add_eos"),)
    return TextModel(source, fitted, sentence, modules, heads, read_from, ending=ending)


def _checked_blocks(
    place: LocatedCheckpoint,
    source: Checkpoint,
    fitted: FittedModel,
    options: TextOptions,
    sentence: SentenceFiles,
    classifies: bool,
) -> FittedModel:
    """Return the model with the blocks that are written; BadCheckpoint where its vectors need blocks that are not."""
    if options.encoder is None and late_interaction.is_stated(place.folder, source):
        options = replace(options, encoder=True)
    fitted = _with_blocks(fitted, options, sentence, classifies)
    _check_attention(fitted, options.attention, source)
    if sentence.pooling and not fitted.encoder:
        raise BadCheckpoint(
            f"{options.checkpoint} (model_type {fitted.model_type!r}) pools token vectors, but its input layer alone "
            f"is exported: {fitted.no_blocks_reason}; export that with --pooling none"
        )
    return fitted


def _with_images(model: TextModel, side: str | None) -> TextModel:
    """Return the model with the texts around its inputs and, unless its text side is asked for, its image tower."""
    source, fitted, folder = model.source, model.fitted, model.source.folder
    if frame := image_towers.frame_of(source, model.sentence):
        ending = image_towers.ids_of(folder, frame.after)
        model = replace(model, sentence=frame.prompts(model.sentence), ending=ending)
    width, vocab_size = (fitted.config.count(key) for key in ("hidden_size", "vocab_size"))
    tower = fit_token_tower(source, width, vocab_size) if fitted.encoder and side != "text" else None
    if tower is None:
        return model
    pages = page_texts(source)
    prompt = image_towers.image_prompt(pages, model.sentence, frame)
    images = image_towers.described(tower, fitted, folder, prompt, bool(pages and pages.mean))
    return replace(model, fitted=image_towers.with_images(fitted, images.spec), images=images) if images else model


def _modules(place: LocatedCheckpoint, fitted: FittedModel, pooling: Pooling | None) -> StoredModules:
    """Return the modules behind the pooling that the files describe; none where they describe none."""
    if pooling is None:
        return StoredModules()
    return sentence_modules.read_modules(place.folder, fitted.token_width * len(pooling.modes), place.fetch_module)


def _checked(heads: TaskHeads, options: TextOptions, sentence: SentenceFiles, source: Checkpoint) -> TaskHeads:
    """Return the heads; BadCheckpoint if a checkpoint is published for scores alone, and they cannot be exported."""
    if heads.no_classifier_reason and not heads and not sentence.pooling and not options.settled:
        named = next(iter(source.config.get("architectures") or ()), "a reranker")
        raise BadCheckpoint(
            f"{options.checkpoint} is published as {named}, whose scores cannot be exported: "
            f"{heads.no_classifier_reason}; --pooling none exports it without them"
        )
    return heads


def _with_blocks(fitted: FittedModel, options: TextOptions, sentence: SentenceFiles, classifies: bool) -> FittedModel:
    """Return the model, without its blocks if they are not to be written."""
    requested = options.encoder or options.int8 is not None
    if not fitted.encoder:
        if requested:
            raise BadCheckpoint(
                f"{options.checkpoint} (model_type {fitted.model_type!r}) cannot be exported whole: "
                f"{fitted.no_blocks_reason}; its input layer can, with --encoder none"
            )
        return fitted
    reads_blocks = fitted.family.causal is not True or sentence.pooling is not None or classifies
    if requested or (options.encoder is None and reads_blocks):
        return fitted
    reason = "--encoder none leaves its blocks out" if options.encoder is False else MAY_BE_WHOLE
    return replace(fitted, encoder=(), no_blocks_reason=reason)


def _with_layer_mean(
    fitted: FittedModel, heads: TaskHeads, place: LocatedCheckpoint, source: Checkpoint
) -> tuple[FittedModel, TaskHeads]:
    """Return the model; if its files say so, its blocks return the mean of several layers for its heads."""
    mean = sentence_modules.layer_mean(place.folder, source.config, place.fetch_module)
    if mean is None:
        return fitted, heads
    reason = "its token vectors are means of several layers"
    blocks = with_layer_mean(fitted.family, fitted.encoder, *mean)
    without = TaskHeads(no_classifier_reason=reason) if heads else heads
    return replace(fitted, encoder=blocks, head=None, no_head_reason=reason), without


def _check_attention(fitted: FittedModel, attention: Attention | None, source: Checkpoint) -> None:
    """Raise BadCheckpoint if a decoder's files do not say how it attends, or `attention` is given without blocks."""
    if attention and not fitted.encoder:
        raise BadCheckpoint(
            f"--attention is of decoders exported whole, and {source.name} is not: {fitted.no_blocks_reason}"
        )
    if attention or not fitted.encoder or fitted.family.causal is not True:
        return
    code = source.config.get("auto_map")
    if page_texts(source) or late_interaction.is_listwise(source):  # whose code is known
        return
    if isinstance(code, Mapping) and "AutoModel" in code and not stated_attention(fitted.config):
        raise BadCheckpoint(
            f"config.json says auto_map {code['AutoModel']}, code of its own, which may attend to later tokens where "
            f"the usual class of {source.name} does not, and no key tells: add --attention causal or bidirectional"
        )


def _calibration(model: TextModel, int8: Int8Options, folder: Path, progress: Progress) -> Calibration:
    """Return the results of the float32 encoder, which is written to a folder inside `folder` for that."""
    fitted, longest = model.fitted, model.max_tokens
    with TemporaryDirectory(prefix=".float32-", dir=folder) as name:
        full = Path(name)
        stored = weights.write(full, fitted.read(model.source), fitted.tables, progress=progress)
        tokenizer.copy(model.source.folder, full, model.sentence.lowercase)
        progress("calibrating", 0, 0)
        filling = text_vectors.filling(fitted, model.source.folder, longest)
        return calibrate(full, stored.placed, fitted, model.vector, longest, int8.calibration or CALIBRATION, filling)


def _write_weights(
    model: TextModel, options: TextOptions, calibration: Calibration | None, folder: Path, progress: Progress
) -> WrittenWeights:
    """Write the tensors of the model, of its modules and of its heads, those of the blocks in int8 if calibrated."""
    fitted = model.fitted
    arrays = fitted.read(model.source)
    if calibration:
        arrays = int8_matrices.quantized(arrays, fitted.encoder, calibration.largest)
    arrays = {**arrays, **sentence_vectors.arrays(model.modules), **task_heads.arrays(model.heads)}
    arrays |= model.images.read(model.source) if model.images else {}
    return weights.write(folder, arrays, fitted.tables, dtype=options.dtype, progress=progress)


def _with_files(card: Card, model: TextModel, stored: WrittenWeights, folder: Path) -> Card:
    """Write the graphs and the tokenizer, and return the card with them and with the weights."""
    splade = card.sparse is not None and card.sparse.splade is not None
    graphs = write_graphs(folder, model.fitted, stored.placed, splade)
    if model.images:
        graphs |= save_graphs(folder, {IMAGE_ROWS: model.images.graph(stored.placed)}, "image")
    row_graphs = write_row_graphs(folder, model.fitted, stored.placed, model.sentence.pooling, model.heads)
    write_module_graphs(folder, card, stored.placed)
    has_tokenizer = tokenizer.copy(model.source.folder, folder, model.sentence.lowercase)
    if model.heads.multi_vector and model.heads.multi_vector.markers:
        tokenizer.add_markers(folder, model.heads.multi_vector.markers)
    return replace(
        card,
        graphs=graphs,
        row_graphs=row_graphs,
        tokenizer=tokenizer.FILE_NAME if has_tokenizer else None,
        weights=weights.FILE_NAME,
        tables=stored.tables,
    )


def _card(model: TextModel, stored: WrittenWeights) -> Card:
    """Return the card without its files."""
    fitted = model.fitted
    width = fitted.config.count("hidden_size")
    card = Card(
        family=fitted.model_type,
        hidden_size=width,
        vocab_size=fitted.config.count("vocab_size"),
        pad_id=fitted.pad_id,
        type_rows=fitted.type_rows,
        types=fitted.types,
        position=fitted.position,
        default_output=_default_output(model),
        recipe=fitted.recipe,
        encoder=fitted.encoder,
        encodings=fitted.encodings,
        dtype=stored.tables[tables(fitted.recipe)[0]].dtype,
        parameters=stored.parameters(),
        bytes=stored.bytes,
        flops_per_token=_flops(fitted, width),
        flops_per_token_and_key=cost.flops_per_token_and_key(fitted.encoder, width),
        tolerance=TOLERANCE["encoder" if fitted.encoder else "input"],
        per_layer=fitted.per_layer,
        side=fitted.side,
        assumed=fitted.assumed,
        encoder_width=fitted.token_width if fitted.token_width != width else None,
        no_blocks_reason=fitted.no_blocks_reason,
        prompt_embeds_output=_prompt_embeds_output(fitted),
        image_tokens=model.images.spec if model.images else None,
    )
    return _with_provenance(_with_heads(_with_texts(card, model), model), model)


def _with_provenance(card: Card, model: TextModel) -> Card:
    """Return the card with where its settings were read."""
    of_texts = tokenizer.provenance(
        model.source.folder, model.sentence, model.fitted.position.longest(), card.max_tokens
    )
    return replace(card, provenance=(*model.read_from, *of_texts, *model.heads.provenance))


def _with_texts(card: Card, model: TextModel) -> Card:
    """Return the card with how texts are read and become sentence vectors."""
    fitted, sentence, folder = model.fitted, model.sentence, model.source.folder
    return replace(
        card,
        max_tokens=model.max_tokens,
        cut_side="left" if tokenizer.cut_side(folder).value == "left" else "right",
        extras=fitted.extras,
        mask_from=fitted.family.mask_from,
        pooling=sentence.pooling,
        prompts=_task_prompts(fitted) | sentence.prompts,
        default_prompt=sentence.default_prompt,
        modules=sentence_vectors.described(model.modules),
        similarity=similarity.read_similarity(model.source),
        similarity_function=sentence.similarity_function,
        filling=text_vectors.filling(fitted, folder, model.max_tokens),
        tasks=fitted.tasks,
        default_task=_default_task(fitted, sentence.default_prompt),
        reads_segments=sentence_transformers.reads_segments(folder),
        text_ending=model.ending,
    )


def _with_heads(card: Card, model: TextModel) -> Card:
    """Return the card with the heads that read the hidden states besides sentence vectors."""
    fitted, heads = model.fitted, model.heads
    if several := heads.multi_vector:
        longest = multi_vectors.longest(several.multi_vector, card.max_tokens, fitted.position.longest())
        prompts = card.prompts | several.prompts
        card = replace(card, multi_vector=several.multi_vector, prompts=prompts, max_tokens=longest)
    if heads.classifier and heads.classifier.template:  # which holds the prompt
        card = replace(card, prompts={}, default_prompt=None, cut_side="right")  # a template is read to its end
    return replace(
        card,
        head=fitted.head,
        no_head_reason=fitted.no_head_reason,
        classifier=heads.classifier,
        no_classifier_reason=heads.no_classifier_reason,
        sparse=heads.sparse.sparse if heads.sparse else None,
    )


def _flops(fitted: FittedModel, width: int) -> dict[str, int]:
    """Return the operations per token by graph."""
    flops = {"embedding": cost.flops_per_token(fitted.recipe, fitted.shapes, width)}
    if fitted.encoder:
        flops["encoder"] = flops["embedding"] + cost.flops_per_token(fitted.encoder, fitted.shapes, width)
    if fitted.head:
        flops["head"] = fitted.head.flops_per_row
    return flops


def _default_task(fitted: FittedModel, default_prompt: str | None) -> str | None:
    """Return the task of requests that name none: config.json's, else the default prompt's; None without adapters."""
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


def _default_output(model: TextModel) -> str:
    if model.sentence.pooling:
        return "sentence_embedding"
    if model.heads:
        return model.heads.default_output
    return "last_hidden_state" if model.fitted.encoder else "input_embeddings"


def _prompt_embeds_output(fitted: FittedModel) -> str:
    """Return the family's output for prompt_embeds; if nothing scales, rows are unscaled already."""
    output = fitted.family.prompt_embeds_output
    scales = any(isinstance(step, Scale) for step in fitted.recipe)
    return "token_embeddings" if output == "unscaled_embeddings" and not scales else output
