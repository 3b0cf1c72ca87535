"""One cache, and many processes and threads that fork, start, end and are interrupted while they use it."""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
import pickle
import random
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import filelock
import pytest
from conftest import KERNEL, ToolLog, numbered_kernel

from ptocache import CompileCache, Settings
from ptocache.counters import Counters
from ptocache.lease import lease
from ptocache.request import Key, make_key
from ptocache.store import index as index_module
from ptocache.store.entry import Entry, make_entry
from ptocache.store.index import Index
from ptocache.store.layout import Layout
from ptocache.store.local import Limits, LocalTier
from ptocache.store.memory import MemoryTier
from ptocache.store.tiers import Store

WAIT = 60  # seconds after which something that was waited for will not come any more


@functools.cache
def key(number: int) -> Key:
    return make_key([("test", str(number).encode())])


@functools.cache
def made(number: int) -> Entry:
    aibin = random.Random(number).randbytes(8000)
    return make_entry(aibin, seconds=1.5, created=1.7e9, facts={"number": number})


class Local:
    """A cache directory, used through a store of one tier."""

    def __init__(self, directory: Path, size: int = 0) -> None:
        self.counters = Counters(str(directory))
        self.tier = LocalTier(str(directory), Limits(size), counters=self.counters)
        self.store = Store([self.tier], self.counters)

    def get(self, number: int) -> bool:
        """Whether an entry is found; it is right then."""
        found = self.store.get(key(number))
        assert found is None or found.entry.aibin == made(number).aibin
        return found is not None

    def put(self, number: int) -> None:
        self.store.put([key(number)], made(number))

    def errors(self) -> float:
        return self.counters.totals()["errors"]

    def close(self) -> None:
        self.counters.flush()
        self.tier.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def local(directory: Path) -> Iterator[Local]:
    cache = Local(directory)
    yield cache
    cache.close()


@pytest.fixture
def settings(directory: Path) -> Settings:
    return Settings.load(dir=directory, lock_timeout=0.1)


def open_files(directory: Path) -> list[str]:
    """What this process has open below a directory, as paths relative to it."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            path = os.readlink(f"/proc/self/fd/{name}").removesuffix(" (deleted)")
            if path.startswith(f"{directory}/"):
                found.append(path.removeprefix(f"{directory}/"))
    return sorted(found)


def shared_files(directory: Path) -> list[str]:
    """What this process has open there that no other may have from it: the database's files, and locks."""
    return [path for path in open_files(directory) if path.startswith(("index", "locks"))]


def fork() -> int:
    """Fork. Since Python 3.12 filelock 4 refuses the second of two forks at the same time, for whoever forks."""
    for _ in range(1000):
        try:
            return os.fork()
        except RuntimeError as error:
            if "filelock" not in str(error):
                raise
            time.sleep(0.005)
    raise AssertionError("filelock refuses all forks")


class Forked:
    """A process that was forked just now, and runs a function; it is the fork itself that is tested."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._reader, writer = os.pipe()
        self.pid = fork()
        if self.pid == 0:
            os.close(self._reader)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(WAIT)  # it ends by itself, whatever becomes of its parent
            try:
                function()
            except BaseException:  # noqa: BLE001 - it is told to the parent, whatever it is
                os.write(writer, traceback.format_exc().encode()[-4000:])
            os._exit(0)
        os.close(writer)

    def join(self) -> None:
        """Wait until it has ended, and fail as it failed."""
        try:
            assert select.select([self._reader], [], [], WAIT)[0], "the child does not answer"
            report = os.read(self._reader, 4000).decode()
        finally:
            self.kill()
        assert not report, report

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._reader)


@contextlib.contextmanager
def meanwhile(*functions: Callable[[int], object]) -> Iterator[None]:
    """Call functions again and again in threads of their own, with 0, 1, 2 and so on, while the block runs."""
    stop = threading.Event()

    def run(function: Callable[[int], object]) -> None:
        number = 0
        while not stop.is_set():
            function(number)
            number += 1

    with ThreadPoolExecutor(len(functions)) as pool:
        running = [pool.submit(run, function) for function in functions]
        try:
            yield
        finally:
            stop.set()
        for one in running:
            one.result(WAIT)


# Forks.


def test_a_child_forked_while_threads_store_shares_no_database_and_no_lock_and_can_go_on(
    local: Local, directory: Path, settings: Settings
) -> None:
    local.put(0)

    def store(number: int) -> None:
        with lease(settings, key(number % 50).name):
            local.put(number % 50)

    def use_in_child(number: int) -> None:
        assert shared_files(directory) == []
        assert local.get(0)
        local.put(1000 + number)
        assert local.get(1000 + number)
        if number % 4 == 0:  # and so do grandchildren, of a child that has the index open
            Forked(lambda: use_in_child(2000 + number + 1)).join()
        assert local.errors() == 0

    with meanwhile(store, lambda number: local.get(number % 50)):
        for number in range(40):
            Forked(lambda: use_in_child(number)).join()  # noqa: B023 - it is called at once
    assert all(local.get(1000 + number) for number in range(40))
    assert all(local.get(3001 + number) for number in range(0, 40, 4))
    assert local.errors() == 0


def test_threads_that_fork_and_threads_that_store_at_the_same_time_all_succeed(
    directory: Path, local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "TIMEOUT", WAIT)  # however busy the machine is

    def fork(first: int) -> None:
        for number in range(first, first + 6):
            Forked(lambda: local.put(number)).join()  # noqa: B023 - it is called at once

    def store(number: int) -> None:
        local.put(number % 10)
        time.sleep(0.01)  # SQLite's locks are not fair: a process that never pauses keeps the others out

    with meanwhile(store), ThreadPoolExecutor(3) as pool:
        list(pool.map(fork, range(100, 400, 100), timeout=4 * WAIT))
    assert all(local.get(first + number) for first in range(100, 400, 100) for number in range(6))
    assert local.errors() == 0


def test_two_threads_that_fork_at_once_leave_no_index_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither may let go of what only the other one holds, nor forget what it holds itself."""
    monkeypatch.setattr(index_module, "TIMEOUT", 0.1)
    indexes = [Index(Layout(str(tmp_path / str(number))), lambda: ()) for number in range(16)]
    for index in indexes:
        os.mkdir(index._layout.root)
    busy, free = indexes[:8], indexes[8:]
    with contextlib.ExitStack() as stack:
        for index in busy:  # a database that does not answer keeps its index busy for long; a fork waits, and gives up
            stack.enter_context(index._lock)
        with ThreadPoolExecutor(2) as pool:
            forks = [pool.submit(Forked, lambda: None) for _ in range(2)]
            for fork in forks:
                fork.result(WAIT).join()

    def use() -> None:
        for index in (*busy, *free):
            index.close()

    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "an index is locked for ever"


def test_a_child_does_not_keep_the_lease_of_its_parent(directory: Path, settings: Settings, local: Local) -> None:
    """A compiler that is killed blocks nobody, whatever it has started and left behind."""
    ready, told = os.pipe()

    def hold_and_fork() -> None:
        with lease(settings, "key") as held:
            assert held
            local.put(1)
            child = fork()
            if child == 0:
                signal.pause()
            os.write(told, child.to_bytes(4, "little"))
            signal.pause()

    holder = Forked(hold_and_fork)
    grandchild = 0
    try:
        assert select.select([ready], [], [], WAIT)[0]
        grandchild = int.from_bytes(os.read(ready, 4), "little")
        with lease(settings, "key") as held:
            assert not held
        os.kill(holder.pid, signal.SIGKILL)
        holder.kill()
        with lease(settings, "key") as held:
            assert held
        local.put(2)
        assert local.get(2)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder.pid, signal.SIGKILL)
        if grandchild:
            os.kill(grandchild, signal.SIGKILL)
        os.close(ready)
        os.close(told)


def test_a_program_that_is_started_inherits_no_file_of_the_cache(
    directory: Path, settings: Settings, local: Local
) -> None:
    program = (
        "import os; print(*(os.readlink(f'/dev/fd/{fd}') for fd in os.listdir('/dev/fd') if fd != '3'), sep='\\n')"
    )
    with lease(settings, "key") as held, local.tier.index.transaction():
        assert held
        assert len(shared_files(directory)) >= 2
        run = subprocess.run(
            [sys.executable, "-c", f"import contextlib\nwith contextlib.suppress(OSError): {program}"],
            close_fds=False,
            capture_output=True,
            text=True,
            timeout=WAIT,
            check=True,
        )
    assert str(directory) not in run.stdout


# Processes that are started with a cache.


def compile_in_worker(cache: CompileCache, number: int) -> tuple[Settings, str, bytes, list[str]]:
    """What a worker of a pool does."""
    inherited = shared_files(Path(cache.settings.dir))
    result = cache.compile(numbered_kernel(number))
    cache.close()
    return cache.settings, result.origin, result.aibin, inherited


@pytest.mark.usefixtures("toolchain")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_pool_of_any_kind_shares_what_is_compiled(
    tool_log: ToolLog, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if method == "forkserver":  # its socket lies in the temporary directory, and may have 107 letters
        monkeypatch.setenv("TMPDIR", "/tmp")
        monkeypatch.setattr("multiprocessing.util._temp_dir", None, raising=False)
    with CompileCache() as cache:
        expected = cache.compile(numbered_kernel(0)).aibin
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
            work = [pool.submit(compile_in_worker, cache, number) for number in (0, 1, 1, 0, 1)]
            results = [one.result(WAIT) for one in work]
        assert {settings for settings, *_ in results} == {cache.settings}
        assert [inherited for *_, inherited in results] == [[]] * 5
        assert [aibin == expected for _, _, aibin, _ in results] == [True, False, False, True, False]
        assert len({aibin for _, _, aibin, _ in results}) == 2
        assert sorted(origin for _, origin, *_ in results)[0] == "compiled"
        assert sum(origin == "compiled" for _, origin, *_ in results) == 1
        assert cache.compile(numbered_kernel(1)).origin == "local"
        assert tool_log.count("bisheng") == 2
        assert cache.counters.totals()["errors"] == 0


def test_a_cache_is_pickled_as_its_settings(directory: Path) -> None:
    with CompileCache(Settings.load(dir=directory, size_limit="1MiB", failure_ttl=0)) as cache:
        copy = pickle.loads(pickle.dumps(cache))
        assert type(copy) is CompileCache
        assert copy.settings == cache.settings
        assert copy.local is not cache.local
        assert len(pickle.dumps(cache)) < 1000


AT_EXIT = """
import atexit, json, sys
import ptocache
cache = ptocache.CompileCache()
first, second = json.load(sys.stdin)
print(cache.compile(first).origin)
def at_exit():
    print(cache.compile(first).origin, cache.compile(second).origin, ptocache.compile(second) is not None)
    print(ptocache.CompileCache().compile(second).origin, flush=True)
atexit.register(at_exit)
"""


@pytest.mark.usefixtures("toolchain")
def test_a_cache_can_be_used_while_the_interpreter_ends(directory: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", AT_EXIT],
        input=json.dumps([KERNEL, numbered_kernel(1)]),
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.split() == ["compiled", "memory", "compiled", "True", "local"]
    totals = Counters(str(directory)).totals()
    assert (totals["compiles"], totals["misses"], totals["errors"]) == (2, 2, 0)


# Interruptions.

#: Stores until it is interrupted, stores once more, says so, and goes on when it is told to.
INTERRUPTED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_processes import Local, Settings, lease
directory = Path(sys.argv[2])
settings = Settings.load(dir=directory, lock_timeout=1)
local = Local(directory, 1 << 20)
number = 0
print("started", flush=True)
while sys.stdin.readline():
    try:
        print("storing", flush=True)
        while True:
            number += 1
            with lease(settings, "the lease"):
                local.put(number % 500)
                local.get(number % 500)
    except KeyboardInterrupt:
        pass
    local.put(1000)
    assert local.get(1000)
    print("interrupted", flush=True)
assert local.errors() == 0
"""


@pytest.mark.skipif(
    [int(part) for part in filelock.__version__.split(".")[:2]] < [4, 3],
    reason="this filelock keeps a lock for ever that it is interrupted in taking",
)
def test_an_interrupt_at_any_moment_leaves_no_lock_and_no_transaction(
    directory: Path, settings: Settings, local: Local
) -> None:
    chance = random.Random(1)
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(Path(__file__).parent), str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def next_line(seconds: float) -> str:
        """What it says next; nothing if it says nothing in this time."""
        assert process.stdout is not None
        return process.stdout.readline().decode() if select.select([process.stdout], [], [], seconds)[0] else ""

    try:
        assert next_line(WAIT) == "started\n"
        for number in range(200):
            process.stdin.write(b"go on\n")
            process.stdin.flush()
            assert next_line(WAIT) == "storing\n"
            time.sleep(chance.uniform(0, 0.006))
            for _ in range(5):  # one that strikes in a destructor has no effect: Python reports it and goes on
                process.send_signal(signal.SIGINT)
                if line := next_line(2):
                    break
            assert line == "interrupted\n", process.communicate(timeout=WAIT)[1].decode()
            start = time.monotonic()
            with lease(settings, "the lease") as held:
                assert held
            local.put(2000 + number)
            assert local.get(2000 + number)
            assert time.monotonic() - start < index_module.TIMEOUT / 2, "something was locked"
        process.stdin.close()
        process.wait(WAIT)
    finally:
        process.kill()
        errors = process.stderr.read().decode() if process.stderr is not None else ""
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    assert process.returncode == 0, errors
    assert "the local cache cannot be used" not in errors
    assert local.errors() == 0


# Threads, and one process that lives long.


def test_16_threads_that_read_and_store_at_once_see_right_bytes_and_no_error(directory: Path) -> None:
    counters = Counters(str(directory))
    tier = LocalTier(str(directory), Limits(1 << 20), counters=counters)
    store = Store([MemoryTier(100_000), tier], counters)

    def use(seed: int) -> int:
        chance = random.Random(seed)
        found = 0
        for _ in range(100):
            number = int(200 * chance.random() ** 2)
            result = store.get(key(number))
            if result is None:
                store.put([key(number)], made(number))
            else:
                assert result.entry.aibin == made(number).aibin
                found += 1
        return found

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(use, range(16), timeout=WAIT)) > 100
    totals = counters.totals()
    assert totals["errors"] == 0
    assert totals["evictions"] > 0
    tier.close()


def test_two_caches_of_a_process_on_one_directory_do_not_take_each_others_locks(local: Local, directory: Path) -> None:
    """Closing any descriptor of a file drops all of the process's POSIX locks on it: SQLite's, too."""
    path = directory / "index" / "cache.db"
    local.put(1)
    other = Local(directory)
    with ThreadPoolExecutor(1) as pool:
        with local.tier.index.transaction() as rows:
            rows.discard(made(1).action.sha256.hex())
            storing = pool.submit(other.put, 2)  # opens the database, and waits for the transaction
            deadline = time.monotonic() + index_module.TIMEOUT / 2
            while open_files(directory).count("index/cache.db") < 2:
                assert time.monotonic() < deadline, "the other cache does not open the database"
                time.sleep(0.001)
            time.sleep(0.05)
            stranger = subprocess.run(
                [sys.executable, "-c", WRITE, str(path)], capture_output=True, text=True, timeout=WAIT, check=True
            )
            assert stranger.stdout == "database is locked\n", "another process can write into the transaction"
        storing.result(WAIT)
    assert other.get(2)
    assert local.errors() == other.errors() == 0
    other.close()


#: Tries to write into a database.
WRITE = """
import sqlite3, sys
try:
    sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None).execute("BEGIN IMMEDIATE")
    print("written")
except sqlite3.OperationalError as error:
    print(error)
"""


@pytest.mark.usefixtures("toolchain")
def test_10000_requests_leave_no_file_open(directory: Path, settings: Settings) -> None:
    chance = random.Random(1)
    counters = Counters(str(directory))
    tier = LocalTier(str(directory), Limits(2 << 20), counters=counters)
    store = Store([MemoryTier(400_000), tier], counters)
    seen = {"memory": 0, "local": 0, "missed": 0}

    def request(number: int) -> None:
        result = store.get(key(number))
        if result is not None:
            assert result.entry.aibin == made(number).aibin
            seen[result.origin] += 1
            return
        seen["missed"] += 1
        with lease(settings, key(number).name):
            store.put([key(number)], made(number))
        counters.flush()

    request(0)
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(9999):
        request(int(400 * chance.random() ** 3))
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert min(seen.values()) > 500, seen
    assert counters.totals()["evictions"] > 300
    assert counters.totals()["errors"] == 0
    tier.close()
    assert open_files(directory) == []
    with CompileCache() as cache:
        cache.compile(KERNEL)
        before = sorted(os.listdir("/proc/self/fd"))
        origins = []
        for _ in range(100):
            origins += [cache.compile(KERNEL).origin, CompileCache(cache.settings).compile(KERNEL).origin]
        assert origins == ["memory", "local"] * 100
        assert sorted(os.listdir("/proc/self/fd")) == before
    assert open_files(directory) == []
