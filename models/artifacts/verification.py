"""Checks an exported folder, from the folder alone: the hash of every file, then the numbers of every graph."""

from pathlib import Path

from models.artifacts import comparison, vision_comparison
from models.artifacts.card import read
from models.artifacts.folder import check_hashes
from models.progress import Progress, no_progress


def verify(folder: Path, progress: Progress = no_progress) -> dict[str, float]:
    """Hash every file and compare every graph with the reference again.

    Returns:
        The largest difference of each output, by name.

    Raises:
        BadCard: a file is not the one the card was written for, or a graph does not load.
        ReferenceMismatch: a graph differs from the reference by more than the tolerance.
    """
    card = read(folder)
    check_hashes(folder, card, progress)
    progress("comparing with the reference", 0, 0)
    if card.image:
        return vision_comparison.largest_differences(folder, card)
    return comparison.largest_differences(folder, card)
