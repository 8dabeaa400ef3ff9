"""The examples of the documentation: what their pages claim, on the demo model and tiny ones.

Retrieval is in tests/clients/test_rag_example.py, what needs torch in tests/parity/test_examples.py.
"""

import base64
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.artifacts.export import export
from service.cli.main import main
from tests.docs import completions_server, notebook_page
from tests.docs.example_scripts import EXAMPLES, SECONDS, run
from tests.golden_cases import case, write_checkpoint
from tests.served import Served, serving
from tests.service.protocols.inlay.test_prompt_embeds import unpacked

LOCAL = "http://localhost:8080"
NOTEBOOK_BYTES = 300_000
FENCE = re.compile(r"(<!-- run: (?P<directive>.*?) -->\n)?```(?P<language>bash|python)\n(?P<text>.*?)```", re.DOTALL)
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-\d+)?")
END_OF_CELL = "--- end of cell"
LOOSE = {"error_table": 1.0}  # errors of float32, printed with one digit: other processors may round otherwise
IDS = [3, 1, 4, 1, 5]


def url(served: Served) -> str:
    return "http://{}:{}".format(*served.address)


# ---- prompt_embeds.py


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("llama")
    export(write_checkpoint(case("input_llama"), folder / "checkpoint"), folder / "store/llama")
    with serving(folder / "store") as running:
        yield running


def ids_of_rows(body: dict[str, Any]) -> str:
    """Say which rows of the checkpoint's word table were sent; of a prompt of ids the ids."""
    if "prompt" in body:
        return str(body["prompt"])
    [table] = [value for name, value in case("input_llama").weights.items() if name.endswith("embed_tokens.weight")]
    sent = unpacked(base64.b64decode(body["prompt_embeds"], validate=True))
    equal = (sent[:, None] == table[None]).all(axis=2)
    assert (equal.sum(axis=1) == 1).all()
    return str(equal.argmax(axis=1).tolist())


def test_prompt_embeds_are_the_rows_of_the_ids(llama: Served, tmp_path: Path) -> None:
    with completions_server.serving(ids_of_rows) as vllm:
        words = ["--ids", ",".join(map(str, IDS)), "--inlay", url(llama), "--vllm", vllm, "--compare"]
        done = run("prompt_embeds.py", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{IDS}\n"), done.stderr


def test_prompt_embeds_prints_the_request_without_vllm(llama: Served, tmp_path: Path) -> None:
    done = run("prompt_embeds.py", "--ids", "3,1,4,1,5", "--inlay", url(llama), "--vllm-model", "m", cwd=tmp_path)
    body = json.loads(done.stdout)
    assert (ids_of_rows(body), body["model"]) == (str(IDS), "m")


def test_prompt_embeds_fails_where_completions_differ(llama: Served, tmp_path: Path) -> None:
    with completions_server.serving(lambda body: " ".join(sorted(body))) as vllm:
        done = run("prompt_embeds.py", "--ids", "3,1", "--inlay", url(llama), "--vllm", vllm, "--compare", cwd=tmp_path)
    assert done.returncode == 1
    assert "continued differently" in done.stderr


def refused(_body: dict[str, Any]) -> str:
    raise ValueError("You must set `--enable-prompt-embeds`")


def test_prompt_embeds_repeats_what_a_server_refused(llama: Served, tmp_path: Path) -> None:
    with completions_server.serving(refused) as vllm:
        done = run("prompt_embeds.py", "--ids", "3,1", "--inlay", url(llama), "--vllm", vllm, cwd=tmp_path)
        other = run("prompt_embeds.py", "a text", "--inlay", url(llama), "--vllm", vllm, cwd=tmp_path)
    assert done.returncode == other.returncode == 2
    assert "--enable-prompt-embeds" in done.stderr
    assert "without a tokenizer" in other.stderr


# ---- export.md


def test_the_commands_of_the_export_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INLAY_STORE", "models/store")
    blocks = list(FENCE.finditer((EXAMPLES / "export.md").read_text(encoding="utf-8")))
    runnable = [block for block in blocks if not (block["directive"] or "").startswith("syntax")]
    start = [block["directive"] for block in runnable].index("server")
    for line in "".join(block["text"] for block in runnable[:start]).splitlines():
        words = shlex.split(line, comments=True)
        if words[0] == "inlay":
            assert main(words[1:]) == 0, line
        else:
            subprocess.run(["bash", "-c", line], check=True, timeout=SECONDS)
    words = shlex.split(runnable[start]["text"])
    assert words[:3] == ["inlay", "serve", "--default-model"]
    with serving(tmp_path / "models/store", default_model=words[3]) as served:
        for block in runnable[start + 1 :]:
            text = block["text"].replace("localhost:8080", "{}:{}".format(*served.address))
            if block["language"] == "bash":
                subprocess.run(["bash", "-euo", "pipefail", "-c", text], check=True, timeout=SECONDS)
            else:
                exec(text, {})
    np.testing.assert_equal(np.load("rows.npy").shape, (5, 64))


# ---- rope_scalings.ipynb


def code() -> list[dict[str, Any]]:
    return [cell for cell in notebook_page.cells() if cell["cell_type"] == "code"]


def test_notebook_is_small_and_was_run_in_order() -> None:
    assert notebook_page.NOTEBOOK.stat().st_size < NOTEBOOK_BYTES
    assert [cell["execution_count"] for cell in code()] == list(range(1, len(code()) + 1))
    assert {each["output_type"] for cell in code() for each in cell["outputs"]} == {"stream", "display_data"}


@pytest.mark.parametrize("path", notebook_page.files(), ids=lambda path: path.name)
def test_page_and_pictures_are_those_of_the_notebook(path: Path) -> None:
    assert path.read_bytes() == notebook_page.files()[path], "run python -m tests.docs.notebook_page"


@pytest.mark.sweep
def test_notebook_prints_what_it_was_saved_with(llama: Served, tmp_path: Path) -> None:
    script = f"\nprint({END_OF_CELL!r})\n".join([*map(notebook_page.source, code()), ""])
    assert LOCAL in script
    (tmp_path / "cells.py").write_text(script.replace(LOCAL, url(llama)), encoding="utf-8")
    variables = os.environ | {"MPLBACKEND": "Agg", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    command = [sys.executable, "-W", "ignore", "cells.py"]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    *cells, rest = done.stdout.split(f"{END_OF_CELL}\n")
    assert (len(cells), rest) == (len(code()), "")
    for cell, printed in zip(code(), cells, strict=True):
        saved = notebook_page.printed(cell)
        assert NUMBER.sub("#", printed) == NUMBER.sub("#", saved)
        numbers = [[float(number) for number in NUMBER.findall(text)] for text in (printed, saved)]
        np.testing.assert_allclose(*numbers, rtol=LOOSE.get(cell["id"], 0.02), atol=1e-6, err_msg=printed)
