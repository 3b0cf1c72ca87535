"""The index is never the only copy of anything: it may be damaged, foreign, locked or gone, and no entry is lost."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import pickle
import random
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_store import (
    DAMAGES,
    REPLACEMENTS,
    WAIT,
    Damage,
    Neighbour,
    counted,
    files,
    filled,
    found,
    in_child,
    key,
    listing,
    remove,
    run_together,
    to_dangling_link,
    to_directory,
    to_fifo,
    to_garbage,
    to_huge,
    to_socket,
    unprivileged,
    without_row,
)

from ptocache.counters import Counters
from ptocache.errors import CacheIndexError
from ptocache.forks import close_at_forks
from ptocache.store import index as index_module
from ptocache.store.files import make_directory
from ptocache.store.index import SCHEMA, Index
from ptocache.store.layout import BROKEN, Layout
from ptocache.store.local import Limits, LocalTier
from ptocache.store.row import Row
from ptocache.store.tiers import Store
from ptocache.store.upkeep import clear, usage


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "cache"


@pytest.fixture
def counters(directory: Path) -> Counters:
    return Counters(str(directory))


@pytest.fixture
def local(directory: Path) -> Iterator[LocalTier]:
    tier = LocalTier(str(directory))
    yield tier
    tier.close()


@pytest.fixture
def store(local: LocalTier, counters: Counters) -> Store:
    return Store([local], counters)


@pytest.fixture
def database(directory: Path) -> Path:
    return directory / "index" / "cache.db"


def fill(store: Store, count: int) -> None:
    for number in range(count):
        store.put([key(number)], filled(number, 2000))


def hits(store: Store, count: int) -> int:
    return sum(found(store, number) == filled(number, 2000).aibin for number in range(count))


def execute(database: Path, *statements: str) -> list[Any]:
    """Do something to the database as another program would; the rows that the last statement gives."""
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
        return [connection.execute(statement).fetchall() for statement in statements][-1]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the index itself warned of; that a store failed is for `Store` to say."""
    records = [record for record in caplog.records if record.name == "ptocache.store.index"]
    return [record.getMessage() for record in records if record.levelno >= logging.WARNING]


def is_sound(database: Path) -> bool:
    """What SQLite itself says, in a connection of its own."""
    return execute(database, "PRAGMA integrity_check") == [("ok",)]


def known(tier: LocalTier) -> int:
    """How many outputs the index knows."""
    return counted(tier)[0]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> float:
    """How long a store waits for the database, shortened."""
    monkeypatch.setattr(index_module, "TIMEOUT", 0.4)
    return 0.4


class Holder(Neighbour):
    """A process of another program that has the database open, and does SQL there: `BEGIN` locks it."""

    def __init__(self, database: Path) -> None:
        self.path = database
        super().__init__(lambda statement: self.connection.execute(statement).fetchall(), self.connect)

    def connect(self) -> None:
        self.connection = sqlite3.connect(self.path, isolation_level=None)


# Damaged.

DATABASE_DAMAGES = [*DAMAGES, *(damage for damage in REPLACEMENTS if damage is not to_huge)]


@pytest.mark.parametrize("damage", DATABASE_DAMAGES)
@pytest.mark.parametrize("open_", [False, True], ids=["closed", "open"])
def test_a_damaged_index_costs_no_entry_and_is_made_anew(
    store: Store,
    local: LocalTier,
    directory: Path,
    database: Path,
    damage: Damage,
    open_: bool,
    caplog: pytest.LogCaptureFixture,
):
    fill(store, 20)
    _, size = counted(local)
    local.close()  # its log goes into the database, so that the damage is all there is
    if open_:
        assert known(local) == 20
    damage(database)
    with caplog.at_level(logging.WARNING, "ptocache"):
        assert hits(store, 20) == 20
        for _ in range(2):  # the first one may be what finds the damage
            store.put([key(20)], filled(20, 2000))
        assert hits(store, 21) == 21
        local.close()
        again = LocalTier(str(directory))
        Store([again], Counters(str(directory))).put([key(21)], filled(21, 2000))
        assert counted(again) == (22, size // 20 * 22)
        assert without_row(again) == set()
    again.close()
    assert len(warnings(caplog)) == (directory / "index" / BROKEN).exists()


def page_of(database: Path, name: str) -> int:
    """Where in the file a table or an index begins."""
    [(page,)] = execute(database, f"SELECT rootpage FROM sqlite_master WHERE name = '{name}'")
    [(size,)] = execute(database, "PRAGMA page_size")
    return int(size * (page - 1))


@pytest.mark.parametrize("where", ["the header", "Settings", "Cache", "Cache_key_raw", "all"])
@pytest.mark.parametrize("open_", [False, True], ids=["closed", "open"])
def test_a_corrupt_database_is_set_aside_and_rebuilt_from_the_files(
    store: Store,
    local: LocalTier,
    directory: Path,
    database: Path,
    where: str,
    open_: bool,
    caplog: pytest.LogCaptureFixture,
):
    fill(store, 200)
    local.close()
    start = 0 if where in {"the header", "all"} else page_of(database, where)
    length = database.stat().st_size if where == "all" else 4096 if start else 16
    garbage = random.Random(where).randbytes(length)
    with database.open("r+b") as file:
        file.seek(start)
        file.write(garbage)
    with caplog.at_level(logging.WARNING, "ptocache"):
        if open_:
            with contextlib.suppress(CacheIndexError):
                known(local)
        assert hits(store, 200) == 200
        for _ in range(2):  # the first one may be what finds the damage
            store.put([key(200)], filled(200, 2000))
        assert known(local) == hits(store, 201) == 201
        assert without_row(local) == set()
    assert (directory / "index" / BROKEN).read_bytes()[start : start + length] == garbage
    assert is_sound(database)
    [warning] = warnings(caplog)
    assert str(directory / "index" / BROKEN) in warning
    assert execute(database, "PRAGMA user_version") == [(SCHEMA,)]


@pytest.mark.parametrize("version", [0, 1, SCHEMA + 1, 2**31 - 1])
def test_a_database_of_another_version_is_set_aside_and_rebuilt_from_the_files(
    store: Store,
    local: LocalTier,
    directory: Path,
    database: Path,
    version: int,
    caplog: pytest.LogCaptureFixture,
):
    fill(store, 20)
    before = counted(local)
    local.close()
    execute(database, "UPDATE Cache SET value = 'of another kind'", f"PRAGMA user_version = {version}")
    with caplog.at_level(logging.WARNING, "ptocache"):
        assert counted(local) == before
        fill(store, 21)
    assert known(local) == hits(store, 21) == 21
    assert execute(directory / "index" / BROKEN, "SELECT COUNT(*) FROM Cache") == [(20,)]
    [warning] = warnings(caplog)
    assert f"version {version}" in warning
    assert execute(database, "PRAGMA user_version") == [(SCHEMA,)]


def test_there_is_one_broken_database_at_most(local: LocalTier, store: Store, directory: Path, database: Path):
    for number in range(3):
        fill(store, 3)
        local.close()
        database.write_bytes(b"%d" % number * 1000)
    fill(store, 3)
    assert set(files(directory, "index")) == {BROKEN, "cache.db", "cache.db-journal"}
    assert (directory / "index" / BROKEN).read_bytes() == b"2" * 1000
    clear(local)
    assert BROKEN not in files(directory, "index")


def test_a_rebuilt_index_evicts_first_what_was_used_longest_ago(store: Store, local: LocalTier, directory: Path):
    fill(store, 10)
    ages = [3, 1, 4, 8, 5, 9, 2, 6, 0, 7]
    now = time.time()
    for number, age in enumerate(ages):
        path = directory / "outputs" / filled(number, 2000).action.sha256.hex()
        os.utime(path, (now - 100 * age, now - 2000))
    local.index.rebuild()
    with local.index.transaction() as rows:
        order = [output for output, _ in rows.all()]
    expected = sorted(range(10), key=lambda number: -ages[number])
    assert order == [filled(number, 2000).action.sha256.hex() for number in expected]


def test_processes_that_find_the_same_damage_agree_on_one_new_index(directory: Path, database: Path):
    def work(number: int) -> None:
        with contextlib.suppress(CacheIndexError):
            tier.put([key(number)], filled(number, 2000))

    tier = LocalTier(str(directory))  # each process has its own, with a database of its own
    fill(Store([tier], Counters(str(directory))), 20)
    tier.close()
    with contextlib.ExitStack() as stack:
        neighbours = [stack.enter_context(Neighbour(work)) for _ in range(4)]
        for number, neighbour in enumerate(neighbours):
            neighbour(number)  # it is open now
        start = page_of(database, "Cache")
        with database.open("r+b") as file:
            file.seek(start)
            file.write(random.Random(1).randbytes(4096))
            file.truncate()
        for round_ in range(2, 5):
            for number, neighbour in enumerate(neighbours):
                neighbour.tell(10 * round_ + number)
            for neighbour in neighbours:
                neighbour.answer()
    assert known(tier) == len(files(directory, "outputs"))
    assert without_row(tier) == set()
    assert tier.index.is_sound()
    assert hits(Store([tier], Counters("")), 20) == 20
    tier.close()


def started_anew(database: Path) -> None:
    """Let the index think that the system was started again since it was last opened."""
    [(last,)] = execute(database, "PRAGMA application_id")
    execute(database, f"PRAGMA application_id = {last ^ 1}")


def test_sums_that_a_power_cut_left_wrong_are_put_right(store: Store, local: LocalTier, database: Path):
    fill(store, 10)
    right = counted(local)
    local.close()
    execute(database, "UPDATE Settings SET value = value - 5 WHERE key IN ('count', 'size')")
    started_anew(database)
    assert counted(local) == right
    local.close()
    execute(database, "UPDATE Settings SET value = value - 5 WHERE key IN ('count', 'size')")
    assert counted(local) != right  # all rows are looked at once after a start, and not each time


def test_damage_that_a_power_cut_left_is_found_before_it_does_harm(
    store: Store, local: LocalTier, directory: Path, database: Path, caplog: pytest.LogCaptureFixture
):
    """The key of one row is another one in the table than in its index, which no statement would stumble over."""
    fill(store, 10)
    before = counted(local)
    local.close()
    start = page_of(database, "Cache_key_raw")
    data = bytearray(database.read_bytes())
    place = data.index(filled(3, 2000).action.sha256.hex().encode(), start, start + 4096)
    data[place : place + 8] = b"00000000"
    database.write_bytes(data)
    started_anew(database)
    with caplog.at_level(logging.WARNING, "ptocache"):
        assert counted(local) == before
    assert len(warnings(caplog)) == 1
    assert hits(store, 10) == 10
    assert without_row(local) == set()
    assert is_sound(database)


# Gone, or something else.


@pytest.mark.parametrize("kind", ["directory", "file", "dangling link"])
def test_an_index_that_is_gone_is_made_anew(store: Store, local: LocalTier, directory: Path, kind: str):
    fill(store, 3)
    (directory / "index").rename(directory.parent / "aside")
    if kind == "file":
        (directory / "index").write_text("x")
    elif kind == "dangling link":
        (directory / "index").symlink_to("nowhere")
    other = LocalTier(str(directory))
    other.put([key("other")], filled(98, 2000))
    store.put([key("next")], filled(99, 2000))  # by a process that had the old index open
    assert known(local) == known(other) == 5
    other.close()


@pytest.mark.parametrize("what", ["the database", "the database and its side files", "index", "everything"])
@pytest.mark.parametrize("first", [0, 1], ids=["found by the one", "found by the other"])
def test_an_index_deleted_under_two_processes_is_made_anew_by_whoever_comes_first(
    directory: Path, database: Path, what: str, first: int
):
    tier = LocalTier(str(directory))

    def work(number: int) -> int:
        """Store, and say in how many tries: what is left of the old database may be in the way once."""
        for tries in range(1, 4):
            with contextlib.suppress(CacheIndexError):
                tier.put([key(number)], filled(number, 2000))
                return tries
        raise AssertionError(number)

    with contextlib.ExitStack() as stack:
        neighbours = [stack.enter_context(Neighbour(work)) for _ in range(2)]
        for number in range(10):
            neighbours[number % 2](number)
        if what == "the database":
            database.unlink()
        elif what == "the database and its side files":
            for path in database.parent.iterdir():
                path.unlink()
        else:
            shutil.rmtree(directory / "index" if what == "index" else directory)
        kept = 0 if what == "everything" else 10
        tries = [neighbours[(first + number) % 2](100 + number) for number in range(10)]
        assert sum(tries) <= 11
        assert known(tier) == kept + 10
        assert without_row(tier) == set()
        tier.close()
        tries = [neighbours[number % 2](200 + number) for number in range(10)]
        assert sum(tries) == 10
    assert known(tier) == len(files(directory, "outputs")) == kept + 20
    assert without_row(tier) == set()
    assert tier.index.is_sound()
    tier.close()


def test_another_cache_of_a_process_that_opens_the_index_does_not_unlock_it(
    directory: Path, database: Path, short: float
):
    """POSIX takes all locks that a process has on a file when it closes the file once, and SQLite relies on them."""
    tiers = [LocalTier(str(directory)) for _ in range(2)]
    fill(Store(tiers[:1], Counters("")), 3)
    with Holder(database) as holder:
        holder("PRAGMA busy_timeout = 0")
        with tiers[0].index.transaction() as rows:
            rows.add("a" * 64, Row(4096, 1, ()))
            with pytest.raises(CacheIndexError):  # it waits in vain for the transaction to end
                known(tiers[1])
            with pytest.raises(AssertionError, match="database is locked"):
                holder("BEGIN IMMEDIATE")
        holder("BEGIN IMMEDIATE")
        holder("ROLLBACK")
    assert known(tiers[0]) == known(tiers[1]) == 4
    for tier in tiers:
        tier.close()


@pytest.mark.parametrize("damage", [to_directory, to_fifo, to_socket, to_dangling_link, to_garbage, remove])
def test_a_damaged_lock_of_the_index_does_not_stop_stores(
    store: Store, local: LocalTier, directory: Path, counters: Counters, damage: Damage
):
    store.put([key("a")], filled(1, 2000))
    local.close()
    (directory / "index.lock").touch()
    damage(directory / "index.lock")
    store.put([key("b")], filled(2, 2000))
    assert known(local) == 2
    assert counters.totals()["errors"] == 0


FOREIGN = {
    "another table": ["CREATE TABLE other (x)"],
    "Settings": ["CREATE TABLE Settings (a, b, c)", "INSERT INTO Settings VALUES (1, 2, 3)"],
    "Cache": ["CREATE TABLE Cache (x)"],
    "a view": ["CREATE VIEW Settings AS SELECT 1 AS key, 2 AS value"],
    "a view of rows": ["CREATE VIEW Cache AS SELECT 1 AS key, 2 AS value"],
}


@pytest.mark.parametrize("statements", FOREIGN.values(), ids=FOREIGN)
def test_a_database_of_somebody_else_is_replaced(
    store: Store, local: LocalTier, database: Path, statements: Sequence[str]
):
    fill(store, 1)
    local.close()
    database.unlink()
    execute(database, *statements)
    fill(store, 3)
    fill(store, 3)
    assert known(local) == hits(store, 3) == 3


@pytest.mark.parametrize("damage", DATABASE_DAMAGES)
def test_clear_works_with_a_damaged_index(store: Store, local: LocalTier, database: Path, damage: Damage):
    store.put([key("a")], filled(1, 20_000))
    local.close()
    damage(database)
    assert clear(local).entries == 1
    assert found(store, "a") is None
    store.put([key("a")], filled(1, 20_000))
    assert usage(local).entries == 1


# Locked, or not to be written.


@pytest.mark.parametrize("lock", ["IMMEDIATE", "EXCLUSIVE"])
@pytest.mark.parametrize("open_", [False, True], ids=["closed", "open"])
def test_a_locked_index_delays_a_store_by_a_bounded_time(
    store: Store,
    local: LocalTier,
    counters: Counters,
    directory: Path,
    database: Path,
    short: float,
    open_: bool,
    lock: str,
):
    fill(store, 3)
    if not open_:
        local.close()
    with Holder(database) as holder:
        holder(f"BEGIN {lock}")
        start = time.monotonic()
        store.put([key(3)], filled(3, 2000))
        assert time.monotonic() - start < 20 * short  # diskcache by itself would wait for a minute
        assert hits(store, 4) == 3
        assert usage(local).entries == 3
        assert counters.totals()["errors"] == 1
        holder("ROLLBACK")
    fill(store, 5)
    assert counters.totals()["errors"] == 1
    assert known(local) == hits(store, 5) == 5
    assert BROKEN not in files(directory, "index")


def test_threads_that_meet_a_locked_index_wait_at_the_same_time(
    store: Store, local: LocalTier, database: Path, short: float
):
    fill(store, 1)
    threads = [threading.Thread(target=store.put, args=([key(number)], filled(number, 2000))) for number in range(16)]
    with Holder(database) as holder:
        holder("BEGIN EXCLUSIVE")
        start = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
        assert time.monotonic() - start < 8 * short  # one after the other they would take 16 times as long


def test_a_hit_does_not_wait_for_the_index(store: Store, local: LocalTier, database: Path):
    fill(store, 3)
    with local.index.transaction():
        assert hits(store, 3) == 3
    with Holder(database) as holder:
        holder("BEGIN EXCLUSIVE")
        start = time.monotonic()
        assert hits(store, 3) == 3
        assert time.monotonic() - start < index_module.TIMEOUT


READ_ONLY = {
    "the database": {"index/cache.db": 0o400},
    "the database, not even to be read": {"index/cache.db": 0},
    "the lock": {"index.lock": 0o400},
    "the lock, not even to be read": {"index.lock": 0},
    "its journal": {"index/cache.db-journal": 0o400},
    "its directory": {"index": 0o500},
    "its directory, not even to be looked into": {"index": 0},
}


@pytest.mark.parametrize("modes", READ_ONLY.values(), ids=READ_ONLY)
def test_an_index_that_may_not_be_written_costs_no_hit_and_is_left_alone(
    store: Store, local: LocalTier, directory: Path, modes: dict[str, int]
):
    fill(store, 3)
    assert hits(store, 3) == 3  # they are marked as used, and not once more for an hour
    local.close()
    if modes == READ_ONLY["its directory"]:
        (directory / "index" / "cache.db-journal").unlink()  # with it the database can be written

    def use() -> None:
        old = {name: (directory / name).stat().st_mode for name in modes}
        for name, mode in modes.items():
            (directory / name).chmod(mode)
        before = listing(directory / "outputs")
        counters = Counters(str(directory))
        tier = LocalTier(str(directory))
        again = Store([tier], counters)
        again.put([key(3)], filled(3, 2000))
        assert hits(again, 4) == 3
        assert counters.totals()["errors"] == 1
        assert usage(tier).entries == 3
        assert listing(directory / "outputs") == before
        for name, mode in old.items():
            (directory / name).chmod(mode)
        fill(again, 4)
        assert known(tier) == hits(again, 4) == 4
        assert counters.totals()["errors"] == 1
        assert BROKEN not in files(directory, "index")
        tier.close()

    unprivileged(use)


# Disks of the test's own.

NEWNS, RDONLY, REMOUNT, REC, PRIVATE = 0x20000, 1, 32, 1 << 14, 1 << 18  # as linux/sched.h and sys/mount.h have them


def mount(path: str, flags: int = 0, size: str = "4m", kind: bytes | None = b"tmpfs") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(kind, os.fsencode(path), kind, flags, f"size={size}".encode() if kind else None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)


def see_mounts_alone() -> None:
    """What this process mounts from now on is seen by it and its children only, and gone with them."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEWNS):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    mount("/", REC | PRIVATE, kind=None)


@functools.cache
def can_mount(path: str) -> bool:
    child = os.fork()
    if not child:
        with contextlib.suppress(OSError):
            see_mounts_alone()
            mount(path)
            os._exit(0)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def on_a_small_disk(path: Path, function: Callable[[], object], size: str = "4m") -> None:
    """Run something in a child for which a directory is a file system of its own, that small."""
    if not can_mount("/tmp"):
        pytest.skip("a file system can be mounted by root only")
    path.mkdir(parents=True, exist_ok=True)

    def prepare() -> None:
        see_mounts_alone()
        mount(str(path), size=size)

    in_child(function, prepare)


def fill_up(disk: Path, room: int = 0) -> None:
    """Leave no more than so many bytes free."""
    status = os.statvfs(disk)
    length = status.f_bavail * status.f_bsize - room
    with (disk / "filler").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, length)


@pytest.mark.parametrize("open_", [False, True], ids=["closed", "open"])
def test_a_full_disk_in_the_middle_of_a_transaction_leaves_the_database_sound(directory: Path, open_: bool):
    """With every amount of free space at which something else is the first that does not fit."""

    def use() -> None:
        counters = Counters("")
        for room in range(0, 220_000, 4096):
            tier = LocalTier(str(directory / str(room)))
            store = Store([tier], counters)
            fill(store, 5)
            if not open_:
                tier.close()
            fill_up(directory, room)
            new = {number: filled(number, 20_000) for number in range(5, 9)}
            for number, made in new.items():
                store.put([key(number)], made)
            assert hits(store, 5) == 5
            errors = counters.totals()["errors"]
            (directory / "filler").unlink()
            assert tier.index.is_sound()
            for number, made in new.items():
                store.put([key(number)], made)
            assert counters.totals()["errors"] == errors
            assert known(tier) == 9
            assert [found(store, number) for number in new] == [made.aibin for made in new.values()]
            assert without_row(tier) == set()
            assert files(directory / str(room), "temp") == []
            assert BROKEN not in files(directory / str(room), "index")
            tier.close()
            shutil.rmtree(tier.directory)
        assert errors > 50

    on_a_small_disk(directory, use)


def test_a_disk_that_fills_up_within_a_transaction_takes_nothing_of_it(directory: Path):
    def use() -> None:
        tier = LocalTier(str(directory / "cache"))
        fill(Store([tier], Counters("")), 5)
        before = counted(tier)
        names = tuple(key(number).name for number in range(5000))
        fill_up(directory, 40_000)

        def add() -> None:
            with tier.index.transaction() as rows:
                for number in range(100):  # 160 KB each, far more than SQLite keeps in memory
                    rows.add(f"{number:064}", Row(4096, time.time(), names))

        with pytest.raises(CacheIndexError):
            add()
        (directory / "filler").unlink()
        assert counted(tier) == before
        assert tier.index.is_sound()
        assert BROKEN not in files(directory / "cache", "index")
        tier.close()

    on_a_small_disk(directory, use)


@pytest.mark.parametrize("room", [0, 4096, 16384, 65536])
def test_an_index_that_a_full_disk_did_not_let_begin_begins_later(directory: Path, room: int):
    def use() -> None:
        tier = LocalTier(str(directory / "cache"))
        store = Store([tier], Counters(""))
        fill_up(directory, room)
        store.put([key(0)], filled(0, 200_000))
        assert found(store, 0) is None
        (directory / "filler").unlink()
        fill(store, 3)
        assert known(tier) == hits(store, 3) == 3
        assert BROKEN not in files(directory / "cache", "index")
        tier.close()

    on_a_small_disk(directory, use)


def test_a_read_only_file_system_costs_no_hit(directory: Path):
    def use() -> None:
        counters = Counters("")
        tier = LocalTier(str(directory / "cache"))
        store = Store([tier], counters)
        fill(store, 3)
        tier.close()
        mount(str(directory), RDONLY | REMOUNT)
        before = listing(directory)
        store.put([key(3)], filled(3, 2000))
        assert hits(store, 4) == 3
        assert usage(tier).entries == 3
        assert counters.totals()["errors"] == 1
        assert listing(directory) == before
        mount(str(directory), REMOUNT)
        fill(store, 4)
        assert known(tier) == hits(store, 4) == 4
        assert counters.totals()["errors"] == 1
        tier.close()

    on_a_small_disk(directory, use)


# Many at once.


def test_sixty_four_processes_open_an_index_that_is_not_there_at_the_same_moment(
    directory: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(index_module, "TIMEOUT", WAIT)  # they share the cores with whatever else runs there

    def work(me: int) -> None:
        tier = LocalTier(str(directory), Limits(10**9))
        tier.put([key(me)], filled(me, 2000))
        tier.close()

    run_together(64, work)
    tier = LocalTier(str(directory))
    store = Store([tier], Counters(str(directory)))
    assert known(tier) == hits(store, 64) == 64
    assert without_row(tier) == set()
    assert tier.index.is_sound()
    assert BROKEN not in files(directory, "index")
    tier.close()


def open_files(directory: Path) -> list[str]:
    """What this process has open of the index, its lock included."""
    paths = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one for the list itself
            paths.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(path.removeprefix(f"{directory}/") for path in paths if path.startswith(f"{directory}/index"))


OPEN = ["index/cache.db"]


def test_threads_share_one_connection_which_close_closes(store: Store, local: LocalTier, directory: Path):
    gate = threading.Barrier(8)
    failures: list[str] = []

    def work(me: int) -> None:
        try:
            gate.wait(WAIT)
            for number in range(10):
                store.put([key((me, number))], filled(100 * me + number, 2000))
            gate.wait(WAIT)  # with all threads alive
            assert open_files(directory) == OPEN
        except BaseException:  # noqa: BLE001
            failures.append(traceback.format_exc())

    threads = [threading.Thread(target=work, args=(me,)) for me in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert not failures, failures[0]
    assert known(local) == 80
    local.close()
    assert open_files(directory) == []
    assert known(local) == 80  # it opens what it needs
    local.close()
    local.close()
    assert open_files(directory) == []


def test_threads_may_close_the_index_while_others_use_it(store: Store, local: LocalTier, counters: Counters):
    done = threading.Event()

    def close() -> None:
        while not done.is_set():
            local.close()

    thread = threading.Thread(target=close)
    thread.start()
    try:
        fill(store, 20)
    finally:
        done.set()
        thread.join(WAIT)
    assert counters.totals()["errors"] == 0
    assert known(local) == 20


def test_close_waits_for_a_thread_that_uses_the_index_and_does_not_fail(
    store: Store, local: LocalTier, directory: Path, short: float
):
    """However long that takes: a cache is closed at the end of a `with`, which must not fail."""
    fill(store, 3)
    held = threading.Event()

    def hold() -> None:
        with local.index.transaction() as rows:
            held.set()
            time.sleep(short + 1.5)
            rows.add("a" * 64, Row(4096, 1, ()))

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(WAIT)
    local.close()
    thread.join(WAIT)
    assert open_files(directory) == []
    assert known(local) == 4


# What interrupts a transaction.


class Stop(BaseException):
    """Something that nobody catches."""


@pytest.mark.parametrize("error", [ValueError("x"), OSError(5, "x"), KeyboardInterrupt(), SystemExit(), Stop()])
def test_whatever_ends_a_transaction_early_undoes_it_and_leaves_none_open(
    store: Store, local: LocalTier, database: Path, error: BaseException
):
    fill(store, 3)
    before = counted(local)

    def change() -> None:
        with local.index.transaction() as rows:
            rows.add("a" * 64, Row(4096, 1, ()))
            output, _ = rows.oldest() or ("", None)
            rows.discard(output)
            raise error

    with Holder(database) as holder:
        holder("PRAGMA busy_timeout = 0")
        with pytest.raises(type(error)) as caught:
            change()
        holder("BEGIN IMMEDIATE")  # at once, though the error is still there
        holder("ROLLBACK")
    assert caught.value is error
    assert counted(local) == before


def test_an_interrupt_at_any_moment_leaves_no_transaction_open(store: Store, local: LocalTier, database: Path):
    """Ctrl-C may come between any two instructions; in a child, as it may also come between two of other packages."""
    chance = random.Random(1)
    armed: list[bool] = []

    def interrupt(*_: object) -> None:
        if armed:
            armed.clear()
            raise KeyboardInterrupt

    def use() -> None:
        interrupted = 0
        fill(store, 3)
        signal.signal(signal.SIGALRM, interrupt)
        for number in range(100):
            try:
                armed.append(True)
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.004))
                for _ in range(3):
                    store.put([key(number)], filled(number, 2000))
                armed.clear()  # it is over now, or it has been caught
            except KeyboardInterrupt:
                interrupted += 1
            holder("BEGIN IMMEDIATE")
            holder("ROLLBACK")
        assert interrupted > 20
        local.close()

    fill(store, 3)
    with Holder(database) as holder:
        holder("PRAGMA busy_timeout = 0")
        in_child(use)
    fill(store, 100)
    assert known(local) == hits(store, 100) == 100
    assert without_row(local) == set()
    assert local.index.is_sound()


def test_a_failed_open_leaves_nothing_open(directory: Path, database: Path, tmp_path: Path):
    """Not even while whoever caught the error looks at it."""

    def fail() -> Iterator[tuple[str, Row]]:
        yield "a" * 64, Row(4096, 1, ())
        raise OSError(5, "Input/output error")

    make_directory(str(tmp_path), str(directory))
    index = Index(Layout(str(directory)), fail)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output") as caught, index.transaction():
            pass
        assert open_files(directory) == []
    assert caught.value.errno == 5
    assert execute(database, "SELECT COUNT(*) FROM Cache") == [(0,)]
    good = Index(Layout(str(directory)), lambda: iter([("a" * 64, Row(4096, 1, ()))]))
    with good.transaction() as rows:
        assert (rows.count(), rows.bytes()) == (1, 4096)
    good.close()
    assert open_files(directory) == []


@pytest.mark.parametrize("kind", ["foreign", "locked"])
def test_an_open_that_a_bad_database_made_fail_leaves_nothing_open(
    store: Store, local: LocalTier, directory: Path, database: Path, short: float, kind: str
):
    fill(store, 3)
    local.close()
    with Holder(database) as holder:
        if kind == "locked":
            holder("BEGIN EXCLUSIVE")
        else:
            holder("DROP TABLE Settings")
            holder("CREATE VIEW Settings AS SELECT 1 AS key, 2 AS value")
        if kind == "locked":
            with pytest.raises(CacheIndexError) as caught:  # kept, with all that it keeps
                known(local)
            assert open_files(directory) == []
            assert caught.value
        else:
            assert known(local) == 3
            assert open_files(directory) == OPEN
    local.close()
    assert open_files(directory) == []


# Forks.


def test_a_child_never_has_the_database_of_its_parent_open(store: Store, local: LocalTier, directory: Path):
    fill(store, 3)
    assert open_files(directory) == OPEN

    def use() -> None:
        assert open_files(directory) == []
        store.put([key("child")], filled(9, 2000))
        assert open_files(directory) == OPEN
        local.close()

    in_child(use)
    fill(store, 4)
    assert open_files(directory) == OPEN
    assert known(local) == 5
    started = subprocess.run(
        ["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, close_fds=False, timeout=WAIT, check=True
    )
    assert "cache.db" not in started.stdout


def test_a_child_forked_while_a_thread_opens_the_index_has_nothing_of_it(directory: Path, tmp_path: Path):
    """The lock that the thread holds meanwhile is filelock's, which has its own rules for forks."""
    opening = threading.Event()

    def scan() -> Iterator[tuple[str, Row]]:
        opening.set()
        time.sleep(0.5)
        yield "a" * 64, Row(4096, 1, ())

    def open_() -> None:
        with index.transaction() as rows:
            rows.add("b" * 64, Row(4096, 1, ()))

    def use() -> None:
        assert open_files(directory) == []
        with index.transaction() as rows:
            rows.add("c" * 64, Row(4096, 1, ()))

    make_directory(str(tmp_path), str(directory))
    index = Index(Layout(str(directory)), scan)
    thread = threading.Thread(target=open_)
    thread.start()
    assert opening.wait(WAIT)
    start = time.monotonic()
    in_child(use)
    assert time.monotonic() - start < index_module.TIMEOUT
    thread.join(WAIT)
    with index.transaction() as rows:
        assert sorted(output[0] for output, _ in rows.all()) == ["a", "b", "c"]
    index.close()


class SlowToFork:
    """Something that closes at forks, and takes its time about it."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self.thread = threading.Thread(target=meanwhile)

    def before_fork(self) -> bool:
        self.thread.start()
        self.thread.join(0.5)
        return True

    def after_fork_in_parent(self) -> None:
        pass

    def after_fork(self) -> None:
        pass


def test_an_index_that_is_first_opened_while_the_process_forks_is_not_open_in_the_child(
    store: Store, local: LocalTier, directory: Path
):
    slow = SlowToFork(lambda: fill(store, 3))
    close_at_forks(slow)

    def use() -> None:
        assert open_files(directory) == []
        store.put([key("child")], filled(9, 2000))

    in_child(use)
    slow.thread.join(WAIT)
    assert known(local) == 4
    assert hits(store, 3) == 3


def test_children_forked_while_a_thread_stores_can_use_the_index(store: Store, local: LocalTier, directory: Path):
    done = threading.Event()
    stored: list[int] = []
    assert known(local) == 0  # the index is there, and open

    def work() -> None:
        while not done.is_set():
            store.put([key(len(stored))], filled(len(stored), 2000))
            stored.append(len(stored))

    def use(number: int) -> None:
        assert open_files(directory) == []
        counters = Counters("")
        own = Store([local], counters)
        own.put([key(("child", number))], filled(10_000 + number, 2000))
        assert found(own, ("child", number)) == filled(10_000 + number, 2000).aibin
        assert counters.totals()["errors"] == 0

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for number in range(8):
            in_child(lambda number=number: use(number))  # type: ignore[misc]
    finally:
        done.set()
        thread.join(WAIT)
    assert known(local) == len(stored) + 8
    assert hits(store, len(stored)) == len(stored)
    assert without_row(local) == set()
    assert local.index.is_sound()


def test_a_child_forked_in_the_middle_of_a_transaction_can_use_the_index(
    store: Store, local: LocalTier, directory: Path
):
    """The parent forks once the transaction is done, so that the child has nothing of it."""
    fill(store, 3)
    held = threading.Event()

    def hold() -> None:
        with local.index.transaction() as rows:
            rows.add("a" * 64, Row(4096, 1, ()))
            held.set()
            time.sleep(0.3)
            rows.add("b" * 64, Row(4096, 1, ()))

    def use() -> None:
        assert open_files(directory) == []
        assert known(local) == 5
        fill(store, 4)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(WAIT)
    in_child(use)
    thread.join(WAIT)
    assert known(local) == 6
    assert hits(store, 4) == 4
    assert local.index.is_sound()


SCRIPT = """
import os, sys, threading, time
sys.path.insert(0, sys.argv[2])
from test_store import filled, found, key
from ptocache.counters import Counters
from ptocache.store import index
from ptocache.store.index import Row
from ptocache.store.local import LocalTier
from ptocache.store.tiers import Store
index.TIMEOUT = 0.2
tier, counters = LocalTier(sys.argv[1]), Counters("")
store = Store([tier], counters)
store.put([key(0)], filled(0, 2000))
held, go_on = threading.Event(), threading.Event()
def hold():
    with tier.index.transaction() as rows:
        rows.add("a" * 64, Row(4096, 1, ()))
        held.set()
        go_on.wait(60)
        rows.add("b" * 64, Row(4096, 1, ()))
thread = threading.Thread(target=hold)
thread.start()
held.wait(60)
child = os.fork()
if not child:
    start = time.monotonic()
    for number in range(3):
        store.put([key(number)], filled(number, 2000))
    print("child", time.monotonic() - start < 10, found(store, 0) == filled(0, 2000).aibin, flush=True)
    sys.exit()  # Python closes what it can find when it ends
assert os.waitpid(child, 0)[1] == 0
go_on.set()
thread.join()
store.put([key(1)], filled(1, 2000))
with tier.index.transaction() as rows:
    print("parent", rows.count(), rows.bytes(), counters.totals()["errors"])
print("sound", tier.index.is_sound())
tier.close()
"""


def test_a_child_forked_in_the_middle_of_a_long_transaction_is_not_held_up(directory: Path, database: Path):
    """Its parent does not wait until the transaction ends, so the child has the database, and must not touch it."""
    result = subprocess.run(
        # Python 3.12 and later warn of forks in threads.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT, str(directory), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )
    assert result.stderr.count("\n") <= 1  # one warning of the child's
    assert result.stdout.splitlines() == ["child True True", f"parent 4 {2 * 8192 + 2 * 4096} 0.0", "sound True"]
    assert result.returncode == 0
    assert is_sound(database)


def test_threads_that_fork_at_the_same_time_hold_nobody_up(store: Store, local: LocalTier):
    fill(store, 3)
    gate = threading.Barrier(4)
    failures: list[str] = []

    def work(me: int) -> None:
        try:
            gate.wait(WAIT)
            for step in range(5):
                number = 10 * me + step
                in_child(lambda number=number: local.put([key(number)], filled(number, 2000)))  # type: ignore[misc]
        except BaseException:  # noqa: BLE001
            failures.append(traceback.format_exc())

    threads = [threading.Thread(target=work, args=(me,)) for me in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert not failures, failures[0]
    assert known(local) == 23
    assert without_row(local) == set()


# What somebody may have written into it.


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (self.path,))


HOSTILE_KEYS = [
    "../../treasure",
    "/etc/passwd",
    "..",
    "",
    "a" * 63 + "/",
    "A" * 64,
    "0" * 64 + "\n",
    "é" * 64,
    b"\x80\x04N.",
    5,
    2.5,
    None,
]


@pytest.mark.parametrize("raw", [1, 0, None])
@pytest.mark.parametrize("hostile_keys", [HOSTILE_KEYS, []], ids=["hostile keys", "good keys"])
def test_hostile_rows_are_neither_unpickled_nor_used_as_paths(
    directory: Path, tmp_path: Path, counters: Counters, hostile_keys: list[Any], raw: int | None
):
    limit = 600_000
    treasure = tmp_path / "treasure"
    treasure.write_text("gold")
    boom = tmp_path / "boom"
    tier = LocalTier(str(directory), Limits(limit))
    store = Store([tier], counters)
    store.put([key("a")], filled(1, 2000))
    tier.close()
    bomb = pickle.dumps(Bomb(str(boom)))
    deep = "../" * 20 + str(treasure).lstrip("/")
    good = "0" * 64
    values: list[Any] = [b"", bomb, "text", 7, None, struct.pack("<Qd", 1 << 40, 0) + b"../" * 16 + b"x" * 16]
    values.append(struct.pack("<Qd", 1 << 40, float("nan")) + b"0" * 32)
    with contextlib.closing(sqlite3.connect(directory / "index" / "cache.db")) as database:
        insert = (
            "INSERT OR IGNORE INTO Cache(rowid, key, raw, store_time, access_time, size, mode, filename, value)"
            " VALUES (?, ?, ?, 0, 0, ?, ?, ?, ?)"
        )
        keys = [*hostile_keys, *([bomb] if hostile_keys else []), good, *(good[:-1] + digit for digit in "123456")]
        for number, (row_key, mode) in enumerate((k, m) for k in keys for m in (1, 2, 3, 4)):
            value = values[number % len(values)]
            name = ["../../treasure", str(treasure), deep, None][number % 4]
            database.execute(insert, (number - 1000, row_key, raw, 1 << 16, mode, name, value))
        database.commit()
    for number in range(2, 80):  # enough for the eviction to meet every row
        store.put([key(number)], filled(number, 2000))
    assert treasure.read_text() == "gold"
    assert not boom.exists()
    assert found(store, 79) == filled(79, 2000).aibin
    assert usage(tier).bytes <= limit
    assert without_row(tier) == set()
    with contextlib.closing(sqlite3.connect(directory / "index" / "cache.db")) as database:
        left = database.execute("SELECT COUNT(*) FROM Cache WHERE rowid < 0").fetchone()
    assert left == (0,)
    tier.close()


HOSTILE_SETTINGS: dict[str, Any] = {
    "disk_nonsense": 1,
    "cull_limit": 100,
    "size_limit": 1,
    "eviction_policy": "least-recently-used",
    "statistics": "on",
    "sqlite_journal_mode": "off",
    "sqlite_nonsense": "x; DROP TABLE Cache",
    "count": "many",
    "size": "much",
    "hits": None,
}


@pytest.mark.parametrize("name", HOSTILE_SETTINGS)
def test_hostile_settings_of_the_index_are_not_obeyed(store: Store, local: LocalTier, database: Path, name: str):
    fill(store, 1)
    local.close()
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("INSERT OR REPLACE INTO Settings VALUES (?, ?)", (name, HOSTILE_SETTINGS[name]))
        connection.commit()
    fill(store, 5)
    fill(store, 5)  # the first of them may be what finds it out
    assert known(local) == hits(store, 5) == 5


def test_hostile_settings_of_the_index_are_not_unpickled(
    store: Store, local: LocalTier, database: Path, tmp_path: Path
):
    fill(store, 1)
    local.close()
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("UPDATE Settings SET value = ?", (pickle.dumps(Bomb(str(tmp_path / "boom"))),))
        connection.commit()
    fill(store, 5)
    fill(store, 5)
    assert known(local) == hits(store, 5) == 5
    assert not (tmp_path / "boom").exists()


@given(st.binary(max_size=100))
def test_any_bytes_are_a_row_with_sensible_names_or_none(value: bytes):
    row = Row.decode(value)
    if row is not None:
        assert all(len(name) == 32 and not set(name) - set("0123456789abcdef") for name in row.actions)
        assert row.encode() == value
