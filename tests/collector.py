"""A garbage collection that tests can rely on."""

import gc
import time


def collect() -> None:
    """Free what nothing holds: two full collections from now on, by whatever thread.

    gc.collect() does nothing while another thread collects, such as that of a server left by another test. What
    finalizers of one collection revive is freed by the next.
    """
    begun = full = 0

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal begun, full
        if info["generation"] == 2 and phase == "start":
            begun += 1
        elif info["generation"] == 2 and begun:  # else it began before
            full += 1

    gc.callbacks.append(note)
    try:
        last = time.monotonic() + 10
        while full < 2 and time.monotonic() < last:
            gc.collect()
            time.sleep(0)  # lets a thread that collects end that
    finally:
        gc.callbacks.remove(note)
    assert full >= 2, "no full collection ended within ten seconds"
