"""GET /positions and its presets as data: what a page makes controls from is what the routes accept and compute."""

import itertools
import math
import re
from typing import Any

import httpx
import numpy as np
import pytest

from models.positions.rope.scaling_parameters import PARAMETERS
from models.positions.rope.scalings import SCALINGS
from service.errors import BadRequest, OutOfRange
from service.http.validation_errors import validated
from service.protocols.inlay.positions.descriptions import preset_list, scheme_list
from service.protocols.inlay.positions.schemes import SCHEMES
from tests.openapi_requests import expanded
from tests.served import Served

LISTED = {scheme["name"]: scheme for scheme in scheme_list()}
FIELDS = [(scheme, name, field) for scheme, row in LISTED.items() for name, field in row["fields"].items()]
NUMBERS = [each for each in FIELDS if each[2]["type"] in ("integer", "number") and each[1] not in PARAMETERS]
LAYERS = [(preset["name"], layer) for preset in preset_list() for layer in preset["layers"]]
ROPE_TYPES = {each["name"]: each for each in LISTED["rope"]["rope_types"]}


def post(served: Served, scheme: str, **parameters: Any) -> httpx.Response:
    return served.http.post(f"/positions/{scheme}", json=parameters)


def numbers(answer: httpx.Response) -> np.ndarray[Any, Any]:
    document = answer.raise_for_status().json()
    return np.array([document["cos"], document["sin"]])


def test_served_lists_are_the_described_ones(served: Served) -> None:
    schemes = served.http.get("/positions").raise_for_status().json()["schemes"]
    assert [scheme["name"] for scheme in schemes] == list(LISTED)
    presets = served.http.get("/positions/presets").raise_for_status().json()["presets"]
    assert [preset["name"] for preset in presets] == [preset["name"] for preset in preset_list()]


def test_fields_are_the_parameters_of_the_document(served: Served) -> None:
    paths = expanded(served.http.get("/openapi.json").raise_for_status().json())["paths"]
    for scheme, row in LISTED.items():
        for verb, suffix in (("get", ""), ("get", ".png")):
            operation = paths.get(f"/positions/{scheme}{suffix}", {}).get(verb)
            if operation is None:
                continue
            taken = {each["name"] for each in operation["parameters"] if each.get("in") == "query"}
            shown = {name for name, field in row["fields"].items() if not suffix or field["in_pictures"]}
            assert taken - {"plot"} == shown | (set(row["picture_fields"]) if suffix else set())


def in_query(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return parameters with lists as a query string writes them."""
    return {name: ",".join(map(str, v)) if isinstance(v, list) else v for name, v in parameters.items()}


@pytest.mark.parametrize("scheme", LISTED)
def test_example_of_a_scheme_gives_its_table(served: Served, scheme: str) -> None:
    row = LISTED[scheme]
    if "GET" in row["methods"]:
        served.http.get(f"/positions/{scheme}", params=in_query(row["example"])).raise_for_status()
    else:
        post(served, scheme, **row["example"]).raise_for_status()


@pytest.mark.parametrize("scheme", [name for name, row in LISTED.items() if row["figures"]])
def test_example_of_a_scheme_gives_its_first_figure(served: Served, scheme: str) -> None:
    row = LISTED[scheme]
    answer = served.http.get(row["pictures"][1], params=in_query(row["example"])).raise_for_status()
    assert b"<svg" in answer.content[:1000]


@pytest.mark.parametrize("rope_type", SCALINGS)
def test_rope_type_needs_what_it_requires(served: Served, rope_type: str) -> None:
    row = ROPE_TYPES[rope_type]
    assert np.isfinite(numbers(post(served, "rope", length=3, **row["example"]))).all()
    for name in row["required"]:
        rest = {key: value for key, value in row["example"].items() if key != name}
        answer = post(served, "rope", length=3, **rest)
        assert answer.status_code == 422
        assert name in answer.json()["detail"]


@pytest.mark.parametrize("rope_type", SCALINGS)
def test_rope_type_refuses_parameters_of_others(served: Served, rope_type: str) -> None:
    row = ROPE_TYPES[rope_type]
    for name, parameter in PARAMETERS.items():
        if name == "partial_rotary_factor":  # also a size, which every rope type takes
            continue
        known = name in (*row["required"], *row["optional"])
        assert known == (rope_type in LISTED["rope"]["fields"][name]["rope_types"])
        value = list(parameter.example) if isinstance(parameter.example, tuple) else parameter.example
        answer = post(served, "rope", length=3, **{name: value} | row["example"])
        assert (answer.status_code == 200) == known, answer.text


@pytest.mark.parametrize("name", [name for name, row in PARAMETERS.items() if row.default is not None])
def test_default_is_what_counts_when_left_out(served: Served, name: str) -> None:
    for rope_type in LISTED["rope"]["fields"][name].get("rope_types", ["default"]):
        sent = ROPE_TYPES[rope_type]["example"] | {"length": 5}
        left_out = numbers(post(served, "rope", **sent))
        assert np.array_equal(numbers(post(served, "rope", **sent, **{name: PARAMETERS[name].default})), left_out)


def test_theta_and_rope_type_default_as_listed(served: Served) -> None:
    fields = LISTED["rope"]["fields"]
    defaults = {name: fields[name]["default"] for name in ("theta", "rope_type", "start", "arithmetic", "table")}
    short = {"head_dim": 8, "length": 3}
    assert post(served, "rope", **short, **defaults).json() == post(served, "rope", **short).json()


@pytest.mark.parametrize(("scheme", "name", "field"), NUMBERS, ids=lambda value: str(value)[:20])
def test_bounds_are_those_that_validate(scheme: str, name: str, field: dict[str, Any]) -> None:
    step = 1 if field["type"] == "integer" else 1e-6
    outside = [field[bound] + sign * step for bound, sign in (("minimum", -1), ("maximum", 1)) if bound in field]
    outside += [field["exclusiveMinimum"]] if "exclusiveMinimum" in field else []
    outside += [field["multipleOf"] + 1] if "multipleOf" in field else []
    inside = [field[bound] for bound in ("minimum", "maximum") if bound in field]
    inside += [field["exclusiveMinimum"] + step] if "exclusiveMinimum" in field else []
    for value in outside:
        with pytest.raises(OutOfRange) as caught:
            check(scheme, name, value)
        assert caught.value.field == (name,)
    for value in inside:
        check(scheme, name, value)
    assert outside or field["type"] == "number"


def check(scheme: str, name: str, value: float) -> None:
    """Validate one parameter, beside what the scheme needs."""
    validated(SCHEMES[scheme].parameters, {**LISTED[scheme]["example"], name: value})


@pytest.mark.parametrize("name", [name for name, row in PARAMETERS.items() if row.kind == "number"])
def test_bounds_of_scalings_are_those_that_validate(served: Served, name: str) -> None:
    field = LISTED["rope"]["fields"][name]
    rope_type = field.get("rope_types", ["default"])[0]
    for bound, is_inside in (("minimum", True), ("exclusiveMinimum", False), ("maximum", True)):
        if bound not in field:
            continue
        outside = math.nextafter(field[bound], math.inf if bound == "maximum" else -math.inf)
        values = {outside: False, field[bound]: is_inside}
        for value, inside in values.items():
            sent = {"length": 3, **ROPE_TYPES[rope_type]["example"], name: value}
            answer = post(served, "rope", **sent)
            refused = answer.status_code == 422 and f"{name} is" in answer.json()["detail"]
            assert refused != inside, (value, answer.text)


@pytest.mark.parametrize(("scheme", "name", "field"), [each for each in FIELDS if "enum" in each[2]], ids=str)
def test_enumerated_values_are_accepted_alone(scheme: str, name: str, field: dict[str, Any]) -> None:
    for value in field["enum"]:
        validated(SCHEMES[scheme].parameters, {**LISTED[scheme]["example"], name: value})
    with pytest.raises(BadRequest):
        validated(SCHEMES[scheme].parameters, {**LISTED[scheme]["example"], name: "another"})


VALUES: dict[str, Any] = {
    "preset": "llama-3-8b",
    "config": {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 1},
    "theta": 20000,
    "start": 3,
    "grid": [2, 2],
}


@pytest.mark.parametrize("scheme", [name for name, row in LISTED.items() if row["exclusive"]])
def test_one_of_the_exclusive_groups_is_accepted(served: Served, scheme: str) -> None:
    row = LISTED[scheme]
    values = VALUES | {"positions": [[0, 0]] if scheme == "axial" else [0, 1]}
    for groups in row["exclusive"]:
        others = {name: value for name, value in row["example"].items() if not any(name in group for group in groups)}
        for first, second in itertools.combinations([group[0] for group in groups], 2):
            answer = post(served, scheme, **others, **{first: values[first], second: values[second]})
            assert answer.status_code == 422
            assert re.search("contradict each other|not both", answer.json()["detail"])


@pytest.mark.parametrize("scheme", [name for name, row in LISTED.items() if row["figures"]])
def test_figures_take_as_many_subjects_as_listed(served: Served, scheme: str) -> None:
    row = LISTED[scheme]
    for figure in row["figures"]:
        compared = ["arithmetic=parity"] * figure["max_subjects"]
        query = {**in_query(row["example"]), "plot": figure["name"], "compare": compared}
        answer = served.http.get(row["pictures"][0], params=query)
        assert answer.status_code == 422
        assert f"this figure holds up to {figure['max_subjects']}" in answer.json()["detail"]


@pytest.mark.parametrize(("preset", "layer"), LAYERS, ids=lambda value: str(value)[:30])
def test_parameters_of_a_preset_give_its_table(served: Served, preset: str, layer: dict[str, Any]) -> None:
    named = {"preset": preset, "length": 3} | ({"layer_type": layer["layer_type"]} if layer["layer_type"] else {})
    expected = post(served, "rope", **named).json()
    actual = post(served, "rope", length=3, layout=layer["layout"], **layer["parameters"]).raise_for_status().json()
    for key in ("cos", "sin", "layout", "attention_factor"):
        assert actual[key] == expected[key]
    assert layer["softmax_scale"] == expected.get("softmax_scale", 1.0)
