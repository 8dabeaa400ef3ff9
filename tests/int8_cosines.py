"""How far the demo model's int8 encoder is from its float32 encoder: README's figures.

`python -m tests.int8_cosines` prints the least and the mean cosine over two sets of texts.
"""

import asyncio
import string
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.artifacts.export import export
from models.artifacts.int8_encoder import EVALUATION, Int8Options, read_texts
from service.embedding.requests import Text
from tests.embed_requests import embed_request
from tests.minilm_golden import checkpoint
from tests.service.registry.registry_service import Service
from tests.texts_of_all_scripts import texts

SETS = {
    "the texts that an export is compared by": read_texts(EVALUATION),
    "texts of all kinds: those, each sign of ASCII, and random runs of all scripts, emoji and control characters": [
        *read_texts(EVALUATION),
        *string.punctuation,
        *texts(576),
    ],
}


def vectors(service: Service, name: str, inputs: Sequence[str]) -> NDArray[np.float64]:
    """Return the unit vectors of texts, float64 [texts, d]."""
    rows = []
    for start in range(0, len(inputs), 64):
        part = [Text(text) for text in inputs[start : start + 64]]
        (output,) = asyncio.run(service.pipeline.embed(embed_request(part, name, truncate=True))).outputs
        rows.append(output.rows.astype(np.float64))
    joined: NDArray[np.float64] = np.concatenate(rows)
    return joined / np.linalg.norm(joined, axis=1, keepdims=True)


def main() -> None:
    """Print the figures of each set."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder)
        export(checkpoint(), store / "float32", encoder=True)
        export(checkpoint(), store / "int8", int8=Int8Options())
        service = Service(store)
        for kind, inputs in SETS.items():
            cosines = (vectors(service, "float32", inputs) * vectors(service, "int8", inputs)).sum(axis=1)
            least = int(cosines.argmin())
            worst = f"least {cosines[least]:.4f} (that of {inputs[least][:40]!r})"
            print(f"{len(inputs)} {kind}: {worst}, mean {cosines.mean():.4f}")


if __name__ == "__main__":
    main()
