"""An asyncio event loop whose clock jumps to the next timer, so that hours pass in milliseconds and every run is alike.

Only public parts of asyncio are used: a loop takes its own selector, and its `time` may be overridden.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any


class Clock:
    """Seconds that pass when nothing is left to do."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class VirtualSelector(selectors.DefaultSelector):  # type: ignore[misc,valid-type]  # the class depends on the system
    """Moves the clock where another selector would wait.

    Args:
        idle: called before time passes, when every callback that was ready has run.
    """

    def __init__(self, clock: Clock, idle: Callable[[], None]) -> None:
        super().__init__()
        self._clock, self._idle = clock, idle

    def select(self, timeout: float | None = None) -> list[Any]:
        ready: list[Any] = super().select(0)
        if ready or timeout == 0:
            return ready
        self._idle()
        if timeout is None:
            raise AssertionError("nothing is scheduled, and somebody still waits")
        self._clock.now += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on a clock."""

    def __init__(self, clock: Clock, idle: Callable[[], None] = lambda: None) -> None:
        self._virtual = clock
        super().__init__(VirtualSelector(clock, idle))

    def time(self) -> float:
        return self._virtual.now


def run(
    main: Coroutine[Any, Any, None],
    clock: Clock,
    idle: Callable[[], None],
    failed: Callable[[dict[str, Any]], None],
) -> None:
    """Run a coroutine to its end on a virtual clock; `failed` gets what the loop's exception handler would log."""
    loop = VirtualLoop(clock, idle)
    loop.set_exception_handler(lambda _, context: failed(context))
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main)
