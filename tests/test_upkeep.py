"""Looking after a cache: what belongs to nothing goes, what is damaged is found, and nothing else is touched."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import random
import re
import shutil
import socket
import sqlite3
import stat
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import KERNEL, numbered_kernel, run_ptocache
from test_doctor import drop_privileges, put, zero_the_rows
from test_place import installed
from test_sharing import FORK, WAIT, Child, as_user, command, filled, key

from ptocache import CompileCache, Settings
from ptocache.errors import NotACacheError, SourceImportError
from ptocache.lease import lease
from ptocache.store import index as index_module
from ptocache.store.entry import Entry
from ptocache.store.failures import Failures
from ptocache.store.files import publish
from ptocache.store.local import EVICTION_STEP, Limits, LocalTier, pack_source
from ptocache.store.upkeep import Pruned, clear, prune, repair, usage, verify

DAY = 86400
NOTHING = Pruned(*[0] * len(Pruned._fields))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The cache directory that the settings name; it is still to be made."""
    return tmp_path / "cache"


@contextlib.contextmanager
def tier_of(directory: Path, size: int = 0, age: float = 0) -> Iterator[LocalTier]:
    tier = LocalTier(str(directory), Limits(size, age))
    try:
        yield tier
    finally:
        tier.close()


def prune_now(directory: Path, size: int = 0, age: float = 0, failures: float = 600) -> Pruned:
    with tier_of(directory, size, age) as tier:
        return prune(tier, Failures(tier.layout, failures))


def holds(directory: Path, *numbers: int) -> list[bool]:
    """Which of these are found, whole, without marking them as used."""
    tier = LocalTier(str(directory), readonly=True)
    found = []
    for number in numbers:
        entry = tier.get(key(number))
        assert entry is None or entry.aibin == filled(number, len(entry.aibin)).aibin
        found.append(entry is not None)
    return found


def store(directory: Path, *numbers: int, size: int = 5000, limit: int = 0) -> None:
    """Store some outputs, each under two keys, one of them with its source."""
    with tier_of(directory, limit) as tier:
        for number in numbers:
            tier.put([key(f"pto {number}")], filled(number, size))
            tier.put([key(number)], filled(number, size), pack_source(f"source {number}"))


def output(directory: Path, number: int, size: int = 5000) -> Path:
    return directory / "outputs" / filled(number, size).action.sha256.hex()


def action(directory: Path, name: object) -> Path:
    return directory / "actions" / key(name).name


def source(directory: Path, name: object) -> Path:
    return directory / "sources" / key(name).name


@contextlib.contextmanager
def database(directory: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(directory / "index" / "cache.db")) as connection:
        yield connection
        connection.commit()


def forget(directory: Path, number: int, size: int = 5000) -> None:
    """Take the row of an output out of the index, and leave the files."""
    with database(directory) as connection:
        name = filled(number, size).action.sha256.hex()
        assert connection.execute("DELETE FROM Cache WHERE key = ?", (name,)).rowcount == 1


def age_rows(directory: Path) -> None:
    """Let it be an hour ago that the rows were put in: a new one may be that of a store on its way."""
    with tier_of(directory) as tier, tier.index.transaction() as all_rows:
        for name, row in list(all_rows.all()):
            assert row is not None
            all_rows.add(name, row._replace(used=row.used - 3600))


def rows(directory: Path) -> set[str]:
    with database(directory) as connection:
        return {name for (name,) in connection.execute("SELECT key FROM Cache")}


def on_disk(top: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in top.rglob("*"))


def files(top: Path) -> dict[str, tuple[Any, ...]]:
    """All that is below a directory, but what SQLite writes when it only looks."""
    seen: dict[str, tuple[Any, ...]] = {}
    for path in (top, *top.rglob("*")):
        if path.parent.name != "index" and path.name not in {"index", "index.lock"}:
            status = path.lstat()
            data = path.read_bytes() if stat.S_ISREG(status.st_mode) and status.st_size < 1 << 30 else b""
            times = (status.st_mtime_ns, status.st_ctime_ns)
            seen[str(path)] = (status.st_mode, status.st_ino, status.st_size, *times, data)
    return seen


def names(folder: Path) -> set[str]:
    return set(os.listdir(folder)) if folder.is_dir() else set()


def run(*arguments: str) -> tuple[int, str, str]:
    """A command, in a process that is not this one."""
    return as_user(None, lambda: command(*arguments))


def facts(*arguments: str) -> dict[str, Any]:
    status, out, err = run(*arguments, "--json")
    assert (status, err) == (0, "")
    value: dict[str, Any] = json.loads(out)
    return value


class TestLimits:
    def test_a_lowered_size_limit_is_reached_at_once_and_what_was_stored_last_is_kept(self, directory: Path) -> None:
        store(directory, *range(60), size=20_000)
        pruned = prune_now(directory, size=600_000)
        assert on_disk(directory) <= 600_000
        kept = [number for number, found in enumerate(holds(directory, *range(60))) if found]
        assert kept == list(range(60 - len(kept), 60))
        assert len(kept) >= 10
        assert pruned == NOTHING._replace(evicted=60 - len(kept), bytes=pruned.bytes)
        assert len(names(directory / "outputs")) == len(rows(directory)) == len(kept)
        assert len(names(directory / "actions")) == 2 * len(kept)
        assert len(names(directory / "sources")) == len(kept)

    def test_many_times_what_a_store_looks_at_is_removed_in_one_go(self, directory: Path) -> None:
        count = 4 * EVICTION_STEP
        with tier_of(directory) as tier:
            for number in range(count):
                tier.put([key(number)], filled(number, 4))
        assert prune_now(directory, size=600_000).evicted > 3 * EVICTION_STEP
        assert on_disk(directory) <= 600_000
        assert holds(directory, count - 1) == [True]

    def test_what_was_used_since_is_kept_longer(self, directory: Path) -> None:
        store(directory, *range(30), size=20_000)
        later = time.time() + 100
        os.utime(output(directory, 3, 20_000), (later, output(directory, 3, 20_000).stat().st_mtime))
        prune_now(directory, size=600_000)
        assert holds(directory, 2, 3, 4, 29) == [False, True, False, True]

    def test_even_what_was_used_goes_where_the_limit_asks_for_it(self, directory: Path) -> None:
        store(directory, *range(100), size=4000)
        later = time.time() + 100
        for number in range(100):
            path = output(directory, number, 4000)
            os.utime(path, (later + number, path.stat().st_mtime))
        prune_now(directory, size=300_000)
        assert on_disk(directory) <= 300_000
        assert holds(directory, 0, 99) == [False, True]

    def test_a_limit_that_holds_removes_nothing(self, directory: Path) -> None:
        store(directory, *range(5))
        before = files(directory)
        for size in (0, 10**9):
            assert prune_now(directory, size=size) == NOTHING
        assert files(directory) == before

    def test_a_limit_that_even_an_empty_cache_exceeds_removes_all_and_ends(self, directory: Path) -> None:
        store(directory, *range(5))
        assert prune_now(directory, size=1).evicted == 5
        assert rows(directory) == set()
        assert prune_now(directory, size=1).evicted == 0

    def test_the_age_limit_counts_from_the_last_use(self, directory: Path) -> None:
        store(directory, *range(5))
        now = time.time()
        for number, (used, stored) in enumerate([(40, 40), (10, 10), (1, 40), (29.9, 40), (30.1, 40)]):
            os.utime(output(directory, number), (now - used * DAY, now - stored * DAY))
        assert prune_now(directory) == NOTHING
        pruned = prune_now(directory, age=30 * DAY)
        assert pruned == NOTHING._replace(expired=2, bytes=pruned.bytes)
        assert holds(directory, *range(5)) == [False, True, True, True, False]
        assert len(names(directory / "actions")) == 6
        assert len(names(directory / "sources")) == 3

    def test_both_limits_count_what_each_removed(self, directory: Path) -> None:
        store(directory, *range(40), size=20_000)
        old = time.time() - 40 * DAY
        for number in (3, 38):
            os.utime(output(directory, number, 20_000), (old, old))
        pruned = prune_now(directory, size=600_000, age=30 * DAY)
        assert pruned.expired == 2
        assert pruned.evicted == 40 - 2 - len(names(directory / "outputs"))
        assert holds(directory, 3, 38, 39) == [False, False, True]

    def test_the_command_takes_the_limits_from_the_settings(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store(directory, *range(40), size=20_000)
        old = time.time() - 2 * DAY
        os.utime(output(directory, 39, 20_000), (old, old))
        monkeypatch.setenv("PTOCACHE_MAX_AGE", "1d")
        monkeypatch.setenv("PTOCACHE_SIZE_LIMIT", "600000")
        pruned = facts("prune")
        assert (pruned["expired"], pruned["evicted"]) == (1, 39 - len(names(directory / "outputs")))
        assert on_disk(directory) <= 600_000


def kill(work: Callable[[], Any]) -> None:
    """Run something in a process that ends in a SIGKILL."""
    child = Child(None, work)
    child.process.join(WAIT)
    assert child.process.exitcode == -9


def die(*_: object) -> None:
    os.kill(os.getpid(), 9)


def put_and_die(directory: Path, number: int) -> None:
    """Store something, and be killed when its first file is written and has no name yet."""
    os.replace = die  # type: ignore[assignment]
    put(directory, number)


def hold_and_die(directory: Path, name: str) -> None:
    with lease(Settings.load({}, dir=directory), name) as held:
        assert held
        die()


class Busy:
    """A process that does something for as long as the block runs."""

    def __init__(self, work: Callable[[Callable[[], None]], Any]) -> None:
        self._barrier = FORK.Barrier(2)
        self._child = Child(None, lambda: work(self._wait))

    def _wait(self) -> None:
        self._barrier.wait(WAIT)  # it is where it was to be
        self._barrier.wait(WAIT)  # and may go on

    def __enter__(self) -> Busy:
        self._barrier.wait(WAIT)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._barrier.wait(WAIT)
            self._child.result()
        else:
            self._child.kill()


class TestLeftovers:
    def test_a_row_whose_output_is_gone(self, directory: Path) -> None:
        store(directory, 1, 2)
        output(directory, 1).unlink()
        age_rows(directory)
        pruned = prune_now(directory)
        assert pruned == NOTHING._replace(rows=1, bytes=pruned.bytes)
        assert rows(directory) == names(directory / "outputs") == {output(directory, 2).name}
        assert names(directory / "actions") == {key(2).name, key("pto 2").name}
        assert names(directory / "sources") == {key(2).name}

    def test_an_output_without_a_row_that_nothing_leads_to(self, directory: Path) -> None:
        store(directory, 1, 2)
        forget(directory, 1)
        for path in (action(directory, 1), action(directory, "pto 1"), source(directory, 1)):
            path.unlink()
        size = output(directory, 1).stat().st_blocks * 512
        assert prune_now(directory) == NOTHING._replace(outputs=1, bytes=size)
        assert holds(directory, 1, 2) == [False, True]
        assert names(directory / "outputs") == {output(directory, 2).name}

    def test_an_output_without_a_row_that_an_action_leads_to_is_kept_and_given_one(self, directory: Path) -> None:
        store(directory, 1, 2)
        with tier_of(directory) as tier:
            before = usage(tier)
        forget(directory, 1)
        kept = files(directory)
        pruned = prune_now(directory)
        assert pruned == NOTHING._replace(adopted=1)
        assert files(directory) == kept
        assert rows(directory) == {output(directory, 1).name, output(directory, 2).name}
        assert holds(directory, 1, 2) == [True, True]
        with tier_of(directory) as tier:
            assert usage(tier).entries == before.entries
            with tier.index.transaction() as all_rows:
                row = all_rows.get(output(directory, 1).name)
            assert row is not None
            assert set(row.actions) == {key(1).name, key("pto 1").name}
        assert prune_now(directory, size=1).evicted == 2  # and leaves no file of it behind
        assert names(directory / "outputs") == names(directory / "actions") == names(directory / "sources") == set()

    def test_what_is_adopted_is_as_old_as_its_file_says(self, directory: Path) -> None:
        store(directory, 1, 2)
        forget(directory, 1)
        old = time.time() - 40 * DAY
        os.utime(output(directory, 1), (old, old))
        assert prune_now(directory, age=30 * DAY).expired == 1
        assert holds(directory, 1, 2) == [False, True]

    def test_a_whole_index_that_is_gone_costs_nothing(self, directory: Path) -> None:
        store(directory, 1, 2, 3)
        shutil.rmtree(directory / "index")
        assert prune_now(directory)._replace(bytes=0) == NOTHING
        assert holds(directory, 1, 2, 3) == [True] * 3
        assert len(rows(directory)) == 3

    def test_actions_that_lead_nowhere(self, directory: Path) -> None:
        store(directory, 1, 2)
        forget(directory, 1)
        output(directory, 1).unlink()
        pruned = prune_now(directory)
        assert pruned == NOTHING._replace(actions=2, bytes=pruned.bytes)
        assert names(directory / "actions") == {key(2).name, key("pto 2").name}
        assert names(directory / "sources") == {key(2).name}

    def test_an_action_that_is_damaged_and_without_a_row(self, directory: Path) -> None:
        store(directory, 1, 2)
        (directory / "actions" / ("0" * 32)).write_bytes(b"damaged")
        assert prune_now(directory).actions == 1
        assert holds(directory, 1, 2) == [True, True]

    def test_of_a_keys_actions_only_those_that_lead_nowhere(self, directory: Path) -> None:
        """One key, two branches: they differ in what the lowering read."""
        with tier_of(directory) as tier:
            for number in (1, 2):
                made = filled(number)
                tier.put([key("both")], Entry(made.action._replace(inputs=bytes([number])), made.aibin))
        store(directory, 3)
        forget(directory, 1)
        forget(directory, 2)
        output(directory, 1).unlink()
        assert prune_now(directory).actions == 0
        tier = LocalTier(str(directory), readonly=True)
        assert [tier.get(key("both"), lambda found, n=n: found == bytes([n])) is not None for n in (1, 2)] == [0, 1]
        assert [found.inputs for found in tier.actions(key("both").name)] == [b"\2"]

    def test_a_source_without_an_action(self, directory: Path) -> None:
        store(directory, 1)
        source(directory, 2).write_bytes(pack_source("source 2"))
        assert prune_now(directory) == NOTHING._replace(sources=1, bytes=4096)
        assert names(directory / "sources") == {key(1).name}

    def test_what_a_killed_writer_was_writing(self, directory: Path) -> None:
        store(directory, 1)
        kill(lambda: put_and_die(directory, 2))
        assert len(names(directory / "temp")) == 1
        age_rows(directory)
        pruned = prune_now(directory)
        assert pruned == NOTHING._replace(temporary=1, rows=1, bytes=pruned.bytes)  # the row came first
        assert names(directory / "temp") == set()
        assert rows(directory) == {output(directory, 1).name}

    def test_not_what_a_living_writer_is_writing(self, directory: Path) -> None:
        store(directory, 1)

        def work(wait: Callable[[], None]) -> None:
            replace = os.replace

            def replace_later(*paths: str) -> None:
                wait()
                os.replace = replace
                replace(*paths)

            os.replace = replace_later  # type: ignore[assignment]
            publish(str(directory), str(directory / "outputs" / "x"), b"data")

        with Busy(work):
            (name,) = names(directory / "temp")
            assert prune_now(directory) == NOTHING
            assert names(directory / "temp") == {name}
        assert (directory / "outputs" / "x").read_bytes() == b"data"

    def test_what_is_written_again_and_again_while_it_is_swept_arrives(self, directory: Path) -> None:
        store(directory, 1)
        child = Child(None, lambda: [publish(str(directory), str(directory / "counters"), b"data") for _ in range(300)])
        with tier_of(directory) as tier:
            while child.is_waiting:
                prune(tier, Failures(tier.layout, 0))
        child.result()
        assert (directory / "counters").read_bytes() == b"data"
        assert names(directory / "temp") == set()

    def test_the_lock_of_a_killed_holder_and_not_that_of_a_living_one(self, directory: Path) -> None:
        store(directory, 1)
        kill(lambda: hold_and_die(directory, "a" * 32))

        def hold(wait: Callable[[], None]) -> None:
            with lease(Settings.load({}, dir=directory), "b" * 32) as held:
                assert held
                wait()

        with Busy(hold):
            assert names(directory / "locks") == {f"{'a' * 32}.lock", f"{'b' * 32}.lock"}
            assert prune_now(directory).locks == 1
            assert names(directory / "locks") == {f"{'b' * 32}.lock"}
            with lease(Settings.load({}, dir=directory, lock_timeout=0), "b" * 32) as held:
                assert not held
        assert names(directory / "locks") == set()

    def test_a_database_that_was_set_aside(self, directory: Path) -> None:
        store(directory, 1)
        (directory / "index" / "cache.db").write_bytes(b"no database" * 1000)
        store(directory, 2)
        broken = directory / "index" / "cache.db.broken"
        size = broken.stat().st_blocks * 512
        pruned = prune_now(directory)
        assert pruned == NOTHING._replace(strays=1, bytes=size)
        assert not broken.exists()
        assert holds(directory, 1, 2) == [True, True]

    def test_strays_and_the_directories_of_an_older_layout(self, directory: Path, tmp_path: Path) -> None:
        store(directory, 1)
        treasure = tmp_path / "treasure"
        treasure.write_text("gold")
        (directory / "outputs" / "a0").mkdir()
        (directory / "outputs" / "a0" / ("0" * 62)).write_bytes(b"old output")
        (directory / "actions" / "3f").mkdir()
        (directory / "actions" / "3f" / ("0" * 30)).write_bytes(b"old action")
        (directory / "sources" / "3f").mkdir()
        (directory / "sources" / "3f" / ("0" * 30)).write_bytes(b"old source")
        (directory / "outputs" / "notes").write_text("x")
        (directory / "outputs" / ("A" * 64)).write_text("x")
        (directory / "actions" / ("0" * 31)).write_text("x")
        (directory / "actions" / ("0" * 32)).symlink_to(treasure)
        (directory / "sources" / "link").symlink_to("/nonexistent/target")
        os.mkfifo(directory / "sources" / ("0" * 32))
        assert prune_now(directory).strays == 9
        assert names(directory / "outputs") == {output(directory, 1).name}
        assert names(directory / "actions") == {key(1).name, key("pto 1").name}
        assert names(directory / "sources") == {key(1).name}
        assert treasure.read_text() == "gold"
        assert holds(directory, 1) == [True]

    def test_what_else_is_in_temp_and_locks(self, directory: Path) -> None:
        """Nobody but ptocache has anything to put there."""
        store(directory, 1)
        (directory / "locks").mkdir()
        for folder in ("temp", "locks"):
            (directory / folder / "file").write_text("x")
            (directory / folder / "below" / "deep").mkdir(parents=True)
            (directory / folder / "link").symlink_to("/nonexistent/target")
            os.mkfifo(directory / folder / "fifo")
        pruned = prune_now(directory)
        assert pruned.temporary + pruned.locks + pruned.strays == 8
        assert names(directory / "temp") == names(directory / "locks") == set()

    def test_failures_that_are_too_old_or_damaged(self, directory: Path) -> None:
        store(directory, 1)
        error = SourceImportError("no", tool="frontend", command=["x"], returncode=1, stderr="no")
        with tier_of(directory) as tier:
            failures = Failures(tier.layout, 600)
            for number in range(4):
                failures.put(key(number), error, b"")
            old = time.time() - 700
            os.utime(tier.layout.failure(key(0).name), (old, old))
            os.truncate(tier.layout.failure(key(1).name), 20)
            assert prune(tier, failures).failures == 2
            assert [failures.get(key(n), lambda _: True) is not None for n in range(4)] == [False, False, True, True]
        assert prune_now(directory, failures=0).failures == 2

    def test_what_is_foreign_in_the_cache_directory_itself_stays(self, directory: Path) -> None:
        store(directory, 1)
        (directory / "notes.txt").write_text("mine")
        (directory / "mine" / "deep").mkdir(parents=True)
        (directory / "link").symlink_to("/nonexistent/target")
        kept = {path: path.lstat().st_ino for path in directory.iterdir()}
        prune_now(directory, size=1)
        assert {path: path.lstat().st_ino for path in directory.iterdir()} == kept
        assert (directory / "notes.txt").read_text() == "mine"

    def test_the_second_time_there_is_nothing_to_do(self, directory: Path) -> None:
        store(directory, *range(6))
        output(directory, 1).unlink()
        forget(directory, 2)
        forget(directory, 3)
        output(directory, 3).unlink()
        (directory / "outputs" / ("0" * 64)).write_bytes(b"x")
        source(directory, "none").write_bytes(b"x")
        kill(lambda: put_and_die(directory, 7))
        kill(lambda: hold_and_die(directory, "a" * 32))
        age_rows(directory)
        pruned = prune_now(directory)
        expected = NOTHING._replace(rows=2, outputs=1, actions=2, sources=1, temporary=1, locks=1, adopted=1)
        assert pruned._replace(bytes=0) == expected
        before = files(directory)
        assert prune_now(directory) == NOTHING
        assert files(directory) == before

    def test_the_bytes_are_those_that_the_directory_takes_less(self, directory: Path) -> None:
        store(directory, *range(20), size=20_000)
        for number in range(5):
            output(directory, number, 20_000).unlink()
        age_rows(directory)
        before = on_disk(directory)
        with tier_of(directory, size=300_000) as tier:
            pruned = prune(tier, Failures(tier.layout, 600))
        assert pruned.bytes == before - on_disk(directory) > 100_000


class TestPruneCommand:
    def test_it_says_what_was_removed_each_thing_once(self, directory: Path) -> None:
        store(directory, *range(5))
        output(directory, 1).unlink()
        forget(directory, 2)
        age_rows(directory)
        (directory / "outputs" / ("0" * 64)).write_bytes(b"x")
        source(directory, "none").write_bytes(b"x")
        (directory / "actions" / ("0" * 32)).write_bytes(b"x")
        (directory / "outputs" / "stray").write_bytes(b"x")
        (directory / "temp" / ("0" * 16)).write_bytes(b"x")
        (directory / "locks").mkdir()
        (directory / "locks" / f"{'0' * 32}.lock").write_bytes(b"x")
        status, out, err = run("prune")
        assert (status, err) == (0, "")
        first, *rest = out.splitlines()
        assert re.fullmatch(rf"removed \d+\.\d KiB from {re.escape(str(directory))}", first)
        assert rest == [
            "  1 row without a file",
            "  1 output that nothing leads to",
            "  1 action that leads nowhere",
            "  1 source without an action",
            "  1 temporary file of dead processes",
            "  1 lock file of dead processes",
            "  1 other file",
            "  and 1 output without a row in the index, which has one now",
        ]
        assert run("prune") == (0, f"removed 0 B from {directory}\n", "")

    def test_several_of_each_are_said_in_the_plural(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store(directory, *range(8))
        for number in (1, 2):
            output(directory, number).unlink()
        for number in (3, 4):
            forget(directory, number)
        age_rows(directory)
        old = time.time() - 2 * DAY
        for number in (5, 6):
            os.utime(output(directory, number), (old, old))
        (directory / "locks").mkdir()
        for digit in "01":
            (directory / "outputs" / (digit * 64)).write_bytes(b"x")
            source(directory, f"none {digit}").write_bytes(b"x")
            (directory / "actions" / (digit * 32)).write_bytes(b"x")
            (directory / "outputs" / f"stray {digit}").write_bytes(b"x")
            (directory / "temp" / (digit * 16)).write_bytes(b"x")
            (directory / "locks" / f"{digit * 32}.lock").write_bytes(b"x")
        monkeypatch.setenv("PTOCACHE_MAX_AGE", "1d")
        status, out, err = run("prune")
        assert (status, err) == (0, "")
        text = out.split("\n", 1)[1]
        for words in (
            "2 entries not used for too long",
            "2 rows without a file",
            "2 outputs that nothing leads to",
            "2 actions that lead nowhere",
            "2 sources without an action",
            "2 temporary files of dead processes",
            "2 lock files of dead processes",
            "2 other files",
            "and 2 outputs without a row in the index, which have one now",
        ):
            assert words in text
        assert not re.search(r"\b1 ", text)

    def test_json_has_each_number_under_its_name(self, directory: Path) -> None:
        store(directory, *range(3))
        output(directory, 1).unlink()
        age_rows(directory)
        pruned = facts("prune")
        assert list(pruned) == ["directory", *Pruned._fields]
        assert pruned["directory"] == str(directory)
        assert {name: count for name, count in pruned.items() if count and name not in {"directory", "bytes"}} == {
            "rows": 1
        }

    def test_where_there_is_no_directory_there_is_nothing_to_do_and_none_is_made(self, directory: Path) -> None:
        assert run("prune") == (0, f"removed 0 B from {directory}\n", "")
        assert not directory.exists()

    def test_a_readonly_cache_is_left_alone(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store(directory, 1)
        (directory / "outputs" / "stray").write_bytes(b"x")
        before = files(directory)
        monkeypatch.setenv("PTOCACHE_READONLY", "1")
        status, out, err = run("prune")
        assert (status, out) == (2, "")
        assert err.count("\n") == 1
        assert "PTOCACHE_READONLY" in err
        assert files(directory) == before

    def test_a_damaged_index_does_not_stop_it(self, directory: Path) -> None:
        store(directory, *range(40))
        (directory / "outputs" / "stray").write_bytes(b"x")
        zero_the_rows(directory / "index" / "cache.db")
        status, out, err = run("prune", "--json")
        assert status == 0, err
        assert "Traceback" not in err
        assert json.loads(out)["strays"] >= 1
        assert all(holds(directory, *range(40)))
        assert len(rows(directory)) == 40

    def test_an_index_that_somebody_has_locked_is_one_line_and_exit_1(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store(directory, 1)
        monkeypatch.setattr(index_module, "TIMEOUT", 0.2)
        with contextlib.closing(sqlite3.connect(directory / "index" / "cache.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            status, out, err = run("prune")
            other.execute("ROLLBACK")
        assert (status, out) == (1, "")
        assert err.startswith("ptocache: ")
        assert err.count("\n") == 1
        assert holds(directory, 1) == [True]


FOREIGN = [
    ["thesis.tex"],
    ["outputs/thesis.tex"],
    ["actions/thesis.tex"],
    ["sources/main.c"],
    ["temp/letter.txt"],
    ["temp/deep/letter.txt"],
    ["locks/keys.txt"],
    ["failures/a/report.txt"],
    ["index/index.html"],
    ["outputs/a0/deep.txt"],
    ["counters", "photo.jpg"],
]


class TestForeign:
    @pytest.mark.parametrize("made", FOREIGN, ids=" ".join)
    @pytest.mark.parametrize("name", ["prune", "verify", "verify --repair", "clear -y"])
    def test_a_directory_that_is_no_cache_is_refused_and_untouched(
        self, directory: Path, made: list[str], name: str
    ) -> None:
        for path in made:
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_text("years of work")
        before = files(directory)
        status, out, err = run(*name.split())
        assert files(directory) == before
        assert (status, out) == (1, "")
        assert err.count("\n") == 1
        assert str(directory) in err
        assert "PTOCACHE_DIR" in err

    def test_the_functions_refuse_it_too(self, directory: Path) -> None:
        directory.mkdir()
        (directory / "thesis.tex").write_text("years of work")
        with tier_of(directory) as tier:
            failures = Failures(tier.layout, 600)
            for work in (lambda: prune(tier, failures), lambda: list(verify(tier, failures)), lambda: clear(tier)):
                with pytest.raises(NotACacheError, match="is not a cache of ptocache"):
                    work()
        assert os.listdir(directory) == ["thesis.tex"]

    @pytest.mark.parametrize("path", ["temp/letter.txt", "temp/deep/letter.txt", "locks/keys.txt"])
    def test_what_a_user_had_in_the_directory_survives_the_first_store(self, directory: Path, path: str) -> None:
        """Somebody sets PTOCACHE_DIR to a directory that they have, and have used."""
        (directory / path).parent.mkdir(parents=True)
        (directory / path).write_text("years of work")
        with contextlib.suppress(NotACacheError):  # it may also not be used as a cache at all
            store(directory, 1)
        assert (directory / path).read_text() == "years of work"

    def test_a_cache_that_has_lost_its_tag_is_known_all_the_same(self, directory: Path) -> None:
        store(directory, 1, 2)
        kill(lambda: put_and_die(directory, 3))
        kill(lambda: hold_and_die(directory, "a" * 32))
        error = SourceImportError("no", tool="frontend", command=["x"], returncode=1, stderr="no")
        with CompileCache() as cache:
            cache.failures.put(key(4), error, b"")
            cache.counters.add("misses")
        age_rows(directory)
        (directory / "CACHEDIR.TAG").unlink()
        assert run("verify")[0] == 0
        assert facts("prune")["rows"] == 1
        (directory / "CACHEDIR.TAG").write_bytes(b"")
        assert facts("clear", "-y")["entries"] == 2


class TestPruneAmongOthers:
    @pytest.mark.parametrize("limit", [0, 500_000], ids=["no limit", "evicting"])
    def test_while_four_processes_store_and_read(self, directory: Path, limit: int) -> None:
        count = 40
        gate = FORK.Barrier(5)

        def work(me: int) -> float:
            gate.wait(WAIT)
            chance = random.Random(me)
            with CompileCache(Settings.load({}, dir=directory, size_limit=limit)) as cache:
                for step in range(count):
                    number = 100 * me + step
                    made = filled(number, 8000)
                    cache.local.put([key(number), key(f"pto {number}")], made, pack_source(f"source {number}"))
                    entry = cache.local.get(key(number))
                    assert limit or entry is not None, f"{number} is lost"
                    assert entry is None or entry.aibin == made.aibin
                    known = chance.randrange(100 * me, number + 1)
                    entry = cache.local.get(key(known))
                    assert limit or entry is not None, f"{known} is lost"
                    assert entry is None or entry.aibin == filled(known, 8000).aibin
                return cache.counters.totals()["errors"]

        children = [Child(None, lambda me=me: work(me)) for me in range(4)]
        gate.wait(WAIT)
        removed = NOTHING
        with tier_of(directory, limit) as tier:
            while any(child.is_waiting for child in children):
                pruned = prune(tier, Failures(tier.layout, 600))
                removed = Pruned(*map(sum, zip(removed, pruned, strict=True)))
        assert [child.result() for child in children] == [0] * 4
        assert prune_now(directory, limit)._replace(evicted=0, bytes=0) == NOTHING
        if limit:
            assert on_disk(directory) <= limit
            assert all(holds(directory, 100 * me + count - 1) for me in range(4))
        else:
            # Nothing was taken for a leftover that was on its way; a file that was written a moment ago, and not
            # locked yet, is written once more.
            assert removed._replace(bytes=0, temporary=0) == NOTHING
            numbers = [100 * me + step for me in range(4) for step in range(count)]
            assert all(holds(directory, *numbers))
            assert len(names(directory / "sources")) == 2 * len(numbers)

    def test_a_store_that_is_on_its_way_is_no_row_without_a_file(self, directory: Path) -> None:
        """A store begins with its row; whoever prunes then must not take what comes a moment later."""
        store(directory, 1)
        barrier = FORK.Barrier(2)

        def put_slowly() -> None:
            replace = os.replace

            def replace_later(*paths: str) -> None:
                os.replace = replace
                barrier.wait(WAIT)  # there is a row, and no file
                barrier.wait(WAIT)
                replace(*paths)

            os.replace = replace_later  # type: ignore[assignment]
            put(directory, 2)

        class Looking(LocalTier):
            """Once it has looked whether the output is there, the store goes on, and ends if it can."""

            def last_used(self, name: str) -> float:
                used = super().last_used(name)
                if not used:
                    go_on()
                    child.process.join(0.5)  # it may also have to wait for the transaction
                return used

        def go_on() -> None:
            if not waited.is_set():
                waited.set()
                barrier.wait(WAIT)

        waited = threading.Event()
        child = Child(None, put_slowly)
        barrier.wait(WAIT)
        looking = Looking(str(directory))
        prune(looking, Failures(looking.layout, 600))
        looking.close()
        go_on()
        child.result()
        assert holds(directory, 1, 2) == [True, True]
        assert prune_now(directory) == NOTHING


# Damage.


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def remove(path: Path) -> None:
    path.unlink()


def to_directory(path: Path) -> None:
    path.unlink()
    (path / "inside").mkdir(parents=True)
    (path / "inside" / "file").write_text("x")


def to_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def to_socket(path: Path) -> None:
    path.unlink()
    here = os.open(path.parent, os.O_RDONLY)  # the path itself may be too long for a socket's address
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


def to_dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nonexistent/target")


def to_link_to_a_good_copy(path: Path) -> None:
    copy = path.parent.parent.parent / "copy"
    path.rename(copy)
    path.symlink_to(copy)


def to_huge(path: Path) -> None:
    os.truncate(path, 1 << 40)  # sparse: it takes no space


Damage = Callable[[Path], None]
DAMAGES = [flip_a_byte, truncate, empty, lengthen]
REPLACEMENTS = [to_directory, to_fifo, to_socket, to_dangling_link, to_link_to_a_good_copy, to_huge]


@pytest.fixture(scope="module")
def compiled(cann: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with two kernels and a remembered failure, as compilations made it."""
    directory = tmp_path_factory.mktemp("compiled") / "cache"
    with installed(cann), CompileCache(Settings.load({}, dir=directory)) as cache:
        for number in (1, 2):
            cache.compile(numbered_kernel(number), "a5", [])
        with pytest.raises(SourceImportError):
            cache.compile(f"{KERNEL}\n1 / 0\n", "a5", [])
    return directory


@pytest.fixture
def cache(compiled: Path, directory: Path) -> Path:
    """A copy of it, which the test may damage."""
    return Path(shutil.copytree(compiled, directory, symlinks=True))


def of_kernel(cache: Path, number: int) -> tuple[Path, Path, Path, Path]:
    """The files of a kernel: its output, its action, that of its lowered text, and its source."""
    with CompileCache(Settings.load({}, dir=cache, readonly=True)) as reader:
        name = reader.prepare(numbered_kernel(number), "a5", []).key.name
        (made,) = reader.local.actions(name)
        others = [other for other, found in reader.local.all_actions() if found.sha256 == made.sha256]
    (pto,) = set(others) - {name}
    folders = ("outputs", "actions", "actions", "sources")
    found = (made.sha256.hex(), name, pto, name)
    output, action, pto_action, source = (cache / folder / item for folder, item in zip(folders, found, strict=True))
    return output, action, pto_action, source


def verify_json(*arguments: str) -> tuple[int, dict[str, str]]:
    """The exit status of `verify`, and what it found: paths with the reasons."""
    status, out, err = run("verify", *arguments, "--json")
    assert "Traceback" not in err
    report = json.loads(out)
    assert list(report) == ["directory", "entries", "bad", "repaired"]
    assert report["repaired"] is ("--repair" in arguments)
    for item in report["bad"]:
        assert list(item) == ["path", "problem"]
        assert item["problem"]
    found = {item["path"]: item["problem"] for item in report["bad"]}
    assert len(found) == len(report["bad"])
    return status, found


def check_repair(cache: Path, *paths: Path, reason: str = "") -> None:
    """See that exactly these are found, that only looking changes nothing, and that repairing removes them."""
    before = files(cache)
    for _ in range(2):
        status, found = verify_json()
        assert (status, set(found)) == (1, set(map(str, paths)))
        assert all(reason in problem for problem in found.values())
        assert files(cache) == before
    status, found = verify_json("--repair")
    assert (status, set(found)) == (0, set(map(str, paths)))
    assert not any(os.path.lexists(path) for path in paths if path.name != "index")
    left = files(cache)
    assert {path: left[path][-1] for path in left} == {path: before[path][-1] for path in left}
    assert verify_json() == (0, {})


@pytest.mark.usefixtures("toolchain")
class TestVerify:
    def test_a_clean_cache_is_well(self, cache: Path) -> None:
        before = files(cache)
        assert verify_json() == (0, {})
        assert verify_json("--repair") == (0, {})
        assert run("verify") == (0, f"{cache}: 2 entries read, all is well\n", "")
        assert files(cache) == before

    def test_one_entry_is_said_in_the_singular(self, directory: Path) -> None:
        store(directory, 1)
        assert run("verify") == (0, f"{directory}: 1 entry read, all is well\n", "")
        flip_a_byte(source(directory, 1))
        assert "1 entry read, 1 bad file; " in run("verify")[1]
        assert "1 entry read, 1 file removed, and compiled again when asked for" in run("verify", "--repair")[1]

    def test_where_there_is_no_directory_all_is_well(self, directory: Path) -> None:
        assert run("verify") == (0, f"{directory}: 0 entries read, all is well\n", "")
        assert not directory.exists()

    @pytest.mark.parametrize("damage", DAMAGES + REPLACEMENTS)
    def test_a_damaged_action_is_found_and_compiled_again(self, cache: Path, damage: Damage) -> None:
        output, action, _, _ = of_kernel(cache, 1)
        right = output.read_bytes()
        damage(action)
        check_repair(cache, action)
        with CompileCache() as again:
            results = [again.compile(numbered_kernel(number), "a5", []) for number in (1, 2)]
        assert [(result.origin, result.via) for result in results] == [("local", "pto"), ("local", "source")]
        assert results[0].aibin == right

    @pytest.mark.parametrize("damage", [*DAMAGES, *REPLACEMENTS, remove])
    def test_a_damaged_output_is_found_with_what_leads_to_it_and_compiled_again(
        self, cache: Path, damage: Damage
    ) -> None:
        output, action, pto_action, _ = of_kernel(cache, 1)
        right = output.read_bytes()
        damage(output)
        check_repair(cache, *([] if damage is remove else [output]), action, pto_action)
        with CompileCache() as again:
            results = [again.compile(numbered_kernel(number), "a5", []) for number in (1, 2)]
        assert [result.origin for result in results] == ["compiled", "local"]
        assert results[0].aibin == right

    def test_the_reasons_say_what_is_wrong(self, cache: Path) -> None:
        output, action, pto_action, source = of_kernel(cache, 1)
        other_output, other_action, *_ = of_kernel(cache, 2)
        flip_a_byte(output)
        flip_a_byte(action)
        flip_a_byte(source)
        other_output.unlink()
        _, found = verify_json()
        for path, words in (
            (output, "does not have the SHA-256 that it is named by"),
            (action, "do not match their own digest"),
            (pto_action, f"its output is damaged, or another one: {output.name}"),
            (source, "cannot be unpacked"),
            (other_action, f"its output is gone: {other_output.name}"),
        ):
            assert words in found[str(path)]

    @pytest.mark.parametrize("damage", [flip_a_byte, truncate, empty, to_directory, to_fifo, to_dangling_link])
    def test_a_damaged_source_is_found(self, cache: Path, damage: Damage) -> None:
        *_, source = of_kernel(cache, 1)
        damage(source)
        check_repair(cache, source)
        with CompileCache() as again:
            assert again.compile(numbered_kernel(1), "a5", []).origin == "local"

    @pytest.mark.parametrize("damage", [flip_a_byte, truncate, empty, to_directory, to_fifo, to_dangling_link])
    def test_a_damaged_failure_is_found(self, cache: Path, damage: Damage) -> None:
        (failure,) = (cache / "failures").glob("*/*")
        damage(failure)
        check_repair(cache, failure, reason="no failure that ptocache remembered" if damage is not to_fifo else "")

    @pytest.mark.parametrize("kind", ["rows", "garbage", "cut short", "another program's"])
    def test_a_damaged_database_is_found_and_made_anew(self, cache: Path, kind: str) -> None:
        store(cache, *range(40))
        path = cache / "index" / "cache.db"
        size = path.stat().st_size
        if kind == "rows":
            zero_the_rows(path)
        elif kind == "garbage":
            path.write_bytes(b"no database" * 1000)
        elif kind == "cut short":
            os.truncate(path, size - 4096)
        else:
            path.unlink()
            with contextlib.closing(sqlite3.connect(path)) as other:
                other.execute("CREATE TABLE Cache (x)")
                other.commit()
        check_repair(cache, cache / "index", reason="the database damaged")
        assert len(rows(cache)) == 42
        assert all(holds(cache, *range(40)))

    def test_a_database_that_is_not_there_is_no_damage(self, cache: Path) -> None:
        shutil.rmtree(cache / "index")
        assert verify_json() == (0, {})

    def test_people_read_a_line_for_each_with_its_path_first(self, cache: Path) -> None:
        output, action, pto_action, _ = of_kernel(cache, 1)
        flip_a_byte(output)
        status, out, err = run("verify")
        assert (status, err) == (1, "")
        *lines, last = out.splitlines()
        assert {line.split(": ", 1)[0] for line in lines} == {str(output), str(action), str(pto_action)}
        assert last == f"{cache}: 2 entries read, 3 bad files; ptocache verify --repair removes them"
        status, out, _ = run("verify", "--repair")
        assert status == 0
        assert out.splitlines()[-1].endswith("3 files removed, and compiled again when asked for")

    def test_a_file_that_may_not_be_read_is_found(self, cache: Path) -> None:
        output, *_ = of_kernel(cache, 1)
        output.chmod(0)

        def look() -> tuple[int, str, str]:
            drop_privileges()
            return command("verify")

        status, out, _ = as_user(None, look)
        assert status == 1
        assert f"{output}: " in out
        assert "Permission denied" in out

    def test_what_cannot_be_removed_is_one_line_and_exit_1(self, cache: Path) -> None:
        output, *_ = of_kernel(cache, 1)
        flip_a_byte(output)
        (cache / "outputs").chmod(0o500)

        def mend() -> tuple[int, str, str]:
            drop_privileges()
            return command("verify", "--repair")

        status, _, err = as_user(None, mend)
        (cache / "outputs").chmod(0o700)
        assert status == 1
        assert err.count("\n") == 1
        assert str(output) in err

    def test_a_readonly_cache_is_verified_and_not_repaired(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        output, *_ = of_kernel(cache, 1)
        monkeypatch.setenv("PTOCACHE_READONLY", "1")
        assert verify_json() == (0, {})
        flip_a_byte(output)
        before = files(cache)
        status, found = verify_json()
        assert status == 1
        assert str(output) in found
        status, out, err = run("verify", "--repair")
        assert (status, out) == (2, "")
        assert "PTOCACHE_READONLY" in err
        assert files(cache) == before

    def test_reading_does_not_mark_anything_as_used(self, cache: Path) -> None:
        old = time.time() - 40 * DAY
        probe = cache.parent / "probe"
        probe.write_bytes(b"x")
        paths = [path for name in ("outputs", "actions", "sources") for path in (cache / name).iterdir()]
        for path in (probe, *paths):
            os.utime(path, (old - 10, old))
        probe.read_bytes()
        if probe.stat().st_atime == pytest.approx(old - 10):
            pytest.skip("this file system keeps no access times")
        assert verify_json() == (0, {})
        assert run("prune")[0] == 0
        assert [path.stat().st_atime for path in paths] == pytest.approx([old - 10] * len(paths))
        assert prune_now(cache, age=30 * DAY).expired == 2

    def test_the_progress_counts_every_file(self, cache: Path) -> None:
        told: list[tuple[int, int]] = []
        with tier_of(cache) as tier:
            assert list(verify(tier, Failures(tier.layout, 600), lambda *step: told.append(step))) == []
        assert told == [(step, 8) for step in range(1, 9)]  # 2 outputs, 4 actions, 2 sources


class TestVerifyAmongOthers:
    def test_what_others_evict_meanwhile_is_no_damage(self, directory: Path) -> None:
        limit = 500_000
        store(directory, *range(30), size=8000, limit=limit)
        gate = FORK.Barrier(4)

        def work(me: int) -> None:
            gate.wait(WAIT)
            with tier_of(directory, limit) as tier:
                for step in range(80):
                    number = (7 * step + me) % 40  # what was evicted comes again
                    tier.put([key(number), key(f"pto {number}")], filled(number, 8000), pack_source("source"))

        children = [Child(None, lambda me=me: work(me)) for me in range(3)]
        gate.wait(WAIT)
        rounds = 0
        with tier_of(directory, limit) as tier:
            while any(child.is_waiting for child in children):
                assert list(verify(tier, Failures(tier.layout, 600))) == []
                rounds += 1
        for child in children:
            child.result()
        assert rounds

    def test_what_is_removed_and_stored_again_meanwhile_is_no_damage(self, directory: Path) -> None:
        store(directory, 1, 2, 3)
        with tier_of(directory) as tier:

            def meanwhile(done: int, total: int) -> None:
                if done == 1:  # one output is read, two are not
                    clear(tier)
                elif done == 3:  # all outputs are done, the actions not
                    store(directory, 1, 2, 3)

            assert list(verify(tier, Failures(tier.layout, 600), meanwhile)) == []
        assert holds(directory, 1, 2, 3) == [True] * 3

    def test_what_is_evicted_after_its_output_was_read_is_no_damage(self, directory: Path) -> None:
        store(directory, 1, 2, 3)
        with tier_of(directory) as tier:

            def meanwhile(done: int, total: int) -> None:
                if done == 3:
                    with tier.index.transaction() as all_rows:
                        for name, row in list(all_rows.all())[:2]:
                            tier.evict(all_rows, name, row)
                elif done == 4:
                    store(directory, 4, 5)

            assert list(verify(tier, Failures(tier.layout, 600), meanwhile)) == []

    def test_a_repair_does_not_remove_what_was_stored_again(self, directory: Path) -> None:
        """Between looking and removing, another process compiled it anew."""
        store(directory, 1, 2)
        flip_a_byte(output(directory, 1))
        with tier_of(directory) as tier:
            failures = Failures(tier.layout, 600)
            repair(tier, verify(tier, failures))
            assert list(verify(tier, failures)) == []
            store(directory, 1)
            repair(tier, [])
        assert holds(directory, 1, 2) == [True, True]


# The progress bar.


def on_a_terminal(*arguments: str, columns: int = 80) -> tuple[int, str, str]:
    """Run a command with its standard error on a terminal: its exit status, its output, what the terminal got."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
    process = subprocess.Popen(
        [sys.executable, "-m", "ptocache", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=inner,
        env={**environ, "TERM": "xterm-256color"},
    )
    os.close(inner)
    seen = b""
    with contextlib.suppress(OSError):  # EIO: the other side is closed
        while chunk := os.read(outer, 65536):
            seen += chunk
    os.close(outer)
    out, _ = process.communicate(timeout=WAIT)
    return process.returncode, out.decode(), seen.decode()


@pytest.mark.parametrize(("name", "label"), [("verify", "verifying"), ("prune", "pruning")])
class TestProgress:
    def test_somebody_at_a_terminal_sees_a_bar_that_goes_away(self, directory: Path, name: str, label: str) -> None:
        store(directory, *range(20))
        status, out, seen = on_a_terminal(name)
        assert status == 0
        assert label in seen
        assert "\x1b[2K" in seen  # what was drawn is erased
        assert "\x1b[?25h" in seen or "\x1b[?25l" not in seen  # a cursor that was hidden is back
        for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)):
            assert len(line) <= 80
        assert "\x1b" not in out
        assert out.count("\n") == 1

    def test_where_nobody_looks_there_is_none(self, directory: Path, name: str, label: str) -> None:
        store(directory, 1)
        result = run_ptocache(name)
        assert (result.returncode, result.stderr) == (0, "")
        assert label not in result.stdout
        assert "\x1b" not in result.stdout


# Clearing.


class TestClear:
    def test_everything_stored_goes_and_nothing_else(self, directory: Path) -> None:
        with CompileCache() as cache:
            for number in range(5):
                cache.local.put([key(number)], filled(number), pack_source("source"))
            error = SourceImportError("no", tool="frontend", command=["x"], returncode=1, stderr="no")
            cache.failures.put(key(9), error, b"")
            cache.counters.add("misses", 7)
        (directory / "digests").write_bytes(b"")
        (directory / "notes.txt").write_text("mine")
        before = on_disk(directory)
        cleared = facts("clear", "-y")
        assert list(cleared) == ["directory", "entries", "bytes"]
        assert (cleared["directory"], cleared["entries"]) == (str(directory), 5)
        assert 5 * 8192 <= cleared["bytes"] <= before
        for name in ("outputs", "actions", "sources", "failures", "temp"):
            assert names(directory / name) == set()
        assert rows(directory) == set()
        assert (directory / "notes.txt").read_text() == "mine"
        assert facts("stats")["misses"] == 7
        assert facts("clear", "-y")["entries"] == 0

    def test_while_others_store_none_fails_and_what_is_stored_after_is_there(self, directory: Path) -> None:
        store(directory, 0)
        gate = FORK.Barrier(4)

        def work(me: int) -> float:
            gate.wait(WAIT)
            with CompileCache(Settings.load({}, dir=directory)) as cache:
                for step in range(60):
                    number = 100 * me + step
                    cache.local.put([key(number), key(f"pto {number}")], filled(number), pack_source("source"))
                    entry = cache.local.get(key(number))
                    assert entry is None or entry.aibin == filled(number).aibin
                return cache.counters.totals()["errors"]

        children = [Child(None, lambda me=me: work(me)) for me in range(3)]
        gate.wait(WAIT)
        with tier_of(directory) as tier:
            for _ in range(15):
                clear(tier)
        assert [child.result() for child in children] == [0] * 3
        store(directory, 1000)
        assert holds(directory, 1000) == [True]
        with tier_of(directory) as tier:
            prune(tier, Failures(tier.layout, 600))
            assert list(verify(tier, Failures(tier.layout, 600))) == []
            clear(tier)
            assert usage(tier).entries == 0
        assert names(directory / "outputs") == names(directory / "temp") == set()

    def test_a_lease_that_is_held_stays_held(self, directory: Path) -> None:
        store(directory, 1)

        def hold(wait: Callable[[], None]) -> None:
            with lease(Settings.load({}, dir=directory), "b" * 32) as held:
                assert held
                wait()

        with Busy(hold):
            assert facts("clear", "-y")["entries"] == 1
            with lease(Settings.load({}, dir=directory, lock_timeout=0), "b" * 32) as held:
                assert not held

    def test_one_who_has_the_index_open_goes_on(self, directory: Path) -> None:
        with tier_of(directory) as tier:
            tier.put([key(1)], filled(1))
            assert run("clear", "-y")[0] == 0
            tier.put([key(2)], filled(2))
            assert usage(tier).entries == 1
        assert holds(directory, 1, 2) == [False, True]

    @pytest.mark.parametrize("kind", ["garbage", "directory", "dangling link"])
    def test_a_damaged_index_is_cleared_too(self, directory: Path, kind: str) -> None:
        store(directory, 1, 2)
        path = directory / "index" / "cache.db"
        if kind == "garbage":
            path.write_bytes(b"no database" * 1000)
        else:
            path.unlink()
            path.mkdir() if kind == "directory" else path.symlink_to("/nonexistent/target")
        status, out, err = run("clear", "-y", "--json")
        assert status == 0, err
        assert json.loads(out)["entries"] == 2
        assert names(directory / "outputs") == rows(directory) == set()
        assert "cache.db.broken" not in names(directory / "index")

    def test_a_killed_clear_leaves_a_cache_that_can_be_used_and_cleared(self, directory: Path) -> None:
        store(directory, 1, 2)

        def clear_and_die() -> None:
            import ptocache.store.upkeep as upkeep

            upkeep.remove = die  # type: ignore[assignment]  # a directory has been set aside
            with tier_of(directory) as tier:
                clear(tier)

        kill(clear_and_die)
        store(directory, 3)
        assert holds(directory, 3) == [True]
        assert run("prune")[0] == 0
        assert names(directory / "temp") == set()
        assert verify_json() == (0, {})
        assert run("clear", "-y")[0] == 0
        assert names(directory / "outputs") == set()

    def test_what_cannot_be_removed_is_one_line_and_exit_1(self, directory: Path) -> None:
        store(directory, 1)
        (directory / "outputs").chmod(0o500)

        def try_to() -> tuple[int, str, str]:
            drop_privileges()
            return command("clear", "-y")

        status, out, err = as_user(None, try_to)
        for path in (directory, *directory.rglob("*")):
            path.chmod(0o700)
        assert (status, out) == (1, "")
        assert err.count("\n") == 1
