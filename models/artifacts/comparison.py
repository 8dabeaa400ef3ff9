"""Compares the graphs of an exported folder, run by ONNX Runtime, with the numpy float64 reference.

`export` and `verify` call it. ONNX Runtime is imported inside functions: importing `models` needs numpy and ml_dtypes.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import CLASS_LOGITS, HEAD, MODULES, Card, Graph
from models.artifacts.weights import tensors
from models.checkpoints import safetensors
from models.errors import BadCard, ReferenceMismatch
from models.positions.learned import positions
from models.positions.rope.angles import cos_sin
from models.positions.rope.frequencies import frequencies
from models.recipes.extra_inputs import IMAGE_ROWS, PLACES, TASKS, Extra, extra_values
from models.recipes.graph_names import ONE_ROW
from models.recipes.heads import OutputHead
from models.recipes.sentence_modules import SentenceModules
from models.recipes.steps import Experts
from models.reference import head as head_reference
from models.reference import interpreter, static
from models.reference import sentence_modules as modules_reference
from models.tables import int8_matrices

TOLERANCE = {"input": 1e-5, "encoder": 1e-4, "head": 1e-4, "int8": 0.5, "float16": 1e-2}
"""float16: of an adopted graph; its values are rounded to 1e-3, and MiniLM's move by 1.6e-3 in a batch."""
_LENGTHS = (1, 2, 17, 5, 33)
_SEED = 20240
_ROUTED_SEEDS = 3  # of models with experts: with one of them all experts have to be chosen as in float64
_HEAD_SCALES = (1.0, 0.1, 4.0)  # of the check rows' values, around what a final norm gives
_HEAD_SEED = 20241

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class CheckInputs:
    """Packed check inputs: sequences of different lengths; the last is one token on the last position.

    Attributes:
        ids, positions, types: int64 [N].
        mask: bool [N].
        lengths: int64 [B], sum N.
        extras: int64 [N] or [N, columns] by name.
    """

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    types: NDArray[np.int64]
    mask: NDArray[np.bool_]
    lengths: NDArray[np.int64]
    extras: Arrays = field(default_factory=dict)

    def feeds(self) -> Arrays:
        """Return the arrays by the name of the graph input they are for."""
        names = ("ids", "positions", "types", "mask", "lengths")
        return {name: getattr(self, name) for name in names} | {
            "segments": np.repeat(np.arange(len(self.lengths)), self.lengths),
            **self.extras,
        }


class Session:
    """A one-threaded ONNX Runtime session on the CPU that logs nothing.

    Raises:
        BadCard: the file does not load, or does not run on the feeds.
    """

    def __init__(self, path: Path) -> None:
        import onnxruntime

        self.path = path
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        for key, value in int8_matrices.session_entries().items():
            options.add_session_config_entry(key, value)
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exceptions share no base class of their own
            reason = " ".join(str(error).split())
            raise BadCard(f"{path} does not load in ONNX Runtime {onnxruntime.__version__}: {reason}") from error
        self.inputs = {value.name: value for value in self._session.get_inputs()}
        self.outputs = {value.name: value for value in self._session.get_outputs()}

    def run(self, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> Arrays:
        """Return the named outputs of the graph for these inputs."""
        try:
            values = self._session.run(list(outputs), dict(feeds))
        except Exception as error:
            raise BadCard(f"{self.path} does not run on the check inputs: {' '.join(str(error).split())}") from error
        return dict(zip(outputs, values, strict=True))


def make_check_inputs(card: Card, seed: int = _SEED) -> CheckInputs:
    """Return random sequences that include the first, the last and the pad id; a fifth of the rows are masked."""
    random = np.random.default_rng(seed)
    longest = min(card.position.longest() or max(_LENGTHS), max(_LENGTHS))
    lengths = [min(length, longest) for length in _LENGTHS] + [1]
    sequences = [random.integers(0, card.vocab_size, length) for length in lengths]
    sequences[2][0], sequences[2][-1] = 0, card.vocab_size - 1
    if card.pad_id is not None and longest > 2:
        sequences[3][-2:] = card.pad_id
    if card.static and card.static.dropped is not None:
        sequences[4][::3] = card.static.dropped
    sequence_positions = [positions(card.position, sequence) for sequence in sequences]
    sequence_positions[-1] = np.full(1, (card.position.rows or 100_000) - 1)
    ids = np.concatenate(sequences).astype(np.int64)
    mask = random.random(len(ids)) < 0.8
    mask[0] = False  # the only row of the first sequence: a sequence with nothing to attend to
    type_rows = card.vocab_size if card.types == "optional" else max(card.type_rows, 1)
    types = random.integers(0, type_rows, len(ids))
    extras = {extra.name: _random_extra(extra, sequences, random) for extra in card.extras}
    if PLACES in extras:
        extras[PLACES][:, 3] = random.random(len(ids)) < 0.4
        columns = extras[IMAGE_ROWS].shape[1]
        extras[IMAGE_ROWS] = random.normal(0, 1, (extras[PLACES][:, 3].sum(), columns)).astype(np.float32)
    return CheckInputs(ids, np.concatenate(sequence_positions), types, mask, np.array(lengths, np.int64), extras)


def _random_extra(extra: Extra, sequences: list[NDArray[np.int64]], random: np.random.Generator) -> NDArray[Any]:
    """Return values for every token, a fifth of them the default of an unsent input; box corners are ordered."""
    if extra.counted:
        return np.concatenate([extra_values(extra, ids, None, None) for ids in sequences])
    if extra.name == IMAGE_ROWS:
        return extra_values(extra, sequences[0], None, None)
    shape = (sum(map(len, sequences)), extra.columns)
    values = random.integers(extra.missing, extra.rows, shape)
    values[::5] = extra.missing
    if extra.name == "bbox":
        values[:, 2:] = np.maximum(values[:, :2], values[:, 2:])
    return values if extra.columns > 1 else values[:, 0]


def largest_differences(folder: Path, card: Card) -> dict[str, float]:
    """Return, for each output, the largest |ONNX - reference| / max(1, |reference|) over the check inputs.

    An adopted graph has no recipe to compare with: its figure is the largest difference between a sequence in a padded
    batch and the same sequence alone; where it is run one by one, that may be above the tolerance. The figure of
    `logits` is relative to the largest logit of a row.

    A row whose experts have nearly equal scores may get another expert in float32 than in float64, so models with
    experts are compared over other check inputs if the first differ.

    Raises:
        ReferenceMismatch: a difference is above TOLERANCE.
        BadCard: a graph does not load or gives other shapes.
    """
    if any(isinstance(step, Experts) for step in card.encoder):
        for seed in range(_SEED, _SEED + _ROUTED_SEEDS - 1):
            with suppress(ReferenceMismatch):
                return _differences(folder, card, make_check_inputs(card, seed))
        return _differences(folder, card, make_check_inputs(card, _SEED + _ROUTED_SEEDS - 1))
    return _differences(folder, card, make_check_inputs(card))


def _differences(folder: Path, card: Card, inputs: CheckInputs) -> dict[str, float]:
    differences: dict[str, float] = {}
    for name, graph in card.graphs.items():
        if name == IMAGE_ROWS:  # image_towers.py compares it
            continue
        if graph.layout == "padded":
            moved = padded_differences(card, graph, Session(folder / graph.file), inputs)
            if not graph.one_by_one:
                _check_moved(graph.file, max(moved.values()), card.tolerance)
            differences |= moved
            continue
        attends = graph.attends
        kind = "input" if not attends else "int8" if card.quantized else "encoder"
        session = Session(folder / graph.file)
        for form in _every_form(inputs) if attends else [inputs]:
            expected = _expected(folder, card, name, form)
            feeds = {key: value for key, value in form.feeds().items() if key in graph.inputs}
            for output, value in session.run(feeds, graph.outputs).items():
                measured = row_distance if kind == "int8" else relative_difference
                difference = measured(value, expected[output], f"{graph.file}: {output}")
                differences[output] = max(differences.get(output, 0.0), difference)
                check_tolerance(difference, TOLERANCE[kind], f"{graph.file}: {output} differs")
    for name, file in card.row_graphs.files.items() if card.row_graphs else ():
        difference = max([_row_difference(folder, card, name, file, form) for form in _every_form(inputs)])
        differences["last_hidden_state"] = max(differences["last_hidden_state"], difference)
    if card.head:
        differences["logits"] = _logits_difference(folder, card, card.head)
    for name, (modules, output) in card.module_graphs.items():
        difference = modules_difference(folder, modules, name, output)
        served = "sentence_embedding" if name == MODULES else output
        differences[served] = max(differences.get(served, 0.0), difference)
    return differences


def _row_difference(folder: Path, card: Card, name: str, file: str, inputs: CheckInputs) -> float:
    """Return the `relative_difference` of the graph of one row from the graph of all rows."""
    session, whole = Session(folder / file), Session(folder / card.graphs[name].file)
    feeds = {key: value for key, value in inputs.feeds().items() if key in card.graphs[name].inputs}
    rows = whole.run(feeds, ("last_hidden_state",))["last_hidden_state"]
    value = session.run(feeds, (ONE_ROW,))[ONE_ROW]
    assert card.row_graphs
    measured, kind = (row_distance, "int8") if card.quantized else (relative_difference, "encoder")
    difference = measured(value, rows[_one_row(card.row_graphs.row, inputs)], f"{file}: {ONE_ROW}")
    check_tolerance(difference, TOLERANCE[kind], f"{file}: {ONE_ROW} differs")
    return difference


def _one_row(row: str, inputs: CheckInputs) -> NDArray[np.int64]:
    """Return the row of each sequence's first or last token that is attended to."""
    ends = np.cumsum(inputs.lengths)
    spans = [np.arange(end - length, end) for end, length in zip(ends, inputs.lengths, strict=True)]
    kept = [span[inputs.mask[span]] if inputs.mask[span].any() else span for span in spans]
    return np.array([span[0 if row == "first" else -1] for span in kept])


def _every_form(inputs: CheckInputs) -> list[CheckInputs]:
    """Return inputs for every form of attention in models/graphs/attention.py: masked, several lengths, one length."""
    unmasked = replace(inputs, mask=np.ones_like(inputs.mask))
    return [inputs, unmasked, replace(unmasked, lengths=np.array([len(inputs.ids)], np.int64))]


def check_tolerance(difference: float, tolerance: float, subject: str) -> None:
    """Raise ReferenceMismatch unless the difference is at most the tolerance; `subject` begins the message."""
    if not difference <= tolerance:
        raise ReferenceMismatch(f"{subject} from the float64 reference by {difference:.2e}, more than {tolerance:.0e}")


def padded_differences(card: Card, graph: Graph, session: Session, inputs: CheckInputs) -> dict[str, float]:
    """Return, for each output, how far a padded batch moves a sequence from what it is alone.

    Raises:
        BadCard: the graph does not run, or gives another width than the card's or values that are not finite.
    """
    feeds = list(alone(graph, inputs))
    batch = {name: _pad([each[name][0] for each in feeds], card.pad_id or 0, name) for name in graph.inputs}
    graph_names = {name: graph.rename.get(name, name) for name in graph.outputs}
    batched = widened(session.run(batch, list(graph_names.values())))
    differences = dict.fromkeys(graph.outputs, 0.0)
    for row, length in enumerate(inputs.lengths):
        single = widened(session.run(feeds[row], list(graph_names.values())))
        for name, graph_name in graph_names.items():
            value = batched[graph_name][row : row + 1]
            unpadded = value if name in ("sentence_embedding", CLASS_LOGITS) else value[:, :length]
            width = card.graph_width if name == "sentence_embedding" and card.graph_width else card.hidden_size
            width = len(card.classifier.labels) if card.classifier and name == card.classifier_output else width
            _check_width(single[graph_name], width, f"{graph.file}: {graph_name}")
            if not (np.isfinite(unpadded).all() and np.isfinite(single[graph_name]).all()):
                raise BadCard(f"{graph.file}: {graph_name} holds values that are not finite; adopt one in float32")
            difference = relative_difference(unpadded, single[graph_name], f"{graph.file}: {graph_name}")
            differences[name] = max(differences[name], difference)
    return differences


def alone(graph: Graph, inputs: CheckInputs) -> Iterator[Arrays]:
    """Yield the feeds of an adopted graph for each sequence of the check inputs by itself, [1, length]."""
    flat = {"input_ids": inputs.ids, "token_type_ids": inputs.types, "position_ids": inputs.positions}
    flat["attention_mask"] = np.ones(len(inputs.ids), np.int64)
    for end, length in zip(np.cumsum(inputs.lengths), inputs.lengths, strict=True):
        yield {name: flat[name][None, end - length : end] for name in graph.inputs}


def widened(outputs: Arrays) -> Arrays:
    """Return the outputs of an adopted graph, float16 ones as float32."""
    return {name: value.astype(np.float32) if value.dtype == np.float16 else value for name, value in outputs.items()}


def _check_moved(file: str, worst: float, tolerance: float) -> None:
    """Raise ReferenceMismatch if sequences of an adopted graph that runs in batches move by more than the tolerance."""
    if not worst <= tolerance:
        raise ReferenceMismatch(
            f"{file}: a sequence moves by {worst:.2e} when others are batched beside it, more than {tolerance:.0e}, "
            "and did not when it was adopted: adopt it again, so that each sequence runs alone"
        )


def _check_width(value: NDArray[Any], width: int, what: str) -> None:
    if value.shape[-1] != width:
        raise BadCard(f"{what} is {value.shape[-1]} wide, but config.json says hidden_size {width}")


def _pad(rows: Sequence[NDArray[Any]], pad_id: int, name: str) -> NDArray[Any]:
    """Return the rows of one input as a rectangle, filled up with the pad id if they are ids, else with 0."""
    padded = np.full((len(rows), max(map(len, rows))), pad_id if name == "input_ids" else 0, rows[0].dtype)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = row
    return padded


def _expected(folder: Path, card: Card, graph: str, inputs: CheckInputs) -> Arrays:
    """Return the reference outputs of one packed graph."""
    for table in card.encodings.ropes.values():
        if graph == table.graph:
            cos, sin = cos_sin(frequencies(table.rope, "parity"), inputs.positions)
            return dict(zip(card.graphs[graph].outputs, (cos, sin), strict=True))
    weights = tensors(folder, card)
    if card.static:
        feeds = {name: value for name, value in inputs.feeds().items() if name in card.graphs[graph].inputs}
        return dict(static.outputs(card.static, weights, feeds))
    types = inputs.types if "types" in card.graphs[graph].inputs else None
    mask = inputs.mask if "mask" in card.graphs[graph].inputs else None
    if graph == "per_layer":
        return {"per_layer_embeddings": interpreter.per_layer(card.per_layer, weights, inputs.ids)}
    rows = interpreter.run(card.recipe, weights, inputs.ids, inputs.positions, types, mask, inputs.extras)
    if not card.graphs[graph].attends:
        return dict(rows)
    hidden = interpreter.encode(
        card.encoder,
        weights,
        rows["input_embeddings"],
        inputs.mask,
        inputs.lengths,
        inputs.positions,
        card.encodings.ropes,
        inputs.extras.get(TASKS),
        (inputs.extras[PLACES], inputs.extras[IMAGE_ROWS]) if PLACES in inputs.extras else None,
        ids=inputs.ids,
    )
    return {"last_hidden_state": hidden}


def relative_difference(value: NDArray[Any], expected: NDArray[Any], what: str) -> float:
    """Return the largest |value - expected| / max(1, |expected|).

    Raises:
        BadCard: the value is not float32 or has another shape; the message begins with `what`.
    """
    if value.shape != expected.shape or value.dtype != np.float32:
        raise BadCard(f"{what} is {value.dtype} {list(value.shape)}, the reference float32 {list(expected.shape)}")
    return float(np.max(np.abs(value - expected) / np.maximum(1.0, np.abs(expected)), initial=0.0))


def row_distance(value: NDArray[Any], expected: NDArray[Any], what: str) -> float:
    """Return the largest |value - expected| / |expected| of a row, as lengths of vectors; same errors."""
    relative_difference(value, expected, what)
    lengths = np.maximum(np.linalg.norm(expected, axis=1), 1e-12)
    return float(np.max(np.linalg.norm(value - expected, axis=1) / lengths, initial=0.0))


def modules_difference(folder: Path, modules: SentenceModules, name: str = MODULES, output: str = "vectors") -> float:
    """Return the largest difference of a graph of modules, as `relative_difference`; same errors."""
    scales = np.array(_HEAD_SCALES)[:, None]
    pooled = np.random.default_rng(_HEAD_SEED).normal(size=(len(scales), modules.inner)) * scales
    rows = np.asarray(np.concatenate([pooled, np.zeros((1, modules.inner))]), np.float32)
    graph = f"{name}.onnx"
    vectors = Session(folder / graph).run({"pooled": rows}, [output])[output]
    held = safetensors.tensors_of(folder / modules.file)
    expected = modules_reference.vectors(modules, held, rows)
    difference = relative_difference(vectors, expected, f"{graph}: {output}")
    check_tolerance(difference, TOLERANCE["head"], f"{graph}: {output} differ")
    return difference


def _logits_difference(folder: Path, card: Card, head: OutputHead) -> float:
    """Return the largest |ONNX - reference| of head.onnx, relative to a row's largest logit where that is above 1."""
    graph = card.every_graph[HEAD]
    scales = np.array(_HEAD_SCALES)[:, None]
    random = np.random.default_rng(_HEAD_SEED)
    hidden = np.asarray(random.normal(size=(len(scales), head.width)) * scales, np.float32)
    logits = Session(folder / graph.file).run({graph.inputs[0]: hidden}, graph.outputs)["logits"]
    if logits.shape != (len(hidden), head.vocab_size) or logits.dtype != np.float32:
        raise BadCard(f"{graph.file}: logits are {logits.dtype} {list(logits.shape)} of {list(hidden.shape)} rows")
    start, worst, largest = 0, np.zeros(len(hidden)), np.ones(len(hidden))
    for expected in head_reference.blocks(head, tensors(folder, card), hidden):
        part = logits[:, start : start + expected.shape[1]]
        worst = np.maximum(worst, np.abs(part - expected).max(axis=1))
        largest = np.maximum(largest, np.abs(expected).max(axis=1))
        start += expected.shape[1]
    difference = float((worst / largest).max())
    check_tolerance(difference, TOLERANCE["head"], f"{graph.file}: logits differ")
    return difference
