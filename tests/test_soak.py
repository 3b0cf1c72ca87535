"""The local tier for a minute under the worst that its neighbours do. Run with `-m soak`."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ptocache.store import upkeep
from ptocache.store.failures import Failures
from ptocache.store.local import Limits, LocalTier

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

PROCESSES = 16
KEYS = 2000
SECONDS = 40

#: Holds about a tenth of the keys: outputs of 20 KB on average, with an action and a source of a block each.
LIMIT = KEYS // 10 * (20_000 + 3 * 4096)

#: Reads and stores at random until it is killed. What is wrong it says, and ends.
WORKER = """
import random, sys, logging
from ptocache.counters import Counters
from ptocache.request import make_key
from ptocache.store.entry import make_entry
from ptocache.store.local import Limits, LocalTier, pack_source
from ptocache.store.tiers import Store

directory, seed, limit, keys = sys.argv[1], *map(int, sys.argv[2:])
chance = random.Random(seed)
counters = Counters(directory)
store = Store([LocalTier(directory, Limits(limit), counters=counters)], counters)

def aibin(number):
    return random.Random(number).randbytes(8000 + number * 7919 % 24000)

while True:
    number = chance.randrange(keys)
    key = make_key([("soak", str(number).encode())])
    found = store.get(key)
    if found is None:
        store.put([key], make_entry(aibin(number), seconds=1, created=0, facts={}), pack_source(f"source {number}"))
    elif found.entry.aibin != aibin(number):
        sys.exit(f"wrong bytes for {number}")
"""


class Workers:
    """Processes that are killed and begun again; what they said is in files."""

    def __init__(self, directory: Path, limit: int, logs: Path) -> None:
        self._command = [sys.executable, "-c", WORKER, str(directory)]
        self._limit = limit
        self._logs = logs
        self._begun = 0
        self._processes = [self._begin() for _ in range(PROCESSES)]

    def _begin(self) -> subprocess.Popen[bytes]:
        self._begun += 1
        with (self._logs / str(self._begun)).open("wb") as log:
            arguments = map(str, (self._begun, self._limit, KEYS))
            return subprocess.Popen([*self._command, *arguments], stdout=log, stderr=log)

    def replace_one(self, chance: random.Random) -> None:
        place = chance.randrange(PROCESSES)
        process = self._processes[place]
        assert process.poll() is None, self.said()
        process.kill()
        process.wait()
        self._processes[place] = self._begin()

    def said(self) -> str:
        return "".join(path.read_text() for path in sorted(self._logs.iterdir()))

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def workers(directory: Path, limit: int, logs: Path) -> Iterator[Workers]:
    logs.mkdir()
    all_workers = Workers(directory, limit, logs)
    try:
        yield all_workers
    finally:
        all_workers.end()


def on_disk(top: Path) -> int:
    """The bytes of all files and directories below a directory; some may vanish meanwhile."""
    size = 0
    for folder, folders, names in os.walk(top):
        for name in (*folders, *names):
            with contextlib.suppress(FileNotFoundError):
                size += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return size


def test_sixteen_processes_that_are_killed_at_random(tmp_path: Path) -> None:
    directory, chance = tmp_path / "cache", random.Random(1)
    largest = 0
    with workers(directory, LIMIT, tmp_path / "logs") as running:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(chance.random() / 4)  # how often they are killed, not how long something is waited for
            running.replace_one(chance)
            largest = max(largest, on_disk(directory))
    assert running.said() == ""
    assert LIMIT / 2 < largest <= LIMIT * 1.05

    with contextlib.closing(sqlite3.connect(directory / "index" / "cache.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    tier = LocalTier(str(directory), Limits(LIMIT))
    failures = Failures(tier.layout, 600)
    upkeep.prune(tier, failures)
    assert list(upkeep.verify(tier, failures)) == []
    with tier.index.transaction() as rows:
        known = dict(rows.all())
    outputs = {path.name for path in (directory / "outputs").iterdir()}
    actions = {path.name for path in (directory / "actions").iterdir()}
    assert outputs == set(known)
    assert actions == {name for row in known.values() if row is not None for name in row.actions}
    assert {path.name for path in (directory / "sources").iterdir()} <= actions
    assert list((directory / "temp").iterdir()) == []
    assert upkeep.prune(tier, failures) == upkeep.Pruned(*[0] * len(upkeep.Pruned._fields))
    tier.close()


def test_a_neighbour_that_destroys_whatever_it_finds(tmp_path: Path) -> None:
    """What is destroyed is logged once in each process and stored again: no wrong bytes, and nobody ends."""
    directory, chance = tmp_path / "cache", random.Random(2)
    with workers(directory, LIMIT, tmp_path / "logs") as running:
        end = time.monotonic() + SECONDS / 2
        while time.monotonic() < end:
            time.sleep(chance.random() / 4)
            with contextlib.suppress(OSError):
                destroy(directory, chance)
            running.replace_one(chance)
    assert "Traceback" not in running.said()
    assert "wrong bytes" not in running.said()
    tier = LocalTier(str(directory), Limits(LIMIT))
    failures = Failures(tier.layout, 600)
    upkeep.repair(tier, list(upkeep.verify(tier, failures)))
    upkeep.prune(tier, failures)
    assert list(upkeep.verify(tier, failures)) == []
    tier.close()


def destroy(directory: Path, chance: random.Random) -> None:
    """Do one of the things that a cache directory may suffer."""
    kind = chance.randrange(6)
    if kind == 0:
        shutil.rmtree(directory, ignore_errors=True)
        return
    folder = directory / chance.choice(["actions", "outputs", "sources", "index"])
    files = sorted(folder.iterdir())
    if not files:
        return
    path = chance.choice(files)
    if kind == 1:
        shutil.rmtree(folder, ignore_errors=True)
    elif kind == 2:
        path.unlink()
    elif kind == 3:
        os.truncate(path, path.stat().st_size // 2)
    elif kind == 4:
        with path.open("r+b") as file:
            file.seek(chance.randrange(max(1, path.stat().st_size)))
            file.write(b"\xff")
    else:
        path.unlink()
        path.mkdir()
