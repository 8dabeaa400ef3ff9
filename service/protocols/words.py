"""How gRPC services of other packages than inlay.v1 refuse calls without a key."""

from service.grpc import key_interceptor as keys
from service.protocols.oip import rpc as oip_rpc
from service.protocols.tei import rpc as tei_rpc

RPC_WORDS = {
    "tei.v1": keys.Words(tei_rpc.status_of, "No valid auth token"),
    "inference": keys.Words(oip_rpc.oip_status),
}
