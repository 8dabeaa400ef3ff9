"""GET /models/{name}/analysis: norms, duplicates and singular values of the word table; the cost of each step.

spectrum=false leaves out the singular values, which take the longest. Results are kept by table.
"""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from math import prod
from typing import Any

from models.recipes.heads import OutputHead
from models.tables import analysis
from models.tables.analysis import RowFacts, Spectrum
from service.context import ServiceContext
from service.embedding.model import Model
from service.embedding.word_table import WordTable
from service.http.parameter_types import Parameters, switch
from service.request_context import RequestContext


class AnalysisQuery(Parameters):
    """The query of an analysis: which parts to compute."""

    spectrum: bool = switch("false: without the singular values, which take the longest", True)


async def analysed(
    context: ServiceContext, table: WordTable, query: AnalysisQuery, call: RequestContext
) -> dict[str, Any]:
    """Return the analysis of a word table, with or without its singular values."""
    computations, of_table = context.computations, context.computations.of_table
    document = _document(table, await computations.run("rows", partial(of_table, analysis.row_facts, table)))
    if query.spectrum:
        values = await computations.run("spectrum", partial(of_table, analysis.spectrum, table))
        document["spectrum"] = _spectrum(values)
    return document


def _document(table: WordTable, facts: RowFacts) -> dict[str, Any]:
    card, shape = table.model.card, table.rows.shape
    return {
        "model": card.name,
        "table": {
            "name": table.name,
            "shape": shape,
            "dtype": table.dtype,
            "bytes": table.bytes,
            "parameters": prod(shape),
        },
        "norms": {
            "min": facts.least,
            "mean": facts.mean,
            "max": facts.most,
            "std": facts.deviation,
            "histogram": {"edges": facts.edges, "counts": facts.counts},
        },
        "zero_rows": {"count": facts.zero_rows, "ids": facts.zero_ids},
        "duplicate_rows": {
            "count": facts.duplicate_rows,
            "groups": facts.duplicate_groups,
            "ids": facts.duplicate_ids,
        },
        "mean_cosine": facts.mean_cosine,
        "mean_vector_norm": facts.mean_length,
        "memory": {"bytes": card.bytes, "parameters": card.parameters},
        "flops": {"per_token": card.flops_per_token, "per_token_and_key": card.flops_per_token_and_key},
        "components": _components(table.model),
    }


def _spectrum(spectrum: Spectrum) -> dict[str, Any]:
    return {
        "effective_rank": spectrum.effective_rank,
        "definition": analysis.EFFECTIVE_RANK,
        "energy_ranks": {str(share): count for share, count in spectrum.energy_ranks.items()},
        "reliable_above": spectrum.reliable_above,
        "singular_values": spectrum.singular_values,
    }


def _components(model: Model) -> dict[str, Any]:
    """Return the steps of the input layer, the blocks as one component, and the head."""
    card, weights = model.card, model.weights
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    sizes = {name: int(tensor.nbytes) for name, tensor in weights.items()}
    parts = analysis.components(card.recipe, shapes, sizes, card.hidden_size)
    components: dict[str, Any] = {"input_layer": [asdict(part) for part in parts]}
    if card.encoder:
        blocks = analysis.components(card.encoder, shapes, sizes, card.hidden_size)
        components["encoder"] = [_sum("Encoder", blocks)]
    if card.head:
        components["head"] = [_head(card.head, {name for part in parts for name in part.tensors}, shapes, sizes)]
    return components


def _head(head: OutputHead, counted: set[str], shapes: Mapping[str, tuple[int, ...]], sizes: Mapping[str, int]) -> Any:
    """Return the output head; a table that it shares with the input layer is counted there."""
    new = [name for name in head.tensors if name not in counted]
    return {
        "step": "Head",
        "tensors": head.tensors,
        "parameters": sum(prod(shapes[name]) for name in new),
        "bytes": sum(sizes[name] for name in new),
        "flops_per_token": head.flops_per_row,
    }


def _sum(name: str, parts: tuple[analysis.Component, ...]) -> dict[str, Any]:
    numbers = ("parameters", "bytes", "flops_per_token")
    return {"step": name, "steps": len(parts)} | {key: sum(getattr(part, key) for part in parts) for key in numbers}
