"""The pictures of the documentation: those that the service draws today, small, and complete in their folder."""

import importlib.util
import io
from pathlib import Path

import pytest
from PIL import Image

from tests.served import Served
from tests.sweeps import sampled

FOLDER = Path(__file__).parents[5] / "docs/images/positions"
MAX_BYTES = 150_000
_spec = importlib.util.spec_from_file_location("documented_pictures", FOLDER / "draw.py")
assert _spec is not None
assert _spec.loader is not None
script = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(script)


def test_folder_holds_the_pictures_of_the_script_alone() -> None:
    files = {path.name for path in FOLDER.iterdir() if path.suffix in (".png", ".svg")}
    assert files == set(script.PICTURES)
    assert max((FOLDER / file).stat().st_size for file in files) < MAX_BYTES


@pytest.mark.parametrize("file", sampled(script.PICTURES, 5))
def test_documented_picture_is_the_one_that_is_drawn(served: Served, file: str) -> None:
    answer = served.http.get(script.path_of(file)).raise_for_status()
    with Image.open(io.BytesIO(answer.content)) as drawn, Image.open(FOLDER / file) as documented:
        assert drawn.size == documented.size
        assert drawn.info["Title"] == documented.info["Title"]
        assert drawn.info["Description"] == documented.info["Description"]
