"""Statistics that many processes add to, exactly, and that a hit does not pay for.

A process counts in memory and appends what it counted to a file (`ptocache.sums`): when it ends, after each
compilation, and every few seconds in between. A line has the hour in which it was written, and hours stay apart for
90 days. Requests are not counted: each is one of the outcomes.
"""

from __future__ import annotations

import atexit
import contextlib
import heapq
import os
import sys
import threading
import time
import weakref
from typing import NamedTuple

from ptocache.forks import watch_forks
from ptocache.sums import SumFile

#: What is counted: numbers of requests, and times in seconds. `misses` are the `compiles` and the `failures`, of which
#: some are `failures_remembered`; with the hits they are all requests. A hit under the PTO key is one whose lowering
#: was run, and counts as that only, whichever tier had the output.
NAMES = (
    "hits.memory",
    "hits.local",
    "hits.shared",
    "hits.pto",
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

#: How long the counts of an hour stay apart from those before, in hours: 90 days.
HISTORY_HOURS = 90 * 24

#: Of so many keys it is known how often they were used: those that saved most. They take 3 MiB.
MOST_USES = 1 << 16


class Record(NamedTuple):
    """All that was counted for a directory.

    Attributes:
        since: when counting began, in seconds since the epoch; `None` where that is unknown.
        totals: all of it, under each of `NAMES`.
        hours: the same by hour, in hours since the epoch, as far as it is known; only what is not nought.
        engines: by an engine's label, under each of `ENGINE_NAMES`.
    """

    since: float | None
    totals: dict[str, float]
    hours: dict[int, dict[str, float]]
    engines: dict[str, dict[str, float]]


class Use(NamedTuple):
    """What is known of the requests for one key.

    Attributes:
        hits: how many were hits.
        seconds: how long its compilation took, as far as that is known.
    """

    hits: int
    seconds: float

    def plus(self, other: Use) -> Use:
        """Both together: the longer compilation stands for all."""
        return Use(self.hits + other.hits, max(self.seconds, other.seconds))


class Counters:
    """The counts of one cache directory.

    Args:
        directory: the cache directory; counts are kept in memory until it exists, and where the text is empty.
        readonly: write nothing.
    """

    def __init__(self, directory: str, readonly: bool = False) -> None:
        self._directory = directory
        self._readonly = readonly
        self._file = SumFile(directory, "counters", _add_up, _since)
        self._uses_file = SumFile(directory, "uses", lambda data: _add_up_uses(directory, data))
        self._pending: dict[str, float] = {}
        self._pending_uses: dict[str, Use] = {}
        self._lock = threading.Lock()
        self._flushed = time.monotonic()
        self._will_flush = False
        watch_forks(self)

    def add(self, name: str, amount: float = 1) -> None:
        """Count something under one of `NAMES`."""
        with self._lock:
            self._pending[name] = self._pending.get(name, 0) + amount
        self._see_to_flush()

    def hit(self, outcome: str, key: str, seconds_saved: float) -> None:
        """Count a hit.

        Args:
            outcome: one of the `hits.` in `NAMES`.
            key: the name of its source key.
            seconds_saved: how much longer the compilation would have taken.
        """
        with self._lock:
            pending, uses = self._pending, self._pending_uses
            pending[outcome] = pending.get(outcome, 0) + 1
            pending["seconds_saved"] = pending.get("seconds_saved", 0) + seconds_saved
            use = uses.get(key)
            uses[key] = Use(1, seconds_saved) if use is None else Use(use.hits + 1, max(use.seconds, seconds_saved))
        self._see_to_flush()

    def compiled(self, key: str, seconds: float) -> None:
        """Count a compilation.

        Args:
            key: the name of its source key.
            seconds: how long it took.
        """
        with self._lock:
            self._pending_uses[key] = Use(0, seconds).plus(self._pending_uses.get(key, Use(0, 0.0)))
        self.add("misses")
        self.add("compiles")
        self.add("seconds_compiling", seconds)

    def add_engine(self, label: str, name: str, amount: float = 1) -> None:
        """Count something of an engine under one of `ENGINE_NAMES`."""
        from urllib.parse import quote

        self.add(f"{_ENGINE}{name}.{quote(os.fsencode(label), safe=':/@*')}", amount)

    def flush(self) -> None:
        """Append what was counted to the files; where that cannot be done now, it stays for the next time."""
        self._flushed = time.monotonic()
        if self._readonly:
            return
        with self._lock:
            pending, self._pending = self._pending, {}
            uses, self._pending_uses = self._pending_uses, {}
        if pending and not self._file.append(f"@{_hour()} {_words(pending)}"):
            with self._lock:
                for name, amount in pending.items():
                    self._pending[name] = self._pending.get(name, 0) + amount
        if uses and not self._uses_file.append(_use_words(uses)):
            with self._lock:
                _add_uses(self._pending_uses, uses)

    def read(self) -> Record:
        """All that was counted for this directory, by whichever process."""
        self.flush()
        lines = _Lines(self._file.read())
        with self._lock:
            for name, amount in self._pending.items():
                lines.add(_hour(), name, amount)
        return lines.record()

    def totals(self) -> dict[str, float]:
        """The sums, under each of `NAMES`."""
        return self.read().totals

    def engines(self) -> dict[str, dict[str, float]]:
        """All that was counted of each engine, by its label, under each of `ENGINE_NAMES`."""
        return self.read().engines

    def uses(self) -> dict[str, Use]:
        """What is known of the requests for each key, by the name of the source key; at most `MOST_USES` or so."""
        self.flush()
        uses = _parse_uses(self._uses_file.read())
        with self._lock:
            _add_uses(uses, self._pending_uses)
        return uses

    def zero(self) -> bool:
        """Begin to count anew; whether that could be done.

        Raises:
            OSError: the files cannot be replaced.
        """
        with self._lock:
            self._pending, self._pending_uses = {}, {}
        return self._file.zero() and self._uses_file.zero()

    def __del__(self) -> None:
        # Whoever drops a cache without closing it has used it all the same.
        with contextlib.suppress(Exception):
            self.flush()

    def after_fork(self) -> None:
        """In a forked child: what the parent counted is the parent's to write."""
        self._lock = threading.Lock()
        self._pending, self._pending_uses = {}, {}
        self._will_flush = False

    def _see_to_flush(self) -> None:
        if not self._will_flush:
            self._flush_at_exit()
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

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


def _hour() -> int:
    return int(time.time() // 3600)


def _since() -> bytes:
    """What a new file begins with."""
    return f"since={time.time():.0f}\n".encode()


def _words(amounts: dict[str, float]) -> str:
    return " ".join(f"{name}={int(amount) if amount == int(amount) else amount!r}" for name, amount in amounts.items())


def _add_up(data: bytes) -> bytes:
    """The lines of the sum: since when, all hours that are long ago, each hour since then, and the engines."""
    lines = _Lines(data)
    words = [f"since={lines.since:.0f}"] if lines.since is not None else []
    words += (f"@{hour} {_words(amounts)}" for hour, amounts in sorted(lines.hours.items()))
    words.append(_words(lines.engines))
    return "\n".join([*words, ""]).encode()


class _Lines:
    """What the lines of the file say; what is not a count is left out."""

    def __init__(self, data: bytes = b"") -> None:
        self.since: float | None = None
        self.hours: dict[int, dict[str, float]] = {}
        self.engines: dict[str, float] = {}
        oldest, newest = _hour() - HISTORY_HOURS, _hour() + 24  # clocks differ, and time zones do not matter
        for line in data.splitlines():
            hour = 0  # long ago
            for word in line.split():
                if word.startswith(b"@"):
                    number = int(word[1:]) if word[1:].isdigit() and len(word) < 10 else 0
                    hour = number if oldest < number < newest else 0
                name, amount = _amount(word)
                if name == "since":
                    self.since = min(amount, self.since or amount)
                elif name:
                    self.add(hour, name, amount)

    def add(self, hour: int, name: str, amount: float) -> None:
        """Add one count."""
        if name in NAMES:
            amounts = self.hours.setdefault(hour, {})
        elif _is_of_engine(name) and (name in self.engines or len(self.engines) < _MOST_ENGINES * len(ENGINE_NAMES)):
            amounts = self.engines
        else:
            return
        amounts[name] = amounts.get(name, 0.0) + amount

    def record(self) -> Record:
        """All of it added up."""
        from urllib.parse import unquote

        totals = dict.fromkeys(NAMES, 0.0)
        for amounts in self.hours.values():
            for name, amount in amounts.items():
                totals[name] += amount
        engines: dict[str, dict[str, float]] = {}
        for name, amount in self.engines.items():
            what, _, label = name.removeprefix(_ENGINE).partition(".")
            engines.setdefault(unquote(label), dict.fromkeys(ENGINE_NAMES, 0.0))[what] += amount
        hours = {hour: dict(amounts) for hour, amounts in sorted(self.hours.items()) if hour}
        return Record(self.since, totals, hours, engines)


def _amount(word: bytes) -> tuple[str, float]:
    """One count, `NAME=AMOUNT`; no name where it is none."""
    name, _, text = word.partition(b"=")
    with contextlib.suppress(ValueError):
        amount = float(text)
        if 0 <= amount < 2**63:
            return name.decode("ascii", "replace"), amount
    return "", 0.0


def _is_of_engine(name: str) -> bool:
    return name.startswith(_ENGINE) and name.removeprefix(_ENGINE).partition(".")[0] in ENGINE_NAMES


def _add_up_uses(directory: str, data: bytes) -> bytes:
    """The uses of the keys that are still stored; if those are too many, of the ones that saved most."""
    uses = _parse_uses(data)
    for name in [name for name in uses if not os.path.exists(f"{directory}/actions/{name}")]:
        del uses[name]
    if len(uses) > MOST_USES:
        uses = dict(heapq.nlargest(MOST_USES, uses.items(), key=lambda item: (item[1].hits + 1) * item[1].seconds))
    return f"{_use_words(uses)}\n".encode()


def _use_words(uses: dict[str, Use]) -> str:
    return " ".join(f"{name}={use.hits},{use.seconds:.6g}" for name, use in uses.items())


def _parse_uses(data: bytes) -> dict[str, Use]:
    uses: dict[str, Use] = {}
    for word in data.split():
        name, _, rest = word.partition(b"=")
        hits, _, seconds = rest.partition(b",")
        with contextlib.suppress(ValueError):
            use = Use(int(hits), float(seconds))
            if len(name) == 32 and name.isalnum() and 0 <= use.hits < 2**63 and 0 <= use.seconds < 2**31:
                _add_uses(uses, {name.decode("ascii", "replace"): use})
    return uses


def _add_uses(uses: dict[str, Use], more: dict[str, Use]) -> None:
    for name, use in more.items():
        uses[name] = use.plus(uses[name]) if name in uses else use
