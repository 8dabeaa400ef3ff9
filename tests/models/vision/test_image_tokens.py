"""Windows of a grid, places of an image's tokens, and the checkpoints whose towers are read."""

from pathlib import Path

import numpy as np
import pytest

from models.artifacts.export import export
from models.errors import BadCheckpoint
from models.recipes.extra_inputs import IMAGE_ROWS
from models.vision.image_tokens import windows
from tests.page_models import write_pages


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pages(tmp_path_factory.mktemp("pages") / "checkpoint")


@pytest.mark.parametrize(
    ("rows", "columns", "side"), [(1, 1, 2), (4, 4, 2), (5, 3, 2), (2, 9, 4), (7, 7, 3), (3, 4, 0)]
)
def test_windows_hold_each_cell_once_and_side_by_side(rows: int, columns: int, side: int) -> None:
    order, lengths = windows((rows, columns), side)
    assert sorted(order.tolist()) == list(range(rows * columns))
    assert lengths.sum() == len(order)
    reach = side or max(rows, columns)
    for cells in np.split(order, np.cumsum(lengths)[:-1]):
        row, column = np.divmod(cells, columns)
        assert len({(int(y) // reach, int(x) // reach) for y, x in zip(row, column, strict=True)}) == 1
        assert (np.diff(cells) > 0).all()  # row by row, as transformers 5.23 has them


def test_places_are_those_of_transformers_rope_index(checkpoint: Path, tmp_path: Path) -> None:
    """Two rows of three tokens behind two of text: rows and columns count from 2, the text goes on from 2 + 3."""
    spec = export(checkpoint, tmp_path / "pages").image_tokens
    assert spec is not None
    places = spec.places((4, 6))
    before = len(spec.before)
    assert places[:before].tolist() == [[place, place, place, 0] for place in range(before)]
    image = [[before, before + row, before + column, 1] for row in range(2) for column in range(3)]
    assert places[before : before + 6].tolist() == image
    behind = [[before + 3 + place] * 3 + [0] for place in range(len(spec.after))]
    assert places[before + 6 :].tolist() == behind


def test_the_tower_is_compared_with_the_reference(checkpoint: Path, tmp_path: Path) -> None:
    card = export(checkpoint, tmp_path / "pages")
    assert card.largest_difference[IMAGE_ROWS] < 1e-4
    assert IMAGE_ROWS not in card.outputs


def test_side_text_leaves_the_tower_out(checkpoint: Path, tmp_path: Path) -> None:
    card = export(checkpoint, tmp_path / "text", side="text")
    assert card.image_tokens is None
    assert "image_rows" not in card.graphs


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"image_token_id": 100_000}, "image_token_id 100000"),
        ({"image_token_id": 5}, "holds image_token_id 5 0 times"),
    ],
)
def test_wrong_image_tokens_are_refused(changes: dict[str, int], says: str, tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match=says):
        export(write_pages(tmp_path / "checkpoint", **changes), tmp_path / "out")
