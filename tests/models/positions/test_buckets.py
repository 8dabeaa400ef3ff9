"""Relative buckets against transformers' golden numbers, integer arithmetic for ties, properties and ONNX graphs."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.errors import BadEncoding
from models.graphs.positions import buckets as graphs
from models.positions.arithmetic import Arithmetic
from models.positions.buckets import c2p_index, deberta_bucket, t5_bucket, tabulate_deberta, tabulate_t5
from models.positions.table import Output
from tests.golden_cases import Case, cases
from tests.onnx_sessions import open_session

ARITHMETICS: tuple[Arithmetic, ...] = ("exact", "parity")
LAST = 600  # golden relative positions go from -LAST to LAST


@st.composite
def t5_parameters(draw: st.DrawFn) -> dict[str, Any]:
    bidirectional = draw(st.booleans())
    num_buckets = draw(st.integers(1, 64)) * 2 + 2 * bidirectional
    side = num_buckets // (1 + bidirectional)
    distances = st.one_of(st.integers(side // 2 + 1, 3000), st.integers(2, 40).map(lambda k: k * max(side // 2, 1)))
    return {"bidirectional": bidirectional, "num_buckets": num_buckets, "max_distance": draw(distances)}


@st.composite
def deberta_parameters(draw: st.DrawFn) -> dict[str, int]:
    half = draw(st.integers(2, 130))
    reach = draw(st.one_of(st.integers(half + 2, 3000), st.integers(2, 20).map(lambda k: k * half + 1)))
    return {"position_buckets": 2 * half, "max_relative_positions": reach}


def run(model: Any, queries: Any, keys: Any) -> dict[str, Any]:
    session = open_session(model.SerializeToString())
    feeds = {"query_positions": np.asarray(queries, np.int64), "key_positions": np.asarray(keys, np.int64)}
    return dict(zip((each.name for each in session.get_outputs()), session.run(None, feeds), strict=True))


def in_blocks(output: Output, size: int) -> Any:
    blocks = [output.rows(start, min(start + size, output.count)) for start in range(0, output.count, size)]
    return np.concatenate(blocks).reshape(output.shape)


def t5_of(case: Case) -> dict[str, Any]:
    return {name: case.params[name] for name in ("bidirectional", "num_buckets", "max_distance")}


def deberta_of(case: Case) -> dict[str, Any]:
    return {
        "position_buckets": case.params["bucket_size"],
        "max_relative_positions": case.params["max_position"],
    }


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("case", cases("t5_bucket"), ids=repr)
def test_t5_and_mpnet_buckets_match_transformers(case: Case, arithmetic: Arithmetic) -> None:
    relative, expected = case.arrays["relative_position"], case.arrays["bucket"]
    np.testing.assert_array_equal(t5_bucket(relative, **t5_of(case), arithmetic=arithmetic), expected)
    graph = run(graphs.t5(**t5_of(case), arithmetic=arithmetic), [LAST], relative + LAST)
    np.testing.assert_array_equal(graph["bucket"], expected[None])


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("case", cases("t5_bias"), ids=repr)
def test_learned_bias_matches_transformers(case: Case, arithmetic: Arithmetic) -> None:
    weights = case.arrays["w:relative_attention_bias.weight"]
    queries, keys = case.params["query_length"], case.params["key_length"]
    table = tabulate_t5(queries, keys, **t5_of(case), weights=weights, arithmetic=arithmetic)
    np.testing.assert_array_equal(table.outputs["bias"].whole(), case.arrays["bias"])
    graph = run(graphs.t5(**t5_of(case), weights=weights, arithmetic=arithmetic), range(queries), range(keys))
    np.testing.assert_array_equal(graph["bias"], case.arrays["bias"])
    np.testing.assert_array_equal(graph["bucket"], table.outputs["bucket"].whole())


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("case", cases("deberta_bucket"), ids=repr)
def test_deberta_buckets_match_transformers(case: Case, arithmetic: Arithmetic) -> None:
    relative, expected = case.arrays["relative_position"], case.arrays["bucket"]
    np.testing.assert_array_equal(deberta_bucket(relative, **deberta_of(case), arithmetic=arithmetic), expected)
    graph = run(graphs.deberta(**deberta_of(case), longest=LAST, arithmetic=arithmetic), relative + LAST, [LAST])
    np.testing.assert_array_equal(graph["bucket"], expected[:, None])
    shortest = run(graphs.deberta(**deberta_of(case), arithmetic=arithmetic), relative + LAST, [LAST])
    np.testing.assert_array_equal(shortest["c2p"], c2p_index(expected, deberta_of(case)["position_buckets"])[:, None])


@settings(max_examples=60)
@given(t5_parameters())
def test_exact_t5_buckets_match_integer_arithmetic(parameters: dict[str, Any]) -> None:
    side = parameters["num_buckets"] // (1 + parameters["bidirectional"])
    single, end = side // 2, parameters["max_distance"]
    steps = side - single
    # bucket single + k starts at the least n with (n/single)^steps >= (end/single)^k
    edges = [end**k * single ** (steps - k) for k in range(1, steps)]
    distance = np.unique(np.linspace(0, end + 5, 60, dtype=np.int64))
    ties = [n for n in range(single, end + 1) if n**steps in set(edges)] if end < 400 else []
    distance = np.concatenate([distance, np.array(ties, np.int64)])
    expected = [n if n < single else single + sum(int(n) ** steps >= edge for edge in edges) for n in distance]
    np.testing.assert_array_equal(t5_bucket(-distance, **parameters), expected)


@settings(max_examples=60)
@given(deberta_parameters())
def test_exact_deberta_buckets_match_integer_arithmetic(parameters: dict[str, int]) -> None:
    middle, end = parameters["position_buckets"] // 2, parameters["max_relative_positions"] - 1
    steps = middle - 1
    distance = np.unique(np.concatenate([np.linspace(middle + 1, end, 30, dtype=np.int64), [end]]))
    # ceil: the least k with (n/middle)^steps <= (end/middle)^k
    edges = [end**k * middle ** (steps - k) for k in range(steps + 1)]
    expected = [middle + next(k for k, edge in enumerate(edges) if int(n) ** steps <= edge) for n in distance]
    np.testing.assert_array_equal(deberta_bucket(distance, **parameters), expected)


def test_note_names_distances_float32_puts_in_another_bucket() -> None:
    parameters: dict[str, Any] = {"bidirectional": False, "num_buckets": 28, "max_distance": 7826}
    assert 1284**14 < 7826**10 * 14**4  # so 1284 has not yet climbed 10 of the 14 steps
    exact, parity = (t5_bucket(np.array([-1284]), **parameters, arithmetic=each) for each in ARITHMETICS)
    assert (exact.tolist(), parity.tolist()) == ([14 + 9], [14 + 10])
    (note,) = tabulate_t5(4, **parameters).notes
    assert note.startswith("distance 1284: so near the edge of two buckets")


@pytest.mark.parametrize(("distance", "steps"), [(8, 0), (16, 2), (32, 4), (64, 6)])
def test_edge_distance_starts_the_next_t5_bucket(distance: int, steps: int) -> None:
    # 8 * 2^(steps/2), in both arithmetics
    for arithmetic in ARITHMETICS:
        edge = np.array([1 - distance, -distance])
        assert t5_bucket(edge, bidirectional=True, arithmetic=arithmetic).tolist() == [7 + steps, 8 + steps]


@given(t5_parameters(), st.sampled_from(ARITHMETICS))
def test_t5_buckets_are_monotone_bounded_and_disjoint(parameters: dict[str, Any], arithmetic: Arithmetic) -> None:
    distance = np.arange(1, 2 * parameters["max_distance"], dtype=np.int64)
    behind, ahead = (t5_bucket(sign * distance, **parameters, arithmetic=arithmetic) for sign in (-1, 1))
    assert (np.diff(behind) >= 0).all()
    side = parameters["num_buckets"] // (1 + parameters["bidirectional"])
    assert behind.min() >= 0
    assert behind.max() == side - 1 == behind[parameters["max_distance"] - 1]
    np.testing.assert_array_equal(ahead, behind + side if parameters["bidirectional"] else 0)
    assert t5_bucket(np.array([0]), **parameters, arithmetic=arithmetic).tolist() == [0]


@given(deberta_parameters(), st.sampled_from(ARITHMETICS))
def test_deberta_buckets_are_monotone_and_antisymmetric(parameters: dict[str, int], arithmetic: Arithmetic) -> None:
    relative = np.arange(-4000, 4001, dtype=np.int64)
    bucket = deberta_bucket(relative, **parameters, arithmetic=arithmetic)
    np.testing.assert_array_equal(bucket, -bucket[::-1])
    assert (np.diff(bucket) >= 0).all()
    trained = np.abs(relative) < parameters["max_relative_positions"]
    assert np.abs(bucket[trained]).max() < parameters["position_buckets"]
    index = c2p_index(bucket, parameters["position_buckets"])
    assert index.min() >= 0
    assert index.max() < 2 * parameters["position_buckets"]


def test_without_buckets_relative_positions_are_returned() -> None:
    table = tabulate_deberta(6, position_buckets=-1, max_relative_positions=4)
    relative = np.subtract.outer(np.arange(6), np.arange(6))
    np.testing.assert_array_equal(table.outputs["bucket"].whole(), relative)
    np.testing.assert_array_equal(table.outputs["c2p"].whole(), np.clip(relative + 4, 0, 7))
    graph = run(graphs.deberta(position_buckets=-1, max_relative_positions=4), range(6), range(6))
    np.testing.assert_array_equal(graph["c2p"], table.outputs["c2p"].whole())


@settings(max_examples=40)
@given(t5_parameters(), st.integers(1, 9), st.integers(0, 30), st.integers(0, 9), st.integers(1, 12))
def test_blocks_of_rows_match_the_definition(
    parameters: dict[str, Any], queries: int, past: int, more: int, size: int
) -> None:
    keys = past + queries + more
    weights = np.random.default_rng(queries).normal(size=(parameters["num_buckets"], 3)).astype(np.float32)
    table = tabulate_t5(queries, keys, past=past, **parameters, weights=weights)
    bucket = t5_bucket(np.arange(keys) - (np.arange(queries)[:, None] + past), **parameters)
    np.testing.assert_array_equal(in_blocks(table.outputs["bucket"], size), bucket)
    bias = weights[bucket].transpose(2, 0, 1)[None]
    np.testing.assert_array_equal(in_blocks(table.outputs["bias"], size), bias)
    np.testing.assert_array_equal(table.outputs["bias"].whole(), bias)


@settings(max_examples=40)
@given(deberta_parameters(), st.integers(1, 9), st.integers(1, 9), st.integers(1, 12))
def test_p2c_is_c2p_transposed_and_blocks_agree(parameters: dict[str, int], queries: int, keys: int, size: int) -> None:
    outputs = tabulate_deberta(queries, keys, **parameters).outputs
    c2p, p2c = (in_blocks(outputs[name], size) for name in ("c2p", "p2c"))
    np.testing.assert_array_equal(c2p, p2c.T)
    relative = np.subtract.outer(np.arange(queries), np.arange(keys))
    np.testing.assert_array_equal(in_blocks(outputs["bucket"], size), deberta_bucket(relative, **parameters))


def test_cached_decoding_gives_the_last_rows() -> None:
    whole = tabulate_t5(300, bidirectional=False).outputs["bucket"].whole()
    step = tabulate_t5(1, past=299, bidirectional=False).outputs["bucket"]
    assert step.shape == (1, 300)
    np.testing.assert_array_equal(step.whole(), whole[-1:])


def test_million_by_million_table_is_read_by_row() -> None:
    length = 1_048_576
    tracemalloc.start()
    outputs = tabulate_t5(length, bidirectional=True, weights=np.eye(32, 4)).outputs
    last = outputs["bucket"].rows(length - 1, length)[0]
    bias = outputs["bias"].rows(4 * length - 1, 4 * length)[0]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert last[[0, -2, -1]].tolist() == [15, 1, 0]
    assert bias[[-4, -1]].tolist() == [1.0, 0.0]  # distance 3 is bucket 3, which only head 3 weights
    assert peak < 400e6


def test_rel_embeddings_are_normalised_where_the_model_does() -> None:
    random = np.random.default_rng(3)
    weights = random.normal(2, 3, (64, 48)).astype(np.float32)
    parameters: dict[str, Any] = {"position_buckets": 32, "max_position_embeddings": 128}
    plain = tabulate_deberta(4, **parameters, weights=weights)
    np.testing.assert_array_equal(plain.outputs["rel_embeddings"].whole(), weights)
    assert plain.facts["max_relative_positions"] == 128
    scale, shift = random.normal(size=48), random.normal(size=48)
    normed = tabulate_deberta(4, **parameters, weights=weights, norm=(scale, shift)).outputs["rel_embeddings"]
    standard = (in_blocks(normed, 7) - shift) / scale
    np.testing.assert_allclose(standard.mean(axis=1), 0, atol=1e-9)
    np.testing.assert_allclose(standard.var(axis=1), 1, rtol=1e-6, atol=1e-6)


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"num_buckets": 31}, "num_buckets is 31; bidirectional buckets come in two halves: send an even number"),
    ({"num_buckets": 2}, "num_buckets is 2; it must be a whole number from 4 to 65536"),
    ({"bidirectional": False, "num_buckets": 1}, "num_buckets is 1; it must be a whole number from 2"),
    ({"max_distance": 8}, "max_distance is 8; the first 8 distances have a bucket each: send more than that"),
    ({"max_distance": 0}, "max_distance is 0; it must be a whole number from 1"),
    ({"past": -1}, "past is -1; it must be a whole number from 0"),
    ({"query_length": 0}, "query_length is 0; it must be a whole number from 1 to 1048576"),
    ({"query_length": True}, "query_length is True; it must be a whole number"),
    ({"past": 3, "key_length": 6}, "key_length is 6; past and query_length make 7: send at least that"),
    ({"weights": np.zeros((16, 4))}, r"weights have shape \[16, 4\]; they must be \[32, heads\]"),
)


@pytest.mark.parametrize(("wrong", "message"), REFUSED)
def test_rejects_impossible_t5_parameters(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(BadEncoding, match=message):
        tabulate_t5(**({"query_length": 4, "bidirectional": True} | wrong))


DEBERTA_REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"position_buckets": 3}, "position_buckets is 3; it must be a whole number from 4"),
    ({"max_relative_positions": 129}, "max_relative_positions is 129; with 256 position_buckets .* more than 129"),
    (
        {"max_relative_positions": -1},
        "max_relative_positions is -1, that is max_position_embeddings: send that as well",
    ),
    ({"weights": np.zeros((256, 8))}, r"weights have shape \[256, 8\]; they must be \[512, hidden_size\]"),
    ({"key_length": 0}, "key_length is 0"),
)


@pytest.mark.parametrize(("wrong", "message"), DEBERTA_REFUSED)
def test_rejects_impossible_deberta_parameters(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(BadEncoding, match=message):
        tabulate_deberta(**({"query_length": 4, "max_relative_positions": 512} | wrong))
