"""The users' mix: its shares and lengths, and that every route takes what it makes of it."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import numpy as np
import orjson
import pytest

from loadtest import user_mix, user_requests
from loadtest.response_checks import expect_units
from loadtest.user_mix import CURVES, IDS, KINDS, TABLE, Drawn
from loadtest.user_requests import JSON, ROUTES
from tests.served import Served, serving

DRAWN = 40_000


@pytest.fixture(scope="module")
def drawn() -> list[Drawn]:
    rng = random.Random(5)
    return [user_mix.draw(rng) for _ in range(DRAWN)]


@pytest.fixture(scope="module")
def minilm(minilm_store: Path) -> Iterator[Served]:
    with serving(minilm_store) as running:
        yield running


def test_shares_add_up() -> None:
    assert sum(kind.share for kind in KINDS.values()) == pytest.approx(1)
    assert sum(route.share for route in ROUTES.values()) == pytest.approx(1)


@pytest.mark.parametrize("kind", KINDS)
def test_kind_comes_as_often_as_its_share(kind: str, drawn: list[Drawn]) -> None:
    share = KINDS[kind].share
    assert Counter(one.kind for one in drawn)[kind] == pytest.approx(share * DRAWN, abs=5 * (share * DRAWN) ** 0.5)


def test_texts_are_most_and_token_ids_few() -> None:
    assert KINDS[IDS].share <= 0.1
    assert sum(kind.share for name, kind in KINDS.items() if name not in (IDS, TABLE)) >= 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_are_within_the_bounds_of_their_kind(kind: str, drawn: list[Drawn]) -> None:
    own = [one for one in drawn if one.kind == kind]
    assert {len(one.tokens) for one in own} <= {*range(KINDS[kind].texts[0], KINDS[kind].texts[1] + 1)}
    tokens = [count for one in own for count in one.tokens]
    assert all(KINDS[kind].tokens[0] <= count <= KINDS[kind].tokens[1] for count in tokens)


def test_lengths_are_skewed(drawn: list[Drawn]) -> None:
    costs = [cost for one in drawn for cost in one.costs]
    assert np.median(costs) < 0.9 * fmean(costs)
    assert max(costs) == user_mix.MOST_TOKENS


def test_documents_reach_the_limit_of_the_model(drawn: list[Drawn]) -> None:
    assert {cost for one in drawn if one.kind == user_mix.DOCUMENT for cost in one.costs} == {user_mix.MOST_TOKENS}


def test_texts_have_the_tokens_that_were_drawn(minilm: Served) -> None:
    rng = random.Random(6)
    lengths = [5, 20, 60, 200]
    body = {"input": [user_mix.text(rng, count) for count in lengths], "model": "minilm"}
    usage = minilm.http.post("/v1/embeddings", json=body).json()["usage"]
    assert usage["prompt_tokens"] == sum(lengths) + user_mix.SPECIAL_TOKENS * len(lengths)


def test_same_seed_draws_the_same_requests() -> None:
    one, other = random.Random(9), random.Random(9)
    assert [user_mix.draw(one) for _ in range(50)] == [user_mix.draw(other) for _ in range(50)]


def kinds_by_route() -> list[tuple[str, str]]:
    kinds = [kind for kind in KINDS if kind != TABLE]
    return [(name, kind) for name, route in ROUTES.items() for kind in kinds if route.takes_ids or kind != IDS]


@pytest.mark.parametrize(("name", "kind"), kinds_by_route())
def test_route_answers_with_a_unit_vector_for_each_input(name: str, kind: str, minilm: Served) -> None:
    rng, route = random.Random(8), ROUTES[name]
    bounds = KINDS[kind]
    sent = user_requests.inputs(rng, Drawn(kind, (bounds.tokens[0],) * bounds.texts[1]))
    response = minilm.http.post(
        route.path.format(model="minilm"),
        content=orjson.dumps(route.document("minilm", sent)),
        headers={"content-type": JSON, "accept": route.accept},
    )
    assert response.status_code == 200, response.text
    expect_units(route.vectors(response.content, response.headers), len(sent))


@pytest.mark.parametrize("path", user_requests.TABLES)
def test_table_is_served(path: str, minilm: Served) -> None:
    assert minilm.http.get(path).status_code == 200


def test_ids_are_sent_over_routes_that_have_them() -> None:
    rng = random.Random(10)
    assert all(ROUTES[user_requests.draw_route(rng, IDS)].takes_ids for _ in range(500))
    assert {user_requests.draw_route(rng, user_mix.QUERY) for _ in range(500)} == set(ROUTES)


@pytest.mark.parametrize("curve", CURVES)
def test_curve_stays_within_the_users(curve: str) -> None:
    shares = [CURVES[curve](part / 1000) for part in range(1000)]
    assert min(shares) > 0
    assert max(shares) <= 1


def test_curves_are_what_they_are_called() -> None:
    ramp, spike, soak = (CURVES[name] for name in ("ramp", "spike", "soak"))
    assert [round(ramp(part / 10), 6) for part in range(10)] == [round(0.1 * step, 6) for step in range(1, 11)]
    assert spike(0.5) == 1
    assert spike(0.1) == spike(0.9) < 0.5
    assert len({soak(part / 100) for part in range(5, 100)}) == 1
