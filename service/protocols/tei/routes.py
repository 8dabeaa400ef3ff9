"""text-embeddings-inference's REST routes; POST /embed, which accepts its fields too, is in protocols/inlay.

Errors are problem documents, which hold TEI's `error` and `error_type` too.
"""

from service.context import ServiceContext
from service.http import openapi_data
from service.http.problem_details import render_problem
from service.http.routes import Route, RouteGroup
from service.protocols.inlay import DATA as INLAY
from service.protocols.inlay.embed import EmbedBody
from service.protocols.tei import schemas
from service.protocols.tei.handlers import DocumentsHandler, Handlers

DATA = openapi_data.read(__package__, INLAY.parts)
EITHER = (EmbedBody, schemas.SimilarityBody, schemas.PredictBody, schemas.RerankBody)


def routes(context: ServiceContext, rerank_documents: DocumentsHandler) -> RouteGroup:
    """Return text-embeddings-inference's routes.

    Args:
        rerank_documents: answers a body of /rerank that has `documents`, which is another protocol's.
    """
    handlers = Handlers(context, rerank_documents)
    rows = [
        Route("POST", "/", handlers.by_kind, bodies=EITHER, vectors=True),
        Route("POST", "/invocations", handlers.by_kind, bodies=EITHER, vectors=True),
        Route("POST", "/embed_all", handlers.embed_all, bodies=(schemas.AllVectorsBody,), vectors=True),
        Route("POST", "/embed_sparse", handlers.embed_sparse, bodies=(schemas.SparseBody,), vectors=True),
        Route("POST", "/similarity", handlers.similarity, bodies=(schemas.SimilarityBody,), vectors=True),
        Route("POST", "/predict", handlers.predict, bodies=(schemas.PredictBody,)),
        Route("POST", "/rerank", handlers.rerank, bodies=(schemas.RerankBody,)),
        Route("POST", "/tokenize", handlers.tokenize, bodies=(schemas.TokenizeBody,)),
        Route("POST", "/decode", handlers.decode, bodies=(schemas.DecodeBody,)),
        Route("GET", "/info", handlers.info, query=schemas.InfoQuery, admitted=False),
    ]
    return RouteGroup(rows, render_problem, data=DATA)
