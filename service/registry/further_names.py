"""The names that models answer to besides their own: aliases, and the hub ids that they were exported from."""

from collections.abc import Iterator, Mapping
from itertools import chain

from models.artifacts.card import Card

LATEST = ":latest"  # Ollama's clients add it to a name


def hub_id(card: Card) -> str:
    """Return the hub id that a model was exported from, without its revision; empty: from a folder or a file."""
    name = card.source.partition("@")[0]
    return name if "/" in name else ""


def claims(cards: Mapping[str, Card], aliases: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the own names of the models that claim each further name; one that several claim means none of them.

    A model's own name wins over all others; then come aliases of the settings, aliases of cards, hub ids, and the last
    parts of hub ids. Of several models from one hub id, it means the model that is called as its last part.

    Args:
        cards: of the loaded models, by their own names.
        aliases: own names by aliases of the settings.
    """
    claimed: dict[str, tuple[str, ...]] = {name: (name,) for name in cards}
    for tier in _tiers(cards, aliases):
        found: dict[str, list[str]] = {}
        for name, model in tier:
            if name not in claimed:
                found.setdefault(name, []).append(model)
        for name, models in found.items():
            last = name.rpartition("/")[2]
            claimed[name] = (last,) if last in models else tuple(dict.fromkeys(models))
    return {name: models for name, models in claimed.items() if name not in cards}


def _tiers(cards: Mapping[str, Card], aliases: Mapping[str, str]) -> Iterator[list[tuple[str, str]]]:
    """Yield pairs of a further name and the model that claims it, the strongest claims first."""
    ids = [(hub_id(card), name) for name, card in cards.items() if hub_id(card)]
    yield [(alias, name) for alias, name in aliases.items() if name in cards]
    yield list(chain.from_iterable([(alias, name) for alias in card.aliases] for name, card in cards.items()))
    yield ids
    yield [(hub.rpartition("/")[2], name) for hub, name in ids]
