"""Every family of metrics, one row each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
LOAD_SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
RUN_SECONDS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # ten models' metrics have 60 KB
QUEUE_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 1.0, 3.0, 10.0)  # 0.5: alert InlayQueueWaits
STAGES = ("tokenize", "queue", "run", "encode")


@dataclass(frozen=True, slots=True)
class Family:
    """All metrics of one name.

    Attributes:
        name: without the suffixes `_total`, `_bucket`, `_count` and `_sum`.
        help: the text after `# HELP`.
        labels: names of the labels.
        bounds: upper bounds of a histogram's buckets, without +Inf; a summary has none.
        merged: how the gauges of several workers become one; `each`: one sample a worker, with the label `worker`.
    """

    name: str
    kind: Literal["histogram", "summary", "counter", "gauge"]
    help: str
    labels: tuple[str, ...] = ()
    bounds: Sequence[float] = ()
    merged: Literal["sum", "max", "min", "each"] = "sum"


_GRAPH = ("model", "graph")
_KEY = ("key", "model")
FAMILIES = (
    Family("inlay_requests", "counter", "Requests answered.", ("method", "protocol", "status")),
    Family("inlay_request_seconds", "histogram", "Time to a successful answer.", ("method", "protocol"), SECONDS),
    Family("inlay_requests_in_flight", "gauge", "Requests being served now."),
    Family("inlay_reserved_bytes", "gauge", "Memory of vectors and texts being computed and sent now."),
    Family("inlay_refusals", "counter", "Requests that ended with an error, by its code.", ("reason",)),
    Family("inlay_key_requests", "counter", "Requests of an API key, by the model that they reached.", _KEY),
    Family("inlay_key_seconds", "counter", "Time of these requests together.", _KEY),
    Family("inlay_key_tokens", "counter", "Tokens that a model read for an API key.", _KEY),
    Family("inlay_key_refusals", "counter", "Requests of an API key that ended with an error.", _KEY),
    Family("inlay_ignored_fields", "counter", "Fields of bodies of other protocols that were not used."),
    Family("inlay_truncated_inputs", "counter", "Inputs cut because they were too long.", ("model",)),
    Family("inlay_vector_cache_hits", "counter", "Inputs whose vector was in the vector cache.", ("model",)),
    Family("inlay_vector_cache_misses", "counter", "Inputs that the vector cache did not have.", ("model",)),
    Family("inlay_vector_cache_bytes", "gauge", "Memory of the vectors in the vector cache."),
    Family("inlay_stage_seconds", "summary", "Time of a request in a stage.", ("model", "stage")),
    Family("inlay_engine_run_seconds", "histogram", "Time of one run.", _GRAPH, RUN_SECONDS),
    Family("inlay_run_failures", "counter", "Items whose run failed.", _GRAPH),
    Family("inlay_stuck_runs", "counter", "Runs given up because they took too long.", _GRAPH),
    Family("inlay_batch_items", "summary", "Items run together.", _GRAPH),
    Family("inlay_batch_tokens", "summary", "Tokens run together.", _GRAPH),
    Family("inlay_queue_seconds", "histogram", "Waiting time of the oldest item of a run.", _GRAPH, QUEUE_SECONDS),
    Family("inlay_queue_tokens", "gauge", "Tokens waiting now.", _GRAPH),
    Family("inlay_queue_items", "gauge", "Items waiting now.", _GRAPH),
    Family("inlay_heavy_tasks", "counter", "Tasks that the heavy processes have done."),
    Family("inlay_heavy_seconds", "counter", "Time of these tasks together."),
    Family("inlay_heavy_ended", "counter", "Heavy processes that a limit ended, or that died."),
    Family("inlay_heavy_waiting", "gauge", "Tasks that wait for a heavy process now."),
    Family("inlay_model_bytes", "gauge", "Bytes of weights of a loaded model.", ("model",), merged="max"),
    Family("inlay_model_workers", "gauge", "Workers that have a model loaded.", ("model",)),
    Family("inlay_model_waiting", "gauge", "Requests that wait for a model to be loaded."),
    Family("inlay_model_load_seconds", "histogram", "Time of a load on demand.", ("model",), LOAD_SECONDS),
    Family("inlay_model_evictions", "counter", "Models unloaded for others, or after keep_alive.", ("reason",)),
    Family(
        "inlay_default_model_missing", "gauge", "1 while the default model that is named is not loaded.", merged="max"
    ),
    Family("inlay_workers", "gauge", "Worker processes that are alive."),
    Family("inlay_workers_ready", "gauge", "Worker processes that accept requests and whose models answer."),
    Family("inlay_worker_restarts", "counter", "Workers started in the place of one that ended."),
    Family("inlay_worker_private_bytes", "gauge", "Memory of a worker that no other shares.", merged="each"),
    Family("inlay_worker_cpu_seconds", "counter", "Processor time of a worker.", merged="each"),
    Family("inlay_worker_open_files", "gauge", "Files and connections that a worker holds open.", merged="each"),
    Family("process_start_time_seconds", "gauge", "Start of the oldest worker since the epoch.", merged="min"),
    Family("inlay_build_info", "gauge", "1, labelled with the versions running.", ("python", "version"), merged="max"),
)
BY_NAME = {family.name: family for family in FAMILIES}
