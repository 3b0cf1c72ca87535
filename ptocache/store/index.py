"""The index of the local tier: which outputs there are, oldest first, how large, and which actions lead to them.

One diskcache `Cache` of small rows. A hit never needs it: it serves eviction and counts, so a lost index costs
a scan of the directory and no entry. Bytes only: nothing that a row holds is unpickled or used as a path.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import diskcache
from filelock import FileLock

from ptocache.forks import watch_forks
from ptocache.store.files import make_directory, remove, remove_foreign

#: How long a store waits for the database, in seconds. It is held for about a millisecond at a time.
TIMEOUT = 5.0

#: What a file takes on disk is a multiple of this on the usual file systems.
BLOCK = 4096

#: How SQLite's messages begin about what a new database would not help against.
_PASSING = (
    "database is locked",
    "database table is locked",
    "locking protocol",
    "attempt to write a readonly database",
    "database or disk is full",
    "disk I/O error",
)

_ROW = struct.Struct("<Qd")
_OUTPUT = re.compile(r"[0-9a-f]{64}")
_ACTIONS = re.compile(rb"(?:[0-9a-f]{32})*")


class Row(NamedTuple):
    """What the index knows of an output.

    Attributes:
        size: bytes on disk of the output and the actions that lead to it.
        used: when it was last known to be used, in seconds since the epoch.
        actions: the names of the keys that lead to it.
    """

    size: int
    used: float
    actions: tuple[str, ...]

    @classmethod
    def of(cls, output_size: int, used: float, actions: tuple[str, ...]) -> Row:
        """The row of an output of this many bytes."""
        return cls(output_size + BLOCK * (len(actions) + 1), used, actions)

    def encode(self) -> bytes:
        """The row's value in the database."""
        return _ROW.pack(self.size, self.used) + "".join(self.actions).encode()

    @classmethod
    def decode(cls, value: bytes) -> Row | None:
        """Read a row's value; `None` if it is not one."""
        if len(value) < _ROW.size or not _ACTIONS.fullmatch(value, _ROW.size):
            return None
        names = value[_ROW.size :].decode()
        size, used = _ROW.unpack_from(value)
        return cls(size, used, tuple(names[i : i + 32] for i in range(0, len(names), 32)))


class _RowDisk(diskcache.Disk):  # type: ignore[misc]
    """Rows as they are: text keys, bytes values, no files, no pickles. A row counts with the size it states."""

    def put(self, key: str) -> tuple[str, bool]:
        return key, True

    def get(self, key: object, raw: object) -> object:
        return key

    def store(self, value: bytes, read: bool, key: object = None) -> tuple[int, int, None, bytes]:
        (size,) = struct.unpack_from("<Q", value)
        return min(size, 2**62), diskcache.core.MODE_RAW, None, value

    def fetch(self, mode: object, filename: object, value: object, read: object) -> bytes:
        return value if isinstance(value, bytes) else b""

    def remove(self, file_path: object) -> None:
        """A row has no file; a name that somebody wrote into the database is not one."""


class _Rows(diskcache.Cache):  # type: ignore[misc]
    """The database. Where diskcache would try a statement for a minute, this one keeps to `TIMEOUT`."""

    @property
    def _sql_retry(self) -> Callable[..., Any]:
        deadline = time.monotonic() + TIMEOUT

        def execute(*statement: Any) -> Any:
            while True:
                try:
                    return self._sql(*statement)
                except sqlite3.OperationalError as error:
                    if str(error) != "database is locked" or time.monotonic() > deadline:
                        raise
                    time.sleep(0.001)

        return execute


class Index:
    """The rows, opened when they are first needed.

    Args:
        root: the cache directory.
        directory: where the database is, below `root`.
        scan: yields the rows that the files themselves tell, for an index that has to be made anew.
    """

    def __init__(self, root: str, directory: str, scan: Callable[[], Iterable[tuple[str, Row]]]) -> None:
        self._root = root
        self._directory = directory
        self._scan = scan
        self._database = os.path.join(directory, diskcache.core.DBNAME)
        self._cache: Any = None
        self._opened: os.stat_result | None = None
        self._opening = threading.Lock()
        watch_forks(self)

    def add(self, output: str, row: Row) -> None:
        """Put a row in, as the newest; the actions of an older row of the output are kept with it."""
        with self._rows() as rows, rows.transact():
            old = Row.decode(rows.get(output, b""))
            if old is not None:
                kept = tuple(name for name in old.actions if name not in row.actions)
                row = Row(row.size + BLOCK * len(kept), row.used, (*row.actions, *kept))
            rows.delete(output)
            rows.add(output, row.encode())

    def discard(self, output: str) -> None:
        """Take a row out, if it is there."""
        with self._rows() as rows:
            rows.delete(output)

    def oldest(self) -> tuple[str, Row | None] | None:
        """The oldest row, `None` where there is none; a row that makes no sense comes without its value."""
        with self._rows() as rows, rows.transact():
            while True:
                try:
                    output, value = rows.peekitem(last=False)
                except KeyError:
                    return None
                if isinstance(output, str) and _OUTPUT.fullmatch(output) and output in rows:
                    return output, Row.decode(value)
                if not rows.delete(output):
                    raise sqlite3.DatabaseError("the index has a row that ptocache did not write")

    def bytes(self) -> int:
        """All that the rows state, and the database itself."""
        with self._rows() as rows:
            return int(rows.volume())

    def count(self) -> int:
        """How many outputs there are."""
        with self._rows() as rows:
            return len(rows)

    def clear(self) -> None:
        """Take all rows out."""
        with self._rows() as rows:
            rows.clear()

    def close(self) -> None:
        """Close the database."""
        if self._cache is not None:
            self._cache.close()
            self._cache = None

    def after_fork(self) -> None:
        """In a forked child: a thread that is not there may have been opening the database."""
        self._opening = threading.Lock()

    @contextlib.contextmanager
    def _rows(self) -> Iterator[Any]:
        """The open database. One that turns out to be broken is made anew, and the caller told as of any error."""
        with self._opening:
            if self._cache is not None and not self._is_there():
                self.close()
            if self._cache is None:
                self._cache = self._open()
            cache = self._cache
        try:
            yield cache
        except sqlite3.DatabaseError as error:
            if _is_broken(error):
                self._rebuild()
            raise

    def _is_there(self) -> bool:
        """Whether the open database still is the one at its path, and not one that somebody removed."""
        try:
            return self._opened is not None and os.path.samestat(self._opened, os.stat(self._database))
        except OSError:
            return False

    def _open(self) -> Any:
        make_directory(self._root, self._directory)
        # SQLite lets several processes that create a database at once see "database is locked".
        with self._lock():
            remove_foreign(self._database)
            try:
                rows = self._connect()
                return rows if len(rows) else self._fill(rows)
            except diskcache.Timeout:
                raise
            except Exception as error:  # in a foreign database diskcache may find anything
                if isinstance(error, sqlite3.DatabaseError) and not _is_broken(error):
                    raise
                return self._make_anew()

    def _rebuild(self) -> None:
        with self._lock():
            self.close()
            self._cache = self._make_anew()

    def _lock(self) -> FileLock:
        path = f"{self._directory}.lock"
        remove_foreign(path)
        return FileLock(path, timeout=TIMEOUT)

    def _make_anew(self) -> Any:
        for suffix in ("", "-wal", "-shm"):  # and nothing else: the directory might be one that the user had
            remove(self._database + suffix)
        return self._fill(self._connect())

    def _fill(self, rows: Any) -> Any:
        with rows.transact():
            for output, row in self._scan():
                rows.add(output, row.encode())
        return rows

    def _connect(self) -> Any:
        rows = _Rows(
            self._directory,
            timeout=TIMEOUT,
            disk=_RowDisk,
            eviction_policy="none",  # we evict: a row stands for files
            cull_limit=0,
            size_limit=2**62,
            statistics=0,
            tag_index=0,
        )
        rows.volume()
        len(rows)
        self._opened = os.stat(self._database)
        return rows


def _is_broken(error: sqlite3.DatabaseError) -> bool:
    """Whether the database itself is damaged or foreign, rather than locked, read-only or on a full disk."""
    return not (isinstance(error, sqlite3.OperationalError) and str(error).startswith(_PASSING))
