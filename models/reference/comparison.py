"""Runs an exported folder's graphs in ONNX Runtime on check inputs and measures how far they are from the reference.

The only module of models/ that runs ONNX Runtime; it is imported inside the functions. Serves nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import Card, Graph
from models.artifacts.weights import tensors as weights_of
from models.errors import BadCard, NotFaithful
from models.families.extra_inputs import Extra, filled
from models.positions.learned import positions
from models.positions.rope.angles import cos_sin
from models.positions.rope.frequencies import frequencies
from models.reference import interpreter as reference
from models.reference import static

TOLERANCE = {"input": 1e-5, "encoder": 1e-4}
_LENGTHS = (1, 2, 17, 5, 33)
_SEED = 20240

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Ragged:
    """Check inputs: sequences of different lengths, packed; the last row alone sits on the last position."""

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    types: NDArray[np.int64]
    mask: NDArray[np.bool_]
    lengths: NDArray[np.int64]
    extras: Arrays = field(default_factory=dict)

    def feeds(self) -> Arrays:
        """By graph input name."""
        names = ("ids", "positions", "types", "mask", "lengths")
        return {name: getattr(self, name) for name in names} | {
            "segments": np.repeat(np.arange(len(self.lengths)), self.lengths),
            **self.extras,
        }


class Session:
    """A quiet one-threaded ONNX Runtime session on the CPU; BadCard where the file does not load or run."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        self.path = path
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exceptions share no class of their own
            reason = " ".join(str(error).split())
            raise BadCard(f"{path} does not load in ONNX Runtime {onnxruntime.__version__}: {reason}") from error
        self.inputs = {value.name: value for value in self._session.get_inputs()}
        self.outputs = {value.name: value for value in self._session.get_outputs()}

    def run(self, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> Arrays:
        """The named outputs."""
        try:
            values = self._session.run(list(outputs), dict(feeds))
        except Exception as error:
            raise BadCard(f"{self.path} does not run on the check inputs: {' '.join(str(error).split())}") from error
        return dict(zip(outputs, values, strict=True))


def check_inputs(card: Card) -> Ragged:
    """Random ids with the first, the last and the pad row, in sequences that have positions; some rows are masked."""
    random = np.random.default_rng(_SEED)
    longest = min(card.position.longest() or max(_LENGTHS), max(_LENGTHS))
    lengths = [min(length, longest) for length in _LENGTHS] + [1]
    sequences = [random.integers(0, card.vocab_size, length) for length in lengths]
    sequences[2][0], sequences[2][-1] = 0, card.vocab_size - 1
    if card.pad_id is not None and longest > 2:
        sequences[3][-2:] = card.pad_id
    if card.static and card.static.dropped is not None:
        sequences[4][::3] = card.static.dropped
    places = [positions(card.position, sequence) for sequence in sequences]
    places[-1] = np.full(1, (card.position.rows or 100_000) - 1)
    ids = np.concatenate(sequences).astype(np.int64)
    mask = random.random(len(ids)) < 0.8
    mask[0] = False  # a sequence of its own, with nothing to attend to
    rows = card.vocab_size if card.types == "optional" else max(card.type_rows, 1)
    types = random.integers(0, rows, len(ids))
    extras = {each.name: _extra(each, sequences, random) for each in card.extras}
    return Ragged(ids, np.concatenate(places), types, mask, np.array(lengths, np.int64), extras)


def _extra(extra: Extra, sequences: list[NDArray[np.int64]], random: np.random.Generator) -> NDArray[np.int64]:
    """Values of every token, some of them what is taken where none is sent; a box has its corners in order."""
    if not extra.sent:
        return np.concatenate([filled(extra, ids, None, None) for ids in sequences])
    shape = (sum(map(len, sequences)), extra.columns)
    values = random.integers(extra.missing, extra.rows, shape)
    values[::5] = extra.missing
    if extra.columns == 4:
        values[:, 2:] = np.maximum(values[:, :2], values[:, 2:])
    return values if extra.columns > 1 else values[:, 0]


def largest_differences(folder: Path, card: Card) -> dict[str, float]:
    """By output: the largest |ONNX - reference| / max(1, |reference|) over the check inputs of all graphs that give it.

    An adopted graph has no recipe to be held against: there it is the largest difference between a sequence in a padded
    batch and the same sequence alone.

    raises   NotFaithful above the tolerance; BadCard where a graph does not load or gives other shapes
    """
    ragged = check_inputs(card)
    found: dict[str, float] = {}
    for name, graph in card.graphs.items():
        if graph.layout == "padded":
            found |= padded_differences(card, graph, Session(folder / graph.file), ragged)
            continue
        expected = _expected(folder, card, name, ragged)
        feeds = {key: value for key, value in ragged.feeds().items() if key in graph.inputs}
        for output, value in Session(folder / graph.file).run(feeds, graph.outputs).items():
            difference = difference_of(value, expected[output], f"{graph.file}: {output}")
            found[output] = max(found.get(output, 0.0), difference)
            if difference > (allowed := TOLERANCE["encoder" if name == "encoder" else "input"]):
                raise NotFaithful(
                    f"{graph.file}: {output} differs from the float64 reference by {difference:.2e}, "
                    f"more than {allowed:.0e}"
                )
    return found


def padded_differences(card: Card, graph: Graph, session: Session, ragged: Ragged) -> dict[str, float]:
    """By output: how far a padded batch moves a sequence from what it is alone; errors as `largest_differences`."""
    ends = np.cumsum(ragged.lengths)
    spans = [slice(end - length, end) for end, length in zip(ends, ragged.lengths, strict=True)]
    flat = {"input_ids": ragged.ids, "token_type_ids": ragged.types, "position_ids": ragged.positions}
    flat["attention_mask"] = np.ones(len(ragged.ids), np.int64)
    batch = {
        name: _rectangle(flat[name], spans, (card.pad_id or 0) if name == "input_ids" else 0) for name in graph.inputs
    }
    own = {name: graph.rename.get(name, name) for name in graph.outputs}
    together = session.run(batch, list(own.values()))
    found = dict.fromkeys(graph.outputs, 0.0)
    for row, span in enumerate(spans):
        alone = session.run({name: flat[name][None, span] for name in graph.inputs}, list(own.values()))
        for name, theirs in own.items():
            value = together[theirs][row : row + 1]
            cut = value if name == "sentence_embedding" else value[:, : span.stop - span.start]
            _check_width(alone[theirs], card.hidden_size, f"{graph.file}: {theirs}")
            found[name] = max(found[name], difference_of(cut, alone[theirs], f"{graph.file}: {theirs}"))
    if (worst := max(found.values())) > TOLERANCE["encoder"]:
        raise NotFaithful(
            f"{graph.file}: a sequence moves by {worst:.2e} when others are batched beside it, more than "
            f"{TOLERANCE['encoder']:.0e}; dynamically quantised models do this: adopt the float32 one"
        )
    return found


def _check_width(value: NDArray[Any], width: int, what: str) -> None:
    if value.shape[-1] != width:
        raise BadCard(f"{what} is {value.shape[-1]} wide, but config.json says hidden_size {width}")


def _rectangle(values: NDArray[Any], spans: list[slice], fill: int) -> NDArray[Any]:
    rectangle = np.full((len(spans), max(span.stop - span.start for span in spans)), fill, values.dtype)
    for row, span in enumerate(spans):
        rectangle[row, : span.stop - span.start] = values[span]
    return rectangle


def _expected(folder: Path, card: Card, graph: str, ragged: Ragged) -> Arrays:
    for table in card.encodings.ropes.values():
        if graph == table.graph:
            cos, sin = cos_sin(frequencies(table.rope, "parity"), ragged.positions)
            return dict(zip(card.graphs[graph].outputs, (cos, sin), strict=True))
    weights = weights_of(folder, card)
    if card.static:
        feeds = {name: value for name, value in ragged.feeds().items() if name in card.graphs[graph].inputs}
        return dict(static.outputs(card.static, weights, feeds))
    types = ragged.types if "types" in card.graphs[graph].inputs else None
    masked = ragged.mask if "mask" in card.graphs[graph].inputs else None
    if graph == "per_layer":
        return {"per_layer_embeddings": reference.per_layer(card.per_layer, weights, ragged.ids)}
    rows = reference.run(card.recipe, weights, ragged.ids, ragged.positions, types, masked, ragged.extras)
    if graph != "encoder":
        return dict(rows)
    hidden = reference.encode(card.encoder, weights, rows["input_embeddings"], ragged.mask, ragged.lengths)
    return {"last_hidden_state": hidden}


def difference_of(value: NDArray[Any], expected: NDArray[Any], what: str) -> float:
    """The largest |value - expected| / max(1, |expected|); BadCard where shape or dtype are others."""
    if value.shape != expected.shape or value.dtype != np.float32:
        raise BadCard(f"{what} is {value.dtype} {list(value.shape)}, the reference float32 {list(expected.shape)}")
    return float(np.max(np.abs(value - expected) / np.maximum(1.0, np.abs(expected)), initial=0.0))
