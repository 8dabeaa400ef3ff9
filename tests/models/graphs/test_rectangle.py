"""The form of encoders for GPUs, on the CPU: against the float64 reference, for all that steps of blocks can say."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from models.artifacts.graph_files import FOR_GPUS
from models.checkpoints import safetensors
from models.graphs import rectangle
from models.graphs.builder import GraphBuilder
from models.graphs.encoder import encoder
from models.graphs.projections import Float32, Narrow
from service.embedding.pooling import pool
from tests.block_recipes import CASES, ROPES, TABLE, WIDTH
from tests.models.graphs.test_block_vocabulary import TOLERANCE, Blocks, Sequences, tasks
from tests.onnx_sessions import open_session
from tests.sweeps import sampled

MEDIAN_COSINES = {"FLOAT16": 0.999, "BFLOAT16": 0.99}  # of rows of 16 values; a router may choose another expert
Floats = NDArray[np.float32]
Case = tuple[Blocks, Path, list[NDArray[np.float64]]]  # a case, the folder of its weights, and what each text gives


def round_operands(graph: Any) -> None:
    """Change a graph in bfloat16 to one in float32 whose casts round to bfloat16: a CPU has no products in bfloat16."""
    for value in graph.output:
        if value.type.tensor_type.elem_type == TensorProto.BFLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                round_operands(attribute.g)
        graph.node.append(node)
        if node.op_type == "Cast" and node.attribute[0].i == TensorProto.BFLOAT16:
            (name,) = node.output
            graph.node[-1].output[0] = f"{name}.rounded"
            graph.node.append(helper.make_node("Cast", [f"{name}.rounded"], [name], to=TensorProto.FLOAT))


class Form:
    """The form for GPUs of a case's blocks."""

    def __init__(self, blocks: Blocks, folder: Path, element: str) -> None:
        self.blocks, self.masked = blocks, rectangle.FLOAT16_MASKED if element == "FLOAT16" else rectangle.MASKED
        placed = safetensors.read_header(folder / "weights.safetensors")
        projections = Float32() if element == "FLOAT" else Narrow(element)
        builder = GraphBuilder(placed, FOR_GPUS)
        model = encoder(builder, (TABLE,), blocks.blocks, WIDTH, projections, ROPES, sent=True)
        if element == "BFLOAT16":
            round_operands(model.graph)
        entry = {"session.model_external_initializers_file_folder_path": str(folder)}
        self.session = open_session(model.SerializeToString(), entry)

    def run(self, texts: Sequences, pooling: str = "mean") -> tuple[list[Floats], Floats]:
        """Return the rows of each of several sequences that are run together, and their vectors."""
        lengths = np.array([len(ids) for ids, _ in texts])
        mask = np.concatenate([mask for _, mask in texts])
        feeds = {
            "ids": np.concatenate([ids for ids, _ in texts]),
            "mask": mask,
            "positions": np.concatenate([np.arange(length) for length in lengths]),
            "lengths": lengths,
            "task_ids": np.concatenate([tasks(length) for length in lengths]),
            **rectangle.feeds(mask, lengths, pooling, self.masked),
        }
        hidden, vectors = self.session.run(None, {each.name: feeds[each.name] for each in self.session.get_inputs()})
        return np.split(np.asarray(hidden, np.float32), np.cumsum(lengths)[:-1]), np.asarray(vectors, np.float32)

    def rows(self, numbers: Sequence[int]) -> list[Floats]:
        """Return the rows of each of some of the case's texts, run together."""
        return self.run([self.blocks.texts[number] for number in numbers])[0]


def batches(count: int) -> list[list[int]]:
    """All texts; one; two of one length; short ones; texts without a masked row; one that is masked whole."""
    return [[*range(count)], [4], [4, 4], [0, 1, 2, 3], [*range(10)], [count - 1]]


@pytest.fixture(scope="module", params=sampled(CASES, 5))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("rectangle")
    blocks = Blocks(request.param, folder)
    return blocks, folder, [blocks.expected(*text) for text in blocks.texts]


def test_float32_gives_what_the_reference_gives(case: Case) -> None:
    blocks, folder, expected = case
    form = Form(blocks, folder, "FLOAT")
    for numbers in batches(len(expected)):
        for number, got in zip(numbers, form.rows(numbers), strict=True):
            bound = TOLERANCE * max(1.0, np.abs(expected[number]).max())
            assert np.abs(got - expected[number]).max() <= bound, len(got)


@pytest.mark.parametrize("element", MEDIAN_COSINES)
@pytest.mark.parametrize("name", sampled(list(CASES)[::3], 5))
def test_narrow_types_come_close_where_rows_are_attended_to(name: str, element: str, tmp_path: Path) -> None:
    blocks = Blocks(name, tmp_path)
    form, expected = Form(blocks, tmp_path, element), [blocks.expected(*text) for text in blocks.texts]
    for numbers in ([*range(len(expected))], [4]):
        for number, got in zip(numbers, form.rows(numbers), strict=True):
            mask = blocks.texts[number][1]
            if mask.any():
                one, other = got[mask], expected[number][mask]
                lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
                assert np.median((one * other).sum(axis=1) / lengths) > MEDIAN_COSINES[element], len(got)


@pytest.mark.parametrize("mode", rectangle.SHARES)
def test_vectors_are_those_that_the_service_pools(mode: str, tmp_path: Path) -> None:
    form = Form(Blocks("key heads", tmp_path), tmp_path, "FLOAT")
    texts = [text for text in form.blocks.texts if text[1].any()]
    rows, vectors = form.run(texts, mode)
    for own, vector, (_, mask) in zip(rows, vectors, texts, strict=True):
        np.testing.assert_allclose(vector, pool(mode, own, mask), rtol=1e-4, atol=1e-5)
