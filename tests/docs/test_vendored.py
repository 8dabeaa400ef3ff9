"""What the site carries of other people's is what its note says."""

import hashlib
import re
from pathlib import Path

VENDORED = Path(__file__).parents[2] / "docs/assets/iframe-worker"


def test_vendored_script_has_the_hash_of_its_note() -> None:
    note = (VENDORED / "README.txt").read_text(encoding="utf-8")
    stated = dict(re.findall(r"sha256 of (\S+): ([0-9a-f]{64})", note))
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDORED.glob("*.js")}
    assert found == stated
    assert "Permission is hereby granted" in (VENDORED / "LICENSE").read_text(encoding="utf-8")
