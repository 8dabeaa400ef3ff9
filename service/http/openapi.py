"""Makes the OpenAPI document from the route rows, and what their packages say of them in openapi.json."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from service.http.formats import JSON
from service.http.openapi_data import REFERENCE, reference
from service.http.problem_details import MEDIA_TYPE, Problem
from service.http.router import Router
from service.http.routes import Route, RouteGroup, Schema

PLACEHOLDER = "MODEL"
References = Mapping[type[BaseModel], Schema]
FIXED = orjson.loads((files("service.http") / "openapi.json").read_bytes())
"""What every document has: `info`, and as `parameters` the headers that a request to any path may have."""

BEARER = {"type": "http", "scheme": "bearer", "description": "One of this server's keys."}


class OperationContext(NamedTuple):
    """What operations are described with.

    Args:
        references: schemas by pydantic model.
        guarded: callers must show a key.
        model: the name of the model in examples.
    """

    references: References
    guarded: bool
    model: str


def build_document(router: Router, version: str, model: str = PLACEHOLDER, *, guarded: bool) -> dict[str, Any]:
    """Return the OpenAPI document of a router's routes.

    Args:
        guarded: callers must show a key.
        model: the name of the model in examples.
    """
    rows = [(group, route) for group in router.groups for route in group.routes]
    routes = [(group, route, described) for group, route in rows if (described := operation_of(group, route))]
    models: dict[type[BaseModel], None] = {Problem: None}
    for group, route, _ in routes:
        models |= dict.fromkeys(route.bodies) | ({group.error_model[0]: None} if group.error_model else {})
    schemas, definitions = models_json_schema([(model, "validation") for model in models], ref_template=REFERENCE)
    references: dict[Any, Schema] = {model: schema for (model, _), schema in schemas.items()}
    context = OperationContext(references, guarded, model)
    paths: dict[str, Any] = {}
    for group, route, described in routes:
        operations = paths.setdefault(route.path.replace(":path}", "}"), {})
        operations[route.verb.lower()] = _operation(group, route, described, context)
    used, data = {described["tag"] for _, _, described in routes}, [group.data for group in router.groups if group.data]
    tags = {name: about for each in data for name, about in each.tags.items() if name in used}
    components: dict[str, Any] = {
        "schemas": {name: schema for each in data for name, schema in each.schemas.items()}
        | {name: _terse(schema) for name, schema in definitions.get("$defs", {}).items()},
        "parameters": {each["name"]: each for each in FIXED["parameters"]},
    }
    if guarded:
        components["securitySchemes"] = {"key": BEARER}
    return {
        "openapi": "3.1.0",
        "info": _info(version, guarded),
        "tags": [{"name": name, "description": about} for name, about in tags.items()],
        "paths": paths,
        "components": components,
        **({"security": [{"key": []}]} if guarded else {}),
    }


def operation_of(group: RouteGroup, route: Route) -> Schema | None:
    """Return what is said of a route, as in OpenApiData; None: the document does not list it."""
    return route.operation or (group.data.operations.get(f"{route.verb} {route.path}") if group.data else None)


def _info(version: str, guarded: bool) -> dict[str, str]:
    asks = "takes `authorization: Bearer KEY`" if guarded else "asks for no key (`INLAY_API_KEYS` sets some)"
    headers = "\n".join([f"- `{each['name']}`: {each['description']}" for each in FIXED["parameters"]])
    about = f"This server {asks}.\n\n{FIXED['info']['description']}{headers}"
    info: dict[str, str] = FIXED["info"]
    return info | {"version": version, "description": about}


def _terse(schema: dict[str, Any]) -> dict[str, Any]:
    """Return an object's schema without titles that repeat names and without defaults of null.

    In pydantic a field that may be left out has the default null even where its schema allows no null.
    """
    properties = schema.get("properties", {})
    for name, entry in properties.items():
        if entry.get("default", ...) is None:
            del entry["default"]
        if entry.get("title", "").lower() == name.replace("_", " ").lower():
            del entry["title"]
    return schema


def _operation(group: RouteGroup, route: Route, described: Schema, context: OperationContext) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in route.parameters
    ]
    if route.query is not None:
        parameters += query_parameters(route.query)
    values = {"name": context.model, **described.get("values", {})}
    operation = {name: described[name] for name in ("operationId", "summary", "description") if name in described}
    operation["tags"] = [described["tag"]]
    if needs := described.get("needs"):
        about = f"It needs {needs['what']}; without it the answer is {needs['status']}."
        operation["description"] = "\n\n".join(filter(None, (described.get("description"), about)))
    if parameters:
        shown = [each | {"example": values[each["name"]]} for each in parameters if each["name"] in values]
        operation["parameters"] = shown + [each for each in parameters if each["name"] not in values]
    if route.bodies:
        operation["requestBody"] = _request_body(route, described, context)
    operation["responses"] = _responses(group, described, context)
    if context.guarded and not route.needs_key:
        operation["security"] = []
    return operation


def _request_body(route: Route, described: Schema, context: OperationContext) -> dict[str, Any]:
    references = [context.references[model] for model in route.bodies]
    references += map(reference, described.get("bodies", ()))
    named = {"model": context.model}
    schema = references[0] if len(references) == 1 else {"anyOf": references}
    shown = {name: each | named if "model" in each else each for name, each in described["examples"].items()}
    of_json = {"schema": schema, "examples": {name: {"value": each} for name, each in shown.items()}}
    body: dict[str, Any] = {"required": True, **described.get("body", {})}
    others = {media_type: {"schema": schema} for media_type, schema in body.get("content", {}).items()}
    return body | {"content": {JSON: of_json, **others}}


def _responses(group: RouteGroup, described: Schema, context: OperationContext) -> dict[str, Any]:
    model, media_type = group.error_model or (Problem, MEDIA_TYPE)
    content = {media_type: context.references[model], **described.get("errors", {})}
    answers: dict[str, Any] = dict(described["responses"])
    if needs := described.get("needs"):
        answers.setdefault(str(needs["status"]), f"It needs {needs['what']}.")
    answers["default"] = {"description": "What came, what is allowed and what to do.", "content": content}
    for status, answer in answers.items():
        if isinstance(answer, str):
            of_error = {"description": answer, "content": content}
            answers[status] = of_error if status >= "4" else {"content": {JSON: reference(answer)}}
    return {status: _response(answer) for status, answer in answers.items()}


def _response(answer: Schema) -> dict[str, Any]:
    response: dict[str, Any] = {"description": answer.get("description", "The answer.")}
    if headers := answer.get("headers"):
        response["headers"] = {
            name: {"schema": {"type": "string"}, "description": about} for name, about in headers.items()
        }
    if content := answer.get("content"):
        response["content"] = {media_type: {"schema": schema} for media_type, schema in content.items()}
    if examples := answer.get("examples"):
        response["content"][JSON]["examples"] = {name: {"value": value} for name, value in examples.items()}
    return response


def query_parameters(query: type[BaseModel] | Schema) -> list[dict[str, Any]]:
    """Return each field of a query's model as an OpenAPI parameter; optional ones do not allow null."""
    schema = query.model_json_schema() if isinstance(query, type) else query
    parameters = []
    for name, entry in schema.get("properties", {}).items():
        about = {key: value for key, value in entry.items() if key not in ("description", "title", "anyOf")}
        options = [option for option in entry.get("anyOf", []) if option != {"type": "null"}]
        about |= options[0] if len(options) == 1 else {"anyOf": options} if options else {}
        default = about.get("default")
        if default is None or ("e" in repr(default) and isinstance(default, float)):  # Swagger UI refuses 1e-07
            about.pop("default", None)
        required = name in schema.get("required", [])
        parameter = {"name": name, "in": "query", "required": required, "schema": about}
        if about.get("type") == "array":
            parameter["explode"] = False  # 1,2,3 and not a parameter for each
        parameters.append(parameter | ({"description": entry["description"]} if "description" in entry else {}))
    return parameters
