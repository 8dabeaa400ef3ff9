"""Every golden table through the routes that need no model: as JSON and as bytes, by POST and by GET.

The numbers are transformers' and mpmath's own (tests/golden); nothing of models/ is imported.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load

from tests.golden_cases import Case, cases
from tests.served import Served
from tests.sweeps import sampled

Array = NDArray[Any]
ARITHMETICS = ("exact", "parity")
OWNERS = {  # the model_type whose code made a case, where it is not Llama's
    "rope_cohere_interleaved_tables": "cohere",
    "rope_gemma4_full_attention": "gemma4_text",
    "rope_gpt_oss_half_width": "gpt_oss",
    "rope_modernbert_sliding_attention": "modernbert",
    "rope_ntk_alpha_hunyuan": "hunyuan_v1_dense",
    "rope_olmo3_nested_truncate_ignored": "olmo3",
    "rope_partial50_phi": "phi",
}
SINUSOIDS = {"interleaved dim": "vaswani", "half dim": "marian", "half half_minus_1": "tensor2tensor"}
MROPE = {"qwen2_vl_chunked": "chunked", "ernie4_5_vl": "ernie"}


@dataclass(frozen=True)
class Question:
    """What to ask, and what is right: output → values and how far from them is right."""

    name: str
    scheme: str
    parameters: dict[str, Any]
    right: dict[str, tuple[Array, Any]]
    arithmetics: tuple[str, ...] = field(default=ARITHMETICS)

    def __repr__(self) -> str:
        return self.name


def listed(array: Array) -> list[Any]:
    values: list[Any] = array.tolist()
    return values


def ropes() -> Iterator[Question]:
    for golden in cases("rope"):
        width, layer = golden.params["head_dim"], golden.params.get("layer_type")
        config = {
            "model_type": OWNERS.get(golden.name, "llama"),
            "hidden_size": width,
            "num_attention_heads": 1,
            "head_dim": width,
            "max_position_embeddings": golden.params["max_position_embeddings"],
            "rope_parameters": {layer: golden.params["rope_parameters"]} if layer else golden.params["rope_parameters"],
        }
        config |= {"global_head_dim": width} if layer else {}
        for ending in ("", "_short"):
            if f"cos{ending}" in golden.arrays:
                yield rope_question(golden, config, layer, ending)


def rope_question(golden: Case, config: dict[str, Any], layer: str | None, ending: str) -> Question:
    arrays = golden.arrays
    places = arrays[f"positions{ending}"]
    longest = int(places.max()) + 1
    tokens = longest if ending else int(arrays.get("seq_len_for_cos_sin", longest))
    parameters: dict[str, Any] = {"config": config, "positions": listed(places), "seq_len": tokens}
    parameters |= {"layer_type": layer} if layer else {}
    lengths = {f"inv_freq_seq{tokens}", f"inv_freq{ending or '_long'}", "inv_freq"}
    frequency = next(arrays[name] for name in (*sorted(lengths, reverse=True), "inv_freq") if name in arrays)
    allowed = float(arrays["attention_factor"]) * (3e-7 + 5e-7 * places[:, None] * frequency)
    step = 2 if golden.name == "rope_cohere_interleaved_tables" else 1
    right = {name: (arrays[f"{name}{ending}"][:, ::step][:, : len(frequency)], allowed) for name in ("cos", "sin")}
    return Question(golden.name + ending, "rope", parameters, right)


def rope_tables() -> Iterator[Question]:
    for golden in cases("rope_table"):
        sin, cos = np.split(golden.arrays["table"], 2, axis=1)
        atol = golden.tolerance["table"]["atol"]
        parameters = {"head_dim": golden.params["dim"], "length": golden.params["n"]}
        # RoFormer fills its table in float64, which parity does not mean
        arithmetics = ARITHMETICS if golden.params["variant"] == "gptj" else ("exact",)
        yield Question(golden.name, "rope", parameters, {"cos": (cos, atol), "sin": (sin, atol)}, arithmetics)


def axes() -> Iterator[Question]:
    for golden in cases("mrope"):
        parameters: dict[str, Any] = {
            "theta": golden.params["rope_theta"],
            "head_dim": golden.params["head_dim"],
            "positions": listed(golden.arrays["position_ids_thw"]),
            "sections": golden.params["mrope_section"],
            "axes": MROPE[golden.params["variant"]],
            "table": "duplicated",
        }
        atol = golden.tolerance["cos/sin"]["atol"]
        yield Question(
            golden.name, "mrope", parameters, {name: (golden.arrays[name][0], atol) for name in ("cos", "sin")}
        )
    for golden in cases("axial_rope"):
        width, size = golden.arrays["cos"].shape[1], golden.params["head_dim"]
        parameters = {"kind": golden.params["variant"], "head_dim": size}
        parameters |= {"table": "single" if width < size else "duplicated"}
        if "position_ids_hw" in golden.arrays:
            parameters["positions"] = listed(golden.arrays["position_ids_hw"])
        else:
            parameters["grid"] = golden.params.get("grid_hw") or [golden.params["grid"]] * 2
        atol = golden.tolerance["cos/sin"]["atol"]
        yield Question(golden.name, "axial", parameters, {name: (golden.arrays[name], atol) for name in ("cos", "sin")})


def sinusoids() -> Iterator[Question]:
    for golden in cases("sinusoid"):
        named = [name for name in ("ctrl", "whisper") if name in golden.name]
        kind = named[0] if named else SINUSOIDS[f"{golden.params['layout']} {golden.params['denom']}"]
        parameters = {"kind": kind, "dim": golden.params["dim"], "length": golden.params["n"]}
        parameters |= {"zero_row": golden.params["zero_row"]} if "zero_row" in golden.params else {}
        right = {"table": (golden.arrays["table"], golden.tolerance["table"]["atol"])}
        yield Question(golden.name, "sinusoidal", parameters, right)
    for golden in cases("sinusoid2d"):
        height, width, cls = (golden.params[name] for name in ("height", "width", "cls"))
        parameters = {"dim": golden.params["dim"], "grid": f"{height}x{width}", "cls_rows": int(cls)}
        parameters |= {"order": golden.params["order"]}
        right = {"table": (golden.arrays["table"], golden.tolerance["table"]["atol"])}
        yield Question(golden.name, "sinusoidal-2d", parameters, right)


def biases() -> Iterator[Question]:
    for golden in cases("alibi"):
        bias, form = golden.arrays["bias"], golden.params["variant"]
        parameters = {"heads": golden.params["num_heads"], "form": form, "query_length": bias.shape[-1]}
        parameters |= {"max_bias": golden.params["alibi_bias_max"]} if "alibi_bias_max" in golden.params else {}
        if "attention_mask" in golden.arrays:
            parameters["attention_mask"] = listed(golden.arrays["attention_mask"])
        bias = bias if bias.ndim == 4 else bias[None]
        rtol = golden.tolerance["bias"]["rtol"]
        right = {"bias": (bias, rtol * np.abs(bias))}
        if "slopes" in golden.arrays:
            right["slopes"] = (golden.arrays["slopes"], rtol * golden.arrays["slopes"])
        # Falcon's published bias is bfloat16 through and through: only parity says the same
        yield Question(golden.name, "alibi", parameters, right, ARITHMETICS if form != "falcon" else ("parity",))
    for golden in cases("t5_bias"):
        names = ("query_length", "key_length", "bidirectional", "num_buckets", "max_distance")
        parameters = {name: golden.params[name] for name in names} | {"past": golden.params["past_seen_tokens"]}
        parameters["weights"] = listed(golden.weights["relative_attention_bias.weight"])
        yield Question(golden.name, "t5", parameters, {"bias": (golden.arrays["bias"], 0)})


def buckets() -> Iterator[Question]:
    """One query at 600 sees keys from 600 before to 600 after it; DeBERTa has no past, so it takes two rows."""
    for golden in cases("t5_bucket"):
        names = ("bidirectional", "num_buckets", "max_distance")
        parameters = {name: golden.params[name] for name in names} | {
            "query_length": 1,
            "past": 600,
            "key_length": 1201,
        }
        assert listed(golden.arrays["relative_position"]) == list(range(-600, 601))
        yield Question(golden.name, "t5", parameters, {"bucket": (golden.arrays["bucket"][None], 0)})
    for golden in cases("deberta_bucket"):
        sizes = {"position_buckets": golden.params["bucket_size"]}
        sizes |= {"max_relative_positions": golden.params["max_position"]}
        bucket, atol = golden.arrays["bucket"], golden.tolerance["bucket"]["atol"]
        assert listed(golden.arrays["relative_position"]) == list(range(-600, 601))
        before, after = bucket[600::-1][None], bucket[600:][:, None]
        yield Question(
            golden.name + "_keys", "deberta", sizes | {"query_length": 1, "key_length": 601}, {"bucket": (before, atol)}
        )
        yield Question(
            golden.name + "_queries",
            "deberta",
            sizes | {"query_length": 601, "key_length": 1},
            {"bucket": (after, atol)},
        )


def masks() -> Iterator[Question]:
    for golden in cases("mask"):
        parameters: dict[str, Any] = {
            "query_length": 8,
            "causal": not golden.params["variant"].startswith("bidirectional"),
        }
        parameters |= {"window": golden.params["sliding_window"]} if "sliding_window" in golden.params else {}
        parameters |= {"chunk": golden.params["chunk_size"]} if "chunk_size" in golden.params else {}
        if "attention_mask" in golden.arrays:
            parameters["attention_mask"] = listed(golden.arrays["attention_mask"])
        if "position_ids" in golden.params:
            parameters["position_ids"] = golden.params["position_ids"]
        yield Question(golden.name, "mask", parameters, {"mask": (golden.arrays["mask"], 0)})


SOURCES = (ropes, rope_tables, axes, sinusoids, biases, buckets, masks)
QUESTIONS = [question for source in SOURCES for question in source()]
ASKED = [(question, arithmetic) for question in QUESTIONS for arithmetic in question.arithmetics]


def in_a_query(value: Any) -> str:
    """A parameter as a query string has it: lists with commas, lists of lists with semicolons."""
    if isinstance(value, list):
        between = ";" if value and isinstance(value[0], list) else ","
        return between.join(map(in_a_query, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def check(question: Question, arithmetic: str, arrays: dict[str, Any], arithmetic_sent: str) -> None:
    assert arithmetic_sent == arithmetic
    for name, (right, allowed) in question.right.items():
        mine = np.array(arrays[name]).astype(right.dtype)  # JSON holds what float32 needs, not all of float64
        assert mine.shape == right.shape, name
        assert (np.abs(mine.astype(np.float64) - right) <= allowed).all(), name


def post(served: Served, question: Question, arithmetic: str, **more: Any) -> httpx.Response:
    body = question.parameters | {"arithmetic": arithmetic} | more
    return served.http.post(f"/positions/{question.scheme}", json=body).raise_for_status()


@pytest.mark.parametrize(("question", "arithmetic"), sampled(ASKED, 5, unpack=True), ids=repr)
def test_json_holds_the_golden_numbers(served: Served, question: Question, arithmetic: str) -> None:
    document = post(served, question, arithmetic).json()
    check(question, arithmetic, document, document["arithmetic"])
    assert document["formula"]


@pytest.mark.parametrize(("question", "arithmetic"), sampled(ASKED, 5, unpack=True), ids=repr)
def test_safetensors_hold_the_golden_numbers(served: Served, question: Question, arithmetic: str) -> None:
    answer = post(served, question, arithmetic, format="safetensors")
    check(question, arithmetic, load(answer.content), answer.headers["inlay-arithmetic"])


@pytest.mark.parametrize("question", [each for each in QUESTIONS if "weights" not in each.parameters], ids=repr)
def test_query_string_gives_the_golden_numbers(served: Served, question: Question) -> None:
    arithmetic = question.arithmetics[-1]
    query = {name: in_a_query(value) for name, value in question.parameters.items() if name != "config"}
    if "config" in question.parameters:
        query["config"] = httpx.Request("POST", "http://x", json=question.parameters["config"]).content.decode()
    query |= {"arithmetic": arithmetic, "format": "raw"}
    for name, (right, allowed) in question.right.items():
        path = f"/positions/{question.scheme}?{urlencode(query | {'output': name})}"
        answer = served.http.get(path).raise_for_status()
        shape = tuple(map(int, answer.headers["inlay-shape"].split(",")))
        mine = np.frombuffer(answer.content, answer.headers["inlay-dtype"]).reshape(shape)
        assert mine.shape == right.shape
        assert (np.abs(mine.astype(np.float64) - right) <= allowed).all()


@pytest.mark.parametrize("golden", cases("rope_reference"), ids=repr)
def test_float64_tables_match_sixty_digits(served: Served, golden: Case) -> None:
    parameters = {"theta": golden.params["rope_theta"], "head_dim": golden.params["head_dim"], "dtype": "float64"}
    parameters["positions"] = ",".join(map(str, golden.arrays["positions"]))
    answer = served.http.get("/positions/rope", params=parameters | {"format": "raw"}).raise_for_status()
    cos, sin = np.frombuffer(answer.content).reshape(2, *golden.arrays["cos_hi"].shape)
    for mine, name in ((cos, "cos"), (sin, "sin")):
        assert np.abs((mine - golden.arrays[f"{name}_hi"]) - golden.arrays[f"{name}_lo"]).max() < 1e-15


@pytest.mark.parametrize("golden", cases("rope_reference"), ids=repr)
def test_float32_tables_are_rounded_once_from_sixty_digits(served: Served, golden: Case) -> None:
    parameters = {"theta": golden.params["rope_theta"], "head_dim": golden.params["head_dim"]}
    parameters["positions"] = ",".join(map(str, golden.arrays["positions"]))
    answer = served.http.get("/positions/rope", params=parameters | {"format": "raw"}).raise_for_status()
    table = np.frombuffer(answer.content, np.float32).reshape(2, *golden.arrays["cos_hi"].shape)
    right = np.stack([golden.arrays["cos_hi"], golden.arrays["sin_hi"]])
    assert (np.abs(table - right) <= np.spacing(np.abs(right).astype(np.float32))).all()


def test_covers_every_golden_kind_of_positions() -> None:
    covered = {
        question.name.removesuffix("_short").removesuffix("_keys").removesuffix("_queries") for question in QUESTIONS
    }
    kinds = ("rope", "rope_table", "mrope", "axial_rope", "sinusoid", "sinusoid2d", "alibi", "t5_bias", "t5_bucket")
    assert {golden.name for kind in (*kinds, "deberta_bucket", "mask") for golden in cases(kind)} == covered
