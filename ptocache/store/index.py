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
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import quote

import diskcache

from ptocache.errors import CacheIndexError
from ptocache.forks import close_at_forks
from ptocache.log import get_logger
from ptocache.store.files import file_mode, make_directory, remove, remove_foreign
from ptocache.store.layout import BROKEN, Layout
from ptocache.store.locks import acquire, release
from ptocache.store.row import Group, Row

#: How long a store waits for the database, in seconds. It is held for about a millisecond at a time.
TIMEOUT = 5.0

#: The version of what a row holds, kept as SQLite's `user_version`. A database of another one is made anew.
SCHEMA = 4

#: How SQLite's messages begin about what a new database would not help against. After a full disk and the like it
#: has rolled back by itself, and then diskcache's own rollback is what fails.
_PASSING = (
    "database is locked",
    "database table is locked",
    "locking protocol",
    "attempt to write a readonly database",
    "database or disk is full",
    "disk I/O error",
    "unable to open database file",
    "cannot rollback",
    "cannot commit",
)

#: How the database is set up. Its journal is truncated by each commit, so it never counts for much towards the size
#: limit; a write-ahead log grows without a bound where many processes store without a pause. No `fsync` and no memory
#: map: on a busy disk the one takes as long as it likes while all others wait, and where the disk fails the other is
#: a signal that ends the process, and not an error. What a power cut may do to the database is found at the next
#: start of the system, see `_check_after_boot`.
_SETUP = {"sqlite_journal_mode": "truncate", "sqlite_synchronous": 0, "sqlite_mmap_size": 0}

#: The database, its journal, and what there would be in the mode with a write-ahead log.
_FILES = ("", "-journal", "-wal", "-shm")

_OUTPUT = re.compile(r"[0-9a-f]{64}")


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


class _Database(diskcache.Cache):  # type: ignore[misc]
    """The database, through one connection for all threads, which `Index` lets use it one at a time.

    diskcache itself opens a connection in each thread, and in a forked child closes the parent's, which SQLite
    forbids. Where it would try a statement for a minute, this keeps to `TIMEOUT`.
    """

    _connection: sqlite3.Connection | None = None

    def __init__(self, directory: str) -> None:
        self._directory = directory
        try:
            self._check_version()
            super().__init__(
                directory,
                timeout=TIMEOUT,
                disk=_RowDisk,
                eviction_policy="none",  # we evict: a row stands for files
                cull_limit=0,
                size_limit=2**62,
                statistics=0,
                tag_index=0,
                **_SETUP,
            )
            self.volume()
            self._check_after_boot()
            self._sql(f"PRAGMA user_version = {SCHEMA}")
        except BaseException:
            self.close()  # now, and not when the traceback is forgotten
            raise

    def _check_version(self) -> None:
        (version,) = self._con.execute("PRAGMA user_version").fetchone()
        (tables,) = self._con.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and version != SCHEMA:
            raise sqlite3.DatabaseError(f"it has version {version} of the rows, and not {SCHEMA}")

    def _check_after_boot(self) -> None:
        """Look through all of the database once after each start of the system: what was not flushed may be lost."""
        now = _boot()
        (last,) = self._con.execute("PRAGMA application_id").fetchone()
        if last == now:
            return
        problems = self._con.execute("PRAGMA integrity_check(1)").fetchall()
        if problems != [("ok",)]:
            raise sqlite3.DatabaseError(f"after a start of the system: {problems[0][0]}")
        with self.transact():
            self._sql(
                "UPDATE Settings SET value = CASE key WHEN 'count' THEN (SELECT count(*) FROM Cache)"
                " ELSE (SELECT coalesce(sum(size), 0) FROM Cache) END WHERE key IN ('count', 'size')"
            )
        self._sql(f"PRAGMA application_id = {now}")

    @property
    def _con(self) -> sqlite3.Connection:
        if self._connection is None:
            path = os.path.join(self._directory, diskcache.core.DBNAME)
            self._connection = sqlite3.connect(path, TIMEOUT, isolation_level=None, check_same_thread=False)
            for name, value in _SETUP.items():
                self._connection.execute(f"PRAGMA {name.removeprefix('sqlite_')} = {value}").fetchall()
        return self._connection

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

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class Rows:
    """The rows, within one transaction."""

    def __init__(self, database: _Database) -> None:
        self._database = database

    def get(self, output: str) -> Row | None:
        """The row of an output; `None` where there is none, or one that makes no sense."""
        with _computing():
            return Row.decode(self._database.get(output, b""))

    def add(self, output: str, row: Row) -> None:
        """Put a row in, as the newest, in place of an older one of the output."""
        with _computing():
            self._database.delete(output)
            self._database.add(output, row.encode(), tag=row.group)

    def change(self, output: str, row: Row) -> None:
        """Put a row in where an older one of the output is; as the newest where there is none."""
        with _computing():
            self._database.set(output, row.encode(), tag=row.group)

    def discard(self, output: str) -> None:
        """Take a row out, if it is there."""
        with _computing():
            self._database.delete(output)

    def oldest(self) -> tuple[str, Row | None] | None:
        """The oldest row, `None` where there is none; a row that makes no sense comes without its value."""
        while True:
            try:
                with _computing():
                    output, value = self._database.peekitem(last=False)
            except KeyError:
                return None
            if _is_output(output) and output in self._database:
                return output, Row.decode(value)
            if not self._database.delete(output):
                raise sqlite3.DatabaseError("the index has a row that ptocache did not write")

    def all(self) -> Iterator[tuple[str, Row | None]]:
        """All rows, the oldest first; those that make no sense without their value."""
        rows = self._database._sql("SELECT key, value FROM Cache ORDER BY rowid")
        for output, value in rows.fetchall():
            if _is_output(output):
                yield output, Row.decode(value) if isinstance(value, bytes) else None

    def bytes(self) -> int:
        """The sum of the sizes that the rows state."""
        return _total(self._database, "size")

    def count(self) -> int:
        """How many outputs there are."""
        return _total(self._database, "count")

    def groups(self) -> list[Group]:
        """The outputs by what they have in common, the largest group first."""
        found = self._database._sql("SELECT tag, count(*), sum(size) FROM Cache GROUP BY tag ORDER BY sum(size) DESC")
        return [Group(name if isinstance(name, str) else "", count, size) for name, count, size in found.fetchall()]

    def clear(self) -> None:
        """Take all rows out."""
        self._database.clear()


class Index:
    """The database of rows, opened when it is first needed.

    Args:
        layout: where it is.
        scan: yields the rows that the files themselves tell, for an index that has to be made anew.
    """

    def __init__(self, layout: Layout, scan: Callable[[], Iterable[tuple[str, Row]]]) -> None:
        self._layout = layout
        self._scan = scan
        self._path = os.path.join(layout.index, diskcache.core.DBNAME)
        self._database: _Database | None = None
        self._opened: os.stat_result | None = None
        self._lock = threading.Lock()
        self._locked_at = 0.0
        close_at_forks(self)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Rows]:
        """The rows, to read and change in one transaction.

        Raises:
            CacheIndexError: the database cannot be used now. If it is broken it was set aside, and is made anew from
                the files: the next transaction finds it whole.
            OSError: it cannot be opened.
        """
        began = time.monotonic()
        with self._lock:
            if self._locked_at > began:  # found so while this thread waited: they wait at the same time, not in turn
                raise CacheIndexError(f"{self._path}: another process has locked the index of the cache")
            try:
                database = self._open()
                with database.transact():
                    yield Rows(database)
            except sqlite3.DatabaseError as error:
                if _is_broken(error):
                    self._make_anew(error)
                else:
                    self._locked_at = time.monotonic()
                raise CacheIndexError(f"{self._path}: the index of the cache cannot be used: {error}") from error
            except diskcache.Timeout as error:
                self._locked_at = time.monotonic()
                raise CacheIndexError(
                    f"{self._path}: another process has locked the index of the cache for more than {TIMEOUT:.0f} s"
                ) from error
            finally:
                self._leave()

    def is_sound(self) -> bool:
        """Whether the database is sound as it is, its rows make sense and its sums are right: nothing is repaired.

        Raises:
            CacheIndexError: that cannot be found out now.
        """
        if not os.path.lexists(self._path):
            return True  # it is made when it is needed
        with self._creating(), contextlib.ExitStack() as closing:  # one that is just being made lacks its version
            try:
                connection = sqlite3.connect(f"file:{quote(self._path)}?mode=rw", TIMEOUT, uri=True)
                closing.callback(connection.close)
                version = connection.execute("PRAGMA user_version").fetchone()
                problems = connection.execute("PRAGMA integrity_check(1)").fetchall()
                is_whole = (version == (SCHEMA,) and _adds_up(connection)) or _is_unfinished(connection)
                is_sound = problems == [("ok",)] and is_whole
            except sqlite3.DatabaseError as error:
                if _is_broken(error):
                    return False
                raise CacheIndexError(f"{self._path}: the index of the cache cannot be used: {error}") from error
            return is_sound

    def rebuild(self) -> None:
        """Set the database aside, and make it anew from the files."""
        with self._lock:
            self._make_anew("rebuilt on request")

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._close()

    def before_fork(self) -> bool:
        """Close the database, once nobody uses it, so that a child has nothing of it; whether that was so in time."""
        if not self._lock.acquire(timeout=TIMEOUT):
            return False
        self._close()
        return True

    def after_fork_in_parent(self) -> None:
        """Let others use the index again."""
        self._lock.release()

    def after_fork(self) -> None:
        """In a forked child: the lock may be one that a thread holds which is not there."""
        if self._database is not None:  # the fork did not wait any longer
            _abandoned.append(self._database)
        self._lock = threading.Lock()
        self._database = None

    def _open(self) -> _Database:
        """The open database; one that somebody removed is opened anew."""
        if self._database is not None and not self._is_there():
            self._close()
        if self._database is None:
            self._database = self._connect_or_repair()
        return self._database

    def _is_there(self) -> bool:
        """Whether the open database still is the one at its path, and not one that somebody removed."""
        try:
            return self._opened is not None and os.path.samestat(self._opened, os.stat(self._path))
        except OSError:
            return False

    def _connect_or_repair(self) -> _Database:
        make_directory(self._layout.root, self._layout.index)
        # SQLite lets several processes that create a database at once see "database is locked".
        with self._creating():
            for suffix in _FILES:
                remove_foreign(self._path + suffix)
            try:
                database = self._connect()
            except (diskcache.Timeout, OSError):
                raise
            except Exception as error:  # in a foreign database diskcache may find anything
                if isinstance(error, sqlite3.DatabaseError) and not _is_broken(error):
                    raise
                self._set_aside(error)
                database = self._connect()
            return database if _total(database, "count") else self._fill(database)

    def _make_anew(self, reason: object) -> None:
        self._close()
        with self._creating():
            self._set_aside(reason)
            self._database = self._fill(self._connect())

    def _set_aside(self, reason: object) -> None:
        get_logger(__name__).warning(
            "the index of the cache cannot be used (%s): it is made anew from the files; the old one is %s",
            reason,
            os.path.join(self._layout.index, BROKEN),
        )
        for suffix in _FILES[1:]:  # and nothing else: the directory might be one that the user had
            remove(self._path + suffix)
        with contextlib.suppress(FileNotFoundError):
            os.replace(self._path, os.path.join(self._layout.index, BROKEN))

    @contextlib.contextmanager
    def _creating(self) -> Iterator[None]:
        lock = acquire(self._layout.root, f"{self._layout.index}.lock", TIMEOUT)
        try:
            yield
        finally:
            release(lock)

    def _fill(self, database: _Database) -> _Database:
        try:
            with database.transact():
                for output, row in self._scan():
                    database.add(output, row.encode(), tag=row.group)
        except BaseException:
            database.close()
            raise
        return database

    def _connect(self) -> _Database:
        # SQLite gives its journal the permissions of the database, and this one those of the directory. One that is
        # there is not opened: closing it would take away the locks that another connection of this process has.
        with contextlib.suppress(FileExistsError):
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.fchmod(fd, file_mode(self._layout.root))
            finally:
                os.close(fd)
        self._opened = os.stat(self._path)
        return _Database(self._layout.index)

    def _leave(self) -> None:
        """See that no transaction stays open, whatever interrupted it: others would wait for it for ever."""
        database = self._database
        if database is not None and (database._connection is None or database._connection.in_transaction):
            self._close()

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


#: Databases that a child came to with a fork in the middle of a transaction: SQLite must not even close them there.
_abandoned: list[_Database] = []


@contextlib.contextmanager
def _computing() -> Iterator[None]:
    """Diskcache computes with what it finds in a row: what it cannot compute with is damage."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise sqlite3.DatabaseError(f"a row makes no sense: {error}") from error


def _total(database: _Database, name: str) -> int:
    """One of diskcache's sums over all rows; what is no number there is damage."""
    total = database.reset(name)
    if not isinstance(total, int) or total < 0:
        raise sqlite3.DatabaseError(f"its {name} is {total!r}")
    return total


def _adds_up(connection: sqlite3.Connection) -> bool:
    """Whether all rows are as they are written, and the sums over them are right."""
    connection.execute("BEGIN")  # one moment for all that is read
    count = total = 0
    for key, raw, expires, size, value in connection.execute("SELECT key, raw, expire_time, size, value FROM Cache"):
        row = Row.decode(value) if isinstance(value, bytes) else None
        if not _is_output(key) or raw != 1 or expires is not None or row is None or row.size != size:
            return False
        count += 1
        total += row.size
    return dict(connection.execute("SELECT key, value FROM Settings WHERE key IN ('count', 'size')")) == {
        "count": count,
        "size": total,
    }


def _is_unfinished(connection: sqlite3.Connection) -> bool:
    """Whether whoever made the database was killed before it had a row: the next to open it makes it anew."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    is_empty = "Cache" not in tables or connection.execute("SELECT count(*) FROM Cache").fetchone() == (0,)
    is_diskcaches = not tables or {"Settings"} <= tables <= {"Settings", "Cache"}
    return connection.execute("PRAGMA user_version").fetchone() == (0,) and is_diskcaches and is_empty


def _boot() -> int:
    """A number that is another one after each start of the system."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return zlib.crc32(file.read()) >> 1 or 1
    except OSError:
        return 1


def _is_output(name: object) -> bool:
    return isinstance(name, str) and _OUTPUT.fullmatch(name) is not None


def _is_broken(error: sqlite3.DatabaseError) -> bool:
    """Whether the database itself is damaged or foreign, rather than locked, read-only or on a full disk."""
    return not (isinstance(error, sqlite3.OperationalError) and str(error).startswith(_PASSING))
