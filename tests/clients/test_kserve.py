"""KServe's two clients in their v2 form: a second implementation of the Open Inference Protocol."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.clients.conftest import ROOT, SECONDS, Server
from tests.clients.judged import MODEL, assert_vectors

CLIENT = "kserve"
pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def facts(server: Server) -> dict[str, dict[str, Any]]:
    """The results of kserve_calls.py, by protocol."""
    command = [sys.executable, "-m", "tests.clients.kserve_calls", server.host, server.rpc, MODEL]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 0, ended.stderr
    answers: dict[str, dict[str, Any]] = json.loads(ended.stdout.splitlines()[-1])
    return answers


each_protocol = pytest.mark.parametrize("protocol", ["REST", "gRPC"])


@each_protocol
def test_server_and_model_are_live_and_ready(facts: dict[str, dict[str, Any]], protocol: str) -> None:
    probes = ("live", "ready", "model ready")
    assert [facts[protocol][name] for name in probes] == [True, True, True]


def test_another_model_is_not_ready(facts: dict[str, dict[str, Any]]) -> None:
    assert facts["REST"]["another ready"] is False


@each_protocol
@pytest.mark.parametrize("sent", ["ids", "texts"])
@pytest.mark.parametrize("binary", [False, True], ids=["JSON or typed", "binary or raw"])
def test_vectors_of_ids_and_of_texts(facts: dict[str, dict[str, Any]], protocol: str, sent: str, binary: bool) -> None:
    assert_vectors(facts[protocol][f"{sent}, binary {binary}"])


@each_protocol
def test_the_request_id_comes_back(facts: dict[str, dict[str, Any]], protocol: str) -> None:
    assert facts[protocol]["id"] == "seven"


@each_protocol
def test_an_unknown_model_is_refused_by_name(facts: dict[str, dict[str, Any]], protocol: str) -> None:
    assert {"REST": "404", "gRPC": "NOT_FOUND"}[protocol] in facts[protocol]["refused"]
    assert "none" in facts[protocol]["refused"]
