"""The log of what was asked for, from which a cache is filled again: one JSON object a line.

Any number of processes add to one file, each line in a single write.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ptocache.forks import watch_forks
from ptocache.log import get_logger
from ptocache.recipe import PTODSL

if TYPE_CHECKING:
    from ptocache.frontend import CompileResult

#: A longer line is none of ours, in bytes: it has a source of more than 16 MiB.
LINE_LIMIT = 32 << 20


class Logged(NamedTuple):
    """A request, as the log has it.

    Attributes:
        source: the PTODSL source.
        arch: the ptoas architecture.
        flags: the other arguments of ptoas.
    """

    source: str
    arch: str
    flags: tuple[str, ...]


class RequestLog:
    """Adds requests to the log, each source key once a process.

    Args:
        path: the file; it is made where there is none, for its user alone, as it has sources.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: set[str] = set()
        self._has_failed = False
        self._lock = threading.Lock()
        watch_forks(self)

    def add(self, result: CompileResult, kind: str) -> None:
        """Add a request that was answered.

        Args:
            result: the answer.
            kind: the kind of compilation. Only a PTODSL source is all that its compilation needs.
        """
        if result.key in self._seen or kind != PTODSL:
            return
        with self._lock:
            if result.key in self._seen:
                return
            self._seen.add(result.key)
        try:
            self._append(_line(result))
        except OSError as error:
            self._report(error)

    def after_fork(self) -> None:
        """In a forked child: the lock may be one that a thread holds which is not there."""
        self._lock = threading.Lock()

    def _append(self, line: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(self._path, flags, 0o600)
        try:
            if os.write(fd, line) != len(line):
                raise OSError(0, "it is full")
        finally:
            os.close(fd)

    def _report(self, error: OSError) -> None:
        if not self._has_failed:
            self._has_failed = True
            get_logger(__name__).warning(
                "PTOCACHE_REQUEST_LOG: requests cannot be added to %s: %s", self._path, error.strerror
            )


def read_log(path: str) -> Iterator[Logged | None]:
    """The requests in a log, in their order; `None` for a line that is none.

    Args:
        path: the file.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        while line := file.readline(LINE_LIMIT):
            if not line.endswith(b"\n"):
                while rest := file.readline(LINE_LIMIT):  # of a line that is too long
                    if rest.endswith(b"\n"):
                        break
            if line.strip():
                yield _parse(line)


def _line(result: CompileResult) -> bytes:
    import json
    import time

    facts = {
        "time": round(time.time(), 3),
        "key": result.key,
        "origin": result.origin,
        "seconds": round(result.seconds, 6),
        "arch": result.request.arch,
        "flags": list(result.request.flags),
        "source": result.request.source,
    }
    # With a line break before it too: a line that a full disk cut short must not spoil the next.
    return f"\n{json.dumps(facts)}\n".encode()


def _parse(line: bytes) -> Logged | None:
    import json

    try:
        facts = json.loads(line)
        source, arch, flags = facts["source"], facts["arch"], facts["flags"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    if not (isinstance(source, str) and isinstance(arch, str) and isinstance(flags, list)):
        return None
    return Logged(source, arch, tuple(flags)) if all(isinstance(flag, str) for flag in flags) else None
