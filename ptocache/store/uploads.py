"""Sends to the shared tier what was compiled, in the background, and for a bounded time at the end of a process."""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

from ptocache.forks import watch_forks
from ptocache.log import get_logger
from ptocache.text import plural

#: So much may wait to be sent; what comes then is not sent.
_MOST_BYTES = 256 << 20
_MOST_ITEMS = 1024


class Uploads:
    """A queue of things to send, and the thread that sends them.

    Args:
        flush_seconds: how long the end of a process waits for what is still to be sent; all queues together.
    """

    _is_running: bool
    _is_sending: bool
    _will_flush: bool
    _gave_up: bool

    def __init__(self, flush_seconds: float) -> None:
        self._flush_seconds = flush_seconds
        self._begin()
        watch_forks(self)

    def add(self, send: Callable[[], object], size: int) -> bool:
        """Have something sent.

        Args:
            send: sends it, and sees to its own errors.
            size: how many bytes it keeps in memory.

        Returns:
            Whether there was room for it.
        """
        with self._changed:
            if len(self._waiting) >= _MOST_ITEMS or self._bytes + size > _MOST_BYTES:
                return False
            self._gave_up = False
            self._waiting.append((send, size))
            self._bytes += size
            if not self._is_running:
                try:
                    threading.Thread(target=self._run, name="ptocache-uploads", daemon=True).start()
                except RuntimeError:  # no more threads, or Python is ending
                    self._waiting.pop()
                    self._bytes -= size
                    return False
                self._is_running = True
            if not self._will_flush:
                self._flush_at_exit()
            return True

    def flush(self, seconds: float | None = None) -> bool:
        """Wait until all is sent; whether it was.

        Args:
            seconds: how long to wait at most.
        """
        deadline = time.monotonic() + (self._flush_seconds if seconds is None else seconds)
        with self._changed:
            while self._waiting or self._is_sending:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def finish(self, deadline: float | None = None) -> None:
        """Wait until all is sent, and give up what is not sent by then.

        Args:
            deadline: until when to wait, as `time.monotonic` counts; by default as long as the end of a process does.
        """
        if self._gave_up:  # or it would be waited for again
            return
        now = time.monotonic()
        try:
            is_sent = self.flush(max(deadline - now, 0) if deadline is not None else None)
        except BaseException:
            self._give_up()
            raise
        if is_sent:
            return
        left = self._give_up()
        get_logger(__name__).warning(
            "%s not sent to the shared cache within %.0f s, and in the local one only",
            plural(left, "object"),
            self._flush_seconds,
        )

    def _give_up(self) -> int:
        """Send no more; how many objects were to be sent."""
        self._gave_up = True
        with self._changed:
            left = len(self._waiting) + self._is_sending
            self._waiting.clear()
            self._bytes = 0
        return left

    def after_fork(self) -> None:
        """In a forked child: what the parent has to send is the parent's to send."""
        self._begin()

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Callable[[], object], int]] = deque()
        self._bytes = 0
        self._is_running = self._is_sending = self._will_flush = self._gave_up = False

    def _run(self) -> None:
        """Send what waits, until nothing does."""
        while True:
            with self._changed:
                self._is_sending = False
                self._changed.notify_all()
                if not self._waiting:
                    self._is_running = False
                    return
                send, size = self._waiting.popleft()
                self._bytes -= size
                self._is_sending = True
            try:
                send()
            except Exception as error:  # noqa: BLE001 - or nothing would be sent any more; its words may have secrets
                get_logger(__name__).warning("not sent to the shared cache: %s", type(error).__name__)
            del send

    def _flush_at_exit(self) -> None:
        self._will_flush = True
        weak = weakref.WeakMethod(self._end)

        def end() -> None:
            if method := weak():
                method()

        atexit.register(end)
        # A child process of multiprocessing ends without atexit; it has this instead.
        if "multiprocessing.util" in sys.modules:
            sys.modules["multiprocessing.util"].Finalize(None, end, exitpriority=0)

    def _end(self) -> None:
        global _exit_deadline  # noqa: PLW0603 - the process ends once, whatever queues there are
        if _exit_deadline is None:
            _exit_deadline = time.monotonic() + self._flush_seconds
        with contextlib.suppress(KeyboardInterrupt):  # whoever is in a hurry; nobody could catch it here
            self.finish(_exit_deadline)


#: When the end of this process waits no longer; `None` before it ends.
_exit_deadline: float | None = None
