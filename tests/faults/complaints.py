"""What users of other embedding servers suffer from, and the tests here that would have caught it.

By number: batching and tail latency (1 to 11), memory (12 to 16), start-up (17 to 20), overload and health (25 to 28).
"""

from typing import NamedTuple


class Complaint(NamedTuple):
    """One row; tests are file::test or a make target."""

    number: int
    what: str
    tests: tuple[str, ...]


_BATCHER, _WAITING, _ADMISSION = (
    f"tests/service/scheduling/test_{name}.py::test_" for name in ("batcher", "fair_queue", "admission")
)
_MEMORY = "tests/service/process/test_memory.py::test_"
_CROWD = "tests/test_crowd.py::test_"
_RUNS, _CALLERS, _SIZES = (f"tests/faults/test_{name}.py::test_" for name in ("runs", "callers", "sizes"))
COMPLAINTS = (
    Complaint(1, "a text got 429 while a list of one waited; unclear what the limit counts (TEI#662)",
              ("tests/service/http/test_timeouts.py::test_full_queue_refuses_text_and_ids_alike",)),
    Complaint(2, "a queue overflow panics the router (TEI#470, #305)",
              (_RUNS + "more_work_than_can_be_done", _BATCHER + "full_queue_refuses_a_request_as_a_whole")),
    Complaint(3, "one caller got every result; a batch dropped the requested output (MLServer#1306, #514)",
              (_CROWD + "callers_of_the_encoder_share_runs",
               _BATCHER + "run_that_loses_a_result_fails_its_items_only")),
    Complaint(4, "the response loop dies for a lost future (MLServer#1652)",
              (_BATCHER + "cancelling_during_a_run_hurts_no_other_item", _CALLERS + "a_thousand_callers")),
    Complaint(5, "cancelled callers leave the batcher stuck (ray#50046)",
              (_CALLERS + "a_thousand_callers", _BATCHER + "cancelled_item_does_not_run")),
    Complaint(6, "an exception beside the run kills the batching task; later calls hang (ray#66140)",
              (_BATCHER + "failing_observer_does_not_stop_the_next_run",
               _BATCHER + "queue_is_empty_and_serves_after_faults")),
    Complaint(7, "batches of mixed models are split after they are filled (ray#59334)",
              (_BATCHER + "batch_takes_items_of_like_cost_within_its_budget",)),
    Complaint(8, "the batch limit ignores rows inside a request: OOM (BentoML#3859)",
              (_MEMORY + "batches_stay_within_the_token_budget",)),
    Complaint(9, "the latency goal is not kept (BentoML#1530)",
              (_WAITING + "refuses_a_request_that_others_would_delay_too_long",
               "make overload")),
    Complaint(10, "operators cannot see why a batch was released (BentoML#5637)",
              ("tests/service/observability/test_metrics.py::test_runs_items_and_requests_are_counted_by_label",)),
    Complaint(11, "a single request is slower without batching (MLServer#1826)",
              (_BATCHER + "only_large_batches_run_in_a_thread", "make bench")),
    Complaint(12, "memory grows from 6 to 42 GB over 400 000 calls (TEI#156)",
              ("make soak", _MEMORY + "memory_is_given_back_when_idle_after_growth")),
    Complaint(13, "a tokenizer for every core (TEI#280)", ("make footprint",)),
    Complaint(14, "twice the memory while a model loads (TEI#303)", ("make footprint",)),
    Complaint(15, "memory never returns after a long batch (fastembed#222)",
              (_MEMORY + "memory_of_longest_inputs_is_given_back", _SIZES + "a_request_made_to_fill_memory")),
    Complaint(16, "the arena grows with each new shape (onnxruntime_backend#102)",
              ("make soak", _MEMORY + "memory_of_longest_inputs_is_given_back")),
    Complaint(17, "a warm-up of 16 384 tokens looks hung or is killed (TEI#758)",
              ("tests/test_golden_served.py::test_every_family_warms_up",)),
    Complaint(18, "the first request takes seconds (TEI#580)", ("make footprint",)),
    Complaint(19, "a warm-up longer than the model reads crashes the server (infinity#577)",
              ("tests/test_golden_served.py::test_every_family_warms_up",)),
    Complaint(20, "sessions made by the first request (themoltnet#621)",
              ("tests/service/cli/test_startup.py::test_broken_graph_is_one_line_and_exit_code_1",)),
    Complaint(25, "a worker's exception kills its thread, then 429 for ever and /health at 200 (infinity#668)",
              (_RUNS + "a_row_that_the_engine_fails_on", _RUNS + "a_run_that_does_not_end",
               _RUNS + "a_graph_that_breaks_while_it_serves")),
    Complaint(26, "liveness on the busy path gets healthy pods killed (weaviate-helm#63)",
              (_RUNS + "more_work_than_can_be_done",)),
    Complaint(27, "503 storms: what is predicted late is cancelled (BentoML#3200)",
              (_WAITING + "refuses_no_delay_before_a_full_batch_was_timed",
               _RUNS + "more_work_than_can_be_done")),
    Complaint(28, "a client that times out and retries leaves dead work in the queue (omlx#785)",
              (_CALLERS + "a_thousand_callers",
               "tests/service/http/test_timeouts.py::test_queued_work_is_dropped_at_its_deadline")),
)  # fmt: skip


def table() -> list[str]:
    """The complaints as Markdown."""
    rows = [
        f"| {each.number} | {each.what} | {'<br>'.join(f'`{test}`' for test in each.tests)} |" for each in COMPLAINTS
    ]
    return ["## What users of other servers suffer from", "", "| | complaint | caught by |", "|--:|---|---|", *rows]
