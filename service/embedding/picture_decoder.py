"""PictureDecoder: decodes pictures in threads if they are small, else in the heavy process; callers take turns."""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import TypeVar

from models.vision.preprocess import Prepared
from models.vision.preprocessor_config import Preprocessor
from service.embedding.image_decoding import LargePicture, decoded, raise_if_large, resized_to
from service.embedding.picture_fetcher import PictureFetcher
from service.embedding.requests import Picture
from service.heavy.lane import HeavyLane, has_processes, run_beside
from service.scheduling.memory_budget import MemoryBudget
from service.settings import Settings

THREAD_BYTES = 1 << 16  # of a picture that a thread decodes: every 41 bytes of a JPEG may draw all its pixels again
PIXEL_BYTES = 16  # of memory while a picture is decoded, or resized
Item = TypeVar("Item")


class PictureDecoder:
    """Decodes pictures, one after the other for each caller.

    Args:
        settings: the largest picture.
        budget: the memory of all requests.
        threads: number of threads that decode small pictures.

    Attributes:
        turns: runs functions in threads, in the turn of the caller.
    """

    def __init__(self, settings: Settings, budget: MemoryBudget, threads: int = 1) -> None:
        self._max_pixels, self._budget = settings.max_image_pixels, budget
        self._fetcher = PictureFetcher(settings.image_hosts, settings.max_body_bytes)
        self.turns = HeavyLane(threads=threads)

    async def fetched(self, inputs: Sequence[Item]) -> Sequence[Item | Picture]:
        """Return the inputs with the bytes of those pictures that are addresses; raise BadInput as PictureFetcher."""
        if not any(isinstance(item, Picture) and item.url for item in inputs):
            return inputs
        return [await self._fetcher.fetched(item) if isinstance(item, Picture) else item for item in inputs]

    async def size(self, preprocessor: Preprocessor, data: bytes, index: int) -> tuple[int, int]:
        """Return the height and width to which a picture is resized, by its header; raises as `decoded`."""
        picture = preprocessor, data, index, self._max_pixels
        if len(data) <= THREAD_BYTES or not has_processes():
            return await self.turns.run(resized_to, *picture)
        return await run_beside(resized_to, *picture)

    async def decoded(self, preprocessor: Preprocessor, data: bytes, index: int) -> Prepared:
        """Return a picture as its model reads it; raise BadInput for a wrong one."""
        picture = preprocessor, data, index, self._max_pixels
        if len(data) <= THREAD_BYTES:
            with suppress(LargePicture):
                return await self.turns.run(decoded, *picture, raise_if_large)
        if has_processes():
            return await run_beside(decoded, *picture)
        with ExitStack() as held:
            hold = self._budget.held_for
            return await run_beside(decoded, *picture, lambda pixels: held.enter_context(hold(PIXEL_BYTES * pixels)))
