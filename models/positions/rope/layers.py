"""Which layer of a model uses which RoPE table: layer types, their patterns, and layers without RoPE."""

from collections.abc import Collection, Mapping
from typing import Any

from models.errors import BadEncoding
from models.positions.rope.config_keys import Source
from models.positions.rope.conventions import ALL, NOT_ATTENTION, Pattern


def layers_of(source: Source, tables: Mapping[str, Any]) -> tuple[str | None, ...]:
    """Return the name of each layer's table.

    Args:
        source: the config.
        tables: tables by layer type, or ALL for the only one; None stands for layers without RoPE.

    Returns:
        a name in `tables` for each layer, None for a layer that does not rotate; () where the config does not give the
        number of layers.

    Raises:
        BadEncoding: a list of the wrong length, or a layer type without a table.
    """
    count, types = _typed(source)
    if count is None:
        return ()
    if len(types) not in (0, count):
        raise BadEncoding(f"layer_types has {len(types)} entries; num_hidden_layers is {count}")
    rotating = _rotating(source, count)
    unrotated = _unrotated_types(source)
    tables_by_layer = [_table(source, tables, types[layer] if types else None, unrotated) for layer in range(count)]
    return tuple(
        name if name and rotating[layer] and tables[name] is not None else None
        for layer, name in enumerate(tables_by_layer)
    )


def _typed(source: Source) -> tuple[int | None, tuple[str, ...]]:
    """Return the number of layers, and their types where config.json or the family's pattern gives them."""
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
    value = source.data.get(pattern.key) if pattern.key else None
    if isinstance(value, str) and value and set(value) <= set("LG"):  # EXAONE 4 writes LLLG
        return tuple(pattern.one if value[layer % len(value)] == "G" else pattern.rest for layer in range(count))
    period = pattern.period if value is None else source.count(str(pattern.key)) or 1
    place = 0 if pattern.first else period - 1
    also = {layer % count for layer in pattern.also}
    return tuple(pattern.one if layer % period == place or layer in also else pattern.rest for layer in range(count))


def _unrotated_types(source: Source) -> Collection[str]:
    row = source.convention
    if row.rotates_if_null and row.rotates_if_null in source.data and source.data[row.rotates_if_null] is None:
        return ()
    return row.unrotated


def _table(source: Source, tables: Mapping[str, Any], layer_type: str | None, unrotated: Collection[str]) -> str | None:
    if layer_type in NOT_ATTENTION or (layer_type is not None and layer_type in unrotated):
        return None
    if ALL in tables:
        return ALL
    name = source.convention.table_of.get(layer_type, layer_type) if layer_type else None
    if name not in tables:
        raise BadEncoding(f"a layer is of type {layer_type!r}; there are tables for {', '.join(tables)}")
    return name


def _rotating(source: Source, count: int) -> list[bool]:
    """Return whether each layer rotates, by the lists and intervals that some families have."""
    row = source.convention
    if row.listed and (numbers := _numbers(source, *row.listed[::2])) is not None:
        return [(layer in numbers) == row.listed[1] for layer in range(count)]
    value = source.data.get("no_rope_layers")
    if row.interval is None and (source.known or not value):
        return [True] * count
    if value:  # 1 means that the layer rotates, in spite of the key's name
        if not isinstance(value, list) or len(value) != count or not all(item in (0, 1) for item in value):
            raise BadEncoding(
                f"no_rope_layers is {str(value)[:60]}; it must be a list of {count} numbers, 1 where a layer rotates"
            )
        return [bool(item) for item in value]
    every = source.count("no_rope_layer_interval") or row.interval
    return [every is None or (layer + 1) % every != 0 for layer in range(count)]


def _numbers(source: Source, key: str, default: tuple[int, ...] | None) -> frozenset[int] | None:
    value = source.data.get(key)
    if value is None:
        return None if default is None or source.get("layer_types") is not None else frozenset(default)
    if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
        raise BadEncoding(f"{key} is {str(value)[:60]}; it must be a list of layer numbers")
    return frozenset(value)
