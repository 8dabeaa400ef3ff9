"""`make deploy-test-manifests`: builds every overlay with kubectl and validates the result against official schemas.

Run by the environment of .venv/tools, which has kubernetes-validate. Nothing is asked over the network.
"""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

ROOT = Path(__file__).parents[2]
KUBECTL = os.environ.get("KUBECTL", "kubectl")
SCHEMAS = {path.name.split(".")[0]: path for path in (Path(__file__).parent / "schemas").glob("*.json.gz")}
VERSION = "1.32"  # of Kubernetes; the manifests use nothing newer than 1.27
FOLDERS = (*sorted((ROOT / "deploy/kubernetes/overlays").iterdir()), ROOT / "deploy/kserve")
APART = (ROOT / "deploy/kubernetes/components/hpa/queue.yaml",)  # files that no overlay has


def built(folder: Path) -> list[dict[str, Any]]:
    """The objects of an overlay."""
    try:
        done = subprocess.run([KUBECTL, "kustomize", folder], capture_output=True, text=True)
    except FileNotFoundError:
        sys.exit("kubectl is missing: install it, of version 1.24 or newer, or name it with KUBECTL=PATH")
    if done.returncode or done.stderr:  # a warning of a deprecated field too
        sys.exit(f"{KUBECTL} kustomize {folder.relative_to(ROOT)}: {done.stderr.strip()} (it must be 1.24 or newer)")
    return list(yaml.safe_load_all(done.stdout))


def closed(schema: Any) -> Any:
    """A schema that allows no field it does not name, as the API server does with strict validation."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    own = {name: closed(each) for name, each in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        own.setdefault("additionalProperties", False)
    return own


def faults(document: dict[str, Any]) -> list[str]:
    """What is wrong with an object; empty where nothing is."""
    schema = SCHEMAS.get(document["kind"])
    if schema is None:
        try:
            kubernetes_validate.validate(document, VERSION, strict=True)
        except kubernetes_validate.ValidationError as error:
            return [f"{'.'.join(map(str, error.path))}: {error.message}"]
        return []
    read = closed(json.loads(gzip.decompress(schema.read_bytes())))
    read["properties"]["metadata"] = {"type": "object", "required": ["name"]}
    found = jsonschema.Draft7Validator(read).iter_errors(document)
    return [f"{'.'.join(map(str, each.absolute_path))}: {each.message}" for each in found]


def misspelt(document: Any) -> Iterator[None]:
    """Add an unknown field to each object within `document`, one at a time, and take it away again."""
    if isinstance(document, dict):
        document["misspelt"] = {}
        yield
        del document["misspelt"]
    for each in [*document.values()] if isinstance(document, dict) else document if isinstance(document, list) else ():
        yield from misspelt(each)


def main() -> None:
    """Validate all; exit with what is wrong."""
    wrong, kinds = [], {}
    objects = [(folder.relative_to(ROOT), each) for folder in FOLDERS for each in built(folder)]
    objects += [(path.relative_to(ROOT), yaml.safe_load(path.read_text())) for path in APART]
    for place, document in objects:
        name = f"{place}: {document['kind']} {document['metadata']['name']}"
        found = [f"{name}: {fault}" for fault in faults(document)]
        wrong += found
        kinds[document["kind"]] = document
        print(f"  no  {name}" if found else f"  ok  {name}")
    for kind, document in kinds.items():  # the validator is able to fail
        if "spec" in document and not any(faults(document) for _ in misspelt(document["spec"])):
            wrong.append(f"an unknown field in spec of {kind} is not noticed")
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{len(objects)} objects of {len(kinds)} kinds are valid: Kubernetes {VERSION}, strict")


if __name__ == "__main__":
    main()
