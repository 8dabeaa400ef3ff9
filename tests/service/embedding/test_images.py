"""Output of a tower that is not finite fails only the request it belongs to."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.embedding.images import Images, ImagesRequest, Values
from service.errors import EngineFailure
from service.observability.metrics import Metrics
from service.registry.registry import ModelRegistry, open_registry
from service.request_context import RequestContext
from service.settings import Settings
from tests.golden_cases import case
from tests.vision_cases import export_seen

BAD = 7.0  # the pixels that the tower below cannot bear


@pytest.fixture
def catalog(tmp_path: Path) -> ModelRegistry:
    export_seen(case("vision_deit"), tmp_path / "checkpoint", tmp_path / "store/deit")
    return open_registry(Settings(store=tmp_path / "store", device="cpu", default_model="deit"), Metrics())


def image(catalog: ModelRegistry, value: float = 0.5) -> Values:
    card = catalog.get("deit").card
    assert card.image is not None
    return Values(np.full((card.image.width, *(card.image.fixed or (24, 24))), value, np.float32))


async def test_rows_that_are_not_finite_fail_their_own_request(
    catalog: ModelRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = catalog.get("deit").engine
    run, sizes = engine.run, list[int]()

    def broken(graph: str, feeds: Any, outputs: Any) -> Any:
        sizes.append(len(feeds["pixel_values"]))
        bad = (feeds["pixel_values"] == BAD).all(axis=(1, 2, 3))
        return [np.where(bad[:, None, None], np.nan, each) for each in run(graph, feeds, outputs)]

    monkeypatch.setattr(type(engine), "run", lambda _, *arguments: broken(*arguments))
    images = Images(catalog, max_inputs=4, max_pixels=10**6, max_rows=10**4, threads=1)
    good, bad = await asyncio.gather(
        images.embed(ImagesRequest([image(catalog)]), RequestContext()),
        images.embed(ImagesRequest([image(catalog), image(catalog, BAD)]), RequestContext()),
        return_exceptions=True,
    )
    assert sum(sizes) == 3
    assert not isinstance(good, BaseException)
    assert np.isfinite(good.outputs[0].rows).all()
    assert isinstance(bad, EngineFailure)
    assert (bad.index, "of inputs[1] that is not finite" in bad.message) == (1, True)
