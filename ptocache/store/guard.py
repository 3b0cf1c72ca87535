"""Keeps an engine from costing more time than is allowed, whatever it does.

Each call runs in a thread of its own and is waited for until its deadline. After two failures in a row, whoever asks
is answered with a miss at once, and the engine is tried again in the background, first after half a minute, then less
and less often, until it answers. So an engine that swallows everything costs a process two timeouts, not two a kernel.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from ptocache.errors import PtocacheError
from ptocache.forks import watch_forks
from ptocache.log import get_logger
from ptocache.store.engines import describe

T = TypeVar("T")

#: After so many failures in a row the engine is left alone.
FAILURES = 2

#: For so long at first, in seconds, and at most.
PAUSE_SECONDS = 30.0
_LONGEST_PAUSE = 600.0

#: So many calls may have been given up and not come back before no more are begun.
_HANGING = 8


class EngineError(PtocacheError):
    """An engine did not do what it was asked for."""


class NoAnswerError(EngineError):
    """The engine took too long."""


class LeftAloneError(EngineError):
    """The engine has failed before, and is not asked."""


class _Call:
    """A call in a thread of its own."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._then: Callable[[], None] | None = None
        self.done = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Do it."""
        try:
            self.value = self._function()
        except BaseException as error:  # noqa: BLE001 - an engine may fail in any way: in Rust by a panic, which is none
            self.error = error
        with self._lock:
            self.done.set()
            then = self._then
        if then is not None:
            then()

    def when_done(self, then: Callable[[], None]) -> None:
        """Have something called once it has come back."""
        with self._lock:
            if not self.done.is_set():
                self._then = then
                return
        then()


class Guard:
    """Calls an engine, or does not.

    Args:
        label: the engine's name, for messages.
        probe: asks it something in the background, to see whether it answers again.
        pause: how long it is left alone at first, in seconds.
    """

    _is_trying: bool

    def __init__(self, label: str, probe: Callable[[], object], pause: float = PAUSE_SECONDS) -> None:
        self._label = label
        self._probe = probe
        self._shortest_pause = pause
        self._begin()
        watch_forks(self)

    def call(self, function: Callable[[], T], seconds: float) -> T:
        """Call a function that asks the engine, and wait for it.

        Args:
            function: what to call, in another thread.
            seconds: how long to wait.

        Returns:
            What it returns.

        Raises:
            LeftAloneError: it is not called, as calls have failed.
            EngineError: it took too long, or raised something.
        """
        if not self.is_open():
            raise LeftAloneError(f"{self._label} is left alone, as it has failed")
        try:
            value = self._wait_for(function, seconds)
        except EngineError as error:
            self._failed(error)
            raise
        self._succeeded()
        return value

    def is_open(self) -> bool:
        """Whether the engine is asked; where it is time for that, it is tried in the background."""
        with self._lock:
            if self._failures < FAILURES:
                return True
            if time.monotonic() < self._try_at or self._is_trying:
                return False
            self._is_trying = True
        try:
            threading.Thread(target=self._try, name="ptocache-probe", daemon=True).start()
        except RuntimeError:  # no more threads, or Python is ending
            with self._lock:
                self._is_trying = False
        return False

    def is_well(self) -> bool:
        """Whether the last call went well; where calls have failed, others wait until one does."""
        return self.is_open() and not self._failures

    def after_fork(self) -> None:
        """In a forked child, which has none of the threads: begin anew."""
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._failures = 0
        self._pause = self._shortest_pause
        self._try_at = 0.0
        self._is_trying = False
        self._hanging = 0

    def _wait_for(self, function: Callable[[], T], seconds: float) -> T:
        if self._hanging >= _HANGING:
            raise EngineError(f"{self._hanging} earlier calls have not come back")
        call = _Call(function)
        try:
            threading.Thread(target=call.run, name="ptocache-engine", daemon=True).start()
        except RuntimeError as error:  # no more threads, or Python is ending
            if not threading.current_thread().daemon:
                raise EngineError(str(error)) from error
            call.run()  # for an upload: nobody waits for those longer than for this
        if not call.done.wait(seconds):
            with self._lock:
                self._hanging += 1
            call.when_done(self._came_back)
            raise NoAnswerError(f"no answer within {seconds:.1f} s")
        if call.error is not None:
            raise EngineError(describe(call.error)) from None  # its own words, in a traceback, have secrets
        found: T = call.value
        return found

    def _came_back(self) -> None:
        with self._lock:
            self._hanging -= 1

    def _failed(self, error: EngineError) -> None:
        with self._lock:
            self._failures += 1
            if self._failures != FAILURES:
                return
            self._try_at = time.monotonic() + self._pause
            pause = self._pause
        get_logger(__name__).info("%s is left alone for %.0f s: %s", self._label, pause, error)

    def _succeeded(self) -> None:
        with self._lock:
            self._failures = 0
            self._pause = self._shortest_pause

    def _try(self) -> None:
        try:
            self._wait_for(self._probe, self._shortest_pause)
        except EngineError:
            with self._lock:
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
                self._try_at = time.monotonic() + self._pause
                self._is_trying = False
            return
        with self._lock:
            self._is_trying = False
        self._succeeded()
        get_logger(__name__).info("%s answers again", self._label)
