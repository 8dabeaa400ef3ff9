"""Every HTTP route of Inlay's own protocol."""

from service.context import ServiceContext
from service.http.problem_details import MEDIA_TYPE, Problem, render_problem
from service.http.routes import RequestBody, Route, RouteGroup
from service.protocols.inlay import health, images, models, reports
from service.protocols.inlay.embed import EmbedBody, EmbedHandler
from service.protocols.inlay.embed_answers import EMBED_ANSWERS
from service.protocols.inlay.openapi_parts import DATA, EMBED
from service.protocols.inlay.positions import descriptions
from service.protocols.inlay.positions import routes as positions


def routes(context: ServiceContext) -> RouteGroup:
    """Return the routes of /embed, /models, /positions, the probes and the metrics; and the tags of all protocols."""
    rows = [_embed_route(context)]
    for module in (health, models, descriptions, positions, images, reports):
        rows += module.routes(context)
    return RouteGroup(rows, render_problem, error_model=(Problem, MEDIA_TYPE), tags=DATA.tags, schemas=DATA.schemas)


def _embed_route(context: ServiceContext) -> Route:
    handler = EmbedHandler(context)
    return Route(
        verb="POST",
        path="/embed",
        handler=handler,
        batch_handler=handler.answer_batch,
        name="embed",
        summary="Embed texts or token ids",
        tag=EMBED,
        description="A strict superset of text-embeddings-inference's route. `Accept` chooses the format of vectors.",
        body=RequestBody(model=EmbedBody, examples=DATA.examples["embed"]),
        answers=EMBED_ANSWERS,
        vectors=True,
    )
