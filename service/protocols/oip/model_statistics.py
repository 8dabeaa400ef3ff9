"""What this process answered over the Open Inference Protocol, by model, as Triton's statistics extension tells it.

Counts on the event loop's thread alone. Triton's inference_count is sequences, its execution_count here requests.
"""

from dataclasses import dataclass, field
from time import time
from typing import Any

from service.embedding.requests import StageTimes


@dataclass(slots=True)
class Duration:
    """How many, and how long altogether."""

    count: int = 0
    ns: int = 0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.count += 1
        self.ns += int(seconds * 1e9)


@dataclass(slots=True)
class Counts:
    """One model's."""

    items: int = 0
    last_ms: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)


class Statistics:
    """Counts of each model since the process began."""

    def __init__(self) -> None:
        self._models: dict[str, Counts] = {}

    def succeeded(self, model: str, items: int, seconds: float, times: StageTimes) -> None:
        """A request of so many sequences was answered."""
        counts = self._of(model)
        counts.items += items
        counts.last_ms = int(time() * 1000)
        counts.success.add(seconds)
        counts.queue.add(times.queue)
        counts.compute_input.add(times.tokenization)
        counts.compute_infer.add(times.inference)

    def failed(self, model: str, seconds: float) -> None:
        """A request was refused or met a fault."""
        self._of(model).fail.add(seconds)

    def document(self, model: str, version: str) -> dict[str, Any]:
        """One entry of Triton's `model_stats`; batches are shared by all protocols, so none are counted here."""
        counts = self._of(model)
        nothing = Duration()
        stages = {
            "success": counts.success,
            "fail": counts.fail,
            "queue": counts.queue,
            "compute_input": counts.compute_input,
            "compute_infer": counts.compute_infer,
            "compute_output": nothing,
            "cache_hit": nothing,
            "cache_miss": nothing,
        }
        return {
            "name": model,
            "version": version,
            "last_inference": counts.last_ms,
            "inference_count": counts.items,
            "execution_count": counts.success.count,
            "inference_stats": {name: {"count": each.count, "ns": each.ns} for name, each in stages.items()},
            "batch_stats": [],
            "memory_usage": [],
        }

    def _of(self, model: str) -> Counts:
        return self._models.setdefault(model, Counts())
