"""Adopts a folder that already holds ONNX: the graph is copied byte for byte, and a card is made for it.

An adopted graph has no recipe to compare with. Adoption checks that it loads, takes inputs that Inlay feeds, gives a
known output, and computes the same for a sequence in a padded batch as for the sequence alone.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from models.artifacts import sentence_vectors, tokenizer
from models.artifacts.adopted_pooling import POOLED, AdoptedGraph, decide, vector_width
from models.artifacts.card import Card, Graph
from models.artifacts.comparison import TOLERANCE, Session, make_check_inputs, modules_difference, padded_differences
from models.artifacts.export import max_input_tokens, tool_version
from models.artifacts.folder import atomic_folder, finish_folder
from models.artifacts.overwrite_checks import check_name, check_target
from models.checkpoints import sentence_transformers
from models.checkpoints.checkpoint import read_config
from models.checkpoints.sentence_modules import FoundModules
from models.checkpoints.sentence_transformers import Pooling, SentenceFiles
from models.errors import BadCheckpoint
from models.families import FAMILIES, LIST_HINT
from models.families.config import Config
from models.families.filling import position_rule
from models.families.positional_encodings import Encodings
from models.positions.learned import PositionRule
from models.progress import Progress, no_progress

FILE = "model.onnx"
ONNX_PATHS = ("onnx/model.onnx", "model.onnx")
INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
HIDDEN = ("last_hidden_state", "token_embeddings")  # the second: what optimum's sentence-transformers exports call it
_DTYPES = {
    1: "float32",
    10: "float16",
    11: "float64",
    16: "bfloat16",
    2: "uint8",
    3: "int8",
}  # onnx.TensorProto.DataType


@dataclass(frozen=True, slots=True)
class OnnxContents:
    """The contents of an ONNX file.

    Attributes:
        data_files: the files of its weights, relative to the file's folder.
        parameters: elements of its weights.
        dtype: of the largest weight.
    """

    data_files: tuple[str, ...]
    parameters: int
    dtype: str


def adopt(
    source: Path,
    out: Path,
    *,
    name: str | None = None,
    pooling: str | None = None,
    force: bool = False,
    progress: Progress = no_progress,
) -> Card:
    """Write the ONNX model of `source` to `out` and return its card.

    Args:
        source: holds onnx/model.onnx or model.onnx, config.json, and where it has them tokenizer.json and
            sentence-transformers files.
        out: the folder to write.
        name, force, progress: as for `export`.
        pooling: as for `export`, or "graph": the graph's own sentence_embedding, which holds every module.

    Raises:
        ModelError: the model cannot be adopted, or `out` may not be replaced.
        OSError: a file cannot be written.
    """
    out = out.absolute()
    check_target(out, source, force)
    if name is not None:
        check_name(name)
    data = read_config(source)
    path = _find_onnx(source)
    contents = read_contents(path)
    with atomic_folder(out) as folder:
        for file in (path.name, *contents.data_files):
            progress("copying", 0, 0)
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path.parent / file, folder / file)
        session = Session(folder / FILE)
        graph = graph_of(session)
        sentence = sentence_transformers.read(source, "none")
        has_tokenizer = tokenizer.copy(source, folder, sentence.lowercase)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        card = _card(name or out.name, source, data, graph, sentence, contents, has_tokenizer, size)
        progress("comparing alone and batched", 0, 0)
        own = AdoptedGraph(graph, session, make_check_inputs(card), card.hidden_size)
        decided, found = decide(source, sentence, own, pooling)
        card = _pooled(card, own, decided, pooling)
        differences = padded_differences(card, graph, session, own.inputs)
        kept = {output: differences[output] for output in card.graphs["encoder"].outputs}
        card = _with_modules(folder, replace(card, largest_difference=kept), found)
        return finish_folder(folder, card, progress)


def _pooled(card: Card, own: AdoptedGraph, pooling: Pooling | None, chosen: str | None) -> Card:
    """Return the card with its pooling, and with the sentence vector as its default output where there is one."""
    graph = own.entry
    if pooling is None and (chosen == "none" or POOLED not in graph.outputs):
        graph = replace(graph, outputs=("last_hidden_state",))
        return replace(card, graphs={"encoder": graph}, default_output="last_hidden_state")
    width = vector_width(own) if POOLED in graph.outputs else None
    return replace(card, pooling=pooling, default_output=POOLED, graph_width=width)


def _with_modules(folder: Path, card: Card, found: FoundModules) -> Card:
    """Write the modules that run behind pooling, if there are any, and return the card with them."""
    if (modules := sentence_vectors.described(found)) is None:
        return card
    stored = sentence_vectors.write_beside(folder, found)
    difference = {POOLED: max(card.largest_difference.get(POOLED, 0.0), modules_difference(folder, modules))}
    return replace(
        card,
        modules=modules,
        parameters=card.parameters + stored.parameters(),
        bytes=card.bytes + sum(tensor.bytes for tensor in stored.placed.values()),
        largest_difference=card.largest_difference | difference,
    )


def _find_onnx(source: Path) -> Path:
    for place in ONNX_PATHS:
        if (source / place).is_file():
            return source / place
    raise BadCheckpoint(
        f"{source} holds neither {' nor '.join(ONNX_PATHS)}; `export` makes ONNX of a checkpoint's safetensors"
    )


def read_contents(path: Path) -> OnnxContents:
    """Return the contents of an ONNX file without loading its weights; BadCheckpoint if it is not one."""
    import onnx

    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's own, whose class depends on its build
        raise BadCheckpoint(f"{path} is not an ONNX file: {error}") from error
    tensors = list(_tensors(model.graph))
    files = dict.fromkeys(
        entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"
    )
    for file in files:
        inside = (path.parent / file).resolve().is_relative_to(path.parent.resolve())
        if Path(file).is_absolute() or ".." in Path(file).parts or not (path.parent / file).is_file():
            state = "lies outside its folder" if not inside else "is not there"
            raise BadCheckpoint(f"{path} keeps weights in {file!r}, which {state}")
    largest = max(tensors, key=lambda tensor: prod(tensor.dims), default=None)
    dtype = "float32" if largest is None else _DTYPES.get(largest.data_type, "unknown")
    return OnnxContents(tuple(files), sum(prod(tensor.dims) for tensor in tensors), dtype)


def _tensors(graph: Any) -> Iterator[Any]:
    """Yield every stored tensor of a graph, those of constants and inner graphs included."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("g"):
                yield from _tensors(attribute.g)


def graph_of(session: Session) -> Graph:
    """Return the card's entry for a graph; BadCheckpoint if Inlay does not know its inputs and outputs."""
    for name, value in session.inputs.items():
        if name not in INPUTS:
            raise BadCheckpoint(f"{session.path.name} wants the input {name!r}; Inlay feeds {', '.join(INPUTS)}")
        if value.type != "tensor(int64)":
            raise BadCheckpoint(
                f"{session.path.name} takes {name} as {value.type}; Inlay feeds int64: export it with int64 inputs"
            )
        if len(value.shape) != 2 or any(isinstance(size, int) for size in value.shape):
            raise BadCheckpoint(
                f"{session.path.name} takes {name} of shape {value.shape}; batch and length must both be free: "
                "export it with dynamic axes"
            )
    if "input_ids" not in session.inputs or "attention_mask" not in session.inputs:
        raise BadCheckpoint(
            f"{session.path.name} takes {', '.join(session.inputs)}; it must take input_ids and attention_mask"
        )
    hidden = next((name for name in HIDDEN if name in session.outputs), None)
    outputs = [*(["last_hidden_state"] if hidden else []), *([POOLED] if POOLED in session.outputs else [])]
    if not outputs:
        known = ", ".join((*HIDDEN, POOLED))
        raise BadCheckpoint(f"{session.path.name} gives {', '.join(session.outputs)}; one of {known} is needed")
    rename = {"last_hidden_state": hidden} if hidden not in (None, "last_hidden_state") else {}
    inputs = tuple(name for name in INPUTS if name in session.inputs)
    return Graph(FILE, inputs, tuple(outputs), "padded", rename)


def _card(
    name: str,
    source: Path,
    data: dict[str, Any],
    graph: Graph,
    sentence: SentenceFiles,
    contents: OnnxContents,
    has_tokenizer: bool,
    size: int,
) -> Card:
    family = FAMILIES.get(data["model_type"])
    config = Config(data, family.defaults if family else {}, family.names if family else {})
    position = position_rule(family, config) if family else _unknown_position_rule(config, graph)
    has_types = "token_type_ids" in graph.inputs
    return Card(
        name=name,
        family=data["model_type"],
        hidden_size=config.count("hidden_size"),
        vocab_size=config.count("vocab_size"),
        max_tokens=max_input_tokens(position.longest(), sentence, source),
        pad_id=config.pad_id(),
        type_rows=config.count("type_vocab_size") if has_types else 0,
        types="zeros" if has_types else "none",
        position=position,
        graphs={"encoder": graph},
        default_output="last_hidden_state",
        recipe=(),
        encoder=(),
        weights=None,
        tokenizer=tokenizer.FILE_NAME if has_tokenizer else None,
        pooling=None,
        prompts=sentence.prompts,
        default_prompt=sentence.default_prompt,
        encodings=Encodings(),
        dtype=contents.dtype,
        parameters=contents.parameters,
        bytes=size,
        flops_per_token={},
        flops_per_token_and_key=0,
        largest_difference={},
        tolerance=TOLERANCE["encoder"],
        files={},
        source=source.resolve().name,
        tool=tool_version(),
        similarity_function=sentence.similarity_function,
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
