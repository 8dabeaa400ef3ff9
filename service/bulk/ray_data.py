"""Computes parts of a run on a Ray cluster by Ray Data: a pool of actors, each with its own model.

Every machine of the cluster needs Inlay, and the model, the input and the output under the same paths.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from select import select
from time import sleep
from typing import Any

import numpy as np

from service.bulk import job
from service.bulk.embedder import Embedder
from service.bulk.plan import BulkRun, Part
from service.settings import Settings


def run(
    plan: BulkRun,
    parts: Sequence[Part],
    output: Path,
    folder: Path,
    settings: Settings,
    address: str,
    actors: int,
    progress: Callable[[int], None],
) -> None:
    """Compute parts of a run, each by the next free actor.

    Args:
        settings: `threads` of each actor; 0: one.
        address: address of the cluster, as ray.init takes it; local: a cluster on this machine, for this run.
        actors: number of actors; 0: as many as the cluster has cores for.
    """
    import ray

    threads = settings.threads or 1
    rows = [{"part": part.number} for part in parts]
    driver = os.getpid() if address == "local" else None  # a cluster of several machines ends the actors itself
    arguments = (plan, output.resolve(), folder.resolve(), settings.model_copy(update={"threads": threads}), driver)
    with _cluster(address):
        count = actors or max(1, int(ray.cluster_resources().get("CPU", 1)) // threads)
        done = ray.data.from_items(rows, override_num_blocks=max(1, len(rows))).map_batches(
            Actor,
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=min(count, max(1, len(rows)))),
            num_cpus=threads,
            fn_constructor_args=arguments,
        )
        for row in done.iter_rows():
            progress(int(row["rows"]))


@contextmanager
def _cluster(address: str) -> Iterator[None]:
    """Connect to a cluster for the length of a block, without Ray's log lines and progress bars."""
    import ray

    variables = {"TOKENIZERS_PARALLELISM": "false"}  # an actor's tokenizer stays within its own cores
    ray.init(address=address, runtime_env={"env_vars": variables}, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


def end_with(driver: int) -> None:
    """End this process, whatever it is doing, once the process `driver` of this machine has ended.

    Ray ends the actors of a killed driver after some seconds, in which they would write parts without its lock.
    """
    try:
        handle = os.pidfd_open(driver) if hasattr(os, "pidfd_open") else None
    except ProcessLookupError:
        os._exit(1)

    def wait() -> None:
        if handle is not None:
            select([handle], [], [])
        while handle is None and _lives(driver):
            sleep(0.05)
        os._exit(1)

    threading.Thread(target=wait, name="driver", daemon=True).start()


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


class Actor:
    """Computes parts by their numbers.

    Args:
        driver: number of the process that it ends with; None: it does not.
    """

    def __init__(
        self, plan: BulkRun, output: Path, folder: Path, settings: Settings, driver: int | None = None
    ) -> None:
        if driver is not None:
            end_with(driver)
        self._computer = job.PartComputer(
            plan, output, Embedder(plan.options.embed, folder, settings, plan.options.skip_failed)
        )
        self._parts = plan.parts()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Compute a batch of parts; return the rows of each."""
        parts = [self._parts[int(number)] for number in batch["part"]]
        self._computer.run(parts, lambda rows: None)
        return {"rows": np.array([part.rows for part in parts], np.int64)}
