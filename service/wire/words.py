"""Whose words a refusal is in, by path and by gRPC package: tables, for refusals that no endpoint gives."""

from service.wire import embed
from service.wire.oip import rest as oip
from service.wire.oip import rpc as oip_rpc
from service.wire.openai import refusals as openai
from service.wire.refusals import Words
from service.wire.rpc import keys
from service.wire.tei import refusals as tei
from service.wire.tei import rest as tei_rest
from service.wire.tei import rpc as tei_rpc

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
