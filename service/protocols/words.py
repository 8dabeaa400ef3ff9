"""Whose words a refusal is in, by path and by gRPC package: tables, for refusals that no endpoint gives."""

from service.grpc import key_interceptor as keys
from service.http.refusals import Words
from service.protocols.inlay import embed
from service.protocols.oip import routes as oip
from service.protocols.oip import rpc as oip_rpc
from service.protocols.openai import errors as openai
from service.protocols.tei import errors as tei
from service.protocols.tei import routes as tei_rest
from service.protocols.tei import rpc as tei_rpc

WORDS = (
    Words(("/v1", "/embeddings", "/pooling"), openai.refusal),
    Words((oip.PREFIX,), oip.refusal),
    Words((embed.PATH, *tei_rest.ROUTES, "/info"), tei.refusal),
)
"""Everywhere else problem documents are the words."""
RPC_WORDS = {
    "tei.v1": keys.Words(tei_rpc.status_of, "No valid auth token"),
    "inference": keys.Words(oip_rpc.oip_status),
}
