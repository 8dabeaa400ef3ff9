"""Costly requests drawn from the schemas of routes and methods: one or two fields at their limits, in every encoding.

A seed decides the road, the fields, their values and how these are written: a text of one character, of combining
marks, of Hangul or of blanks; a list in JSON, within a string, within a query, in a config within a string; a number at
its bound. `python -m tests.fuzz.costs --seed SEED --count 1` repeats a case.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from random import Random
from typing import Any
from urllib.parse import quote

import orjson
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from pydantic import BaseModel

from service.grpc.methods import Method
from service.http.routes import Route
from tests.fuzz.cost_cases import BODY_BYTES, WORD_BYTES, Case, is_streaming, path_of, post, request, roads
from tests.fuzz.cost_largest import CHARACTERS, INPUTS
from tests.fuzz.cost_pictures import PICTURES
from tests.fuzz.operations import MODELS, SEEN
from tests.score_models import RANKER

KIB, MIB = 1 << 10, 1 << 20
SIZES = (16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, BODY_BYTES - 64 * KIB)  # bytes of a case's large values
MOST_ITEMS = 1 << 21
MOST_MESSAGES = 20_000  # protobuf builds them one by one
DEEPEST = 5  # objects within one another
TEXTS = {
    "one letter": "a",
    "one mark": "!",
    "words": "hello ",
    "Hangul": "각",
    "Hangul and marks": "각!",
    "combining marks": "e\u0301\u0323\u0302",
    "blanks": " ",
    "wide blanks": "\u3000",
    "lines": "a\n",
    "emoji": "\U0001f469\u200d",
    "controls": "\x01",
}
LISTS = {"ones": "1,", "rows": "1,1;", "ranges": "0-9,", "fractions": "0.125,", "columns": "1;", "names": "rope,"}
"""Lists as strings without brackets hold them."""
JSON_LISTS = {"ones": "1,", "lists of one": "[1],", "fractions": "0.125,", "objects": '{"a":1},', "strings": '"a",'}
CONFIG = {
    "hidden_size": 64,
    "num_attention_heads": 1,
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "layer_types": ["full_attention"],
    "rope_scaling": {"rope_type": "longrope", "long_factor": [1.0], "short_factor": [1.0], "factor": 32.0},
}
"""A config.json, for objects whose schema names no members."""

LARGE_SHARE = 0.8  # of the fields drawn, those that may be large
SMALL = ("null", "boolean", "integer", "number")
Json = Any  # JSON of any kind
Schema = Mapping[str, Any]


class Drawer:
    """Draws the values of one case.

    Args:
        random: decides everything.
        root: the schema whose definitions others refer to.

    Attributes:
        words: what was drawn, for the name of the case.
    """

    def __init__(self, random: Random, root: Schema) -> None:
        self.random, self._root = random, root
        self.words: list[str] = []

    def text(self, size: int) -> str:
        """Return a text of about `size` bytes: characters of one kind, a list, or a config."""
        form = self.random.choice(("text", "text", "list", "JSON list", "config"))
        if form == "config":
            return orjson.dumps(self.config(size)).decode()
        kind, unit = self.random.choice(list({"text": TEXTS, "list": LISTS, "JSON list": JSON_LISTS}[form].items()))
        count = size // len(unit.encode())
        self.words.append(f"{form} of {kind}, {size >> 10} KiB")
        if form == "text":
            return unit * min(count, self.random.choice((CHARACTERS, MOST_ITEMS)) // len(unit))
        return f"[{(unit * count)[:-1]}]" if form == "JSON list" else (unit * count)[:-1]

    def picture(self, size: int) -> bytes:
        """Return a picture, which is also what tensors in base64 and bytes of messages are made of."""
        kind, make = self.random.choice(list(PICTURES.items()))
        self.words.append(f"{kind}, {size >> 10} KiB")
        return make(size)

    def config(self, size: int) -> Json:
        """Return a config.json with a large value in one place."""
        config = orjson.loads(orjson.dumps(CONFIG))
        inner = self.random.choice((config, config["rope_scaling"]))
        name = self.random.choice(list(inner))
        unit = self.random.choice((1.5, 1, [1.0], "a"))
        count = size // (len(orjson.dumps(unit)) + 1)
        self.words.append(f"config with {name} of {size >> 10} KiB")
        inner[name] = self.random.choice(
            ([unit] * count, orjson.dumps([unit] * count).decode(), TEXTS["words"] * count)
        )
        return config

    def value(self, schema: Schema, size: int, depth: int = 0) -> Json:
        """Return a value that a schema allows, of about `size` bytes where it may be so large."""
        schema = self.resolved(schema)
        if "enum" in schema or "const" in schema:
            return self.random.choice(schema.get("enum") or [schema["const"]])
        match schema.get("type"):
            case "string" if schema.get("contentEncoding") == "base64":
                return b64encode(self.picture(size * 3 // 4)).decode()
            case "string":
                return self.text(size)[: schema.get("maxLength")]
            case "integer" | "number":
                return self._number(schema, depth)
            case "boolean":
                return self.random.random() < 0.5
            case "array":
                return self._array(schema, size, depth)
            case "object" if schema.get("properties"):
                return self._object(schema, size, depth)
        return self.config(size)

    def resolved(self, schema: Schema) -> Schema:
        """Return a schema without a reference or alternatives, of which it draws one."""
        while True:
            if "$ref" in schema:
                schema = self._root["$defs"][schema["$ref"].rpartition("/")[2]]
            elif any_of := schema.get("anyOf") or schema.get("oneOf"):
                schema = self.random.choice([each for each in any_of if each.get("type") != "null"])
            else:
                return schema

    def _number(self, schema: Schema, depth: int) -> float:
        least, most = schema.get("minimum", 0), schema.get("maximum", 2**53)
        bounds = (
            (least, min(most, 1), min(most, 5)) if depth else (least, most, min(most, 10 ** self.random.randrange(10)))
        )
        value = self.random.choice(bounds)
        self.words.append(f"{value:g}")
        return value if schema["type"] == "integer" else value + 0.5

    def _array(self, schema: Schema, size: int, depth: int) -> Json:
        fewest, most = schema.get("minItems", 1), schema.get("maxItems", MOST_ITEMS)
        share = size // self.random.choice((fewest, 2, 16, INPUTS, MOST_ITEMS))
        items = [self.value(schema.get("items", {}), max(2, share), depth + 1) for _ in range(max(fewest, 2))]
        if depth >= DEEPEST or not items:
            return items[:most]
        count = max(fewest, min(most, MOST_ITEMS, len(items) * size // (len(orjson.dumps(items)) or 1)))
        self.words.append(f"{count} items")
        varied = (items * (count // len(items) + 1))[:count]
        if isinstance(items[0], str) and count <= INPUTS:  # equal texts are computed once
            varied = [f"{number} {text}" for number, text in enumerate(varied)]
        return varied

    def _object(self, schema: Schema, size: int, depth: int) -> Json:
        properties, required = schema["properties"], schema.get("required", ())
        others = [name for name in properties if name not in required]
        chosen = [*required, *self.random.sample(others, min(len(others), self.random.randrange(3)))]
        return {name: self.value(properties[name], size // (len(chosen) or 1), depth + 1) for name in chosen}


def drawn(seed: int) -> Case:
    """Return the case of a seed."""
    random = Random(seed)
    routes, methods, _ = roads()
    verb = random.choices(("POST", "GET", "gRPC"), (5, 1, 2))[0]
    if verb == "gRPC":
        path, method = random.choice([each for each in methods.items() if large_fields(each[1].request.DESCRIPTOR)])
        return _call(seed, random, path, method)
    listed = [route for route in routes if route.verb == verb and large_members(schema_of(route))]
    return _request(seed, random, random.choice(listed))


def large_members(schema: Schema) -> list[str]:
    """Return the members of an object that may be large: lists, objects, and texts of any length."""
    return [name for name, each in schema.get("properties", {}).items() if _may_be_large(each)]


def _may_be_large(schema: Schema) -> bool:
    forms = schema.get("anyOf") or schema.get("oneOf") or [schema]
    return any(["maxLength" not in each and "enum" not in each and each.get("type") not in SMALL for each in forms])


def large_fields(kind: Descriptor) -> list[FieldDescriptor]:
    """Return the fields of a message that may be large."""
    types = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
    return [field for field in kind.fields if field.is_repeated or field.message_type or field.type in types]


@cache
def _schema(model: type[BaseModel]) -> Schema:
    return model.model_json_schema(by_alias=True)


def schema_of(route: Route) -> Schema:
    """Return the schema of a route's body, or else of its query; empty if it has none."""
    model = route.bodies[-1] if route.bodies else route.query
    return _schema(model) if model else {}


def _fields(drawer: Drawer, schema: Schema, size: int) -> dict[str, Json]:
    """Return one or two fields of a schema at their limits."""
    properties, large = schema["properties"], large_members(schema)
    names = [
        drawer.random.choice(large if drawer.random.random() < LARGE_SHARE else list(properties))
        for _ in range(drawer.random.choice((1, 1, 2, 3)))
    ]
    fields = {}
    for name in dict.fromkeys(names):
        drawer.words.append(f"{name}:")
        fields[name] = drawer.value(properties[name], size // len(names))
    return fields


def _request(seed: int, random: Random, route: Route) -> Case:
    schema, path = schema_of(route), path_of(route)
    drawer = Drawer(random, schema)
    if route.verb == "GET":
        example = {"head_dim": 64, "length": 8, "query_length": 8, "dim": 64, "grid": "4x4"}
        fields = {name: each for name, each in example.items() if name in schema.get("properties", {})}
        fields |= _fields(drawer, schema, WORD_BYTES)
        query = "&".join([f"{name}={_in_query(each)}" for name, each in fields.items()])[:WORD_BYTES]
        return _case(seed, f"GET {route.path}", drawer, request("GET", f"{path}?{query}", None, None))
    examples = [*roads().operations.get(route.path, {}).get("examples", {}).values()]
    example = random.choice(examples or [{}])
    body = bytes(BODY_BYTES + 1)
    while len(body) > BODY_BYTES:
        drawer.words.clear()
        fields = (example if isinstance(example, dict) else {}) | _fields(drawer, schema, random.choice(SIZES))
        if "model" in schema["properties"] and random.random() < 0.9:
            fields["model"] = random.choice((*MODELS, RANKER, RANKER))
        body = orjson.dumps(fields)
    return _case(seed, f"POST {route.path}", drawer, post(path, lambda: body))


def _in_query(value: Json) -> str:
    """Return a value as a query holds it: lists with commas, or as JSON."""
    if isinstance(value, list) and value and not isinstance(value[0], list | dict):
        return quote(",".join([str(each) for each in value[:WORD_BYTES]]), safe=",")
    return quote(value if isinstance(value, str) else orjson.dumps(value).decode(), safe=",;:[]{}")


def _case(
    seed: int, road: str, drawer: Drawer, make: Callable[[], bytes], streaming: tuple[bool, bool] | None = None
) -> Case:
    return Case(road, f"seed {seed}: {' '.join(drawer.words)}"[:160], make, streaming, copies=1 + seed % 2)


# ---- gRPC


def _call(seed: int, random: Random, path: str, method: Method) -> Case:
    drawer, size = Drawer(random, {}), random.choice(SIZES)
    data = _message(drawer, method.request.DESCRIPTOR, size).SerializeToString()[:BODY_BYTES]
    return _case(seed, path, drawer, lambda: data, is_streaming(method))


def _message(drawer: Drawer, kind: Descriptor, size: int, depth: int = 0) -> Message:
    """Return a message with some of its fields at their limits."""
    message: Message = GetMessageClass(kind)()
    fields = list(kind.fields)
    large = large_fields(kind)
    pool = large if large and drawer.random.random() < LARGE_SHARE else fields
    chosen = drawer.random.sample(pool, min(len(pool), 1 + drawer.random.randrange(3)))
    named = [field for field in fields if field.name in ("model", "model_name") or field.name == "parameters"]
    for field in {each.name: each for each in (*chosen, *named)}.values():
        _fill(drawer, message, field, size // (len(chosen) or 1), depth)
    return message


def _fill(drawer: Drawer, message: Message, field: FieldDescriptor, size: int, depth: int) -> None:
    """Set one field of a message to a large value."""
    inner = field.message_type
    if field.name in ("model", "model_name"):
        seeing = message.DESCRIPTOR.name == "ImagesRequest"
        setattr(message, field.name, drawer.random.choice(tuple(SEEN) if seeing else (*MODELS, RANKER)))
    elif inner is not None and inner.full_name == "google.protobuf.Struct":
        drawer.words.append(f"{field.name}:")
        schemes = [route for route in roads().routes if route.verb == "POST" and route.path.count("/") == 2]
        route = drawer.random.choice([route for route in schemes if route.path.startswith("/positions/")])
        if "scheme" in message.DESCRIPTOR.fields_by_name:
            message.scheme = route.path.rpartition("/")[2]  # type: ignore[attr-defined]
        example = next(iter(roads().operations[route.path]["examples"].values()))
        values = example | _fields(Drawer(drawer.random, schema_of(route)), schema_of(route), min(size, 4 * MIB))
        json_format.ParseDict(values, getattr(message, field.name))
    elif inner is not None:
        if depth < DEEPEST and not inner.GetOptions().map_entry:
            _fill_messages(drawer, message, field, size, depth)
    else:
        drawer.words.append(f"{field.name}")
        values = _scalars(drawer, field, size)
        if field.is_repeated:
            getattr(message, field.name).extend(values)
        else:
            setattr(message, field.name, values[0])


def _fill_messages(drawer: Drawer, message: Message, field: FieldDescriptor, size: int, depth: int) -> None:
    if not field.is_repeated:
        getattr(message, field.name).CopyFrom(_message(drawer, field.message_type, size, depth + 1))
        return
    count = drawer.random.choice((1, 2, 16, INPUTS, MOST_MESSAGES))
    drawer.words.append(f"{count} {field.name}")
    item = _message(drawer, field.message_type, size // count, depth + 1)
    getattr(message, field.name).extend([item] * min(count, size // (item.ByteSize() or 1) + 1))


def _scalars(drawer: Drawer, field: FieldDescriptor, size: int) -> Sequence[Any]:
    """Return values of a field that together are about `size` bytes."""
    kind = field.type
    if field.enum_type is not None:
        return [drawer.random.choice(field.enum_type.values).number]
    if kind == FieldDescriptor.TYPE_BYTES:
        return [drawer.picture(size) if field.name == "picture" else bytes(size)]
    if kind == FieldDescriptor.TYPE_BOOL:
        return [True]
    if kind == FieldDescriptor.TYPE_STRING:
        count = drawer.random.choice((1, 2, INPUTS)) if field.is_repeated else 1
        text = drawer.text(size // count)
        return [f"{number} {text}" for number in range(count)] if count > 1 else [text]
    number = drawer.random.choice((0, 1, 2, 5, 100, 2**31 - 1))
    return [number] * (min(size // 4, MOST_ITEMS) if field.is_repeated else 1)
