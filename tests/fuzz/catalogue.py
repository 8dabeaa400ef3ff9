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
    """Where inputs that were faults once are kept: they are tried first, and by `make test`."""
    return CORPUS / re.sub(r"\W+", "-", name.lower()).strip("-")


def kept(name: str) -> list[bytes]:
    """Those inputs."""
    return [path.read_bytes() for path in sorted(folder_of(name).glob("*"))]
