"""The paths of the shared memory extension: a client registers the regions it lends. Reads and writes none of them.

CUDA's are there only to say that they are not.
"""

from typing import Any

import orjson

from service.context import ServiceContext
from service.errors import BadRequest
from service.http.endpoint import Answer, Call
from service.protocols.inlay.inputs import show
from service.protocols.oip.responses import (
    NOTHING,
    PREFIX,
    Row,
    answer_json,
)
from service.protocols.oip.shared_memory import check_on, no_cuda

SYSTEM = f"{PREFIX}/systemsharedmemory"
CUDA = f"{PREFIX}/cudasharedmemory"
REGION = "region/{region}"


async def _status(context: ServiceContext, call: Call) -> Answer:
    check_on(context.settings)
    regions = context.regions.status(call.path.get("region"))
    return answer_json(
        [{"name": each.name, "key": each.key, "offset": each.offset, "byte_size": each.byte_size} for each in regions]
    )


async def _register(context: ServiceContext, call: Call) -> Answer:
    check_on(context.settings)
    asked = _object(await call.body())
    key, offset, byte_size = asked.get("key"), asked.get("offset", 0), asked.get("byte_size")
    if not isinstance(key, str) or type(offset) is not int or type(byte_size) is not int:
        raise BadRequest(
            f"key is {show(key)}, offset {show(offset)}, byte_size {show(byte_size)}; allowed: a string and two whole "
            "numbers"
        )
    context.regions.register(call.path["region"], key, offset, byte_size)
    return NOTHING


async def _unregister(context: ServiceContext, call: Call) -> Answer:
    check_on(context.settings)
    context.regions.unregister(call.path.get("region"))
    return NOTHING


async def _no_cuda(context: ServiceContext, call: Call) -> Answer:
    raise no_cuda()


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if type(found) is not dict:
        raise BadRequest(f'the body is {show(found)}; send a JSON object with "key", "offset" and "byte_size"')
    return found


ROUTES: tuple[Row, ...] = (
    ("GET", "oip_shared_memory_status", _status, f"{SYSTEM}/status", f"{SYSTEM}/{REGION}/status"),
    ("POST", "oip_shared_memory_register", _register, f"{SYSTEM}/{REGION}/register"),
    ("POST", "oip_shared_memory_unregister", _unregister, f"{SYSTEM}/unregister", f"{SYSTEM}/{REGION}/unregister"),
    ("GET", "oip_cuda_status", _no_cuda, f"{CUDA}/status", f"{CUDA}/{REGION}/status"),
    ("POST", "oip_cuda", _no_cuda, f"{CUDA}/unregister", f"{CUDA}/{REGION}/register", f"{CUDA}/{REGION}/unregister"),
)
