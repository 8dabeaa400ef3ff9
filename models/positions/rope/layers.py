"""Which layer rotates by which table: layer types, patterns of them, layers without RoPE. Knows no angle."""

from collections.abc import Collection, Mapping
from typing import Any

from models.errors import BadEncoding
from models.positions.rope.config_keys import Source
from models.positions.rope.conventions import NOT_ATTENTION, Pattern

ALL = "all"


def layers_of(source: Source, tables: Mapping[str, Any]) -> tuple[str | None, ...]:
    """The table of each layer, None for a layer that does not rotate; () where the number of layers is not known.

    tables   by layer type, or ALL for the only one; a table that is None stands for layers without RoPE
    raises   BadEncoding: a list of the wrong length, or a layer type without a table
    """
    count, types = _typed(source)
    if count is None:
        return ()
    if len(types) not in (0, count):
        raise BadEncoding(f"layer_types has {len(types)} entries; num_hidden_layers is {count}")
    rotating = _rotating(source, count)
    still = _still(source)
    found = [_table(source, tables, types[layer] if types else None, still) for layer in range(count)]
    return tuple(
        name if name and rotating[layer] and tables[name] is not None else None for layer, name in enumerate(found)
    )


def _typed(source: Source) -> tuple[int | None, tuple[str, ...]]:
    """How many layers, and their types where config.json or the family's pattern tells."""
    count = source.count("num_hidden_layers")
    if count is None and source.nested:
        count = source.size("num_hidden_layers")
    listed, pattern = source.texts("layer_types"), source.convention.pattern
    if listed:
        return len(listed) if count is None else count, listed
    if count is not None and (cycle := source.texts("block_types")):  # RecurrentGemma
        return count, tuple(cycle[layer % len(cycle)] for layer in range(count))
    if count is not None and pattern is not None:
        return count, _by_pattern(source, pattern, count)
    return count, ()


def _by_pattern(source: Source, pattern: Pattern, count: int) -> tuple[str, ...]:
    written = source.data.get(pattern.key) if pattern.key else None
    if isinstance(written, str) and written and set(written) <= set("LG"):  # EXAONE 4 writes LLLG
        return tuple(pattern.one if written[layer % len(written)] == "G" else pattern.rest for layer in range(count))
    period = pattern.period if written is None else source.count(str(pattern.key)) or 1
    at = 0 if pattern.first else period - 1
    also = {layer % count for layer in pattern.also}
    return tuple(pattern.one if layer % period == at or layer in also else pattern.rest for layer in range(count))


def _still(source: Source) -> Collection[str]:
    row = source.convention
    if row.still_with and row.still_with in source.data and source.data[row.still_with] is None:
        return ()
    return row.still


def _table(source: Source, tables: Mapping[str, Any], kind: str | None, still: Collection[str]) -> str | None:
    if kind in NOT_ATTENTION or (kind is not None and kind in still):
        return None
    if ALL in tables:
        return ALL
    name = source.convention.uses.get(kind, kind) if kind else None
    if name not in tables:
        raise BadEncoding(f"a layer is of type {kind!r}; there are tables for {', '.join(tables)}")
    return name


def _rotating(source: Source, count: int) -> list[bool]:
    """Layer by layer, by the lists and intervals some families have."""
    row = source.convention
    if row.listed and (numbers := _numbers(source, *row.listed[::2])) is not None:
        return [(layer in numbers) == row.listed[1] for layer in range(count)]
    written = source.data.get("no_rope_layers")
    if row.interval is None and (source.known or not written):
        return [True] * count
    if written:  # 1 says that the layer rotates, in spite of the name
        if not isinstance(written, list) or len(written) != count or not all(each in (0, 1) for each in written):
            raise BadEncoding(
                f"no_rope_layers is {str(written)[:60]}; it must be a list of {count} numbers, 1 where a layer rotates"
            )
        return [bool(each) for each in written]
    every = source.count("no_rope_layer_interval") or row.interval
    return [every is None or (layer + 1) % every != 0 for layer in range(count)]


def _numbers(source: Source, key: str, default: tuple[int, ...] | None) -> frozenset[int] | None:
    value = source.data.get(key)
    if value is None:
        return None if default is None or source.get("layer_types") is not None else frozenset(default)
    if not isinstance(value, list) or not all(isinstance(each, int) for each in value):
        raise BadEncoding(f"{key} is {str(value)[:60]}; it must be a list of layer numbers")
    return frozenset(value)
