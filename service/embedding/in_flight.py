"""Equal sequences in flight: the sequences of a request as works, each once, that share the runs of equal ones."""

from collections.abc import Hashable, Mapping, Sequence
from hashlib import sha256

from service.embedding.model import Model, Work
from service.embedding.output_plan import Plan
from service.embedding.packing import Packed
from service.scheduling.shared_runs import SharedRun


def works_of(
    model: Model,
    plan: Plan,
    graph: str,
    outputs: tuple[str, ...],
    parts: Mapping[int, Packed],
    numbers: Sequence[int],
    key_name: str,
) -> tuple[list[Work], list[int]]:
    """Return the works of some parts of a request on one graph, equal ones once, and which of them is each part's.

    A work shares its run with equal ones in flight, over whatever protocol they came. With API keys only works of the
    same key share one, so that no time tells a caller what another one sends.
    """
    if plan.whole:  # rows of a table, which cost less than the comparison
        return [Work(parts[number], outputs) for number in numbers], list(range(len(numbers)))
    works: list[Work] = []
    places: dict[Hashable, int] = {}
    answered: list[int] = []
    for number in numbers:
        key = _key(key_name, graph, outputs, parts[number])
        if key not in places:
            places[key] = len(works)
            shared = model.shared_runs.setdefault(key, SharedRun())
            works.append(Work(parts[number], outputs, shared))
        answered.append(places[key])
    return works, answered


def _key(key_name: str, graph: str, outputs: tuple[str, ...], part: Packed) -> Hashable:
    """Return all that the rows of a sequence follow from, its arrays as a hash, and the API key of its caller."""
    ids, positions, types, mask, _, extras = part
    arrays = (ids, positions, types, mask, *(extras.values() if extras else ()))
    digest = sha256(b"".join([values.tobytes() for values in arrays if values is not None])).digest()
    return key_name, graph, outputs, types is None, mask is None, *(extras or ()), digest
