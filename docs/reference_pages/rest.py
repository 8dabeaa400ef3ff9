"""The pages of the REST routes, made from the OpenAPI document that the service itself serves."""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from models import VERSION
from reference_pages.markdown import code, described, folded, heading, json_block, page, slug, table
from reference_pages.schemas import REFERENCE, fields, meaning, named, type_name, value_cell
from service.app import create_app
from service.http.openapi import build_document
from service.settings import Settings

Document = Mapping[str, Any]
FOLDER = "reference/rest"
OBJECTS = "objects.md"
MOST_ROWS = 8
"""Of parameters that are shown unfolded."""
INTRODUCTION = """\
The same as the service shows at `/docs`, where requests can be tried, and as OpenAPI 3.1 at `/openapi.json`.
Parameters in `{braces}` are part of the path.
Where the operator has set `INLAY_API_KEYS`, requests take `authorization: Bearer KEY`."""


def document() -> Document:
    """Return the OpenAPI document of a service without models, as `GET /openapi.json` has it."""
    with tempfile.TemporaryDirectory() as store:
        app = create_app(Settings.model_validate({"store": Path(store)}), listens=False)
        made = build_document(app.pipeline.router, VERSION, guarded=False)
    whole: Document = made | {"paths": _inlined(made["paths"], made["components"])}
    return whole


def _inlined(node: Any, components: Mapping[str, Any]) -> Any:
    """Return a part of the document with what it refers to in its place, the named schemas aside."""
    if isinstance(node, list):
        return [_inlined(each, components) for each in node]
    if not isinstance(node, dict):
        return node
    reference = node.get("$ref", "")
    if isinstance(reference, str) and reference and not reference.startswith(REFERENCE):
        _, _, kind, name = reference.split("/", 3)
        return _inlined(components[kind][name], components)
    return {key: _inlined(value, components) for key, value in node.items()}


def rest_pages(described_by: Document) -> dict[str, tuple[str, str]]:
    """Return title and text of each page by its path: an index, a page for each tag, and the named objects."""
    tags = {tag["name"]: tag.get("description", "") for tag in described_by["tags"]}
    by_tag: dict[str, list[tuple[str, str, Document]]] = {name: [] for name in tags}
    for verb, path, operation in operations(described_by):
        by_tag.setdefault(operation["tags"][0], []).append((verb, path, operation))
    pages = {f"{FOLDER}/index.md": ("REST", _index(described_by, tags, by_tag))}
    for tag, found in by_tag.items():
        if found:
            parts = [_operation(described_by, verb, path, operation) for verb, path, operation in found]
            pages[f"{FOLDER}/{slug(tag)}.md"] = (_title(tag), page(_title(tag), described(tags.get(tag, "")), *parts))
    schemas = described_by["components"]["schemas"]
    objects = [_object(name, schemas[name]) for name in sorted(schemas)]
    return pages | {f"{FOLDER}/{OBJECTS}": ("Objects", page("Objects of requests and responses", *objects))}


def operations(described_by: Document) -> Iterator[tuple[str, str, Document]]:
    """Yield verb, path and operation of every route."""
    for path, item in described_by["paths"].items():
        for verb, operation in item.items():
            yield verb.upper(), path, operation


def _title(tag: str) -> str:
    return tag[:1].upper() + tag[1:]


def _index(described_by: Document, tags: Mapping[str, str], by_tag: Mapping[str, list[Any]]) -> str:
    about = described_by["info"].get("description", "")
    general = [each for each in about.split("\n\n") if not each.startswith("This server")]
    parts = [INTRODUCTION, *general]
    for tag, found in by_tag.items():
        if found:
            rows = [
                [
                    f"[`{verb} {path}`]({slug(tag)}.md#{operation['operationId']})",
                    described(operation.get("summary", "")),
                ]
                for verb, path, operation in found
            ]
            about = described(tags.get(tag, ""))
            parts.append("\n\n".join([heading(2, _title(tag)), about, table(["route", "what it does"], rows)]))
    rows = [[code(name), type_name(each["schema"]), meaning(each)] for name, each in _common(described_by).items()]
    if not all(row[0] in about for row in rows):
        parts.append(heading(2, "Headers of every request") + "\n\n" + table(["header", "type", "meaning"], rows))
    return page("REST", *parts)


def _operation(described_by: Document, verb: str, path: str, operation: Document) -> str:
    parts = [
        heading(2, f"`{verb} {path}`", operation["operationId"]),
        described(operation.get("summary", "")) + ".",
        operation.get("description", ""),
        _parameters(described_by, operation),
        _body(described_by, operation),
        _responses(operation),
    ]
    return "\n\n".join(part for part in parts if part)


def _common(described_by: Document) -> dict[str, Document]:
    """Return the headers that the document describes once for all operations."""
    parameters = described_by["components"].get("parameters", {}).values()
    return {each["name"]: each for each in parameters if each["in"] == "header"}


def _parameters(described_by: Document, operation: Document) -> str:
    """Return the table of an operation's own parameters, folded where it is long."""
    common = _common(described_by)
    own = [each for each in operation.get("parameters", ()) if each["name"] not in common]
    rows = [
        [
            code(each["name"]) + ("" if each["in"] == "query" else f" ({each['in']})"),
            value_cell(each["schema"], OBJECTS, required=each.get("required", False)),
            meaning(each) or meaning(each["schema"]),
        ]
        for each in own
    ]
    shown = table(["parameter", "type", "meaning"], rows)
    return folded(f"Parameters ({len(rows)})", shown) if len(rows) > MOST_ROWS else shown


def _body(described_by: Document, operation: Document) -> str:
    body = operation.get("requestBody")
    if body is None:
        return ""
    parts = [f"**Body**\n\n{described(body.get('description', ''))}"]
    for media_type, content in body["content"].items():
        schema = content.get("schema", {})
        parts.append(f"`{media_type}`: {type_name(schema, OBJECTS)}")
        if shown := fields(_resolved(described_by, schema), OBJECTS):
            parts.append(folded("Fields", shown))
    parts.append(_examples(body["content"].values()))
    return "\n\n".join(part for part in parts if part)


def _resolved(described_by: Document, schema: Document) -> Document:
    """Return the schema that a body's schema refers to, the first of several."""
    first = next(iter(schema.get("anyOf", ())), schema)
    name = next(named(first), "") if "$ref" in first else ""
    found: Document = described_by["components"]["schemas"][name] if name else schema
    return found


def _examples(contents: Iterable[Document], of: str = "") -> str:
    """Return the examples of every media type in one folded block; empty without any."""
    examples: dict[str, Any] = {}
    for content in contents:
        if "example" in content:
            examples[""] = content["example"]
        examples |= {name: each.get("value") for name, each in content.get("examples", {}).items()}
    shown = [(f"{name.replace('_', ' ')}:\n\n" if name else "") + json_block(value) for name, value in examples.items()]
    title = f"Example{'s' if len(shown) > 1 else ''}{of}"
    return folded(title, "\n\n".join(shown)) if shown else ""


def _responses(operation: Document) -> str:
    rows, contents = [], []
    headers: dict[str, str] = {}
    for status, answer in operation["responses"].items():
        content = answer.get("content", {})
        forms = "<br>".join(
            f"`{media}`: {type_name(each.get('schema', {}), OBJECTS)}" for media, each in content.items()
        )
        rows.append([status if status != "default" else "error", described(answer.get("description", "")), forms])
        headers |= {name: meaning(each) for name, each in answer.get("headers", {}).items()}
        contents += content.values()
    parts = ["**Responses**\n\n" + table(["status", "meaning", "body"], rows)]
    if headers:
        listed = table(["header", "meaning"], ([code(name), text] for name, text in headers.items()))
        parts.append(folded("Headers of the response", listed))
    parts.append(_examples(contents, " of responses"))
    return "\n\n".join(part for part in parts if part)


def _object(name: str, schema: Document) -> str:
    shown = fields(schema) or f"{type_name(schema)}"
    return "\n\n".join(part for part in (heading(2, name, name), meaning(schema), shown) if part)
