"""Takes one route of a Router or Asym of sentence-transformers as a checkpoint of its own.

A task of a checkpoint that has an adapter for each counts as a route too: opening.py merges the adapter.

Such a model reads queries by other modules than documents. Each route is exported as a model.
"""

import json
from pathlib import Path

from models.checkpoints import peft
from models.checkpoints.sentence_transformers import ROUTERS, Chain, entry_modules, path_inside, read_routes
from models.errors import BadCheckpoint


def link(checkpoint: Path, folder: Path) -> None:
    """Fill a temporary folder with links to the files of a checkpoint, and with a copy of its modules.json."""
    for path in checkpoint.resolve().rglob("*"):
        place = folder / path.relative_to(checkpoint.resolve())
        if path.is_dir() and not path.is_symlink():
            place.mkdir()
        elif path.name == "modules.json":
            place.write_bytes(path.read_bytes())
        else:
            place.symlink_to(path)


def choose(folder: Path, route: str) -> None:
    """Write modules.json of a temporary folder anew: with the modules of one route in place of its Router.

    Raises:
        BadCheckpoint: there is no such route.
    """
    if peft.is_adapter(folder / peft.TASKS):
        return
    path, chain, found = folder / "modules.json", Chain(), False
    for kind, place in entry_modules(folder):
        if kind not in ROUTERS:
            chain.append((kind, place))
            continue
        routes = read_routes(folder, place)
        if route not in routes.chains:
            raise BadCheckpoint(f"{routes.path} has no route {route!r}: add --route {' or '.join(routes.chains)}")
        chain, found = [*chain, *routes.chains[route]], True
    if not found:
        raise BadCheckpoint(
            f"{path} chains {', '.join(kind for kind, _ in chain) or 'no modules'}, and --route chooses among those of "
            f"{' or '.join(ROUTERS)}: leave it out"
        )
    for _, place in chain:
        path_inside(folder, place)
    path.write_text(json.dumps([{"type": kind, "path": place} for kind, place in chain]), encoding="utf-8")
