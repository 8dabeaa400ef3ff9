"""One library in a process of its own, driven line by line, so that libraries do not disturb one another.

    python -m loadtest.encoders.worker MODULE CLASS OPTIONS

CLASS of MODULE is constructed with OPTIONS, a JSON object of keyword arguments. Then every line of standard input is a
JSON object {"texts": [...], "seconds": s}: the texts are embedded again and again for `seconds`, at least once, and one
line answers with the seconds of each call; {"texts": [...], "batches": [[...], ...]} is answered with the vectors of
each batch. The first line that is printed tells the versions of the libraries and how long the construction took, or
what CLASS has noted as `load_seconds`. What a library prints goes to standard error.
"""

import base64
import importlib
import json
import os
import sys
import time
from importlib import metadata
from typing import Any, Protocol, TextIO

import numpy as np
from numpy.typing import NDArray

LIBRARIES = ("onnxruntime", "openvino", "torch", "transformers", "sentence-transformers", "model2vec", "tokenizers")


class Encoder(Protocol):
    """A library around the weights."""

    def prepare(self, texts: list[str]) -> Any:
        """Return the texts as the library's engine takes them; this is not timed."""
        ...

    def embed(self, prepared: Any) -> NDArray[np.float32]:
        """Return the unit vectors of prepared texts, float32 (texts, width)."""
        ...


def versions() -> dict[str, str]:
    """Return the versions of those libraries that this environment has."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def timed(encoder: Encoder, texts: list[str], seconds: float) -> list[float]:
    """Return the wall time of each of several calls, which take `seconds` together; one more goes ahead, untimed."""
    prepared = encoder.prepare(texts)
    taken: list[float] = []
    begun = time.perf_counter()
    encoder.embed(prepared)
    if (once := time.perf_counter() - begun) > seconds:  # warming up a long call takes longer than it is off
        return [once]
    while sum(taken) < seconds:
        begun = time.perf_counter()
        encoder.embed(prepared)
        taken.append(time.perf_counter() - begun)
    return taken


def answer(encoder: Encoder, order: dict[str, Any]) -> dict[str, Any]:
    """Return what one line asks for."""
    texts: list[str] = order["texts"]
    if "seconds" in order:
        return {"seconds": timed(encoder, texts, order["seconds"])}
    vectors = [
        encoder.embed(encoder.prepare([texts[index] for index in batch])).astype(np.float32)
        for batch in order["batches"]
    ]
    return {"vectors": [[*array.shape, base64.b64encode(array.tobytes()).decode()] for array in vectors]}


def serve(encoder: Encoder, load_seconds: float, output: TextIO) -> None:
    """Answer the lines of standard input until it ends."""
    print(json.dumps({"versions": versions(), "load_seconds": load_seconds}), file=output, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(encoder, json.loads(line))), file=output, flush=True)


def main() -> None:
    """Construct the encoder that the command line names, and serve it."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    module, name, options = sys.argv[1:]
    try:
        kind = getattr(importlib.import_module(module), name)
        begun = time.perf_counter()
        encoder = kind(**json.loads(options))
    except Exception as error:  # whatever a library raises is why it takes no part, in one line
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())}")
    taken = time.perf_counter() - begun
    serve(encoder, getattr(encoder, "load_seconds", taken), output)


if __name__ == "__main__":
    main()
