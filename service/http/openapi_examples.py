"""Examples of the OpenAPI document, which the loaded models can answer."""

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from service.http.routes import Example, Need, RequestBody, Route, Schema

NAME = "name"  # of the path's parameter that is a model
FIELD = "model"  # of a body, that names a model
PLACEHOLDER = "MODEL"


class LoadedModels(NamedTuple):
    """The models that examples name.

    Args:
        models: loaded models by name.
        default: the name of the model of requests that name none; None: such requests are refused.
        version: changes with the models.
    """

    models: Mapping[str, Any] = {}
    default: str | None = None
    version: Hashable = ()

    def choose(self, *needs: Need | None) -> "Chosen":
        """Return a model that meets all needs: the default model if it does, else the first loaded one."""
        asked = [need.is_met_by for need in needs if need is not None and need.is_met_by is not None]
        names = list(dict.fromkeys([*([self.default] if self.default else []), *self.models]))
        for name in names:
            if all(is_met_by(self.models[name]) for is_met_by in asked):
                return Chosen(name, self.models[name])
        return Chosen(names[0] if names else PLACEHOLDER, None)


class Chosen(NamedTuple):
    """The model that an example is for.

    Args:
        model: None: no loaded model meets the needs, and `name` is that of another one.
    """

    name: str
    model: Any


def parameter_examples(route: Route, loaded: LoadedModels) -> dict[str, Any]:
    """Return the examples of the parameters of a route's path and query string, by name."""
    chosen = loaded.choose(route.need)
    named = {NAME: chosen.name} if NAME in route.parameters else {}
    values = {name: value_of(example, chosen.model) for name, example in route.examples.items()}
    return named | {name: value for name, value in values.items() if value is not None}


def body_examples(route: Route, body: RequestBody, loaded: LoadedModels) -> dict[str, Any]:
    """Return the examples of a JSON body as OpenAPI has them, by name."""
    in_body = NAME not in route.parameters and _names_models(body)
    examples = {}
    for name, example in body.examples.items():
        need = example.need if isinstance(example, Example) else None
        chosen = loaded.choose(route.need, need)
        value = value_of(example, chosen.model)
        if in_body and (FIELD in value or (chosen.model is not None and chosen.name != loaded.default)):
            value = value | {FIELD: chosen.name}
        examples[name] = ({"summary": f"{name}: {sentence(need)}"} if need else {}) | {"value": value}
    return examples


def sentence(need: Need) -> str:
    """Return the need, and the answer if it is not met."""
    return f"needs {need.what}; without it the answer is {need.status}"


def value_of(example: Any, model: Any) -> Any:
    """Return the value of an example, which may be an Example, for a loaded model; None: for no model."""
    if not isinstance(example, Example):
        return example
    return example.make(model) if example.make is not None else example.value


def _names_models(body: RequestBody) -> bool:
    """Return whether a body may name its model."""
    fields = set(body.model.model_fields) if body.model is not None else set()
    alternatives: list[Schema] = (body.schema or {}).get("anyOf", []) if body.model is None else []
    return FIELD in fields.union(*(each.get("properties", {}) for each in alternatives))
