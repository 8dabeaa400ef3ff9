"""Sweeps: long lists of like cases, of which `make test` runs an even part and `make test-all` every one."""

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

THINNED = {  # modules and folders of which `make test` runs the first test and each so many-th, some of them by both
    "tests/deploy": 2,
    "tests/docs/test_blocks.py": 2,
    "tests/fuzz/test_decoders.py": 3,
    "tests/loadtest": 4,
    "tests/models/artifacts": 3,
    "tests/models/artifacts/test_int8_decoders.py": 3,
    "tests/models/artifacts/test_int8_encoder.py": 2,
    "tests/models/artifacts/test_rerankers.py": 2,
    "tests/models/artifacts/test_task_heads.py": 3,
    "tests/models/checkpoints": 3,
    "tests/models/checkpoints/test_hub.py": 2,
    "tests/models/families": 3,
    "tests/models/graphs": 2,
    "tests/models/graphs/test_attention.py": 2,
    "tests/models/graphs/test_block_vocabulary.py": 3,
    "tests/models/graphs/test_recipes.py": 3,
    "tests/models/graphs/test_rectangle.py": 5,
    "tests/models/plots": 3,
    "tests/models/positions": 3,
    "tests/models/tables": 2,
    "tests/service/cli": 2,
    "tests/service/cli/test_bulk.py": 2,
    "tests/service/cli/test_model_commands.py": 2,
    "tests/service/cli/test_startup.py": 3,
    "tests/service/embedding": 3,
    "tests/service/embedding/test_pair_templates.py": 2,
    "tests/service/embedding/test_task_heads.py": 2,
    "tests/service/grpc/test_call_limits.py": 2,
    "tests/service/http": 2,
    "tests/service/http/test_admitted_requests.py": 2,
    "tests/service/http/test_batched_embed.py": 3,
    "tests/service/http/test_batches.py": 2,
    "tests/service/http/test_compression.py": 2,
    "tests/service/http/test_connection_ends.py": 2,
    "tests/service/http/test_framing_cases.py": 2,
    "tests/service/http/test_server.py": 3,
    "tests/service/http/test_timeouts.py": 3,
    "tests/service/observability": 2,
    "tests/service/observability/test_observed_routes.py": 3,
    "tests/service/process": 3,
    "tests/service/protocols": 3,
    "tests/service/protocols/inlay/positions/test_plots.py": 3,
    "tests/service/protocols/test_openapi_examples.py": 3,
    "tests/service/registry": 2,
    "tests/service/registry/test_reexport.py": 2,
    "tests/service/registry/test_registry.py": 2,
    "tests/service/registry/test_store_watcher.py": 2,
    "tests/service/scheduling": 2,
    "tests/service/security/test_tls.py": 2,
    "tests/test_crowd.py": 2,
    "tests/test_dual_encoders.py": 2,
    "tests/test_golden_images.py": 2,
    "tests/test_golden_logits.py": 2,
    "tests/test_golden_served.py": 2,
    "tests/test_int8_minilm.py": 2,
    "tests/test_minilm.py": 2,
    "tests/test_tasks.py": 3,
}


def sampled(cases: Iterable[Any], every: int, *, unpack: bool = False) -> list[Any]:
    """Return cases for pytest.mark.parametrize, of which `make test` runs the first and each `every`th after it.

    Args:
        every: without a divisor in common with an inner list of a product, or some of its values never come.
        unpack: each case is a tuple with a value for each argument.
    """
    return [
        pytest.param(*(case if unpack else (case,)), marks=[pytest.mark.sweep] if number % every else [])
        for number, case in enumerate(cases)
    ]


def thin(items: Iterable[pytest.Item], root: Path) -> None:
    """Mark as sweeps the tests of THINNED modules that `make test` leaves to `make test-all`."""
    by_path: dict[Path, list[pytest.Item]] = {}
    for item in items:
        by_path.setdefault(item.path, []).append(item)
    for name, every in THINNED.items():
        inside = chain.from_iterable(those for path, those in by_path.items() if path.is_relative_to(root / name))
        for number, item in enumerate(inside):
            if number % every:
                item.add_marker(pytest.mark.sweep)
