"""Every target by name, one module after the other."""

import re
from pathlib import Path

from tests.fuzz import bodies, files, headers, messages, oip, roads
from tests.fuzz.judging import Target

TARGETS: dict[str, Target] = {
    name: target for each in (oip, messages, bodies, files, headers, roads) for name, target in each.TARGETS.items()
}
CORPUS = Path(__file__).parent / "corpus"


def folder_of(name: str) -> Path:
    """Return the folder of inputs that once caused a fault; they are tried first, and by `make test`."""
    return CORPUS / re.sub(r"\W+", "-", name.lower()).strip("-")


def kept(name: str) -> list[bytes]:
    """Return the inputs in that folder."""
    return [path.read_bytes() for path in sorted(folder_of(name).glob("*"))]
