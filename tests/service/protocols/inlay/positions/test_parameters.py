"""Parameters of schemes: presets, configs, layers, unknown names, and what random ones give."""

import json
import pickle
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.positions.rope.scaling_parameters import PARAMETERS as SCALING_PARAMETERS
from service.errors import WrongType
from service.http.validation_errors import validated
from service.protocols.inlay.positions.parameters import RopeParameters
from service.protocols.inlay.positions.schemes import MODEL_SCHEMES, Scheme
from service.protocols.inlay.positions.schemes import SCHEMES as ROWS
from tests.served import Served

ROPE = {"head_dim": 8, "length": 2}
ALIBI = {"heads": 2, "query_length": 2}
GEMMA3 = {
    "model_type": "gemma3_text",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "head_dim": 16,
    "num_hidden_layers": 6,
    "max_position_embeddings": 4096,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "sliding_window_pattern": 6,
}
# scheme, parameters, what the refusal says
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("rope", {"lenght": 3}, 'lenght is not known here; did you mean "length"?'),
    ("rope", {"length": 3}, "send head_dim or rotary_dim, or a preset or a config"),
    ("rope", {"head_dim": 8}, "send length, 1 to 16777216, or a list of positions"),
    ("rope", ROPE | {"length": 0}, 'length is "0"; allowed: an integer from 1 to 16777216 (how many positions)'),
    ("rope", ROPE | {"length": 2**24 + 1}, "an integer from 1 to 16777216"),
    ("rope", ROPE | {"length": "many"}, 'length is "many"; allowed'),
    ("rope", ROPE | {"length": 1.5}, 'length is "1.5"; allowed'),
    ("rope", ROPE | {"start": -1}, 'start is "-1"; allowed: an integer from 0'),
    ("rope", ROPE | {"start": 2**53 - 1}, "start + length is 9007199254740993; allowed: up to 9007199254740992"),
    ("rope", ROPE | {"start": 10**40}, "start is"),
    ("rope", ROPE | {"positions": "1"}, "positions and start or length contradict each other"),
    ("rope", {"head_dim": 8, "positions": ""}, "positions cannot be read: '' is neither a position"),
    ("rope", {"head_dim": 8, "positions": "1,,2"}, "positions cannot be read: '' is neither a position"),
    ("rope", {"head_dim": 8, "positions": "5-3"}, "positions cannot be read: 5-3 must rise and end below"),
    ("rope", {"head_dim": 8, "positions": "-3"}, "positions cannot be read: '-3' is neither a position nor a range"),
    ("rope", {"head_dim": 8, "positions": "0-99999999999999999"}, "must rise and end below 9007199254740992"),
    ("rope", {"head_dim": 8, "positions": "0-20000000"}, "20000001 positions; at most 1048576 can be listed"),
    ("rope", {"head_dim": 8, "positions": "0-1000000,0-1000000"}, "at most 1048576 can be listed"),
    ("rope", ROPE | {"head_dim": 7}, "7"),
    ("rope", ROPE | {"head_dim": 10**9}, "an integer from 2 to 8192 (channels of a head)"),
    ("rope", ROPE | {"theta": "nan"}, 'theta is "nan"; allowed: a number (the base of the frequencies'),
    ("rope", ROPE | {"theta": "inf"}, 'theta is "inf"; allowed'),
    ("rope", ROPE | {"theta": 0.5}, "theta"),
    ("rope", ROPE | {"theta": -1}, "theta"),
    (
        "rope",
        {"preset": "lama-3-8b"},
        "did you mean 'llama-3-8b'? GET /positions/presets (gRPC",
    ),  # told before the length that is missing
    ("rope", ROPE | {"rope_type": "yarm"}, "one of default, linear, dynamic, ntk"),
    ("rope", ROPE | {"rope_type": "linear"}, "factor"),
    ("rope", ROPE | {"rope_type": "linear", "factor": 0.5}, "factor"),
    (
        "rope",
        ROPE | {"rope_type": "linear", "factor": "x"},
        'factor is "x"; allowed: a number (new context length',
    ),
    ("rope", ROPE | {"rope_type": "linear", "factor": "nan"}, 'factor is "nan"; allowed: a number'),
    ("rope", ROPE | {"rope_type": "linear", "factor": "1,2"}, "factor"),
    ("rope", ROPE | {"rope_type": "linear", "factor": 2, "alpha": 3}, "alpha"),
    (
        "rope",
        ROPE | {"rope_type": "longrope", "short_factor": "1", "long_factor": "1"},
        "original_max_position_embeddings",
    ),
    ("rope", ROPE | {"factor": 2}, "factor"),
    (
        "rope",
        ROPE | {"rotary_dim": 4, "partial_rotary_factor": 0.5},
        "rotary_dim and partial_rotary_factor exclude each other",
    ),
    ("rope", ROPE | {"partial_rotary_factor": 2}, "partial_rotary_factor"),
    ("rope", {"preset": "llama", "length": 2}, "there is no preset 'llama'"),
    ("rope", {"preset": "llama-3.1-8b", "theta": 3, "length": 2}, "preset and theta contradict each other"),
    ("rope", {"preset": "llama-3.1-8b", "config": "{}", "length": 2}, "config and preset contradict each other"),
    ("rope", ROPE | {"layer": 1}, "layer and layer_type choose a table of a config or a preset"),
    ("rope", {"config": "{", "length": 2}, "config cannot be read: it is not JSON"),
    ("rope", {"config": "[]", "length": 2}, "config cannot be read: send a JSON object"),
    ("rope", {"config": json.dumps(GEMMA3), "length": 2}, "send layer_type, one of"),
    ("rope", {"config": json.dumps(GEMMA3), "length": 2, "layer": 6}, "layer is 6; 6 layers are known here"),
    ("rope", {"config": json.dumps(GEMMA3), "length": 2, "layer_type": "x"}, "layer_type is 'x'; it must be one of"),
    ("rope", ROPE | {"dtype": "int8"}, 'dtype is "int8"; allowed: one of float64'),
    ("rope", ROPE | {"format": "xml"}, "one of json, raw, npy, safetensors"),
    ("rope", ROPE | {"output": "tan"}, "output is 'tan'; this table has cos, sin"),
    ("rope", ROPE | {"arithmetic": "float128"}, "one of exact, parity"),
    ("rope", ROPE | {"table": "triple"}, "one of single, duplicated"),
    ("rope", ROPE | {"layout": "quarter"}, "one of half, interleaved"),
    ("mrope", {"head_dim": 8}, "positions is missing"),
    ("mrope", {"head_dim": 8, "positions": "1,2;3,4", "sections": "1,1,2"}, "M-RoPE needs [3, tokens]"),
    (
        "mrope",
        {"head_dim": 8, "positions": "1;2;3", "sections": "1,1"},
        "sections cannot be read: 2 numbers came; send three",
    ),
    ("mrope", {"head_dim": 8, "positions": "1;2;3", "sections": "1,1,1"}, "sum to rotary_dim/2 = 4"),
    ("mrope", {"head_dim": 8, "positions": "1;2;-3", "sections": "1,1,2"}, "position -3 is not in 0"),
    ("mrope", {"head_dim": 8, "positions": "1,2;2;3"}, "positions cannot be read: the lists are of different lengths"),
    ("axial", {"kind": "vit", "head_dim": 8}, "one of qwen2_vl"),
    ("axial", {"kind": "pixtral", "head_dim": 8}, "needs a grid"),
    (
        "axial",
        {"kind": "pixtral", "head_dim": 8, "grid": "14"},
        "grid cannot be read: send rows x columns, such as 14x14",
    ),
    (
        "axial",
        {"kind": "pixtral", "head_dim": 8, "grid": "0x4"},
        "grid cannot be read: rows and columns are integers from 1",
    ),
    ("axial", {"kind": "pixtral", "head_dim": 6, "grid": "2x2"}, "multiple of 4"),
    ("sinusoidal", {"dim": 0, "length": 1}, "an integer from 1 to 65536 (channels)"),
    (
        "sinusoidal",
        {"dim": 2, "kind": "tensor2tensor", "length": 1},
        "tensor2tensor sinusoids have 4 to 65536 channels",
    ),
    ("sinusoidal", {"dim": 5, "kind": "whisper", "length": 1}, "whisper sinusoids have an even number of channels"),
    ("sinusoidal", {"dim": 4, "length": 1, "offset": -1}, "-1"),
    ("sinusoidal-2d", {"dim": 6, "grid": "2x2"}, "multiple of 4"),
    ("alibi", ALIBI | {"heads": 0}, 'heads is "0"; allowed: an integer from 1 to 1048576 (attention heads)'),
    ("alibi", ALIBI | {"max_bias": 0}, "max_bias"),
    ("alibi", ALIBI | {"attention_mask": "1,1;1"}, "attention_mask cannot be read: the lists are of different lengths"),
    ("alibi", ALIBI | {"form": "bloom", "attention_mask": "1,2"}, "other numbers than 0 and 1"),
    ("alibi", ALIBI | {"form": "mpt", "attention_mask": "1,1"}, "mpt ALiBi reads none"),
    ("t5", {"query_length": 2, "num_buckets": 1}, "an integer from 2 to 1048576 (relative_attention_num_buckets)"),
    ("t5", {"query_length": 2, "weights": "[[1]]"}, "weights"),
    ("t5", {"query_length": 2, "past": 3, "key_length": 2}, "key_length is 2"),
    ("deberta", {"query_length": 2}, "max_position_embeddings"),
    ("deberta", {"query_length": 2, "norm_weight": "[1]"}, "norm_weight and norm_bias go together"),
    ("mask", {"query_length": 2, "window": 0}, "window"),
    ("mask", {"query_length": 2, "attention_mask": "1,1,1", "key_length": 2}, "attention_mask"),
    ("mask", {"query_length": 2, "form": "inverse"}, "one of additive, boolean"),
]


def get(served: Served, scheme: str, **query: Any) -> httpx.Response:
    return served.http.get(f"/positions/{scheme}", params=query)


@pytest.mark.parametrize(("scheme", "query", "said"), REFUSED)
def test_rejects_impossible_parameters_with_the_reason(
    served: Served, scheme: str, query: dict[str, Any], said: str
) -> None:
    answer = get(served, scheme, **query)
    assert answer.status_code == 422, answer.text[:300]
    assert answer.json()["code"] in (
        "bad_parameters",
        "missing_field",
        "out_of_range",
        "unknown_field",
        "unknown_value",
        "wrong_type",
    )
    assert said in answer.json()["detail"]


# body, status, what the refusal says: types are taken as JSON has them
BODIES: list[tuple[str, int, str]] = [
    ('{"head_dim": "8", "length": 2}', 422, 'head_dim is "8"; allowed'),
    ('{"head_dim": 8.5, "length": 2}', 422, "head_dim is 8.5; allowed"),
    ('{"head_dim": true, "length": 2}', 422, "head_dim is true; allowed"),
    ('{"head_dim": 8, "length": 2, "theta": NaN}', 422, "theta is nan; allowed"),
    ('{"head_dim": 8, "length": 2, "theta": 1e999}', 422, "theta is inf; allowed"),
    ('{"head_dim": 8, "length": null}', 422, "send length"),
    ('{"head_dim": 8, "positions": []}', 422, "positions cannot be read: send one list of integers"),
    ('{"head_dim": 8, "positions": [1.5]}', 422, "positions cannot be read: only integers can stand in the list"),
    ('{"head_dim": 8, "positions": [true]}', 422, "positions cannot be read: only integers"),
    ('{"head_dim": 8, "positions": [[1]]}', 422, "positions"),
    ('{"head_dim": 8, "positions": [-1]}', 422, "position -1 is not in 0 to"),
    ('{"head_dim": 8, "positions": [9007199254740992]}', 422, "position 9007199254740992 is not in 0 to"),
    ('{"head_dim": 8, "positions": [99999999999999999999]}', 422, "positions"),
    ('{"head_dim": 8, "positions": 5}', 422, "positions cannot be read: send a list of integers"),
    ('{"head_dim": 8, "positions": {"a": 1}}', 422, "positions cannot be read: send a list of integers"),
    ('{"config": 5, "length": 2}', 422, "config cannot be read: send a JSON object"),
    ('{"config": {}, "length": 2}', 422, ""),
    ('{"config": {"rope_scaling": 5}, "length": 2}', 422, ""),
    ('{"config": {"head_dim": "x", "rope_theta": []}, "length": 2}', 422, ""),
    ("[]", 422, "the body is a list of 0; send a JSON object; allowed: layer_type"),
    ("{", 400, "the body is not JSON"),
    ("", 400, "the body is not JSON"),
    ("\x00", 400, "the body is not JSON"),
]


@pytest.mark.parametrize(("body", "status", "said"), BODIES)
def test_rejects_bad_bodies_with_the_reason(served: Served, body: str, status: int, said: str) -> None:
    answer = served.http.post("/positions/rope", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text[:300]
    assert said in answer.json()["detail"]


def test_rejects_repeated_parameters(served: Served) -> None:
    answer = served.http.get("/positions/rope?head_dim=8&head_dim=16&length=2")
    assert (answer.status_code, answer.json()["detail"]) == (422, '"head_dim" came 2 times: send it once')


def test_rejects_bodies_of_other_types_and_too_large(served: Served) -> None:
    path = "/positions/rope"
    assert served.http.post(path, content=b"{}").status_code == 415
    assert served.http.post(path, content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    coded = {"content-type": "application/json", "content-encoding": "br"}
    assert served.http.post(path, content=b"{}", headers=coded).status_code == 415
    large = served.http.post(path, json={"head_dim": 8, "positions": list(range(30_000))})
    assert (large.status_code, large.json()["code"]) == (413, "body_too_large")


def test_rejects_unknown_verbs_and_paths(served: Served) -> None:
    assert served.http.get("/positions/learned").status_code == 405
    assert served.http.delete("/positions/rope").status_code == 405
    assert served.http.get("/positions/rotary").status_code == 404


SCHEMES = ("rope", "mrope", "axial", "sinusoidal", "sinusoidal-2d", "learned", "alibi", "t5", "deberta", "mask")
NAMES = st.sampled_from(
    [
        "length",
        "start",
        "positions",
        "head_dim",
        "rotary_dim",
        "theta",
        "rope_type",
        "factor",
        "config",
        "preset",
        "layer",
        "kind",
        "dim",
        "grid",
        "heads",
        "form",
        "past",
        "query_length",
        "key_length",
        "attention_mask",
        "position_ids",
        "weights",
        "window",
        "chunk",
        "num_buckets",
        "dtype",
        "output",
        "sections",
        "q",
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-3, 70)
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["default", "yarn", "bloom", "2x2", "1,2", "0-3", "float16", "qwen2_vl", "llama-2-7b"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300)
@given(scheme=st.sampled_from(SCHEMES), parameters=st.dictionaries(NAMES, VALUES, max_size=6))
def test_random_parameters_never_cause_a_500(served: Served, scheme: str, parameters: dict[str, Any]) -> None:
    body = json.dumps({"format": "raw"} | parameters)
    headers = {"content-type": "application/json"}
    with served.http.stream("POST", f"/positions/{scheme}", content=body, headers=headers) as answer:
        assert answer.status_code in (200, 400, 406, 422), body
    query = {name: value for name, value in parameters.items() if isinstance(value, str | int | float)}
    query |= {"format": "raw"}
    with served.http.stream("GET", f"/positions/{scheme}", params=query) as answer:
        assert answer.status_code in (200, 405, 406, 422), query


@pytest.mark.parametrize("row", [*ROWS.values(), *MODEL_SCHEMES.values()], ids=lambda row: row.path)
def test_large_bodies_can_be_read_by_another_process(row: Scheme) -> None:
    """The heavy process finds the model of a body by its name."""
    assert pickle.loads(pickle.dumps(row.parameters)) is row.parameters


# ---- presets and configs


def test_every_listed_preset_gives_a_table(served: Served) -> None:
    presets = served.http.get("/positions/presets").raise_for_status().json()["presets"]
    assert len(presets) >= 30
    assert all(preset["source"] and preset["title"] and preset["config"] for preset in presets)
    for preset in presets:
        answer = get(served, "rope", preset=preset["name"], length=2)
        if answer.status_code == 422:  # its layers rotate differently
            known = answer.json()["detail"].partition("one of ")[2].partition(", or layer")[0].split(", ")
            answers = [get(served, "rope", preset=preset["name"], length=2, layer_type=each) for each in known]
        else:
            answers = [answer]
        for each in answers:
            document = each.raise_for_status().json()
            assert document["preset"] == preset["name"]
            assert np.isfinite(document["inverse_frequency"]).all()


def test_reads_a_config_layer_by_layer(served: Served) -> None:
    body = {"config": GEMMA3, "length": 2}
    thetas = {}
    for number in range(6):
        document = served.http.post("/positions/rope", json=body | {"layer": number}).raise_for_status().json()
        thetas[number] = (document["layer_type"], document["theta"])
    assert thetas[5] == ("full_attention", 1e6)
    assert {thetas[number] for number in range(5)} == {("sliding_attention", 1e4)}


def test_notes_name_parameters_that_libraries_ignore(served: Served) -> None:
    yarn = {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 4096, "mscale": 0.707}
    notes = get(served, "rope", **ROPE, **yarn).raise_for_status().json()["notes"]
    assert any("mscale" in note for note in notes)


def test_scheme_list_names_every_scheme(served: Served) -> None:
    schemes = served.http.get("/positions").raise_for_status().json()["schemes"]
    assert {scheme["name"] for scheme in schemes} == set(SCHEMES)
    for scheme in schemes:
        assert scheme["parameters"].keys() >= {"dtype", "arithmetic", "format"}
        assert served.http.options(scheme["paths"][0]).headers["allow"]
    rope = next(scheme for scheme in schemes if scheme["name"] == "rope")
    assert {"heatmap", "spectrum", "decay", "error"} <= rope["plots"].keys()
    assert "yarn" in rope["parameters"]["beta_fast"]


# ---- what a parameter is documented to be is what it accepts

SAMPLES: dict[str, Any] = {
    "number": 2.5,
    "integer": 2,
    "boolean": True,
    "string": "x",
    "array": [2.5, 2.5],
    "object": {"a": 1},
}
SAYS = {"number": "a number", "boolean": "a boolean", "array": "a list of numbers"}


def kinds(schema: dict[str, Any]) -> set[str]:
    """The JSON types that a schema allows; an integer is a number too."""
    named = {each["type"] for each in schema.get("anyOf", [schema]) if "type" in each} - {"null"}
    return named | ({"integer"} if "number" in named else set())


@pytest.mark.parametrize("name", SCALING_PARAMETERS)
def test_scaling_parameters_accept_what_they_document_alone(name: str) -> None:
    schema = RopeParameters.model_json_schema()["properties"][name]
    allowed = "allowed: " + SAYS[next(iter(kinds(schema) & set(SAYS)))]
    samples = SAMPLES | ({"number": 0.5, "integer": 1} if name == "partial_rotary_factor" else {})
    for kind, sample in samples.items():
        if kind in kinds(schema):
            validated(RopeParameters, {name: sample}, strict=True)
        else:
            with pytest.raises(WrongType) as caught:
                validated(RopeParameters, {name: sample}, strict=True)
            assert caught.value.allowed.startswith(allowed)


DOCUMENTED = [
    (scheme, name, schema)
    for scheme, row in ROWS.items()
    for name, schema in row.parameters.model_json_schema()["properties"].items()
]
PREFIXES = {"a number": "number", "an integer": "integer", "true or false": "boolean", "a boolean": "boolean"}


@pytest.mark.parametrize(("scheme", "name", "schema"), DOCUMENTED, ids=lambda value: str(value)[:20])
def test_descriptions_name_the_type_of_the_schema(scheme: str, name: str, schema: dict[str, Any]) -> None:
    said = [kind for prefix, kind in PREFIXES.items() if schema["description"].startswith(prefix)]
    types = kinds(schema)
    if types <= {"number", "integer", "boolean"} and types:
        assert said
    assert not said or said[0] in types
