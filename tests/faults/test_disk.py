"""Disks that are full, models that are damaged, a log that nobody reads: one line says so, what serves goes on."""

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.faults.conftest import Notes
from tests.faults.processes import PATIENCE_SECONDS, ROOT, running, until
from tests.faults.traffic import traffic
from tests.golden_cases import write_tiny_bert

pytestmark = pytest.mark.faults
Damage = Callable[[Path], None]


@contextmanager
def full_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of its own with so much room; it takes root to make one."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=False).returncode:
        pytest.skip("NOT SHOWN: a full disk; mounting a tmpfs takes root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def command(*arguments: object, **how: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [Path(sys.executable).with_name("inlay"), *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        **how,  # type: ignore[call-overload]
    )


def error_line(ended: "subprocess.CompletedProcess[str]") -> str:
    """All that was said but for the line that shows progress."""
    return "\n".join(line for line in ended.stderr.splitlines() if line and "━" not in line)


def test_an_export_to_a_full_disk(tmp_path: Path) -> None:
    """64 KiB of room: exit code 1, one line, nothing left in the store; a served store beside it is untouched."""
    checkpoint = write_tiny_bert(tmp_path / "bert", pooling="mean")
    with full_disk(tmp_path / "disk", "64k") as disk:
        ended = command("export", checkpoint, disk / "bert")
        assert (ended.returncode, error_line(ended)) == (1, "inlay: No space left on device")
        assert list(disk.iterdir()) == []


def test_an_export_of_a_file_too_large(tmp_path: Path) -> None:
    """RLIMIT_FSIZE of 16 KiB: exit code 1, one line, nothing left; over an older export: that stays whole."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))

    checkpoint, store = write_tiny_bert(tmp_path / "bert", pooling="mean"), tmp_path / "store"
    ended = command("export", checkpoint, store / "bert", preexec_fn=limit)
    assert (ended.returncode, error_line(ended)) == (1, "inlay: File too large")
    assert list(store.iterdir()) == []
    assert command("export", checkpoint, store / "bert").returncode == 0
    before = {file.name: file.read_bytes() for file in (store / "bert").iterdir()}
    assert command("export", checkpoint, store / "bert", preexec_fn=limit).returncode == 1
    assert {file.name: file.read_bytes() for file in (store / "bert").iterdir()} == before
    assert [each.name for each in store.iterdir()] == ["bert"]


def test_a_full_disk_for_temporary_files(store: Path, log: Path, tmp_path: Path) -> None:
    """TMPDIR has no byte left: two workers start, serve, and are replaced when one is killed."""
    with full_disk(tmp_path / "disk", "64k") as disk:
        (disk / "filler").write_bytes(bytes(65536))
        with running(store, log, "--workers", "2", variables={"TMPDIR": str(disk)}) as service:
            until(lambda: service.measured("inlay_workers_ready") == 2, "two workers")
            with traffic(service) as seen:
                until(lambda: len(seen.answered) > 50, "traffic")
            assert not seen.wrong
            assert not seen.broken
            old = service.workers()
            service.signal(signal.SIGKILL, old[0])
            until(lambda: old[0] not in service.workers() and service.measured("inlay_workers_ready") == 2, "a new one")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_log_that_nobody_reads(store: Path, log: Path, notes: Notes, workers: str) -> None:
    """stderr is a pipe that is never read, with a line for every request: all of 1000 requests are answered rightly,
    the process stops on SIGTERM; what was lost is told once somebody reads."""
    reader, writer = os.pipe()
    flags = ("--access-log", "true", "--workers", workers)
    try:
        with running(store, log, *flags, stderr=writer) as service:
            os.close(writer)
            with httpx.Client(base_url=service.url, trust_env=False) as client:
                for _ in range(1000):
                    assert client.post("/embed", json={"inputs": "a"}).status_code == 200
                with traffic(service) as seen:
                    until(lambda: len(seen.answered) > 50, "traffic")
                assert not seen.wrong + seen.broken
                read = os.read(reader, 1 << 20)
                assert client.post("/embed", json={"inputs": "a"}).status_code == 200
            service.signal(signal.SIGTERM)
            assert service.ended(20) == 0
            said = os.read(reader, 1 << 20)
            assert b"log lines were dropped here" in said
            notes(f"{len(read)} bytes fitted in the pipe; the rest was lost and counted")
    finally:
        os.close(reader)


def replaced(name: str, change: Callable[[bytes], bytes]) -> Damage:
    """A file of the model is exchanged for a changed one, in one step, as tools do that mean well."""

    def damage(folder: Path) -> None:
        aside = folder / f".{name}"
        aside.write_bytes(change((folder / name).read_bytes()))
        aside.replace(folder / name)

    return damage


DAMAGES: dict[str, Damage] = {
    "truncated weights": replaced("weights.safetensors", lambda data: data[: len(data) // 2]),
    "weights of zeros": replaced("weights.safetensors", lambda data: bytes(len(data))),
    "no weights": lambda folder: (folder / "weights.safetensors").unlink(),
    "a truncated graph": replaced("encoder.onnx", lambda data: data[: len(data) // 2]),
    "a graph of zeros": replaced("encoder.onnx", lambda data: bytes(len(data))),
    "no graph": lambda folder: (folder / "encoder.onnx").unlink(),
    "a tokenizer that is no JSON": replaced("tokenizer.json", lambda data: data[:100]),
    "a tokenizer of another kind": replaced("tokenizer.json", lambda data: b"{}"),
    "no tokenizer": lambda folder: (folder / "tokenizer.json").unlink(),
    "a card that is no JSON": replaced("card.json", lambda data: data[:100]),
    "a card of nothing": replaced("card.json", lambda data: b"{}"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_at_the_start(store: Path, tmp_path: Path, damage: str) -> None:
    """The service refuses to start: exit code 1, one line that names a file."""
    own = tmp_path / "store"
    shutil.copytree(store / "bert", own / "bert")
    DAMAGES[damage](own / "bert")
    ended = command("serve", "--store", own, "--port", "0", "--grpc-port", "0", "--device", "cpu")
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1), ended.stderr
    assert str(own / "bert") in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_damaged_model_at_a_load(store: Path, log: Path, tmp_path: Path, notes: Notes) -> None:
    """Each damage in turn to the store of a serving process, then a load by the Open Inference Protocol: refused in
    one line; the model loaded before goes on, every call right; once mended it loads."""
    own = tmp_path / "store"
    shutil.copytree(store, own)
    with running(own, log, "--model-control", "explicit") as service, traffic(service) as seen:

        def load() -> httpx.Response:
            url = f"{service.url}/v2/repository/models/bert/load"
            return httpx.post(url, timeout=30, trust_env=False)

        for name, damage in DAMAGES.items():
            damage(own / "bert")
            answer = load()
            if name == "a card that is no JSON" or answer.status_code != 200:
                assert 400 <= answer.status_code < 500, (name, answer.text)
            assert answer.status_code != 200, name
            assert service.embed().status_code == 200
            assert service.get("/health/ready").status_code == 200
            shutil.copytree(store / "bert", own / "fresh")
            (own / "bert").rename(own / ".old")
            (own / "fresh").rename(own / "bert")
            shutil.rmtree(own / ".old")
        assert load().status_code == 200
        until(lambda: len(seen.answered) > 50, "traffic")
    assert not seen.wrong
    assert not seen.broken
    notes(f"{len(DAMAGES)} damages refused; {len(seen.answered)} calls right meanwhile")
