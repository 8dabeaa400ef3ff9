"""Modules behind pooling in the service: which requests pass them, in what order vectors are cut and scaled, bits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts.export import export
from service.embedding.outputs.dense import SentenceVector
from service.embedding.outputs.plan import planner
from service.embedding.requests import EmbedOptions, Text
from service.errors import EngineFailure, InlayError, StartError
from service.registry.warmup import warm_up
from tests.embed_requests import embed_request
from tests.sentence_chains import HIDDEN, NORMALIZE, Behind, dense, layer_norm, vectors, write_chain
from tests.service.registry.registry_service import Service

TEXTS = ["hello world", "a", "a b c d e f", "hello", "b c " * 8]
WIDE = dense(HIDDEN, 48)
Rows = NDArray[np.float32]


def written(tmp_path: Path, modes: Any, *behind: Behind, **changes: Any) -> Service:
    export(write_chain(tmp_path / "x", modes, *behind, **changes), tmp_path / "store/tiny")
    return Service(tmp_path / "store")


async def embed(service: Service, texts: list[str] = TEXTS, **fields: Any) -> Rows:
    request = embed_request([Text(text) for text in texts], **{"truncate": True} | fields)
    (output,) = (await service.pipeline.embed(request)).outputs
    return output.rows


async def hidden(service: Service, text: str) -> Rows:
    return await embed(service, [text], outputs=("last_hidden_state",))


def unit(rows: NDArray[Any]) -> NDArray[Any]:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


async def test_modules_run_behind_the_models_own_pooling(tmp_path: Path) -> None:
    chain = NORMALIZE, WIDE, layer_norm(48)
    service = written(tmp_path, "mean", *chain)
    pooled = np.stack([(await hidden(service, text)).mean(axis=0, dtype=np.float64) for text in TEXTS])
    np.testing.assert_allclose(await embed(service), vectors(chain, pooled), atol=1e-5)


async def test_several_modes_follow_one_another(tmp_path: Path) -> None:
    service = written(tmp_path, ["max", "cls", "mean"])
    got = await embed(service)
    for row, text in zip(got, TEXTS, strict=True):
        own = await hidden(service, text)
        np.testing.assert_allclose(row, np.concatenate([own.max(axis=0), own[0], own.mean(axis=0)]), atol=1e-6)


@pytest.mark.parametrize("normalize", [None, False])
async def test_another_pooling_gives_the_plain_pooled_vector(normalize: bool | None, tmp_path: Path) -> None:
    service = written(tmp_path, "mean", WIDE, NORMALIZE, truncate_dim=4)
    plain = np.stack([(await hidden(service, text))[0] for text in TEXTS])
    got = await embed(service, pooling="cls", normalize=normalize)
    np.testing.assert_allclose(got, plain if normalize is False else unit(plain), atol=1e-6)
    with pytest.raises(InlayError) as error:
        await embed(service, pooling="cls", dimensions=33)
    assert "1 to 32" in str(error.value)


async def test_naming_the_models_own_pooling_changes_nothing(tmp_path: Path) -> None:
    service = written(tmp_path, "mean", WIDE, NORMALIZE, truncate_dim=4)
    assert (await embed(service, pooling="mean")).tobytes() == (await embed(service)).tobytes()


async def test_default_dimensions_are_cut_after_scaling(tmp_path: Path) -> None:
    """As sentence-transformers 6.2 cuts: behind all modules; encode(normalize_embeddings=True) scales what is left."""
    service = written(tmp_path, "mean", WIDE, NORMALIZE, truncate_dim=4)
    whole = await embed(service, dimensions=48)
    np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(await embed(service), whole[:, :4])
    np.testing.assert_allclose(await embed(service, normalize=True), unit(whole[:, :4]), atol=1e-6)
    np.testing.assert_allclose(await embed(service, dimensions=6), unit(whole[:, :6]), atol=1e-6)
    raw = await embed(service, normalize=False)
    np.testing.assert_allclose(unit(raw), unit(whole[:, :4]), atol=1e-6)
    assert raw.shape == (5, 4)


async def test_text_has_the_same_bits_alone_and_in_a_batch(tmp_path: Path) -> None:
    service = written(tmp_path, ["mean", "max"], dense(2 * HIDDEN, 48), dense(48, 20), NORMALIZE)
    together = await embed(service)
    for text, row in zip(TEXTS, together, strict=True):
        assert (await embed(service, [text])).tobytes() == row.tobytes()


def sentence_vector(service: Service) -> SentenceVector:
    (kind,) = service.registry.get("tiny").plan(EmbedOptions(), "").kinds
    assert isinstance(kind, SentenceVector)
    return kind


async def test_rows_have_the_same_bits_among_very_many(tmp_path: Path) -> None:
    """The engine runs more than 512 rows in chunks."""
    kind = sentence_vector(written(tmp_path, "mean", WIDE, dense(48, 20)))
    rows = np.random.default_rng(4).normal(size=(700, HIDDEN)).astype(np.float32)
    (whole,) = kind.behind_head([rows])
    for start in (0, 1, 127, 128, 511, 512, 699):
        (alone,) = kind.behind_head([rows[start : start + 1]])
        assert alone.tobytes() == whole[start].tobytes()


async def test_kept_vectors_have_passed_the_modules_once(tmp_path: Path) -> None:
    export(write_chain(tmp_path / "x", "mean", WIDE, NORMALIZE), tmp_path / "store/tiny")
    service, fresh = Service(tmp_path / "store", vector_cache_bytes=1 << 20), Service(tmp_path / "store")
    first = await embed(service, TEXTS[:2])
    assert (await embed(service)).tobytes() == (await embed(fresh)).tobytes()
    assert (await embed(service, TEXTS[:2])).tobytes() == first.tobytes()
    plain = await embed(service, pooling="cls")
    assert plain.tobytes() == (await embed(fresh, pooling="cls")).tobytes()


async def test_reference_engine_runs_modules(tmp_path: Path) -> None:
    fast = written(tmp_path, "mean", NORMALIZE, WIDE, layer_norm(48))
    exact = Service(tmp_path / "store", engine="reference")
    np.testing.assert_allclose(await embed(fast), await embed(exact), atol=1e-5)


async def test_vector_that_is_not_finite_is_an_error(tmp_path: Path) -> None:
    service = written(tmp_path, "mean", dense(HIDDEN, 4, "torch.nn.modules.linear.Identity"))
    pooled = np.full((1, HIDDEN), 3e38, np.float32)
    with pytest.raises(EngineFailure, match="tiny gave a sentence_embedding that is not finite"):
        sentence_vector(service).behind_head([pooled])


async def test_warm_up_runs_modules(tmp_path: Path) -> None:
    service = written(tmp_path, "mean", WIDE)
    model = service.registry.get("tiny")
    await warm_up(model)
    assert model.card.modules
    narrow = replace(model.card, modules=replace(model.card.modules, width=3))
    with pytest.raises(StartError, match=r"modules\.onnx gives vectors 48 wide where its card promises 3"):
        await warm_up(replace(model, card=narrow, plan=planner(narrow, model.engine, model.weights)))
