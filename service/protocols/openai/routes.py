"""OpenAI's embeddings and models, with what vLLM and infinity add to them. Mounts; decodes and encodes nothing."""

from fastapi import APIRouter
from starlette.routing import Route

from service.context import ServiceContext
from service.protocols.openai import embeddings
from service.protocols.openai import models as listed
from service.protocols.openai.errors import refusal

__all__ = ["PREFIXES", "refusal", "routes"]

PREFIXES = ("/v1", embeddings.UNVERSIONED, embeddings.POOLING)
"""The paths whose refusals are worded here, those of unknown paths and verbs too."""


def routes(context: ServiceContext) -> APIRouter:
    """POST /v1/embeddings, /embeddings and /pooling; GET /v1/models and /v1/models/{name}."""
    paths = embeddings.endpoints(context)
    hot = [Route(path, endpoint, methods=["POST"], include_in_schema=False) for path, endpoint in paths.items()]
    lists = listed.endpoints(context)
    cold = [Route(path, endpoint, methods=["GET"], include_in_schema=False) for path, endpoint in lists.items()]
    return APIRouter(routes=[*hot, *cold])
