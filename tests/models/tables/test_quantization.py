"""Quantized tables: torch's codes, the error bounds, and the same through export and service."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray
from safetensors.numpy import load_file

from models.artifacts import card as cards
from models.artifacts import weights
from models.artifacts.description import describe
from models.artifacts.export import export
from models.artifacts.verification import verify
from models.checkpoints.hub import Progress
from models.checkpoints.safetensors import CHUNK_BYTES
from models.errors import BadCard, BadCheckpoint, ModelError
from models.graphs.builder import GraphBuilder, save
from models.tables import quantization
from service.cli.main import main
from tests.golden_cases import Case, case, cases, tiny_bert, tiny_config, write_checkpoint, write_folder
from tests.onnx_sessions import open_session
from tests.served import serving
from tests.sweeps import sampled

GOLDEN = case("quant_rowwise_uint8")
WORDS = "model.embed_tokens.weight"
NARROW = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
TINY, SMALLEST = (float(getattr(np.finfo(np.float32), name)) for name in ("tiny", "smallest_subnormal"))
tables = arrays(
    np.float32,
    array_shapes(min_dims=2, max_dims=2, max_side=9).map(lambda shape: (shape[0], 2 * shape[1])),
    elements=st.floats(-(2.0**100), 2.0**100, width=32),
)


def llama(folder: Path, table: NDArray[Any]) -> Path:
    """Return a checkpoint whose input layer is this table."""
    rows, width = table.shape
    config = {"model_type": "llama", "vocab_size": rows, "hidden_size": width, "num_attention_heads": 1}
    return write_folder(folder, config, {WORDS: table})


def made(table: NDArray[Any]) -> quantization.QuantizedTable:
    ranges = quantization.ranges(table)
    return quantization.QuantizedTable(quantization.codes(table, ranges), ranges)


def rounding(table: NDArray[Any]) -> Any:
    """Return the error of float32 arithmetic: two roundings of the largest value, and a subnormal scale."""
    return 2 * np.spacing(np.abs(table).max(initial=TINY)).astype(np.float64) + 256 * SMALLEST


def test_int8_codes_scales_and_biases_match_torch() -> None:
    quantized = made(GOLDEN.arrays["weight"])
    packed = np.concatenate([quantized.codes, quantized.ranges[:, 0].copy().view(np.uint8)], axis=1)
    np.testing.assert_array_equal(packed, GOLDEN.arrays["packed"])
    np.testing.assert_allclose(quantized[:], GOLDEN.arrays["dequantised"], **GOLDEN.tolerance["dequantised"])


def test_golden_table_is_served_after_export(tmp_path: Path) -> None:
    table, packed = GOLDEN.arrays["weight"], GOLDEN.arrays["packed"]
    card = export(llama(tmp_path / "checkpoint", table), tmp_path / "store/golden", dtype="int8")
    held = load_file(tmp_path / "store/golden/weights.safetensors")
    np.testing.assert_array_equal(held[WORDS], packed[:, : table.shape[1]])
    assert card.tables is not None
    expected = np.abs(GOLDEN.arrays["dequantised"] - table)
    assert card.tables[WORDS].largest_error == pytest.approx(expected.max(), rel=1e-4)
    assert card.tables[WORDS].rms_error == pytest.approx(np.sqrt(np.square(expected).mean()), rel=1e-4)
    with serving(tmp_path / "store") as service:
        [rows] = service.post({"inputs": [list(range(len(table)))]}).raise_for_status().json()
    np.testing.assert_allclose(rows, GOLDEN.arrays["dequantised"], **GOLDEN.tolerance["dequantised"])


@given(tables)
def test_error_is_at_most_half_a_scale(table: NDArray[np.float32]) -> None:
    quantized = made(table)
    half = quantized.ranges[:, :, 0].astype(np.float64) / 2
    moved = np.abs(quantized[:].astype(np.float64) - table)
    assert (moved <= half * (1 + 1e-6) + rounding(table)).all()


@given(st.floats(-(2.0**100), 2.0**100, width=32), st.integers(1, 5), st.integers(1, 40))
def test_constant_row_is_exact(value: float, rows: int, pairs: int) -> None:
    table = np.full((rows, 2 * pairs), value, np.float32)
    np.testing.assert_array_equal(made(table)[:], table)


@given(tables)
def test_quantization_keeps_order_within_row(table: NDArray[np.float32]) -> None:
    order = np.argsort(table, axis=-1, kind="stable")
    back = np.take_along_axis(made(table)[:], order, axis=-1)
    assert (np.diff(back, axis=-1) >= 0).all()


def test_indexed_rows_equal_rows_of_whole_table() -> None:
    table = np.random.default_rng(1).normal(size=(50, 128)).astype(np.float32)
    quantized = made(table)
    np.testing.assert_array_equal(quantized[[3, 3, -1]], quantized[:][[3, 3, -1]])
    np.testing.assert_array_equal(quantized[7], quantized[:][7])
    assert (quantized.shape, quantized.ndim, len(quantized), quantized[10:12].shape) == ((50, 128), 2, 50, (2, 128))
    np.testing.assert_array_equal(np.asarray(quantized, np.float64), quantized.astype(np.float64))


FAMILIES = ("input_bert", "input_gpt2", "input_llama", "input_bloom", "input_roberta")


@pytest.mark.parametrize(("name", "dtype"), sampled(product(FAMILIES, [*NARROW, "int8"]), 4, unpack=True))
def test_card_error_equals_served_error(name: str, dtype: str, tmp_path: Path) -> None:
    golden = case(name)
    card = export(write_checkpoint(golden, tmp_path / "x"), tmp_path / "out", dtype=dtype)
    assert card.tables is not None
    assert card.dtype == dtype
    table = next(iter(card.tables))
    feeds = {"ids": np.arange(card.vocab_size)}
    graph = card.graphs["components"]
    feeds |= {key: np.zeros(card.vocab_size, np.int64) for key in graph.inputs if key != "ids"}
    session = open_session(tmp_path / "out" / graph.file)
    [rows] = session.run(["token_embeddings"], {key: feeds[key] for key in graph.inputs})
    difference = np.abs(rows.astype(np.float64) - golden.weights[table])
    assert difference.max() == pytest.approx(card.tables[table].largest_error, rel=1e-3, abs=1e-7)
    assert np.sqrt(np.square(difference).mean()) == pytest.approx(card.tables[table].rms_error, rel=1e-3, abs=1e-7)
    if dtype in NARROW:
        np.testing.assert_array_equal(rows, golden.weights[table].astype(NARROW[dtype]).astype(np.float32))
    assert max(verify(tmp_path / "out").values()) < card.tolerance
    assert f"{table}: {dtype}" in describe(str(tmp_path / "out"))


def test_encoder_runs_on_quantized_tables(tmp_path: Path) -> None:
    words = tiny_bert()
    card = export(write_folder(tmp_path / "x", tiny_config(words), words), tmp_path / "out", dtype="int8")
    assert card.tables is not None
    assert set(card.tables) == {name for name in words if name.startswith("embeddings.") and "_embeddings." in name}
    assert card.largest_difference["last_hidden_state"] < card.tolerance
    assert card.parameters == sum(array.size for array in words.values())
    held = load_file(tmp_path / "out/weights.safetensors")
    for name in set(words) - set(card.tables):
        np.testing.assert_array_equal(held[name], words[name])


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 16), ("bfloat16", 16), ("int8", 8 + 64 / 256)])
def test_quantized_table_has_promised_size(dtype: str, bits: float, tmp_path: Path) -> None:
    table = np.random.default_rng(2).normal(size=(2000, 256)).astype(np.float32)
    card = export(llama(tmp_path / "x", table), tmp_path / "out", dtype=dtype)
    assert card.tables is not None
    assert card.tables[WORDS].bytes == card.bytes == table.size * bits / 8
    size = (tmp_path / "out/weights.safetensors").stat().st_size
    assert card.bytes < size < card.bytes + 1000
    assert card.parameters == table.size


@pytest.mark.parametrize("dtype", weights.TABLE_DTYPES)
def test_product_with_table_equals_product_with_rows(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.graphs.builder.PRODUCT_BYTES", 4 * 48 * 30)  # 30 rows a block, the last one cut
    random = np.random.default_rng(3)
    table, hidden = random.normal(size=(101, 48)).astype(np.float16), random.normal(size=(7, 48)).astype(np.float32)
    placed = weights.write(tmp_path, {"table": table}, {"table"}, dtype=dtype).placed
    builder = GraphBuilder(placed)
    model = builder.model(
        "product",
        {"hidden": ("FLOAT", ("tokens", 48))},
        {"logits": (builder.product("hidden", "table"), "FLOAT", ("tokens", 101))},
    )
    save(model, tmp_path / "product.onnx")
    session = open_session(tmp_path / "product.onnx")
    rows = quantization.view(load_file(tmp_path / "weights.safetensors"))["table"].astype(np.float64)
    for count in (7, 1, 0):
        [logits] = session.run(["logits"], {"hidden": hidden[:count]})
        assert logits.shape == (count, 101)
        np.testing.assert_allclose(logits, hidden[:count].astype(np.float64) @ rows.T, atol=1e-4)


def test_every_float_dtype_gives_same_codes(tmp_path: Path) -> None:
    narrow = np.random.default_rng(4).normal(size=(40, 32)).astype(ml_dtypes.bfloat16)
    for name, dtype in NARROW.items():
        export(llama(tmp_path / name, narrow.astype(dtype)), tmp_path / f"out-{name}", dtype="int8")
    files = {(tmp_path / f"out-{name}/weights.safetensors").read_bytes() for name in NARROW}
    assert len(files) == 1


@pytest.mark.parametrize("golden", [each for each in cases("input_layer") if each.name in FAMILIES], ids=repr)
def test_keep_preserves_every_bit(golden: Case, tmp_path: Path) -> None:
    card = export(write_checkpoint(golden, tmp_path / "x"), tmp_path / "out")
    held = load_file(tmp_path / "out/weights.safetensors")
    assert card.tables is not None
    for name, table in card.tables.items():
        np.testing.assert_array_equal(held[name], golden.weights[name])
        assert (table.largest_error, table.rms_error, table.block) == (0.0, 0.0, None)


@pytest.mark.parametrize(
    ("value", "width", "dtype", "message"),
    [
        (1e5, 16, "float16", r"'model.embed_tokens.weight' holds 100000 in row 3, beyond what float16 holds: use .*"),
        (3.4e38, 16, "bfloat16", "beyond what bfloat16 holds"),
        (3e38, 16, "int8", "spans 6e.38, more than int8 codes can"),
        (float("nan"), 16, "int8", "infinite or not a number in row 3"),
        (0.0, 16, "int3", "--dtype 'int3' is not one of keep, float32, float16, bfloat16, int8"),
    ],
)
def test_rejects_values_and_widths_that_do_not_fit(
    value: float, width: int, dtype: str, message: str, tmp_path: Path
) -> None:
    table = np.zeros((5, width), np.float32)
    table[3, 1], table[3, 2] = value, -value
    with pytest.raises((BadCheckpoint, ModelError), match=message):
        export(llama(tmp_path / "x", table), tmp_path / "store/out", dtype=dtype)
    assert not list((tmp_path / "store").iterdir() if (tmp_path / "store").exists() else [])


def test_reads_card_without_tables(tmp_path: Path) -> None:
    card = export(llama(tmp_path / "x", GOLDEN.arrays["weight"]), tmp_path / "out")
    path = tmp_path / "out/card.json"
    text = path.read_text(encoding="utf-8")
    start, end = text.index(',\n "tables"'), text.index(',\n "static"')
    path.write_text(text[:start] + text[end:], encoding="utf-8")
    assert cards.read(tmp_path / "out").tables is None
    assert cards.read(tmp_path / "out").bytes == card.bytes


@pytest.mark.parametrize("change", [('"dtype": "int8"', '"dtype": "int4"'), ('"static": null', '"linked": {"a": 1}')])
def test_rejects_card_of_tables_no_longer_read(change: tuple[str, str], tmp_path: Path) -> None:
    export(llama(tmp_path / "x", GOLDEN.arrays["weight"]), tmp_path / "out", dtype="int8")
    path = tmp_path / "out/card.json"
    path.write_text(path.read_text(encoding="utf-8").replace(*change), encoding="utf-8")
    with pytest.raises(BadCard, match=r"its tables are int4 or .*; export the model again"):
        cards.read(tmp_path / "out")


class Lazy:
    """Rows that are made when indexed, as those of a quantized GGUF tensor; it records the most made at once."""

    def __init__(self, rows: int, width: int) -> None:
        self.shape, self.dtype, self.most = (rows, width), np.dtype(np.float32), 0

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.shape[1] * 4

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> NDArray[np.float32]:
        start, stop, _ = rows.indices(len(self))
        self.most = max(self.most, stop - start)
        number = np.arange(start, stop, dtype=np.float32)[:, None]
        return np.asarray(number * np.linspace(-1, 1, self.shape[1], dtype=np.float32), np.float32)


@pytest.mark.parametrize("dtype", weights.TABLE_DTYPES)
def test_quantization_never_holds_whole_table(dtype: str, tmp_path: Path) -> None:
    table = Lazy(30_000, 512)  # 61 MB, in chunks of 17
    tracemalloc.start()
    try:
        weights.write(tmp_path, {"table": table}, {"table"}, dtype=dtype)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert table.most * 512 * 4 <= CHUNK_BYTES
    assert peak < 3.5 * CHUNK_BYTES
    held = quantization.view(load_file(tmp_path / "weights.safetensors"))["table"]
    bound = 29_999 / 250
    assert np.abs(held[29_000:].astype(np.float64) - table[29_000:30_000]).max() <= bound


@pytest.mark.parametrize("options", [("--dtype", "int8"), ("--dtype", "bfloat16")])
@pytest.mark.parametrize("stop", ["writing weights", "hashing"])
def test_stop_leaves_nothing_and_retry_succeeds(
    options: tuple[str, ...], stop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = llama(tmp_path / "x", np.random.default_rng(5).normal(size=(500, 64)).astype(np.float32))

    @contextmanager
    def stopped() -> Iterator[Progress]:
        def tell(what: str, done: int, total: int) -> None:
            if what == stop:
                raise KeyboardInterrupt

        yield tell

    command = ["export", str(source), str(tmp_path / "store/out"), *options]
    with monkeypatch.context() as patched:
        patched.setattr("service.cli.models.progress_bars", stopped)
        assert main(command) == 130
    assert not list((tmp_path / "store").iterdir())
    assert (source / "model.safetensors").stat().st_nlink == 1
    assert main(command) == 0
    assert main(["verify", str(tmp_path / "store/out")]) == 0


def test_progress_counts_every_pass(tmp_path: Path) -> None:
    reports: list[tuple[int, int]] = []
    export(
        llama(tmp_path / "x", GOLDEN.arrays["weight"]),
        tmp_path / "out",
        dtype="int8",
        progress=lambda what, done, total: reports.append((done, total)) if what == "writing weights" else None,
    )
    assert reports[-1] == (2 * GOLDEN.arrays["weight"].nbytes,) * 2
    assert reports == sorted(reports)
