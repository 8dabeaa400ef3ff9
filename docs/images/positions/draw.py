"""Write the pictures of positional encodings that the documentation shows, as a running server draws them.

Run it from the repository's root, with the server's address if that is not http://localhost:8080:

    .venv/bin/python docs/images/positions/draw.py http://localhost:8080
"""

import sys
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

FOLDER = Path(__file__).parent
ROPE = {"theta": 10000, "head_dim": 128}
SCALED = [  # of a model that was trained on 4,096 tokens, for four times as many
    "rope_type=linear&factor=4",
    "rope_type=dynamic&factor=4&max_position_embeddings=4096&seq_len=16384",
    "rope_type=ntk&factor=4",
    "rope_type=yarn&factor=4&original_max_position_embeddings=4096",
    "rope_type=llama3&factor=4&low_freq_factor=1&high_freq_factor=4&original_max_position_embeddings=4096",
]
# file: the scheme and the query of GET /positions/{scheme}.png
PICTURES: dict[str, tuple[str, dict[str, object]]] = {
    "rope-heatmap.png": ("rope", {**ROPE, "length": 512}),
    "rope-spectrum.png": ("rope", {"preset": "llama-3.1-8b", "plot": "spectrum"}),
    "rope-spectrum-compare.png": ("rope", {**ROPE, "plot": "spectrum", "compare": SCALED}),
    "rope-decay-compare.png": ("rope", {**ROPE, "length": 16384, "plot": "decay", "compare": SCALED}),
    "rope-error.png": ("rope", {"preset": "llama-3.1-8b", "length": 131072, "plot": "error"}),
    "rope-heatmap-compare.png": (
        "rope",
        {"preset": "llama-3-8b", "length": 8192, "plot": "heatmap", "compare": "llama-3.1-8b"},
    ),
    "axial-heatmap.png": ("axial", {"kind": "pixtral", "head_dim": 64, "grid": "14x14"}),
    "sinusoidal-heatmap.png": ("sinusoidal", {"dim": 128, "length": 256}),
    "sinusoidal-similarity.png": (
        "sinusoidal",
        {"dim": 128, "length": 512, "plot": "similarity", "compare": "theta=500&dim=128"},
    ),
    "sinusoidal-2d-similarity.png": ("sinusoidal-2d", {"dim": 128, "grid": "14x14", "plot": "similarity_matrix"}),
    "alibi-bias.png": ("alibi", {"heads": 8, "query_length": 64, "plot": "bias"}),
    "alibi-heatmap.png": ("alibi", {"heads": 8, "query_length": 64}),
    "alibi-slopes.png": ("alibi", {"heads": 8, "plot": "slopes", "compare": ["heads=12", "heads=16"]}),
    "t5-bucket.png": ("t5", {"query_length": 512, "compare": "bidirectional=false"}),
    "deberta-bucket.png": (
        "deberta",
        {"query_length": 512, "max_position_embeddings": 512, "compare": "position_buckets=64"},
    ),
    "mask-causal.png": ("mask", {"query_length": 64}),
    "mask-sliding.png": ("mask", {"query_length": 64, "window": 16, "compare": ["window=16&causal=false", "chunk=16"]}),
    "mask-packed.png": ("mask", {"query_length": 12, "position_ids": "0,1,2,3,0,1,2,0,1,2,3,4"}),
}


def path_of(file: str) -> str:
    """Return the path and query of a picture."""
    scheme, query = PICTURES[file]
    return f"/positions/{scheme}.png?{urlencode(query, doseq=True)}"


def main(address: str = "http://localhost:8080") -> None:
    """Write every picture beside this file."""
    for file in PICTURES:
        with urlopen(address + path_of(file)) as answer:
            (FOLDER / file).write_bytes(answer.read())
        print(f"{file}: {(FOLDER / file).stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    main(*sys.argv[1:])
