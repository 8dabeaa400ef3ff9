"""How many replicas Ray Serve runs: by requests in progress and by tokens that wait."""

from typing import Any


def replicas_wanted(context: Any) -> tuple[float, dict[str, Any]]:
    """Return the replicas that the requests in progress need, or the waiting tokens where those need more.

    Serve applies its limits and delays to the number, and calls this in the controller, every 0.1 s or so.

    Args:
        context: ray.serve.config.AutoscalingContext; `tokens` is what `Replica.record_autoscaling_stats` returns.
    """
    settings = context.config
    requests = context.total_num_requests / settings.get_target_ongoing_requests()
    tokens = sum((context.aggregated_metrics or {}).get("tokens", {}).values()) / TARGET_TOKENS
    return max(requests, tokens), {}


TARGET_TOKENS = 4096
"""Tokens that may wait in each replica, in the mean, before there are more replicas: 8 batches on CPU."""
