"""Every HTTP route of Inlay's own protocol."""

from service.context import ServiceContext
from service.http.problem_details import MEDIA_TYPE, Problem, render_problem
from service.http.routes import Route, RouteGroup
from service.protocols.inlay import DATA, health, images, models, reports
from service.protocols.inlay.embed import EmbedBody, EmbedHandler
from service.protocols.inlay.positions import descriptions
from service.protocols.inlay.positions import routes as positions


def routes(context: ServiceContext) -> RouteGroup:
    """Return the routes of /embed, /models, /positions, the probes and the metrics; and the tags of all protocols."""
    embed = EmbedHandler(context)
    rows = [Route("POST", "/embed", embed, batch_handler=embed.answer_batch, bodies=(EmbedBody,), vectors=True)]
    for module in (health, models, descriptions, positions, images, reports):
        rows += module.routes(context)
    return RouteGroup(rows, render_problem, error_model=(Problem, MEDIA_TYPE), data=DATA)
