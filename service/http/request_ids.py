"""x-request-id: the caller's own, else a new one."""

import os
import re
from itertools import count

HEADER = b"x-request-id"
_OWN = re.compile(rb"[!-~]{1,128}")
# a random start and a counter: unique like a random id, at an eighth of its cost; workers are spawned, so each draws
_START = os.urandom(8).hex().encode()
_counter = count()


def request_id(own: bytes | None) -> bytes:
    """Return the id of a request: `own` if it is 1 to 128 visible ASCII characters, else a new one."""
    return own if own and _OWN.fullmatch(own) else b"%b%08x" % (_START, next(_counter))
