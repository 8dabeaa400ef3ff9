"""GET /models/{name}/analysis: lengths, copies and singular values of the word table; what each step of a model costs.

spectrum=false leaves out the singular values, which take the longest. Kept by table once they are computed.
analysis.png and analysis.svg draw the lengths and the singular values.
"""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from math import prod
from typing import Any, get_args
from weakref import WeakKeyDictionary

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from models.families.head_fitting import Head
from models.plots.canvas import Format
from models.plots.word_table import draw_table
from models.tables import analysis
from models.tables.analysis import RowFacts, Spectrum
from models.tables.row_blocks import Check
from service.context import ServiceContext
from service.embedding.model import Model
from service.embedding.word_table import WordTable, word_table
from service.http.endpoint import StarletteEndpoint as Endpoint
from service.http.formats import JSON
from service.protocols.inlay.positions import parsing as asked
from service.protocols.inlay.positions import plots as pictures
from service.protocols.inlay.positions.fields import switch
from service.protocols.inlay.positions.parameters import Parameters, exactly
from service.protocols.inlay.positions.table_call import in_the_callers_words
from service.scheduling.serial_executor import Turns

PATH = "/models/{name}/analysis"
FIELDS: Parameters = {"spectrum": switch("false: without the singular values, which take the longest", True)}
LOOKS: Parameters = {name: pictures.LOOKS[name] for name in ("width", "height", "dark")}
PICTURE = exactly("AnalysisPicture", "How the picture looks.", LOOKS)
QUERY = exactly("Analysis", "What is wanted of the table.", FIELDS)


class Analysis:
    """Answers for every model; keeps what it found."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._rows, self._spectra = Turns("rows", "analyses"), Turns("spectrum", "analyses")
        self._row_facts: WeakKeyDictionary[Model, RowFacts] = WeakKeyDictionary()  # a model has one table
        self._spectrum: WeakKeyDictionary[Model, Spectrum] = WeakKeyDictionary()

    async def answer(self, request: Request) -> Response:
        """All that is known of a table and its model."""
        table = word_table(self._context.registry.get(request.path_params["name"]))
        wanted = asked.of_query(QUERY, request.query_params)
        facts = await self._rows.run(partial(self._facts_of, table))
        found = _document(table, facts)
        if wanted.spectrum:
            found["spectrum"] = _spectrum(await self._spectra.run(partial(self._spectrum_of, table)))
        return Response(orjson.dumps(found), media_type=JSON)

    async def draw(self, form: Format, request: Request) -> Response:
        """The picture."""
        table = word_table(self._context.registry.get(request.path_params["name"]))
        looks = asked.of_query(PICTURE, request.query_params)
        facts = await self._rows.run(partial(self._facts_of, table))
        found = await self._spectra.run(partial(self._spectrum_of, table))
        size = {"width_px": looks.width, "height_px": looks.height}
        drawn = partial(draw_table, table.model.card.name, facts, found, format=form, dark=looks.dark, **size)
        with in_the_callers_words():
            body = await self._rows.run(lambda check: drawn())
        return Response(body, media_type=pictures.MEDIA_TYPES[form])

    def _facts_of(self, table: WordTable, check: Check) -> RowFacts:
        if (found := self._row_facts.get(table.model)) is None:
            found = self._row_facts[table.model] = analysis.row_facts(table.rows, check=check)
        return found

    def _spectrum_of(self, table: WordTable, check: Check) -> Spectrum:
        if (found := self._spectrum.get(table.model)) is None:
            found = self._spectrum[table.model] = analysis.spectrum(table.rows, check)
        return found


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


def _spectrum(found: Spectrum) -> dict[str, Any]:
    return {
        "effective_rank": found.effective_rank,
        "definition": analysis.EFFECTIVE_RANK,
        "energy_ranks": {str(share): count for share, count in found.energy_ranks.items()},
        "reliable_above": found.reliable_above,
        "singular_values": found.singular_values,
    }


def _components(model: Model) -> dict[str, Any]:
    """The steps of the input layer, the blocks as one, and the head."""
    card, weights = model.card, model.weights
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    sizes = {name: int(tensor.nbytes) for name, tensor in weights.items()}
    parts = analysis.components(card.recipe, shapes, sizes, card.hidden_size)
    found: dict[str, Any] = {"input_layer": [asdict(part) for part in parts]}
    if card.encoder:
        blocks = analysis.components(card.encoder, shapes, sizes, card.hidden_size)
        found["encoder"] = [_sum("Encoder", blocks)]
    if card.head:
        found["head"] = [_head(card.head, {name for part in parts for name in part.tensors}, shapes, sizes)]
    return found


def _head(head: Head, counted: set[str], shapes: Mapping[str, tuple[int, ...]], sizes: Mapping[str, int]) -> Any:
    """The output head; a table it shares with the input layer counts there."""
    own = [name for name in head.tensors if name not in counted]
    return {
        "step": "Head",
        "tensors": head.tensors,
        "parameters": sum(prod(shapes[name]) for name in own),
        "bytes": sum(sizes[name] for name in own),
        "flops_per_token": head.flops_per_row,
    }


def _sum(name: str, parts: tuple[analysis.Component, ...]) -> dict[str, Any]:
    numbers = ("parameters", "bytes", "flops_per_token")
    return {"step": name, "steps": len(parts)} | {key: sum(getattr(part, key) for part in parts) for key in numbers}


def routes(context: ServiceContext) -> APIRouter:
    """The routes; table_docs.py describes it."""
    found = Analysis(context)
    answers: dict[str, Any] = {PATH: found.answer}
    answers |= {f"{PATH}.{form}": partial(found.draw, form) for form in get_args(Format)}
    return APIRouter(
        routes=[
            Route(path, Endpoint(path, answer, context), methods=["GET"], include_in_schema=False)
            for path, answer in answers.items()
        ]
    )
