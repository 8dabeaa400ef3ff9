"""A model exported again while it is served: the running service keeps the old version, the next loads the new one."""

import threading
from pathlib import Path

import numpy as np
import pytest

from models.artifacts import card as cards
from models.artifacts.export import export
from models.artifacts.folder import atomic_folder
from tests.golden_cases import tiny_bert, tiny_config, write_folder
from tests.served import Served, serving

ASKED = {"inputs": [[5, 6, 7], [8]], "outputs": ["input_embeddings", "last_hidden_state"]}


def answers(service: Served) -> list[bytes]:
    """Return rows of the input layer, the encoder and the position table."""
    content = service.post(ASKED).raise_for_status().content
    return [content, service.http.get("/models/tiny/learned?length=4&format=raw").raise_for_status().content]


@pytest.mark.parametrize("dtype", ["keep", "int8"])
def test_running_service_keeps_its_version_the_next_is_new(dtype: str, tmp_path: Path) -> None:
    for seed, name in enumerate(("old", "new")):
        tensors = tiny_bert(seed=seed)
        write_folder(tmp_path / name, tiny_config(tensors), tensors)
    export(tmp_path / "old", tmp_path / "store/tiny")
    with serving(tmp_path / "store") as running:
        rows = running.post(ASKED).raise_for_status().content
        export(tmp_path / "new", tmp_path / "store/tiny", dtype=dtype)
        assert running.post(ASKED).raise_for_status().content == rows
        old = answers(running)
    export(tmp_path / "new", tmp_path / "alone/tiny", dtype=dtype)
    export(tmp_path / "old", tmp_path / "first/tiny")
    with serving(tmp_path / "store") as next_one, serving(tmp_path / "alone") as fresh:
        assert answers(next_one) == answers(fresh) != old
    with serving(tmp_path / "first") as as_it_was:
        assert answers(as_it_was) == old


def test_folder_is_complete_at_every_moment_of_a_replacement(tmp_path: Path) -> None:
    tensors = tiny_bert(layers=1)
    card = export(write_folder(tmp_path / "x", tiny_config(tensors), tensors), tmp_path / "store/tiny")
    text = (tmp_path / "store/tiny/card.json").read_bytes()
    done, looks = threading.Event(), []

    def look() -> None:
        while not done.is_set():
            looks.append((tmp_path / "store/tiny/card.json").read_bytes() == text)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(200):
            with atomic_folder(tmp_path / "store/tiny") as folder:
                for name in (*card.files, cards.FILE_NAME):
                    (folder / name).write_bytes((tmp_path / "store/tiny" / name).read_bytes())
    finally:
        done.set()
        watcher.join()
    assert len(looks) > 10
    assert all(looks)
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["tiny"]
    np.testing.assert_equal(cards.read(tmp_path / "store/tiny"), card)
