"""What one process asked for, logged when it ends."""

from __future__ import annotations

import atexit
import threading
from typing import TYPE_CHECKING

from ptocache.forks import watch_forks

if TYPE_CHECKING:
    from ptocache.frontend import CompileResult


class Summary:
    """Counts the results of this process, and logs the sums at its end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._compiling = self._saved = 0.0
        watch_forks(self)
        atexit.register(self._log)

    def add(self, result: CompileResult) -> None:
        """Count a result."""
        with self._lock:
            self._counts[result.origin] = self._counts.get(result.origin, 0) + 1
            self._saved += result.saved
            if result.via is None:
                self._compiling += result.seconds

    def after_fork(self) -> None:
        """In a forked child: begin anew."""
        self._lock = threading.Lock()
        self._counts = {}
        self._compiling = self._saved = 0.0

    def __str__(self) -> str:
        """For example `5 kernels: 2 compiled in 3.10 s, 3 local hits, saved 4.65 s`."""
        from ptocache.text import plural, seconds_text

        parts = []
        for origin, count in self._counts.items():
            if origin == "compiled":
                parts.append(f"{count} compiled in {seconds_text(self._compiling)}")
            else:
                parts.append(plural(count, f"{origin} hit"))
        if self._saved:
            parts.append(f"saved {seconds_text(self._saved)}")
        return f"{plural(sum(self._counts.values()), 'kernel')}: {', '.join(parts)}"

    def _log(self) -> None:
        if not self._counts:
            return
        from ptocache.log import get_logger, informing, log_to_stderr

        if not informing():  # whoever asks for a summary wants to see it
            log_to_stderr("info")
        get_logger(__name__).info("%s", self)
