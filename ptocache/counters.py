"""Statistics that many processes add to, exactly, and that a hit does not pay for.

A process counts in memory and appends what it counted as one line to a file, in a single write: when it ends,
after each compilation, and every few seconds in between. A reader adds the lines up. When the file has grown,
whoever sees it replaces it with its sum. Requests are not counted: they are the hits and the misses.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import sys
import threading
import time
import weakref

from ptocache.forks import watch_forks
from ptocache.store.files import DamagedError, open_to_append, publish, read_file, remove_foreign

#: What is counted: numbers of requests, and times in seconds.
NAMES = (
    "hits.memory",
    "hits.local",
    "hits.shared",
    "misses",
    "compiles",
    "failures",
    "failures_remembered",
    "errors",
    "damaged",
    "evictions",
    "seconds_compiling",
    "seconds_saved",
)

#: What is counted of each engine of the shared tier: numbers, bytes, and times in seconds.
ENGINE_NAMES = (
    "hits",
    "misses",
    "errors",
    "rejected",
    "skipped",
    "stores",
    "dropped",
    "bytes_read",
    "bytes_written",
    "seconds_reading",
    "seconds_writing",
)

#: What such a count begins with, and so many engines may be in one file.
_ENGINE = "engine."
_MOST_ENGINES = 64

#: How long counts stay in memory at most while requests go on, in seconds: what a killed process loses.
FLUSH_SECONDS = 5.0

#: A larger file is replaced with its sum: this is about a thousand lines, which take a millisecond to add.
_FOLD_BYTES = 64 << 10
_READ_LIMIT = 64 << 20

#: A line waits at most this often, for a hundredth of a second, while the file is being replaced.
_ATTEMPTS = 100


class Counters:
    """The counts of one cache directory.

    Args:
        directory: the cache directory; counts are kept in memory until it exists, and where the text is empty.
        readonly: write nothing.
    """

    def __init__(self, directory: str, readonly: bool = False) -> None:
        self._directory = directory
        self._path = os.path.join(directory, "counters") if directory else ""
        self._readonly = readonly
        self._pending: dict[str, float] = {}
        self._lock = threading.Lock()
        self._flushed = time.monotonic()
        self._will_flush = False
        watch_forks(self)

    def add(self, name: str, amount: float = 1) -> None:
        """Count something under one of `NAMES`."""
        with self._lock:
            self._pending[name] = self._pending.get(name, 0) + amount
        if not self._will_flush:
            self._flush_at_exit()
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def add_engine(self, label: str, name: str, amount: float = 1) -> None:
        """Count something of an engine under one of `ENGINE_NAMES`."""
        from urllib.parse import quote

        self.add(f"{_ENGINE}{name}.{quote(os.fsencode(label), safe=':/@*')}", amount)

    def flush(self) -> None:
        """Append what was counted to the file; where that cannot be done now, it stays for the next time."""
        self._flushed = time.monotonic()
        if self._readonly:
            return
        with self._lock:
            pending, self._pending = self._pending, {}
        if not pending or self._append(_line(pending)):
            return
        with self._lock:
            for name, amount in pending.items():
                self._pending[name] = self._pending.get(name, 0) + amount

    def totals(self) -> dict[str, float]:
        """All that was counted for this directory, by whichever process, under each of `NAMES`."""
        return {name: amount for name, amount in self._totals().items() if name in NAMES}

    def engines(self) -> dict[str, dict[str, float]]:
        """All that was counted of each engine, by its label, under each of `ENGINE_NAMES`."""
        from urllib.parse import unquote

        engines: dict[str, dict[str, float]] = {}
        for name, amount in self._totals().items():
            if name.startswith(_ENGINE):
                what, _, label = name.removeprefix(_ENGINE).partition(".")
                engines.setdefault(unquote(label), dict.fromkeys(ENGINE_NAMES, 0.0))[what] = amount
        return engines

    def __del__(self) -> None:
        # Whoever drops a cache without closing it has used it all the same.
        with contextlib.suppress(Exception):
            self.flush()

    def _totals(self) -> dict[str, float]:
        self.flush()
        totals = dict.fromkeys(NAMES, 0.0)
        with contextlib.suppress(OSError, DamagedError):
            _add_lines(totals, read_file(self._path, _READ_LIMIT)[0])
        with self._lock:
            for name, amount in self._pending.items():
                totals[name] = totals.get(name, 0.0) + amount
        return totals

    def after_fork(self) -> None:
        """In a forked child: what the parent counted is the parent's to write."""
        self._lock = threading.Lock()
        self._pending = {}
        self._will_flush = False

    def _flush_at_exit(self) -> None:
        self._will_flush = True
        weak = weakref.WeakMethod(self.flush)  # whoever counts must not live until the process ends

        def flush() -> None:
            if method := weak():
                method()

        atexit.register(flush)
        # A child process of multiprocessing ends without atexit; it has this instead.
        if "multiprocessing.util" in sys.modules:
            sys.modules["multiprocessing.util"].Finalize(None, flush, exitpriority=0)

    def _append(self, line: bytes) -> bool:
        for _ in range(_ATTEMPTS):
            remove_foreign(self._path)
            try:
                fd = open_to_append(self._directory, self._path)
            except OSError:
                return False
            try:
                if self._lock_file(fd, fcntl.LOCK_SH):
                    written = os.write(fd, line) == len(line)
                    grown = os.fstat(fd).st_size > _FOLD_BYTES
                    break
            except OSError:
                return False
            finally:
                _unlock(fd)
            time.sleep(0.01)
        else:
            return False
        if grown:
            self._fold()
        return written

    def _fold(self) -> None:
        """Replace the file with its sum, unless another process is just doing it."""
        with contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_RDONLY | _SAFE)
            try:
                if self._lock_file(fd, fcntl.LOCK_EX):
                    totals = dict.fromkeys(NAMES, 0.0)
                    with contextlib.suppress(DamagedError):  # too large for counts: begin anew
                        _add_lines(totals, read_file(self._path, _READ_LIMIT)[0])
                    publish(self._directory, self._path, _line(totals))
            finally:
                _unlock(fd)

    def _lock_file(self, fd: int, kind: int) -> bool:
        """Lock the open file if that can be done at once and it is still the one at the path."""
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return os.path.samestat(os.fstat(fd), os.stat(self._path))


# Never through a link, never waiting for a pipe's other end, never handed to a child.
_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def _unlock(fd: int) -> None:
    """Close the file, and its lock: a child that was forked meanwhile has it open too, and would keep the lock."""
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)
    with contextlib.suppress(OSError):  # what could not be written is counted again
        os.close(fd)


def _line(amounts: dict[str, float]) -> bytes:
    """One line, with a line break before it too: a line that a full disk cut short must not spoil the next."""
    words = (f"{name}={amount!r}" for name, amount in amounts.items())
    return f"\n{' '.join(words)}\n".encode()


def _add_lines(totals: dict[str, float], data: bytes) -> None:
    """Add up what the lines say; what is not a count is left out."""
    for word in data.split():
        name, _, text = word.partition(b"=")
        with contextlib.suppress(ValueError):
            amount = float(text)
            key = name.decode("ascii", "replace")
            if 0 <= amount < 2**63 and (key in totals or _is_of_engine(key, totals)):
                totals[key] = totals.get(key, 0.0) + amount


def _is_of_engine(key: str, totals: dict[str, float]) -> bool:
    what = key.removeprefix(_ENGINE).partition(".")[0]
    has_room = len(totals) < len(NAMES) + _MOST_ENGINES * len(ENGINE_NAMES)
    return key.startswith(_ENGINE) and what in ENGINE_NAMES and has_room
