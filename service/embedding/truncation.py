"""How answers report which inputs were cut, and random weights, in HTTP headers and gRPC metadata."""

MOST_SHOWN = 64  # numbers in a header, which stays below 512 bytes
INPUTS, COUNT = "inlay-truncated-inputs", "inlay-truncated-count"
RANDOM_WEIGHTS = (("inlay-weights", "random"),)
Numbers = tuple[int, ...]


def shown(truncated: Numbers) -> str:
    """Return the numbers of cut inputs as text, e.g. `0,3,7`: at most MOST_SHOWN."""
    return ",".join(map(str, truncated[:MOST_SHOWN]))


def metadata(truncated: Numbers, count: int | None = None) -> tuple[tuple[str, str], ...]:
    """Return the names and values that an answer carries; empty if no input was cut.

    Args:
        count: number of inputs that were cut; None: `truncated` has all.
    """
    return ((INPUTS, shown(truncated)), (COUNT, str(count or len(truncated)))) if truncated else ()
