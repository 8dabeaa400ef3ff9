"""JSON schemas as Markdown: the name of a type, and tables of fields."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reference_pages.markdown import code, described, table

Schema = Mapping[str, Any]
REFERENCE = "#/components/schemas/"
BOUNDS = (
    ("minimum", "≥ {}"),
    ("exclusiveMinimum", "> {}"),
    ("maximum", "≤ {}"),
    ("exclusiveMaximum", "< {}"),
    ("minLength", "{} characters or more"),
    ("maxLength", "{} characters at most"),
    ("minItems", "{} items or more"),
    ("maxItems", "{} items at most"),
)
_TYPED = re.compile(
    r"(?:an integer(?: from \d+ to \d+)?|a number|a boolean|true or false|a text of at most \d+ characters"
    r"|one of [^()]+) \((.*?)\)((?:; of .*)?)",
    re.DOTALL,
)
LONGEST_LIST = 40
"""Words of an enumeration that are listed; of a longer one the first are."""


def type_name(schema: Schema, objects: str = "") -> str:
    """Return a schema's type as one line of Markdown.

    Args:
        objects: the page that has the named schemas, for links; empty: this page.
    """
    if reference := schema.get("$ref"):
        name = reference.removeprefix(REFERENCE)
        return f"[{name}]({objects}#{name})"
    if "const" in schema:
        return code(str(schema["const"]))
    if words := schema.get("enum"):
        more = f", ... ({len(words)} in all)" if len(words) > LONGEST_LIST else ""
        return ", ".join(code(_written(word)) for word in words[:LONGEST_LIST]) + more
    if parts := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(type_name(part, objects) for part in parts))
    if parts := schema.get("allOf"):
        return " and ".join(type_name(part, objects) for part in parts)
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        items = schema.get("items") or {}
        return f"list of {_grouped(type_name(items, objects))}{_limits(schema)}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {_grouped(type_name(schema['additionalProperties'], objects))}"
    if kind == "object" and schema.get("properties"):
        return f"object: {', '.join(code(name) for name in schema['properties'])}"
    form = schema.get("format") or schema.get("contentEncoding")
    return ("bytes" if form == "binary" else f"{kind} ({form})" if form else str(kind)) + _limits(schema)


def fields(schema: Schema, objects: str = "") -> str:
    """Return the table of an object's fields; empty if it names none."""
    required = schema.get("required", ())
    return table(
        ["field", "type", "meaning"],
        (
            [code(name), value_cell(entry, objects, required=name in required), meaning(entry)]
            for name, entry in schema.get("properties", {}).items()
        ),
    )


def value_cell(schema: Schema, objects: str = "", *, required: bool) -> str:
    """Return a field's type, and its default or that it is required."""
    text = type_name(schema, objects)
    if required:
        return f"{text}\n\n**required**"
    default = schema.get("default")
    return text if default is None else f"{text}\n\ndefault: {code(_written(default))}"


def meaning(schema: Schema) -> str:
    """Return a schema's description, without the type that some begin with: the column beside it has that."""
    text: str = schema.get("description", "")
    if typed := _TYPED.fullmatch(text):
        text = typed[1] + typed[2]
    return described(text)


def named(schema: Schema) -> Iterator[str]:
    """Yield the names of the schemas that a schema refers to."""
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str):
            yield value.removeprefix(REFERENCE)
        for part in value if isinstance(value, Sequence) and not isinstance(value, str) else [value]:
            if isinstance(part, Mapping):
                yield from named(part)


def _grouped(text: str) -> str:
    return f"({text})" if " or " in text else text


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _limits(schema: Schema) -> str:
    limits = ", ".join(text.format(schema[key]) for key, text in BOUNDS if key in schema)
    return f", {limits}" if limits else ""
