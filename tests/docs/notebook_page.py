"""Writes the page of a notebook: rope_scalings.ipynb → rope-scalings.md, with its pictures in docs/images/examples.

The site is built from the page, so that building it needs no Jupyter. After a change of the notebook's cells:

    jupyter nbconvert --execute --inplace docs/examples/rope_scalings.ipynb    # beside a running server
    python -m tests.docs.notebook_page
"""

import base64
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs/examples/rope_scalings.ipynb"
PAGE = ROOT / "docs/examples/rope-scalings.md"
PICTURES = ROOT / "docs/images/examples"
NOTE = "<!-- Written by `python -m tests.docs.notebook_page` from {}: change that. -->"


def cells() -> list[dict[str, Any]]:
    """Return the cells of the notebook."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    return list(notebook["cells"])


def source(cell: dict[str, Any]) -> str:
    """Return the text of a cell."""
    return "".join(cell["source"])


def printed(cell: dict[str, Any]) -> str:
    """Return what a code cell printed."""
    return "".join("".join(each["text"]) for each in cell["outputs"] if each["output_type"] == "stream")


def pictures(cell: dict[str, Any]) -> list[bytes]:
    """Return the PNG files that a code cell drew."""
    drawn = [each["data"]["image/png"] for each in cell["outputs"] if "image/png" in each.get("data", {})]
    return [base64.b64decode("".join(each)) for each in drawn]


def files() -> dict[Path, bytes]:
    """Return the page and its pictures, by the path each belongs at."""
    parts, made = [NOTE.format(NOTEBOOK.name)], {}
    for cell in cells():
        if cell["cell_type"] == "markdown":
            parts.append(source(cell))
            continue
        parts.append(f"```python\n{source(cell)}\n```")
        if text := printed(cell):
            parts.append(f"```text\n{text.rstrip()}\n```")
        for picture in pictures(cell):
            path = PICTURES / f"rope-scalings-{len(made) + 1}.png"
            made[path] = picture
            parts.append(f"![{cell['metadata']['alt']}](../images/examples/{path.name})")
    return {PAGE: ("\n\n".join(parts) + "\n").encode(), **made}


if __name__ == "__main__":
    PICTURES.mkdir(parents=True, exist_ok=True)
    for path, content in files().items():
        path.write_bytes(content)
        print(path.relative_to(ROOT))
