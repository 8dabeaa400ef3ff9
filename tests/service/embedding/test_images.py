"""Images: what is refused before its run, and output of a tower that is not finite."""

import asyncio
import io
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from service.embedding.image_decoding import open_picture
from service.embedding.images import Images, ImagesRequest, Values, checked
from service.embedding.picture_decoder import PictureDecoder
from service.embedding.requests import Picture
from service.errors import BodyTooLarge, EngineFailure, InlayError, Overloaded, TooLarge, Unavailable
from service.heavy.lane import HeavyLane
from service.heavy.lane import serving as serving_lane
from service.observability.metrics import Metrics
from service.registry.registry import ModelRegistry, open_registry
from service.request_context import CURRENT_CALL, RequestContext
from service.scheduling.memory_budget import MemoryBudget
from service.settings import Settings
from tests.golden_cases import case
from tests.vision_cases import encoded, export_seen, picture

BAD = 7.0  # the pixels that the tower below cannot bear
PROCESSOR = {"image_processor_type": "ViTImageProcessor", "size": {"height": 24, "width": 24}}


@pytest.fixture
def catalog(tmp_path: Path) -> ModelRegistry:
    export_seen(case("vision_deit"), tmp_path / "checkpoint", tmp_path / "store/deit", PROCESSOR)
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
    images = limited(catalog)
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


def limited(catalog: ModelRegistry, max_bytes: int = 10**6, together: int = 10**7) -> Images:
    """Images of a few small pictures."""
    settings = Settings(max_inputs=4, max_image_pixels=10**6, max_request_tokens=10**4, max_answer_bytes=max_bytes)
    budget = MemoryBudget(together)
    return Images(catalog, settings, budget, PictureDecoder(settings, budget), Metrics())


async def test_callers_take_turns_at_each_image(catalog: ModelRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    images, order = limited(catalog), list[float]()

    def noted(spec: Any, prepared: Any, index: int) -> Any:
        order.append(float(prepared.values.flat[0]))
        return checked(spec, prepared, index)

    async def embed(caller: str, values: list[float]) -> None:
        context = RequestContext()
        context.caller = caller
        CURRENT_CALL.set(context)
        await images.embed(ImagesRequest([image(catalog, value) for value in values]), context)

    monkeypatch.setattr("service.embedding.images.checked", noted)
    await asyncio.gather(embed("bulk", [0.0, 0.0, 0.0, 0.0]), embed("light", [1.0]))
    assert order.index(1.0) <= 1


async def test_large_pictures_are_decoded_beside_the_server(catalog: ModelRegistry) -> None:
    images, lane = limited(catalog), HeavyLane(1, 2**28, 60.0)
    sent = ImagesRequest([Picture(encoded(picture(*sides), "JPEG")) for sides in ((50, 50), (600, 600))])
    here = await images.embed(sent, RequestContext())
    with serving_lane(lane):
        beside = await images.embed(sent, RequestContext())
    assert lane.tasks == 1
    np.testing.assert_array_equal(beside.outputs[0].rows, here.outputs[0].rows)


def drawn_again(times: int) -> bytes:
    """A JPEG whose last scan comes again and again."""
    file = encoded(PIL.Image.new("L", (1000, 1000)), "JPEG", progressive=True)
    scan = file[file.rindex(b"\xff\xda") :][:10]  # its head alone, which draws all pixels
    return file[:-2] + scan * times + file[-2:]


def of_segments(count: int) -> bytes:
    """A JPEG with empty segments of an application, each of which becomes an object."""
    file = encoded(PIL.Image.new("L", (8, 8)), "JPEG")
    return file[:2] + b"\xff\xe5\0\x02" * count + file[2:]


@pytest.mark.parametrize(
    ("data", "error", "limit"),
    [
        (drawn_again(100_000), Unavailable, "INLAY_HEAVY_SECONDS"),
        (of_segments(2**20), BodyTooLarge, "INLAY_HEAVY_MEMORY_BYTES"),
    ],
    ids=["scans", "segments"],
)
async def test_picture_that_needs_too_much_ends_alone(
    catalog: ModelRegistry, data: bytes, error: type[InlayError], limit: str
) -> None:
    images = limited(catalog)
    seconds, memory = (1.0, 2**28) if error is Unavailable else (60.0, 2**25)
    with serving_lane(HeavyLane(1, memory, seconds)):
        with pytest.raises(error, match=limit):
            await images.embed(ImagesRequest([Picture(data)]), RequestContext())
        await images.embed(ImagesRequest([Picture(encoded(picture(600, 600)))]), RequestContext())


async def test_vectors_over_the_limit_are_refused_before_the_run(
    catalog: ModelRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(catalog.get("deit").engine), "run", lambda *_: pytest.fail("it ran"))
    with pytest.raises(TooLarge, match="this server answers with 1000 at most"):
        await limited(catalog, max_bytes=1000).embed(ImagesRequest([image(catalog)] * 2), RequestContext())


async def test_pixels_and_vectors_are_reserved_until_answer_is_sent(catalog: ModelRegistry) -> None:
    context = RequestContext()
    await limited(catalog).embed(ImagesRequest([image(catalog)] * 2), context)
    assert len(context.reservations or ()) == 3
    with pytest.raises(TooLarge, match="INLAY_MAX_ANSWERING_BYTES"):
        await limited(catalog, together=1000).embed(ImagesRequest([image(catalog)]), RequestContext())


def test_memory_is_held_before_a_picture_is_decoded() -> None:
    file, held = io.BytesIO(), list[int]()
    PIL.Image.new("RGB", (500, 400)).save(file, "png")
    open_picture(file.getvalue(), 0, 10**6, held.append)
    assert held == [200_000]
    with pytest.raises(Overloaded):
        open_picture(file.getvalue(), 0, 10**6, lambda pixels: refuse())


def refuse() -> None:
    raise Overloaded("there is no room")
