"""The scripts of the chart, run for real: exports are made once, and `helm test` knows a service that answers."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden_cases import write_tiny_bert
from tests.service.cli.test_startup import INLAY, SECONDS, running

FILES = Path(__file__).parents[2] / "deploy/helm/inlay/files"
FAKE = """#!/bin/sh
echo "$TMPDIR: $*" >>"$INLAY_STORE/calls"
if [ "$1" = describe ]; then test -e "$2/card.json"; exit; fi
for out; do :; done
case $2 in */broken) exit 1;; esac
sleep 0.3
mkdir -p "$out"
touch "$out/card.json"
"""


class Store:
    """A store, a list of models, and an `inlay` that notes how it is called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "models"
        self.folder.mkdir()
        self.list = folder / "list"
        program = folder / "bin/inlay"
        program.parent.mkdir()
        program.write_text(FAKE)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self.environment = os.environ | {
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "INLAY_STORE": str(self.folder),
            "TMPDIR": "elsewhere",
            "POLL_SECONDS": "0.05",
        }

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        command = ["sh", FILES / "export.sh", self.list, *words]
        return subprocess.Popen(command, env=self.environment)

    def run(self, *lines: str) -> int:
        """Export the models of these lines; return the exit code."""
        self.list.write_text("".join(f"{line}\n" for line in lines))
        return self.start().wait(SECONDS)

    def exports(self) -> list[str]:
        """Return the calls of `inlay export`, with the folder of temporary files before each."""
        calls = self.folder / "calls"
        return [line for line in calls.read_text().splitlines() if ": export" in line] if calls.exists() else []


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_pods_that_start_together_export_once(store: Store) -> None:
    store.list.write_text("a org/a --encoder=int8\nb org/b@v1\n")
    pods = [store.start() for _ in range(3)]
    assert [pod.wait(SECONDS) for pod in pods] == [0, 0, 0]
    staging = f"{store.folder}/.staging"  # on the models' volume, not in /tmp
    assert store.exports() == [
        f"{staging}: export org/a --encoder=int8 {store.folder}/a",
        f"{staging}: export org/b@v1 {store.folder}/b",
    ]
    assert not Path(staging).exists()


def test_model_is_exported_again_when_its_line_changes(store: Store) -> None:
    for lines in (["a org/a", "b org/b"], ["a org/a@v2", "b org/b"], ["a org/a@v2", "b org/b"]):
        assert store.run(*lines) == 0
    assert [call.split()[2] for call in store.exports()] == ["org/a", "org/b", "org/a@v2"]


def test_export_that_this_version_cannot_read_is_made_anew(store: Store) -> None:
    assert store.run("a org/a") == 0
    (store.folder / "a/card.json").unlink()
    assert store.run("a org/a") == 0
    assert len(store.exports()) == 2


def test_failed_export_is_tried_again(store: Store) -> None:
    assert store.run("a org/broken") != 0
    assert store.run("a org/broken") != 0
    assert len(store.exports()) == 2


def test_leftovers_of_a_killed_export_are_removed(store: Store) -> None:
    for name in (".staging/checkpoint", ".a.partial-x1/weights"):
        (store.folder / name).parent.mkdir(parents=True)
        (store.folder / name).touch()
    assert store.run("a org/a") == 0
    assert sorted(path.name for path in store.folder.iterdir()) == [".a.line", ".export.lock", "a", "calls"]


def test_waiting_pod_exports_nothing_and_ends_after_the_job(store: Store) -> None:
    store.list.write_text("a org/a\nb org/b\n")
    waiting = store.start("wait")
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(0.5)
    assert store.exports() == []
    assert store.start().wait(SECONDS) == 0
    assert waiting.wait(SECONDS) == 0
    assert len(store.exports()) == 2


def test_real_export_is_served_and_answers_helm_test(tmp_path: Path) -> None:
    write_tiny_bert(tmp_path / "checkpoint", pooling="mean")
    (tmp_path / "store").mkdir()
    (tmp_path / "list").write_text(f"tiny {tmp_path}/checkpoint --dtype=float32\n")
    environment = os.environ | {"INLAY_STORE": str(tmp_path / "store"), "PATH": f"{INLAY.parent}:{os.environ['PATH']}"}
    for _ in range(2):
        command = ["sh", FILES / "export.sh", tmp_path / "list"]
        subprocess.run(command, env=environment, check=True, timeout=SECONDS)
    keys = tmp_path / "keys"
    keys.write_text("# of tests\nsearch:a-key-of-many-characters rate=100\n")
    with running(tmp_path / "store", "--api-keys-file", str(keys), default=None) as (_, url, _):

        def asked(*models: str, **variables: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, FILES / "answers.py", url, *models]
            return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=SECONDS)

        answered = asked("tiny", INLAY_API_KEYS_FILE=str(keys))
        assert (answered.returncode, answered.stdout.splitlines()[-1]) == (0, "/v2/models/tiny/ready 200"), answered
        assert asked("tiny").returncode != 0  # without a key
        assert asked("missing", INLAY_API_KEYS_FILE=str(keys)).returncode != 0
