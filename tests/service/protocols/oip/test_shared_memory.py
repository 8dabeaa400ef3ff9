"""System shared memory: registered regions are read and written, and nothing else is."""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import orjson
import pytest

from service.errors import BadRequest, NotFound
from service.protocols.oip.shared_memory import MAX_REGIONS, Place, Regions
from tests.oip_bodies import entry, infer, listed
from tests.served import Served, serving

SHM = Path("/dev/shm")
ALL = "/v2/systemsharedmemory"
IDS = np.array([[5, 6, 7], [8, 9, 10]])
pytestmark = pytest.mark.skipif(not SHM.is_dir(), reason="this machine has no /dev/shm: shared memory was not shown")


@pytest.fixture(scope="module")
def lent(tiny_store: Path) -> Iterator[Served]:
    with serving(tiny_store, default_model="bert", shared_memory=True) as service:
        yield service


@pytest.fixture
def key() -> Iterator[str]:
    """A shared memory object of a page."""
    name = f"inlay-test-{uuid4().hex}"
    (SHM / name).write_bytes(b"\0" * mmap.PAGESIZE)
    yield f"/{name}"
    (SHM / name).unlink(missing_ok=True)


@pytest.fixture
def regions() -> Iterator[Regions]:
    opened = Regions()
    yield opened
    opened.unregister()


def path(key: str) -> Path:
    return SHM / key.strip("/")


def register(served: Served, name: str, key: str, size: int, offset: int = 0) -> Any:
    return served.http.post(f"{ALL}/region/{name}/register", json={"key": key, "offset": offset, "byte_size": size})


def at(region: str, size: int, offset: int = 0) -> dict[str, Any]:
    return {"shared_memory_region": region, "shared_memory_byte_size": size, "shared_memory_offset": offset}


def test_inputs_are_read_from_and_outputs_written_to_regions(lent: Served, key: str) -> None:
    assert "system_shared_memory" in lent.http.get("/v2").json()["extensions"]
    with path(key).open("r+b") as file:
        file.seek(16)
        file.write(IDS.tobytes())
    assert register(lent, "in", key, 64, 16).status_code == 200
    assert register(lent, "out", key, 2048, 1024).status_code == 200
    body = {
        "inputs": [entry("input_ids", "INT64", [2, 3], parameters=at("in", 48))],
        "outputs": [{"name": "sentence_embedding", "parameters": at("out", 1024, 8)}],
    }
    answer = lent.http.post("/v2/models/bert/infer", json=body)
    assert answer.json()["outputs"] == [
        {"name": "sentence_embedding", "datatype": "FP32", "shape": [2, 32], "parameters": at("out", 256, 8)}
    ]
    raw = path(key).read_bytes()
    expected = infer(lent.http, [("input_ids", "INT64", IDS)])["sentence_embedding"]
    assert raw[1024 + 8 : 1024 + 8 + 256] == expected.tobytes()
    assert not any(raw[:16] + raw[64:1032] + raw[1024 + 8 + 256 :])
    entries = lent.http.get(f"{ALL}/status").json()
    assert entries[0] == {"name": "in", "key": key, "offset": 16, "byte_size": 64}
    assert lent.http.get(f"{ALL}/region/out/status").json() == entries[1:]
    assert lent.http.post(f"{ALL}/region/in/unregister").status_code == 200
    assert lent.http.post("/v2/models/bert/infer", json=body).status_code == 404
    assert lent.http.post(f"{ALL}/unregister").status_code == 200
    assert lent.http.get(f"{ALL}/status").json() == []
    assert path(key).exists()  # the client's to remove


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (at("r", 40), {}, "has 40 bytes; INT64 [2, 3] takes 6 x 8 = 48"),
    (at("r", 48, 20), {}, "48 bytes from 20 are outside region 'r', which has 64"),
    (at("r", 48, -8), {}, "allowed"),
    (at("r", 2**62), {}, "are outside region"),
    ({"shared_memory_region": "r"}, {}, "allowed"),
    ({"shared_memory_region": 5, "shared_memory_byte_size": 48}, {}, "allowed"),
    (at("r", 48), at("r", 8), "an output of 256 bytes is wanted in 8 bytes of region 'r'"),
    (at("r", 48), at("r", 256), "256 bytes from 0 are outside region 'r'"),
]


@pytest.mark.parametrize(("source", "goal", "said"), REFUSED)
def test_bytes_outside_a_region_are_refused(
    lent: Served, key: str, source: dict[str, Any], goal: dict[str, Any], said: str
) -> None:
    assert register(lent, "r", key, 64).status_code == 200
    body = {
        "inputs": [entry("input_ids", "INT64", [2, 3], parameters=source)],
        "outputs": [{"name": "sentence_embedding", "parameters": goal}],
    }
    answer = lent.http.post("/v2/models/bert/infer", json=body)
    assert lent.http.post(f"{ALL}/region/r/unregister").status_code == 200
    assert answer.status_code == 400
    assert said in answer.json()["error"]


def test_an_unregistered_region_is_not_found(lent: Served) -> None:
    body = {"inputs": [entry("input_ids", "INT64", [1, 1], parameters=at("none", 8))]}
    assert lent.http.post("/v2/models/bert/infer", json=body).status_code == 404
    assert lent.http.get(f"{ALL}/region/none/status").status_code == 404
    assert lent.http.post(f"{ALL}/region/none/unregister").status_code == 200  # as Triton: nothing to do


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"key": 5, "byte_size": 8}', b'{"key": "/x", "byte_size": "8"}'])
def test_invalid_registration_is_refused(lent: Served, body: bytes) -> None:
    answer = lent.http.post(f"{ALL}/region/r/register", content=body)
    assert (answer.status_code, list(answer.json())) == (400, ["error"])


@pytest.mark.parametrize(
    "wrong", ["", "/", "//x", "/a/b", "../x", "/..", "/.", "/.hidden", "/a\0b", "/" + "x" * 256, "/../etc/passwd"]
)
def test_rejects_keys_that_are_not_one_name(regions: Regions, wrong: str) -> None:
    with pytest.raises(BadRequest, match="key is"):
        regions.register("r", wrong, 0, 8)


def test_a_link_is_not_followed(regions: Regions, tmp_path: Path, key: str) -> None:
    target = tmp_path / "secret"
    target.write_bytes(b"\0" * 64)
    path(key).unlink()
    path(key).symlink_to(target)
    with pytest.raises(BadRequest, match="cannot be opened"):
        regions.register("r", key, 0, 8)


def test_rejects_files_that_are_not_shared_memory(regions: Regions, key: str) -> None:
    path(key).unlink()
    os.mkfifo(path(key))
    with pytest.raises(BadRequest, match="is no shared memory object"):
        regions.register("r", key, 0, 8)


@pytest.mark.parametrize(("offset", "size"), [(0, mmap.PAGESIZE + 1), (mmap.PAGESIZE, 1), (-1, 8), (0, 0), (0, 2**70)])
def test_a_region_lies_within_its_object(regions: Regions, key: str, offset: int, size: int) -> None:
    with pytest.raises(BadRequest):
        regions.register("r", key, offset, size)
    assert regions.status() == []


def test_rejects_a_region_that_shrank(regions: Regions, key: str) -> None:
    regions.register("r", key, 0, mmap.PAGESIZE)
    os.truncate(path(key), 8)
    with pytest.raises(BadRequest, match="became smaller"):
        regions.read(Place("r", 0, 64))
    with pytest.raises(BadRequest, match="has 8"):
        regions.write(Place("r", 0, 64), b"x" * 64)
    assert path(key).stat().st_size == 8


def test_a_name_is_registered_once_and_regions_are_bounded(regions: Regions, key: str) -> None:
    regions.register("r", key, 0, 8)
    with pytest.raises(BadRequest, match="registered already"):
        regions.register("r", key, 0, 8)
    for number in range(MAX_REGIONS - 1):
        regions.register(str(number), key, 0, 8)
    with pytest.raises(BadRequest, match="which is the most"):
        regions.register("more", key, 0, 8)


def test_every_file_is_closed_in_the_end(key: str) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    regions = Regions()
    regions.register("a", key, 0, 8)
    regions.register("b", key, 0, 8)
    regions.unregister("a")
    regions.unregister()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    with pytest.raises(NotFound, match="registered: none"):
        regions.status("a")


def test_rejects_regions_where_shared_memory_is_off(served: Served) -> None:
    body = {"inputs": [listed("input_ids", [[5]])], "outputs": [{"name": "lengths", "parameters": at("r", 8)}]}
    answer = served.http.post("/v2/models/bert/infer", content=orjson.dumps(body))
    assert answer.status_code == 501
    assert "INLAY_SHARED_MEMORY" in answer.json()["error"]
