"""Renders deploy/helm/inlay with Helm's own code, and judges manifests by the schemas of Kubernetes and its extensions.

Needs the packages of requirements/charts.txt; asks nothing over the network.
"""

import gzip
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import kubernetes_validate
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/inlay"
EXAMPLES = {path.stem: path for path in sorted((ROOT / "deploy/helm/examples").glob("*.yaml"))}
SCHEMAS = {path.name.split(".")[0]: path for path in (Path(__file__).parent / "schemas").glob("*.json.gz")}
VERSIONS = ("1.31", "1.37")
"""Kubernetes' oldest version with image volumes, and the newest."""


def rendered(values: Mapping[str, Any], name: str = "inlay", namespace: str = "prod") -> list[dict[str, Any]]:
    """Return the objects that `helm install` would create, those of `helm test` too.

    Raises:
        HelmError: the chart refuses the values.
    """
    with helm_python.Chart.load(str(CHART)) as chart:
        files = chart.render(dict(values), name=name, namespace=namespace)
    manifests = [text for path, text in files.items() if not path.endswith(".txt")]
    return [each for text in manifests for each in yaml.safe_load_all(text) if each]


def example(name: str) -> dict[str, Any]:
    """Return the values of an example."""
    return yaml.safe_load(EXAMPLES[name].read_text(encoding="utf-8")) or {}


def of_kind(objects: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    """Return the only object of a kind, among those whose name ends so."""
    (found,) = [each for each in objects if each["kind"] == kind and each["metadata"]["name"].endswith(name)]
    return found


def within(document: Any) -> Iterator[dict[str, Any]]:
    """Yield every mapping within a document."""
    if isinstance(document, dict):
        yield document
    for each in document.values() if isinstance(document, dict) else document if isinstance(document, list) else ():
        yield from within(each)


def faults(document: dict[str, Any]) -> list[str]:
    """Return what is wrong with an object; empty where nothing is. Unknown fields are wrong."""
    if document["kind"] not in SCHEMAS:
        return [fault for version in VERSIONS for fault in _kubernetes_faults(document, version)]
    errors = jsonschema.Draft7Validator(_extension_schema(document["kind"])).iter_errors(document)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in errors]


def _kubernetes_faults(document: dict[str, Any], version: str) -> list[str]:
    try:
        kubernetes_validate.validate(document, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{version}: {'.'.join(map(str, error.path))}: {error.message}"]
    return []


@cache
def _extension_schema(kind: str) -> dict[str, Any]:
    schema = _closed(json.loads(gzip.decompress(SCHEMAS[kind].read_bytes())))
    schema["properties"]["metadata"] = {"type": "object", "required": ["name"]}
    return schema


def _closed(schema: Any) -> Any:
    """Return a schema that allows no field it does not name, as the API server does with strict validation."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(each) for name, each in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    return closed
