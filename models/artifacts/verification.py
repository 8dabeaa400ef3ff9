"""Holds an exported folder against its card, from the folder alone: hashes first, then the numbers. Repairs nothing."""

from pathlib import Path

from models.artifacts import card as cards
from models.artifacts.folder import Progress, check_hashes, no_progress
from models.reference import comparison as compare
from models.reference import head_comparison as head_compare
from models.reference import vision_comparison as vision_compare


def verify(folder: Path, progress: Progress = no_progress) -> dict[str, float]:
    """Hash every file and compare every graph with the reference again.

    returns  by output, the largest difference found
    raises   BadCard or NotFaithful, whichever shows first
    """
    card = cards.read(folder)
    check_hashes(folder, card, progress)
    progress("comparing with the reference", 0, 0)
    found: dict[str, float] = (vision_compare if card.image else compare).largest_differences(folder, card)
    return found | head_compare.largest_differences(folder, card)
