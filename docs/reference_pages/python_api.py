"""The pages of the Python modules: one for each package, whose docstrings mkdocstrings renders."""

import ast
from pathlib import Path

from reference_pages.markdown import page, plain, table

ROOT = Path(__file__).parents[2]
FOLDER = "reference/python"
PACKAGES = {
    "models.positions": "Positional encodings in numpy alone, usable without the rest of the project.",
    "models.positions.rope": "Rotary position embedding: configurations, scalings, tables, rotation.",
    "models.recipes": "What a model computes, as data: steps, heads, modules and encodings.",
    "models.families": "The rows that say what each model type is made of, and how they are fitted to a checkpoint.",
    "models.plots": "Pictures of encodings and tables.",
    "service.embedding": "The core: requests, jobs, the pipeline, and the same without queue or event loop.",
    "service.embedding.tokenize": "From what a caller sends to packed token ids: prompts, tokenizers, checks, packing.",
    "service.embedding.outputs": "The kinds of outputs, one file each, and the plan of a request's options.",
    "service.scheduling": "Admission, the fair queue, batches and deadlines.",
    "service.runtime": "The engines that run graphs.",
    "service.http": "One pipeline for every route: server protocol, dispatch, bodies, negotiation, errors, OpenAPI.",
}
"""What each page is about, by package."""
INTRODUCTION = """\
Inlay is an application: `service`, `models` and `proto` are imported from a checkout (`make serve` makes an
environment with all they need), and only `models.positions` is meant to be used on its own. The HTTP and gRPC
interfaces are stable; these modules may change with any version."""


def python_pages() -> dict[str, tuple[str, str]]:
    """Return title and text of each page by its path: an index and a page for each package."""
    rows = [[f"[`{package}`]({package}.md)", about] for package, about in PACKAGES.items()]
    index = page("Python", INTRODUCTION, table(["package", "what it holds"], rows))
    pages = {f"{FOLDER}/index.md": ("Python", index)}
    for package, about in PACKAGES.items():
        parts = [f"::: {module}\n    options:\n      heading_level: 2" for module in modules(package)]
        pages[f"{FOLDER}/{package}.md"] = (package, page(f"`{package}`", about, _summary(package), *parts))
    return pages


def modules(package: str) -> list[str]:
    """Return the public modules of a package, without those of packages in it."""
    paths = sorted((ROOT / package.replace(".", "/")).glob("*.py"))
    return [f"{package}.{path.stem}" for path in paths if not path.stem.startswith("_")]


def _summary(package: str) -> str:
    rows = []
    for module in modules(package):
        text = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
        first, _, _ = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")
        rows.append([f"[`{module.rpartition('.')[2]}`](#{module})", plain(first)])
    return table(["module", "what it is"], rows)
