"""Adopts ONNX that a folder or a hub repository already holds: the graph is copied byte for byte, and a card is made.

An adopted graph has no recipe to compare with. Adoption checks that it loads, takes inputs that Inlay feeds and gives a
known output. Where other sequences in a batch would move a sequence, it is run one sequence at a time. Where the graph
is not float32, its vectors are compared with those of the float32 ONNX beside it.

Of a hub repository the ONNX file, the files of its weights, the small files and the weights of the modules behind
pooling are fetched, and nothing else; the float32 ONNX only if the caller asks for the comparison.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from models.artifacts import adopted_classifier, adopted_comparison, sentence_vectors, tokenizer, weights
from models.artifacts.adopted_pooling import AdoptedGraph, decide, output_width
from models.artifacts.card import FILE_NAME, MODULES, Card, Graph
from models.artifacts.closeness import AdoptedFile
from models.artifacts.comparison import TOLERANCE, Session, make_check_inputs, modules_difference, padded_differences
from models.artifacts.folder import Target, atomic_folder, finish_folder
from models.artifacts.graph_files import write_module_graphs
from models.artifacts.onnx_interface import FILE, graph_of
from models.artifacts.overwrite_checks import check_name, check_target
from models.checkpoints import sentence_transformers
from models.checkpoints.checkpoint import FLOAT32_ONNX, read_config
from models.checkpoints.hub import Progress, no_progress
from models.checkpoints.located import lines_in_errors, renamed_in_errors
from models.checkpoints.onnx_files import OnnxContents, OnnxSource, config_folder, fetch_onnx, open_onnx
from models.checkpoints.provenance import Setting, random_weights
from models.checkpoints.sentence_modules import StoredModules
from models.checkpoints.sentence_transformers import Pooling
from models.checkpoints.static import find_static_folder
from models.errors import BadCheckpoint, ModelError
from models.families import FAMILIES, LIST_HINT
from models.families.config import Config
from models.families.filling import position_rule
from models.families.opening import located_files
from models.positions.learned import PositionRule
from models.recipes.graph_names import POOLED

RESERVED = (FILE_NAME, tokenizer.FILE_NAME, weights.FILE_NAME, f"{MODULES}.onnx")
NOT_FETCHED = "the float32 weights were not fetched; --compare fetches them"


def adopt(
    source: Path | str,
    out: Path,
    *,
    name: str | None = None,
    file: str | None = None,
    pooling: str | None = None,
    compare: bool | None = None,
    progress: Progress = no_progress,
    endpoint: str | None = None,
) -> Card:
    """Write an ONNX model of `source` to `out` and return its card.

    Args:
        source: a folder or a hub id, org/name or org/name@revision. It holds ONNX, config.json, and where it has them
            tokenizer.json and sentence-transformers files.
        out: the folder to write.
        file: the ONNX file's path in the source; None: the first of FLOAT32_ONNX that is there.
        pooling: as in `export`, or "graph": the graph's own sentence_embedding, which holds every module.
        compare: compare the vectors with those of the float32 ONNX; None: of a folder, where the chosen file is not
            the float32 one.
        name, progress: as in `export`.
        endpoint: the hub's address; None: what huggingface_hub is set to (HF_ENDPOINT).

    Raises:
        ModelError: the model cannot be adopted or not be compared as asked, or `out` may not be replaced.
        OSError: a file cannot be written.
    """
    out = out.absolute()
    check_target(out, Path(source))
    if name is not None:
        check_name(name)
    files = located_files(source, progress, endpoint, weights=False)
    with files as place, lines_in_errors(config_folder(place.folder)):
        if find_static_folder(place.folder):
            raise BadCheckpoint(f"{source} is a static embedding, of which no ONNX is needed: `inlay export` takes it")
        data = read_config(config_folder(place.folder))
        onnx = open_onnx(place, file, progress)
        with atomic_folder(out) as folder, renamed_in_errors((folder / FILE,), lambda: onnx.label):
            contents = fetch_onnx(onnx.files, onnx.path, folder / FILE, RESERVED)
            session = Session(folder / FILE)
            card = _card(onnx, data, graph_of(session, adopted_classifier.output(data)), contents, folder)
            card, found = _checked(onnx, card, data, session, contents.dynamic, pooling, progress)
            card = _with_modules(folder, card, found)
            card = replace(card, provenance=(*_vector_provenance(onnx, card, pooling), *card.provenance))
            adopted = _adopted(onnx, card, contents, session, compare, folder, progress)
            target = Target(out, name or out.name, place.name, progress)
            return finish_folder(folder, replace(card, adopted=adopted), target)


def _vector_provenance(onnx: OnnxSource, card: Card, option: str | None) -> list[Setting]:
    """Return where the pooling of vectors, or the labels of classes, were read."""
    if card.classifier:
        labels = ", ".join(card.classifier.labels[:3]) + ", ..." * (len(card.classifier.labels) > 3)
        return [Setting("labels", labels, "config.json: id2label"), Setting("head", "logits of the graph", onnx.path)]
    if card.pooling and card.pooling.in_graph:
        return [Setting("pooling", card.pooling.mode, f"the graph's {POOLED}")]
    sentence = sentence_transformers.read(onnx.place.folder, "none")
    return sentence_transformers.provenance(onnx.place.folder, option, replace(sentence, pooling=card.pooling))


def _checked(
    onnx: OnnxSource,
    card: Card,
    config: dict[str, Any],
    session: Session,
    dynamic: bool,
    pooling: str | None,
    progress: Progress,
) -> tuple[Card, StoredModules]:
    """Return the card with its pooling and with how far a batch moves a sequence, and the modules to run.

    Args:
        onnx: the ONNX model that is adopted.
        card: card of the model so far.
        config: config.json of the model.
        session: session of the model's graph.
        dynamic: the graph quantizes a batch by its largest value.
        pooling: as in `adopt`.
        progress: receives what is compared.
    """
    progress("comparing alone and batched", 0, 0)
    inputs, graph = make_check_inputs(card), card.graphs["encoder"]
    adopted = AdoptedGraph(graph, session, inputs, card.hidden_size)
    card = replace(card, graph_width=output_width(adopted) if POOLED in graph.outputs else None)
    card = replace(card, classifier=adopted_classifier.classifier(config, adopted, onnx.place.folder))
    differences = padded_differences(card, graph, session, inputs)
    graph = replace(graph, one_by_one=dynamic or max(differences.values()) > card.tolerance)
    if card.classifier:
        if pooling:
            raise BadCheckpoint(f"{onnx.label} gives logits of labels, not vectors: leave out --pooling {pooling}")
        card = replace(card, graphs={"encoder": graph}, default_output=card.classifier_output)
        return replace(card, largest_difference=differences), StoredModules()
    place = onnx.place
    sentence = sentence_transformers.read(place.folder, "none")
    decided, found = decide(place.folder, sentence, adopted, pooling, place.fetch_module)
    card = _pooled(card, graph, decided, pooling)
    kept = {name: differences[name] for name in card.graphs["encoder"].outputs}
    return replace(card, largest_difference=kept), found


def _adopted(
    onnx: OnnxSource,
    card: Card,
    contents: OnnxContents,
    session: Session,
    compare: bool | None,
    folder: Path,
    progress: Progress,
) -> AdoptedFile:
    """Return the card's entry for the ONNX file, compared with the float32 one if `adopt` says so."""
    if compare is None and contents.is_float32 and onnx.path in FLOAT32_ONNX:
        return AdoptedFile(onnx.path)
    if compare is False:
        return AdoptedFile(onnx.path, uncompared="the caller did not want it (--no-compare)")
    if compare is None and onnx.place.repository:
        return AdoptedFile(onnx.path, uncompared=NOT_FETCHED)
    try:
        with renamed_in_errors((onnx.place.folder,), lambda: onnx.place.name):  # callers can read the card
            return AdoptedFile(onnx.path, adopted_comparison.compare(onnx, card, session, folder, progress))
    except ModelError as error:
        if compare:
            raise BadCheckpoint(f"{onnx.label} cannot be compared with float32 weights: {error}") from error
        return AdoptedFile(onnx.path, uncompared=str(error))


def _pooled(card: Card, graph: Graph, pooling: Pooling | None, chosen: str | None) -> Card:
    """Return the card with its pooling, and with the sentence vector as its default output where there is one."""
    if pooling is None and (chosen == "none" or POOLED not in graph.outputs):
        graph = replace(graph, outputs=("last_hidden_state",))
        return replace(card, graphs={"encoder": graph}, default_output="last_hidden_state", graph_width=None)
    return replace(card, graphs={"encoder": graph}, pooling=pooling, default_output=POOLED)


def _with_modules(folder: Path, card: Card, found: StoredModules) -> Card:
    """Write the modules that run after pooling, if there are any, and return the card with them."""
    if (modules := sentence_vectors.described(found)) is None:
        return card
    stored = weights.write(folder, sentence_vectors.arrays(found), ())
    card = replace(
        card, modules=modules, parameters=card.parameters + stored.parameters(), bytes=card.bytes + stored.bytes
    )
    write_module_graphs(folder, card, stored.placed)
    difference = {POOLED: max(card.largest_difference.get(POOLED, 0.0), modules_difference(folder, modules))}
    return replace(card, largest_difference=card.largest_difference | difference)


def _card(onnx: OnnxSource, data: dict[str, Any], graph: Graph, contents: OnnxContents, folder: Path) -> Card:
    """Copy the tokenizer and return the card, still without its pooling and differences."""
    sentence = sentence_transformers.read(onnx.place.folder, "none")
    beside = config_folder(onnx.place.folder)
    has_tokenizer = tokenizer.copy(beside, folder, sentence.lowercase)
    family = FAMILIES.get(data["model_type"])
    config = Config(data, family.defaults if family else {}, family.names if family else {})
    position = position_rule(family, config) if family else _unknown_position_rule(config, graph)
    longest = tokenizer.longest_input(position.longest(), sentence, beside)
    has_types = "token_type_ids" in graph.inputs
    return Card(
        family=data["model_type"],
        hidden_size=config.count("hidden_size"),
        vocab_size=config.count("vocab_size"),
        max_tokens=longest,
        cut_side="left" if tokenizer.cut_side(beside).value == "left" else "right",
        pad_id=config.pad_id(),
        type_rows=config.count("type_vocab_size") if has_types else 0,
        types="zeros" if has_types else "none",
        position=position,
        graphs={"encoder": graph},
        default_output="last_hidden_state",
        tokenizer=tokenizer.FILE_NAME if has_tokenizer else None,
        prompts=sentence.prompts,
        default_prompt=sentence.default_prompt,
        dtype=contents.dtype,
        parameters=contents.parameters,
        bytes=sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
        tolerance=TOLERANCE["float16" if contents.dtype == "float16" else "encoder"],
        similarity_function=sentence.similarity_function,
        reads_segments=sentence_transformers.reads_segments(beside),
        provenance=(*random_weights(data), *tokenizer.provenance(beside, sentence, position.longest(), longest)),
    )


def _unknown_position_rule(config: Config, graph: Graph) -> PositionRule:
    """Return the rule for an unknown model_type, whose graph must number the tokens itself."""
    if "position_ids" in graph.inputs:
        raise BadCheckpoint(
            f"{FILE} wants position_ids, and how model_type {config.get('model_type')!r} numbers positions is not "
            f"known: export it without that input, or adopt one of a known model_type; {LIST_HINT}"
        )
    rows = config.count("max_position_embeddings") if config.get("max_position_embeddings") is not None else None
    return PositionRule("arange", 0, rows)
