"""How many replicas Ray Serve is asked for."""

from types import SimpleNamespace

import pytest

from deploy.ray.scaling import TARGET_TOKENS, replicas_wanted


@pytest.mark.parametrize(
    ("requests", "tokens", "wanted"),
    [
        (0, {}, 0),
        (16, {}, 2),
        (16, {"a": 0, "b": 0}, 2),
        (2, {"a": 3 * TARGET_TOKENS, "b": TARGET_TOKENS}, 4),
        (40, {"a": TARGET_TOKENS}, 5),
    ],
)
def test_requests_or_tokens_decide(requests: float, tokens: dict[str, float], wanted: float) -> None:
    context = SimpleNamespace(
        config=SimpleNamespace(get_target_ongoing_requests=lambda: 8),
        total_num_requests=requests,
        aggregated_metrics={"tokens": tokens} if tokens else None,
    )
    assert replicas_wanted(context) == (wanted, {})
