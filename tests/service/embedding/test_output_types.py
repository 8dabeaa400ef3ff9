"""int8, uint8, binary and ubinary of a request, by the ranges of the model's card."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.artifacts import card as cards
from models.artifacts.card import Calibration
from models.artifacts.export import export
from models.artifacts.folder import replace_card
from service.embedding.quantization import PRECISIONS, quantized
from service.embedding.requests import Text
from service.errors import ConflictingFields, UnknownValue
from tests.embed_requests import embed_request
from tests.golden_cases import write_json, write_tiny_bert
from tests.service.registry.registry_service import Service

TEXTS = [Text("a b c"), Text("hello world"), Text("d e f g h i j")]
WIDTH = 32
RANGES = np.stack([np.linspace(-0.3, -0.1, WIDTH), np.linspace(0.1, 0.3, WIDTH)]).astype(np.float32)


def calibrate(folder: Path, ranges: np.ndarray = RANGES) -> None:
    least, largest = ranges.tolist()
    replace_card(folder, replace(cards.read(folder), calibration=Calibration(tuple(least), tuple(largest), 7)))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """unit and raw, calibrated: sentence encoders that scale their vectors and do not; plain: neither."""
    folder = tmp_path_factory.mktemp("types")
    unit, raw = (write_tiny_bert(folder / name, pooling="mean") for name in ("unit", "raw"))
    write_json(raw / "modules.json", [{"path": "", "type": "Transformer"}, {"path": "1_Pooling", "type": "Pooling"}])
    for name, checkpoint in (("unit", unit), ("raw", raw), ("bare", unit)):
        export(checkpoint, folder / "store" / name)
    for name in ("unit", "raw"):
        calibrate(folder / "store" / name)
    return folder / "store"


@pytest.fixture(scope="module")
def service(store):
    return Service(store, default_model="unit")


async def rows(service, texts=TEXTS, **fields):
    (output,) = (await service.pipeline.embed(embed_request(texts, **fields))).outputs
    return output.rows


@pytest.mark.parametrize("precision", PRECISIONS)
async def test_types_are_made_of_the_float_vectors(precision, service):
    floats = await rows(service)
    np.testing.assert_array_equal(await rows(service, dtype=precision), quantized(floats, precision, RANGES))


@pytest.mark.parametrize("precision", PRECISIONS)
async def test_a_vector_does_not_depend_on_its_neighbours(precision, service):
    together = await rows(service, dtype=precision)
    for text, row in zip(TEXTS, together, strict=True):
        np.testing.assert_array_equal((await rows(service, [text], dtype=precision))[0], row)


async def test_several_types_come_of_one_run(service):
    result = await service.pipeline.embed(embed_request(TEXTS, precisions=("int8", "ubinary")))
    floats = result.outputs[0].rows
    assert floats.dtype == np.float32
    assert list(result.quantized) == ["int8", "ubinary"]
    for precision, made in result.quantized.items():
        np.testing.assert_array_equal(made, quantized(floats, precision, RANGES))


@pytest.mark.parametrize("precision", ["int8", "uint8"])
async def test_without_ranges_the_command_is_named(precision, service):
    for fields in ({"dtype": precision}, {"precisions": (precision,)}):
        with pytest.raises(ConflictingFields, match="inlay calibrate bare TEXTS"):
            await rows(service, model="bare", **fields)
    assert (await rows(service, model="bare", dtype="ubinary")).shape == (3, WIDTH // 8)


@pytest.mark.parametrize("fields", [{"dimensions": 16}, {"normalize": False}, {"pooling": "cls"}])
async def test_other_vectors_than_the_calibrated_are_refused(fields, service):
    with pytest.raises(ConflictingFields, match="as it gives them"):
        await rows(service, dtype="int8", **fields)
    assert (await rows(service, dtype="binary", **fields)).dtype == np.int8


@pytest.mark.parametrize("fields", [{"dimensions": WIDTH}, {"normalize": True}, {"pooling": "mean"}])
async def test_options_that_change_nothing_are_not_refused(fields, service):
    np.testing.assert_array_equal(await rows(service, dtype="int8", **fields), await rows(service, dtype="int8"))


async def test_leading_values_of_unscaled_vectors_keep_their_ranges(service):
    short = await rows(service, model="raw", dtype="int8", dimensions=16)
    np.testing.assert_array_equal(short, (await rows(service, model="raw", dtype="int8"))[:, :16])
    with pytest.raises(ConflictingFields, match="as it gives them"):
        await rows(service, model="raw", dtype="int8", normalize=True)


async def test_other_outputs_have_no_such_types(service):
    for outputs in (("last_hidden_state",), ("sentence_embedding", "last_hidden_state")):
        with pytest.raises(ConflictingFields, match="sentence_embedding alone"):
            await rows(service, dtype="binary", outputs=outputs)
    with pytest.raises(UnknownValue, match="float32, float16, bfloat16, int8, uint8, binary, ubinary"):
        await rows(service, dtype="int4")


async def test_kept_vectors_give_the_same_types(store):
    service = Service(store, default_model="unit", vector_cache_bytes=1 << 20)
    floats, first = await rows(service), await rows(service, dtype="uint8")
    np.testing.assert_array_equal(first, quantized(floats, "uint8", RANGES))
    np.testing.assert_array_equal(await rows(service, dtype="uint8"), first)
