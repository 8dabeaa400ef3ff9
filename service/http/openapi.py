"""Makes the OpenAPI document from the route rows alone."""

from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from service.http.formats import JSON
from service.http.openapi_data import REFERENCE
from service.http.problem_details import MEDIA_TYPE, Problem
from service.http.router import Router
from service.http.routes import Answer, RequestBody, Route, RouteGroup, Schema

PLACEHOLDER = "MODEL"
References = Mapping[type[BaseModel], Schema]
FIXED = orjson.loads((files("service.http") / "openapi.json").read_bytes())
"""What every document has: `info`, and as `parameters` the headers that a request to any path may have."""


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
    routes = [(group, route) for group in router.groups for route in group.routes if route.documented]
    models = _models(routes)
    schemas, definitions = models_json_schema([(model, "validation") for model in models], ref_template=REFERENCE)
    references: dict[Any, Schema] = {model: schema for (model, _), schema in schemas.items()}
    context = OperationContext(references, guarded, model)
    paths: dict[str, Any] = {}
    for group, route in routes:
        paths.setdefault(route.path.replace(":path}", "}"), {})[route.verb.lower()] = _operation(group, route, context)
    used = {route.tag for _, route in routes}
    tags = {name: about for group in router.groups for name, about in group.tags.items() if name in used}
    of_data = {name: schema for group in router.groups for name, schema in group.schemas.items()}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": _info(version, guarded),
        "tags": [{"name": name, "description": about} for name, about in tags.items()],
        "paths": paths,
        "components": {
            "schemas": of_data | {name: _terse(schema) for name, schema in definitions.get("$defs", {}).items()},
            "parameters": {each["name"]: each for each in FIXED["parameters"]},
        },
    }
    if guarded:
        scheme = {"type": "http", "scheme": "bearer", "description": "One of this server's keys."}
        document["components"]["securitySchemes"] = {"key": scheme}
        document["security"] = [{"key": []}]
    return document


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


def _models(routes: list[tuple[RouteGroup, Route]]) -> list[type[BaseModel]]:
    """Return every pydantic model that an operation refers to, each once."""
    models: dict[type[BaseModel], None] = {Problem: None}
    for group, route in routes:
        if group.error_model is not None:
            models[group.error_model[0]] = None
        if route.body is not None and route.body.model is not None:
            models[route.body.model] = None
        for answer in route.answers.values():
            models |= {schema: None for schema in answer.content.values() if isinstance(schema, type)}
    return list(models)


def _operation(group: RouteGroup, route: Route, context: OperationContext) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in route.parameters
    ]
    if route.query is not None:
        parameters += query_parameters(route.query)
    examples = {"name": context.model, **route.examples}
    operation: dict[str, Any] = {"operationId": route.name, "summary": route.summary, "tags": [route.tag]}
    needs = f"It needs {route.need.what}; without it the answer is {route.need.status}." if route.need else ""
    if description := "\n\n".join(filter(None, (route.description, needs))):
        operation["description"] = description
    if parameters:
        shown = [each | {"example": examples[each["name"]]} for each in parameters if each["name"] in examples]
        operation["parameters"] = shown + [each for each in parameters if each["name"] not in examples]
    if route.body is not None:
        operation["requestBody"] = _request_body(route, route.body, context)
    operation["responses"] = _responses(group, route, context)
    if context.guarded and not route.needs_key:
        operation["security"] = []
    return operation


def _responses(group: RouteGroup, route: Route, context: OperationContext) -> dict[str, Any]:
    answers: dict[str, Answer] = {str(status): answer for status, answer in route.answers.items()}
    model, media_type = group.error_model or (Problem, MEDIA_TYPE)
    error = Answer(
        description="What came, what is allowed and what to do.", content={media_type: model, **route.other_errors}
    )
    if route.need is not None:
        answers.setdefault(str(route.need.status), replace(error, description=f"It needs {route.need.what}."))
    answers["default"] = error
    return {status: _answer(answer, context.references) for status, answer in answers.items()}


def _request_body(route: Route, body: RequestBody, context: OperationContext) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if body.model is not None or body.schema is not None:
        schema = _either(context.references[body.model], body.schema) if body.model else body.schema
        content[JSON] = {"schema": schema}
        if body.examples:
            named = {"model": context.model}
            shown = {name: each | named if "model" in each else each for name, each in body.examples.items()}
            content[JSON]["examples"] = {name: {"value": each} for name, each in shown.items()}
    content |= {media_type: {"schema": schema} for media_type, schema in body.other.items()}
    request_body: dict[str, Any] = {"required": body.required, "content": content}
    return request_body | ({"description": body.description} if body.description else {})


def _either(reference: Schema, other: Schema | None) -> Schema:
    return reference if other is None else {"anyOf": [reference, other]}


def _answer(answer: Answer, references: References) -> dict[str, Any]:
    response: dict[str, Any] = {"description": answer.description}
    if answer.headers:
        response["headers"] = {
            name: {"schema": {"type": "string"}, "description": about} for name, about in answer.headers.items()
        }
    if answer.content:
        response["content"] = {
            media_type: {"schema": references[schema] if isinstance(schema, type) else schema}
            for media_type, schema in answer.content.items()
        }
        if answer.examples and JSON in response["content"]:
            response["content"][JSON]["examples"] = {name: {"value": value} for name, value in answer.examples.items()}
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
