"""Finds the ranges of a model's sentence vectors over some texts, and writes them into its card."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from models.artifacts import card as cards
from models.artifacts.card import Calibration
from models.artifacts.folder import replace_card
from service.bulk import inputs
from service.bulk.embedder import Embedder
from service.bulk.inputs import Columns
from service.embedding.outputs.kind import POOLED
from service.embedding.quantization import ranges
from service.embedding.requests import EmbedOptions
from service.errors import InlayError, StartError
from service.settings import Settings


def calibrated(folder: Path, source: str, column: str | None, options: EmbedOptions, settings: Settings) -> Calibration:
    """Find the ranges of a model's sentence vectors and write them into its card.

    Args:
        folder: folder of the exported model.
        source: files of texts, as `inlay embed` reads them; empty texts are left out.
        column: column of texts in a table; None: chosen as `inlay embed` chooses it.
        options: how the texts are read.

    Raises:
        StartError, ModelError: the model has no sentence vectors of texts, or a text cannot be read.
    """
    if folder.is_symlink():
        raise StartError(f"{folder} is a link to {folder.readlink()}; name the folder itself")
    card, files = cards.read(folder), inputs.find(source)
    embedder = Embedder(options._replace(outputs=(POOLED,)), folder, settings)
    found, count = np.empty((0, embedder.width), np.float32), 0
    for listed in inputs.texts(files, inputs.columns(files, Columns(column or ""))):
        texts = [text for text in listed if text.strip()]
        try:
            vectors = embedder.collect(embedder.submit(texts)).output.rows
        except InlayError as error:
            raise StartError(f"{source}: {texts[error.index or 0][:40]!r} {error.received}") from error
        if texts:
            found = ranges(np.concatenate([found, vectors]))
            count += len(texts)
    if count < 2:
        raise StartError(f"{source} holds {count} text{'s' * (count != 1)}: ranges are between those of several")
    least, largest = found.tolist()
    calibration = Calibration(tuple(least), tuple(largest), count)
    replace_card(folder, replace(card, calibration=calibration))
    return calibration
