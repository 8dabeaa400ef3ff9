"""Describes families, exported models and checkpoints as text for a terminal."""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import get_args

from models.artifacts import card as cards
from models.artifacts import task_heads
from models.artifacts import vision_description as vision
from models.artifacts.card import Card
from models.checkpoints import peft, sentence_transformers
from models.checkpoints.checkpoint import Checkpoint
from models.checkpoints.sentence_transformers import Pooling
from models.checkpoints.static import Kind, find_static_folder, open_static
from models.errors import BadCard, ModelError
from models.families import FAMILIES, LIST_HINT, family_of
from models.families.family import Family
from models.families.fitting import FittedModel, fit
from models.families.opening import is_file_or_hub_id, located
from models.families.uncovered import uncovered
from models.recipes.heads import Classifier
from models.recipes.positional_encodings import EVERY_LAYER, Encodings
from models.recipes.steps import Recipe, Step, tensors
from models.tables.int8_matrices import session_entries
from models.vision.families import FAMILIES as VISION
from models.vision.fitting import tower

CHECKPOINT_FILES = ("config.json", "modules.json", peft.CONFIG)
_IF_POOLED = " if it pools, as its files or --pooling say, or with --encoder float32"
SLOW_INT8 = "this processor lacks VNNI: int8 is exact but hardly faster here (1.06 to 1.25 times float32 on a Zen 3)"


def families() -> str:
    """Return the table of known families."""
    return f"{table(family_rows())}\n\n{table(vision_rows())}"


def family_rows() -> list[tuple[str, ...]]:
    """Return a row for each text family, below a header."""
    rows: list[tuple[str, ...]] = [("model_type", "input layer", "attention", "exported")]
    for model_type, family in FAMILIES.items():
        steps = " ".join(type(step).__name__ for step in family.input_layer)
        rows.append((model_type, steps, _attention(family), _exported(model_type, family)))
    return [
        *rows,
        *((kind, "Embed", "none", "whole: the mean of the rows") for kind in get_args(Kind)),
    ]


def vision_rows() -> list[tuple[str, ...]]:
    """Return a row for each family of images or audio, below a header."""
    return [("model_type", "input layer of images", "reads"), *vision.rows()]


def store(folder: Path) -> str:
    """Return the table of exported models in a folder; for a broken one, why it is broken."""
    exports = sorted(path.parent for path in folder.glob(f"[!.]*/{cards.FILE_NAME}"))
    if not exports:
        return f"no exported models in {folder}"
    rows = [("exported model", "family", "dims", "MB", "encoder", "max tokens", "outputs")]
    broken = []
    for path in exports:
        try:
            card = cards.read(path)
        except BadCard as error:
            broken.append(f"{path.name}: {error}")
            continue
        size, limit = f"{card.bytes / 1e6:.1f}", str(card.max_tokens or "any")
        kind = card.quantized.dtype if card.quantized else "float32" if card.encoder else "-"
        rows.append((card.name, card.family, str(card.answer_width), size, kind, limit, " ".join(card.outputs)))
    return "\n".join([table(rows), *broken])


def is_model_type(what: str) -> bool:
    """Return whether this is a model_type of a family."""
    return what in FAMILIES or what in VISION


def describe(what: str) -> str:
    """Return a description of a model_type, an exported folder or a checkpoint; ModelError if `what` is none."""
    path = Path(what)
    if what in FAMILIES:
        return _family(what, family_of(what))
    if what in VISION:
        return "\n".join(vision.family(what))
    if (path / cards.FILE_NAME).is_file():
        return _card(cards.read(path))
    if any((path / name).is_file() for name in CHECKPOINT_FILES) or is_file_or_hub_id(what):
        with located(what) as place:
            if static_folder := find_static_folder(place.folder):
                return open_static(place.folder, static_folder).described()
            return _checkpoint(place.name, place.checkpoint(), place.folder)
    raise ModelError(_not_found(what, path))


def _not_found(what: str, path: Path) -> str:
    """Return the message for a name that is no model_type, exported folder or checkpoint."""
    if path.is_dir():
        return (
            f"{what} holds no {cards.FILE_NAME} (an export) and no config.json (a checkpoint): name a folder that does"
        )
    if path.exists():
        return f"{what} is a file, and of files only .gguf is read: name one of these, or a folder"
    if "/" in what:
        return f"{what} is no folder: name an export or a checkpoint, a .gguf file, a hub id (org/name) or a model_type"
    nearest = get_close_matches(what, (*FAMILIES, *VISION), 1)
    return f"{what} is no model_type{f'; did you mean {nearest[0]}?' if nearest else ' and no folder;'} {LIST_HINT}"


def comparison_summary(card: Card) -> str:
    """Return the result of the comparison at the end of the export, in one sentence."""
    exact = {name: each for name, each in card.largest_difference.items() if name not in _inexact(card)}
    worst = max(exact.values(), default=0.0)
    if any(graph.one_by_one for graph in card.graphs.values()):
        return (
            f"one sequence a run: beside others in a batch it would move by {worst:.1e} "
            f"({card.tolerance:.0e} is allowed); answers do not depend on other requests"
        )
    pair = "ONNX and the float64 reference" if card.weights else "a sequence alone and the same in a batch"
    return f"largest difference between {pair}: {worst:.1e} (allowed {card.tolerance:.0e})"


def _inexact(card: Card) -> tuple[str, ...]:
    """Return the outputs that `encoder_precision` is about."""
    return card.graphs["encoder"].outputs if card.quantized else ()


def encoder_precision(card: Card) -> str | None:
    """Return in one sentence what quantizing the encoder changed; None without a quantized encoder."""
    if (quantized := card.quantized) is None:
        return None
    return (
        f"{quantized.dtype} encoder; cosine to the float32 one over {quantized.texts} texts: min "
        f"{quantized.min_cosine:.4f}, mean {quantized.mean_cosine:.4f}"
    )


def blocks_summary(model: Card | FittedModel) -> str | None:
    """Return why only the input layer is exported; None if the blocks are too, or the card does not say."""
    return f"input layer alone: {model.no_blocks_reason}" if model.no_blocks_reason else None


def adoption_summary(card: Card) -> list[str]:
    """Return which ONNX file was adopted and how its vectors differ from the float32 model's, a line each."""
    if (adopted := card.adopted) is None:
        return []
    lines = [f"{adopted.path}, {card.dtype}"]
    if compared := adopted.comparison:
        lines.append(
            f"cosine to {compared.reference} over {compared.texts} texts: min {compared.min_cosine:.5f}, "
            f"mean {compared.mean_cosine:.5f}"
        )
    elif adopted.uncompared:
        lines.append(f"not compared with float32: {adopted.uncompared}")
    return lines


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Return rows in aligned columns, the first underlined."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _family(model_type: str, family: Family) -> str:
    lines = [
        f"{model_type}: tensors under {family.prefix!r} or none",
        f"positions  {family.numbering}",
        f"types      {family.types}",
        f"attention  {_attention(family)}",
        "input layer",
        *_steps(family.input_layer),
    ]
    if not family.block:
        return "\n".join([*lines, f"exported   {_exported(model_type, family)}"])
    lines += ["each block", *_steps(family.block)]
    if family.after_blocks:
        lines += ["behind the blocks", *_steps(family.after_blocks)]
    return "\n".join(lines)


def _exported(model_type: str, family: Family) -> str:
    """Return whether models of a family are exported whole, or why not."""
    reason = uncovered(model_type, family)
    if reason:
        return f"input layer alone: {reason}"
    if family.causal is True:
        return "whole if it pools"
    if family.decoder and (reason := uncovered(model_type, family.decoder)):
        return f"whole; of the decoder the input layer alone: {reason}"
    return "whole"


def _attention(family: Family) -> str:
    kinds = [
        "rope" if family.rotates else "",
        f"ALiBi ({family.alibi.form})" if family.alibi else "",
        f"{family.buckets.kind} buckets" if family.buckets else "",
    ]
    return " or ".join(filter(None, kinds)) or "no positions"


def _encodings(encodings: Encodings) -> str:
    """Return the positional encodings of the attention, in one line."""
    parts = [
        f"rope{'' if name == EVERY_LAYER else f' of {name}'}: {table.rope.rope_type}, theta {table.rope.theta:g}, "
        f"{table.rope.rotary_dim} channels, {table.layout}"
        for name, table in encodings.ropes.items()
    ]
    if encodings.alibi:
        parts.append(f"ALiBi ({encodings.alibi.form}), {encodings.alibi.heads} heads")
    if encodings.buckets:
        parts.append(
            f"{encodings.buckets.kind} buckets, {encodings.buckets.table or 'their table not in the checkpoint'}"
        )
    parts += [f"no {scheme} table: {reason}" for scheme, reason in encodings.refused.items()]
    return "; ".join([*(parts or ["no positions"]), *_masks(encodings)])


def warnings(card: Card) -> list[str]:
    """Return a sentence for each table that the checkpoint does not allow, for files that disagree, and slow int8."""
    refused = [f"{card.name} has no {scheme} table: {reason}" for scheme, reason in card.encodings.refused.items()]
    slow = [SLOW_INT8] if card.quantized is not None and session_entries() else []
    return refused + [setting.warning for setting in card.provenance if setting.warning] + slow


def provenance(card: Card) -> str | None:
    """Return the table of what the export read from which file; None if the card does not say."""
    if not card.provenance:
        return None
    return table([("setting", "from", "value"), *((each.name, each.origin, each.value) for each in card.provenance)])


def _masks(encodings: Encodings) -> list[str]:
    """Return which keys the layers of each type attend to."""
    lines = []
    for name, mask in encodings.masks.items():
        layers = "" if name == EVERY_LAYER else f" in {name}"
        window = f", window {mask.window}{'' if mask.causal else ' to either side'}" if mask.window else ""
        chunk = f", chunks of {mask.chunk}" if mask.chunk else ""
        lines.append(f"{'causal' if mask.causal else 'both ways'}{layers}{window}{chunk}")
    return lines


def _optional_facts(model: Card | FittedModel, side: str | None) -> dict[str, str]:
    """Return lines on the optional parts of a model: a side, extra inputs, per-layer embeddings, an output head."""
    facts = {"side": side, "extras": ", ".join(extra.name for extra in model.extras)}
    facts["tasks"] = ", ".join(model.tasks)
    facts["per layer"] = ", ".join(tensors(model.per_layer))
    if blocks := blocks_summary(model):
        facts["blocks"] = blocks
    if head := model.head:
        facts["output head"] = f"{'tied to' if head.tied else 'its own,'} {head.matrix}, {head.vocab_size:,} logits"
    elif model.no_head_reason:
        facts["output head"] = f"none: {model.no_head_reason}"
    if isinstance(model, Card):
        facts["classifier"] = _classifier(model.classifier, model.no_classifier_reason)
    return {key: value for key, value in facts.items() if value}


def _classifier(classifier: Classifier | None, no_classifier_reason: str | None) -> str:
    """Return what the classifier of a model returns, or why it has none; "" for a model that needs none."""
    if classifier is None:
        return f"none: {no_classifier_reason}" if no_classifier_reason else ""
    labels = f"{len(classifier.labels)} label{'s' * (len(classifier.labels) > 1)} ({', '.join(classifier.labels[:8])}"
    labels += ", ...)" if len(classifier.labels) > 8 else ")"
    of = (
        "each token"
        if classifier.pooling is None
        else f"a text, {'late ' * classifier.late}{classifier.pooling} pooling"
    )
    scores = f"scores {'rank texts' if classifier.ranks else 'are'} by {classifier.activation}"
    return "; ".join(
        filter(
            None, (f"{labels} of {of}", scores, classifier.problem_type, "pair template" * bool(classifier.template))
        )
    )


def _card(card: Card) -> str:
    flops = ", ".join(f"{name} {count:,}" for name, count in card.flops_per_token.items())
    facts = {
        "family": card.family,
        "vectors": f"{card.hidden_size} x {card.dtype} table, vocabulary {card.vocab_size:,}",
        "weights": f"{card.parameters:,} parameters, {card.bytes:,} bytes",
        "longest input": card.max_tokens or "no limit of its own",
        "outputs": f"{', '.join(card.outputs)} (default {card.default_output})",
        "pooling": _pooling(card.pooling),
        **_sentence_facts(card),
        "prompts": ", ".join(card.prompts) or "none",
        "attention": _encodings(card.encodings),
        **_optional_facts(card, card.side),
        "tokenizer": card.tokenizer or "none: takes ids",
        "FLOPs a token": flops or "not counted",
        **(vision.image(card.image) if card.image else {}),
        "checked": comparison_summary(card),
        **({"quantized": precision} if (precision := encoder_precision(card)) else {}),
        **({"adopted": "; ".join(lines)} if (lines := adoption_summary(card)) else {}),
        **({"assumed": "; ".join(card.assumed)} if card.assumed else {}),
        "made from": f"{card.source}, by {card.tool}",
    }
    lines = [f"{key:<14} {value}" for key, value in facts.items()]
    graphs = [
        f"  {graph.file:<24} {', '.join(graph.inputs)} -> {', '.join(graph.outputs)}" for graph in card.graphs.values()
    ]
    steps = ["input layer", *_steps(card.recipe)] if card.recipe else []
    steps += ["input layer", *vision.steps(card.image.steps)] if card.image else []
    read_from = ["", read] if (read := provenance(card)) else []
    return "\n".join([card.name, *lines, "graphs", *graphs, *_tables(card), *steps, *read_from])


def _pooling(pooling: Pooling | None) -> str:
    if pooling is None:
        return "none"
    kept = f", its first {pooling.dimensions} values" if pooling.dimensions else ""
    return pooling.mode + ", in the graph" * pooling.in_graph + ", normalised" * pooling.normalize + kept


def _sentence_facts(card: Card) -> dict[str, str]:
    """Return lines on how sentence vectors are made of pooled ones, and how to compare them."""
    facts = {}
    if several := card.multi_vector:
        filled = f", queries filled up to {several.expansion.tokens} tokens" if several.expansion else ""
        what = "mark of a query and all documents, read as one text" if several.listwise else "token"
        facts["multi-vector"] = f"{several.modules.width} columns a {what}{filled}"
    if modules := card.modules:
        facts["modules"] = f"{', '.join(type(step).__name__ for step in modules.steps)}: vectors of {modules.width}"
    if sparse := card.sparse:
        encoded = f"SPLADE, {sparse.splade.pooling} of {sparse.splade.activation}" if sparse.splade else ""
        encoded = "a weight for each token" if sparse.lexical else encoded
        looked_up = ("queries looked up" if encoded else "looked up") if sparse.table else ""
        facts["sparse"] = ", ".join(filter(None, (encoded, looked_up)))
    if card.similarity_function:
        facts["compared by"] = card.similarity_function
    if card.calibration:
        facts["int8 ranges"] = f"of {card.calibration.texts:,} texts"
    return facts


def _tables(card: Card) -> list[str]:
    """Return how each table is stored, and its error if the dtype is not the checkpoint's."""
    lines = []
    for name, table in (card.tables or {}).items():
        error = f"; error: largest {table.largest_error:.1e}, rms {table.rms_error:.1e}" if table.largest_error else ""
        lines.append(f"  {name}: {table.dtype}, {table.bytes:,} bytes{error}")
    return ["tables", *lines] if lines else []


def _checkpoint(name: str, source: Checkpoint, folder: Path) -> str:
    if source.model_type in VISION and (image_tower := tower(source.config, None)):
        return "\n".join(vision.checkpoint(source, image_tower))
    fitted = fit(source)
    named = fitted.tensors
    heads = task_heads.find(source, fitted, folder, sentence_transformers.read(folder, "none"))
    classifier = _classifier(heads.classifier, heads.no_classifier_reason)
    held = [fitted.parts[name].tensor if name in fitted.parts else source.tensors[name] for name in named]
    size = sum({(each.path, each.offset): each.bytes for each in held}.values())  # GPT-2's q, k and v lie in one tensor
    whole = sum(each.bytes for each in source.tensors.values())
    return "\n".join(
        [
            f"{name}: a checkpoint of model_type {fitted.model_type!r}",
            f"an export reads {size:,} of the {whole:,} bytes of its {len(source.tensors)} tensors",
            f"longest input: {fitted.position.longest() or 'any'}",
            *([f"blocks: exported{_IF_POOLED * (fitted.family.causal is True)}"] if fitted.encoder else []),
            f"attention: {_encodings(fitted.encodings)}",
            *(f"{key}: {value}" for key, value in _optional_facts(fitted, fitted.side).items()),
            *([f"classifier: {classifier}"] if classifier else []),
            "input layer",
            *_steps(fitted.recipe),
        ]
    )


def _steps(recipe: Recipe) -> list[str]:
    return [f"  {type(step).__name__:<12} {_reads(step)}" for step in recipe]


def _reads(step: Step) -> str:
    return ", ".join(tensors((step,)))
