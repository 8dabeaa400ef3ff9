"""The page of the model families, made from the rows that the export reads."""

from models.artifacts.description import family_rows, vision_rows
from reference_pages.markdown import code, page, plain, table

INTRODUCTION = """\
A model is exported by the `model_type` of its `config.json`. `inlay list` prints these tables, `inlay describe
MODEL_TYPE` one row in full, with the steps of a block. Every model type below has its input layer exported, and
its positional encodings; of those marked `whole` the blocks and output vectors too."""


def families_page() -> str:
    """Return the page: the text families, then the image and audio towers."""
    header, *rows = family_rows()
    vision_header, *towers = vision_rows()
    parts = [
        f"## Text models\n\n{len(rows)} model types.\n\n{_table(header, rows)}",
        f"## Images and audio\n\n{_table(vision_header, towers)}",
    ]
    return page("Model families", INTRODUCTION, *parts, wide=True)


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return table(list(header), ([code(first), *map(plain, rest)] for first, *rest in rows))
