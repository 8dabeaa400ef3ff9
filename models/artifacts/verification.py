"""Compares the graphs of an exported folder with the reference, at the export and later with its hashes."""

from dataclasses import replace
from pathlib import Path

from models.artifacts import comparison, vision_comparison
from models.artifacts.card import Card, read
from models.artifacts.hash_checks import check_hashes
from models.artifacts.weights import tensors
from models.checkpoints.hub import Progress, no_progress
from models.recipes.extra_inputs import IMAGE_ROWS


def compare_graphs(folder: Path, card: Card, progress: Progress = no_progress) -> Card:
    """Return the card with the largest difference of each output from the reference.

    Raises:
        BadCard: a graph does not load.
        ReferenceMismatch: a graph differs from the reference by more than the tolerance.
    """
    progress("comparing with the reference", 0, 0)
    compare = vision_comparison.largest_differences if card.image else comparison.largest_differences
    differences = compare(folder, card)
    if card.image_tokens:
        differences[IMAGE_ROWS] = vision_comparison.tower_difference(folder, card.image_tokens, tensors(folder, card))
    return replace(card, largest_difference=differences)


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
    return compare_graphs(folder, card, progress).largest_difference
