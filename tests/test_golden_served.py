"""Golden input layers through the whole road: checkpoint → export → service → HTTP and gRPC, pads included."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts.export import export
from models.families import FAMILIES, family_of
from models.recipes.steps import TokenDropout
from proto import embed_pb2 as pb
from service.observability.metrics import Metrics
from service.registry.registry import open_registry
from service.registry.warmup import warm_up
from service.settings import Settings
from tests.golden_cases import Case, cases, write_checkpoint
from tests.served import Served, array_of, serving
from tests.sweeps import sampled

CASES = cases("input_layer")
ROTATING = [case for case in CASES if "rope_cos" in case.arrays]
FED = ("token_type_ids", "task_type_ids", "langs")
each_case = pytest.mark.parametrize("case", sampled(CASES, 3), ids=repr)
each_rotating_case = pytest.mark.parametrize("case", ROTATING, ids=repr)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of each case."""
    folder = tmp_path_factory.mktemp("golden")
    for case in CASES:
        export(write_checkpoint(case, folder / "checkpoints" / case.name), folder / "store" / case.name, side=case.side)
    return folder / "store"


@pytest.fixture(scope="module")
def served(store: Path) -> Iterator[Served]:
    with serving(store) as running:
        yield running


def sequences(case: Case) -> list[dict[str, list[int]]]:
    """The rows of the case's batch as the reference was fed them, one input each."""
    fed = {"input_ids": case.ids, "attention_mask": case.mask}
    fed |= {name: case.arrays[name] for name in FED if name in case.arrays}
    fed = {name: values.tolist() for name, values in fed.items()}
    return [dict(zip(fed, values, strict=True)) for values in zip(*fed.values(), strict=True)]


def check(case: Case, got: NDArray[Any]) -> None:
    np.testing.assert_allclose(got, case.arrays["hidden_states"], **case.tolerance["hidden_states"])


def http(case: Case, **fields: Any) -> dict[str, Any]:
    return {"model": case.name, "inputs": sequences(case), **fields}


def rpc(case: Case, **fields: Any) -> pb.EmbedRequest:
    inputs = [pb.Input(ids=pb.TokenIds(**each)) for each in sequences(case)]
    return pb.EmbedRequest(model=case.name, inputs=inputs, **fields)


async def test_every_family_warms_up(store: Path) -> None:
    for model in open_registry(Settings(store=store, device="cpu"), Metrics()).models.values():
        await warm_up(model)


def test_cases_cover_every_way_to_begin() -> None:
    """A family without a case of its own has a row like one that has; tests/parity holds all of them."""
    steps = {type(step) for case in CASES for step in family_of(case.params["model_type"]).input_layer}
    shown = {type(step) for row in FAMILIES.values() for step in row.input_layer}
    assert shown - steps == {TokenDropout}
    for case in CASES:
        assert case.side == "decoder" or (case.arrays["attention_mask"] == 0).any(), f"{case.name} pads nothing"


@each_case
def test_default_output_is_the_golden_input_layer(served: Served, case: Case) -> None:
    answer = served.post(http(case), "application/octet-stream").raise_for_status()
    rows, width = case.ids.size, case.arrays["hidden_states"].shape[-1]
    assert answer.headers["inlay-shape"] == f"{rows},{width}"
    check(case, np.frombuffer(answer.content, np.float32).reshape(case.arrays["hidden_states"].shape))


@each_case
def test_a_sequence_gives_the_same_bits_alone_and_in_a_batch(served: Served, case: Case) -> None:
    together = served.post(http(case), "application/octet-stream").raise_for_status().content
    alone = [
        served.post({"model": case.name, "inputs": [each]}, "application/octet-stream").raise_for_status().content
        for each in sequences(case)
    ]
    assert b"".join(alone) == together


def test_a_stream_mixes_models_and_keeps_the_order(served: Served) -> None:
    results = list(served.stub.EmbedStream(iter([rpc(case) for case in CASES])))
    assert [result.response.model for result in results] == [case.name for case in CASES]
    for case, result in zip(CASES, results, strict=True):
        [output] = result.response.outputs
        assert (output.name, len(output.lengths)) == ("input_embeddings", len(case.ids))
        rows = array_of(output.tensor)
        check(case, rows.reshape(case.arrays["hidden_states"].shape))


def rope_of(case: Case) -> tuple[list[NDArray[Any]], NDArray[Any]]:
    """Golden cos and sin [11, r/2] (stored as two equal halves), and how far float32 angles may lie from them."""
    tables = [case.arrays[name][0] for name in ("rope_cos", "rope_sin")]
    half = tables[0].shape[1] // 2
    for table in tables:
        np.testing.assert_array_equal(table[:, :half], table[:, -half:])
    rounding = 2.0**-8 if case.params["dtype"] == "bfloat16" else 0.0  # transformers gives them in the model's dtype
    theta = case.params["rope_parameters"]["rope_theta"]
    fastest = theta ** -(np.arange(half) / half)  # llama3 slows some of these, none goes faster
    tolerance = rounding + 3e-7 + 5e-7 * np.arange(len(tables[0]))[:, None] * fastest
    return [table[:, :half] for table in tables], tolerance


def check_rope(case: Case, got: Any) -> None:
    expected, tolerance = rope_of(case)
    for mine, golden in zip(got, expected, strict=True):
        assert mine.shape == golden.shape
        assert (np.abs(mine - golden) <= tolerance).all()


def layers_of(case: Case) -> tuple[str, str]:
    """Which of a model's tables the case recorded: its layer type, and what its outputs' names end in."""
    return (case.rope_layers, f"_{case.rope_layers}") if case.rope_layers else ("", "")


@each_rotating_case
def test_embed_gives_the_golden_cos_and_sin_of_every_sequence(served: Served, case: Case) -> None:
    names = [name + layers_of(case)[1] for name in ("rope_cos", "rope_sin")]
    answer = served.post(http(case, outputs=names)).raise_for_status().json()["outputs"]
    assert len(answer[names[0]]) == len(case.ids)
    for cos, sin in zip(*(answer[name] for name in names), strict=True):
        check_rope(case, (np.array(cos, np.float32), np.array(sin, np.float32)))


@each_rotating_case
def test_the_table_over_http_is_the_golden_one(served: Served, case: Case) -> None:
    parameters = {"length": len(case.arrays["rope_cos"][0])} | (
        {"layer_type": layer} if (layer := layers_of(case)[0]) else {}
    )
    table = served.http.get(f"/models/{case.name}/rope", params=parameters).raise_for_status().json()
    check_rope(case, [np.array(table[name], np.float32) for name in ("cos", "sin")])


@each_rotating_case
def test_the_table_over_grpc_is_the_golden_one(served: Served, case: Case) -> None:
    length = len(case.arrays["rope_cos"][0])
    request = pb.PositionsRequest(scheme="rope", model=case.name)
    request.parameters.update({"length": length, "layer_type": layers_of(case)[0] or None})
    chunks = list(served.stub.Positions(request))
    data = {name: b"".join(chunk.data for chunk in chunks if chunk.output == name) for name in ("cos", "sin")}
    check_rope(case, [np.frombuffer(each, np.float32).reshape(length, -1) for each in data.values()])
