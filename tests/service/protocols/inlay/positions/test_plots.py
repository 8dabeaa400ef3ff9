"""Pictures over HTTP: valid files of what was requested, and cached."""

import struct
import xml.etree.ElementTree as ElementTree
from typing import Any

import httpx
import pytest

from models.errors import NoWritableFolder
from service.heavy import lane
from service.protocols.inlay.positions import plots
from tests.served import Served

SIZES: dict[str, dict[str, Any]] = {
    "rope": {"head_dim": 64},
    "mrope": {"head_dim": 16, "positions": "0,1,2;0,0,1;0,1,0", "sections": "4,2,2"},
    "axial": {"kind": "pixtral", "head_dim": 16, "grid": "4x6"},
    "sinusoidal": {"dim": 32},
    "sinusoidal-2d": {"dim": 32, "grid": "4x6"},
    "alibi": {"heads": 4},
    "t5": {},
    "deberta": {"max_relative_positions": 64, "position_buckets": 16},
    "mask": {"window": 8},
}


def draw(served: Served, scheme: str, form: str = "png", **query: Any) -> httpx.Response:
    return served.http.get(f"/positions/{scheme}.{form}", params=SIZES[scheme] | query)


def size_of(png: bytes) -> tuple[int, ...]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", png[16:24])


@pytest.mark.parametrize("scheme", SIZES)
def test_draws_every_plot_of_every_scheme(served: Served, scheme: str) -> None:
    schemes = served.http.get("/positions").json()["schemes"]
    (plots,) = [each["plots"] for each in schemes if each["name"] == scheme]
    assert plots
    for plot in plots:
        weights = {"weights": "[[1,2]" + ",[1,2]" * 31 + "]"} if (scheme, plot) == ("t5", "bias") else {}
        if (scheme, plot) == ("deberta", "bias"):
            continue  # the learned table of DeBERTa makes vectors, no bias
        answer = draw(served, scheme, plot=plot, **weights).raise_for_status()
        assert answer.headers["content-type"] == "image/png"
        assert size_of(answer.content)[0] == 800, plot


def test_svg_is_xml(served: Served) -> None:
    answer = draw(served, "rope", "svg", plot="spectrum").raise_for_status()
    assert answer.headers["content-type"] == "image/svg+xml"
    root = ElementTree.fromstring(answer.content)
    assert root.tag.endswith("svg")


def test_width_and_height_are_pixels(served: Served) -> None:
    assert size_of(draw(served, "alibi", width=1000, height=700).content) == (1000, 700)


def test_picture_has_an_etag_and_is_cached(served: Served) -> None:
    first = draw(served, "alibi", heads=7)
    again = draw(served, "alibi", heads=7)
    assert first.content == again.content
    assert first.headers["cache-control"] == "public, max-age=31536000, immutable"
    held = served.http.get(
        "/positions/alibi.png", params=SIZES["alibi"] | {"heads": 7}, headers={"if-none-match": first.headers["etag"]}
    )
    assert (held.status_code, held.content) == (304, b"")
    others = [
        draw(served, "alibi", heads=7, dark=True),
        draw(served, "alibi", heads=8),
        draw(served, "alibi", "svg", heads=7),
    ]
    assert len({first.headers["etag"], *(other.headers["etag"] for other in others)}) == 4


COMPARED: list[tuple[list[str], list[str]]] = [
    (["llama-2-7b"], ["llama-2-7b"]),
    (["llama-2-7b,gpt-oss-20b"], ["llama-2-7b", "gpt-oss-20b"]),
    (["llama-2-7b", "gpt-oss-20b"], ["llama-2-7b", "gpt-oss-20b"]),
    (["theta=500000"], ["500,000"]),
    (["rope_type=linear&factor=4"], ["linear"]),
    (["scheme=sinusoidal&dim=64"], ["vaswani"]),
]


@pytest.mark.parametrize(("compare", "shown"), COMPARED)
def test_compare_shows_presets_parameters_and_other_schemes(
    served: Served, compare: list[str], shown: list[str]
) -> None:
    answer = draw(served, "rope", "svg", plot="spectrum", compare=compare).raise_for_status()
    assert len(answer.content) > len(draw(served, "rope", "svg", plot="spectrum").content)
    for name in shown:
        assert name in answer.text


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("rope", {"plot": "pie"}, 'plot is "pie"; allowed'),
    ("rope", {"plot": "slopes"}, "slopes"),
    ("rope", {"width": 1}, 'width is "1"; allowed: an integer from'),
    ("rope", {"compare": "llama-9"}, "there is no preset 'llama-9'"),
    ("rope", {"compare": "yarn"}, "yarn is a rope_type, which comes with its parameters"),
    ("rope", {"compare": "rope_type=yarn", "factor": ["4", "8"]}, "within compare, write & as %26"),
    ("rope", {"compare": "thetta=3"}, "thetta is not known here"),
    ("rope", {"compare": "scheme=pie&x=1"}, "compare names the scheme 'pie'"),
    ("rope", {"compare": "scheme=alibi&heads=2"}, "alibi"),
    ("rope", {"compare": ["theta=2"] * 32}, "up to"),
    ("alibi", {"compare": "llama-2-7b"}, "preset is not known here"),
    ("rope", {"format": "png"}, "format is not known here"),
]


@pytest.mark.parametrize(("scheme", "query", "said"), REFUSED)
def test_rejects_impossible_pictures(served: Served, scheme: str, query: dict[str, Any], said: str) -> None:
    answer = draw(served, scheme, **query)
    assert answer.status_code == 422, answer.text[:200]
    assert said in answer.json()["detail"]


def test_compares_a_bounded_number_of_tables(served: Served) -> None:
    answer = draw(served, "rope", "json", compare=["theta=2", ",".join(["llama-2-7b"] * 32)])
    assert answer.status_code == 422
    assert "33 tables to compare; this server takes 32" in answer.json()["detail"]


def test_server_that_cannot_write_its_fonts_says_so(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> bytes:
        raise NoWritableFolder("pictures need a folder")

    monkeypatch.setattr(plots, "draw", fails)
    with lane.serving(lane.HeavyLane(0, 1, 1)):  # here, where the function is replaced
        answer = draw(served, "alibi", width=777)
    assert (answer.status_code, answer.json()["detail"]) == (501, "pictures need a folder")
