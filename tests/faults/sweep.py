"""Lets each call by which the cache touches the disk fail, one after the other, and sees that nobody notices.

Runs in a process into which the library of `faults.c` was preloaded; `test_faults.py` starts it. For each case the
cache directory is made anew, one request is made while a call fails, and then the fault is gone: see `Sweep.check`.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import errno
import functools
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from conftest import numbered_kernel
from faults.soundness import bytes_on_disk, disorder

from ptocache import CompileCache, Settings
from ptocache.counters import Counters
from ptocache.digests import Digests
from ptocache.errors import ToolError
from ptocache.lease import lease
from ptocache.request import Key, make_key
from ptocache.store import index, upkeep
from ptocache.store.entry import Entry, accept_all, make_entry
from ptocache.store.failures import Failures
from ptocache.store.layout import disk_usage
from ptocache.store.local import Limits, LocalTier, pack_source
from ptocache.store.tiers import Store

#: What a call does, in the order of the library's numbers.
_KINDS = """
    open_to_read open_to_write create read write rename unlink mkdir look_up status times mode truncate sync
    lock unlock lock_record list next_name map close
"""
KINDS = {name: 1 << bit for bit, name in enumerate(_KINDS.split())}

#: Not an error: the process is killed at the call.
KILL = "SIGKILL"

#: Which calls may fail with an error. An I/O error may strike at any.
ERRORS = {
    "ENOSPC": "create write rename mkdir truncate sync close",
    "EROFS": "open_to_write create write rename unlink mkdir times mode truncate",
    "EACCES": "open_to_read open_to_write create rename unlink mkdir look_up times mode list",
    "EMFILE": "open_to_read open_to_write create list",
    "ENOLCK": "lock lock_record",
    "EIO": " ".join(KINDS),
    KILL: " ".join(KINDS),
}

#: Which calls do not fail for good. A lock that can never be released again is something that no local file system
#: has; and without locks of records SQLite waits for 10 s each time, whatever it was told.
PASSING = {"unlock", "lock_record"}

#: What a full cache of the sweep without compiles may hold: some of the outputs that are stored in it.
LIMIT = 480 << 10
SIZE = 60_000
FILLING = range(100, 108)

#: The request that the sweep is about.
NUMBER = 1

#: How long a request may take, in seconds. One takes 0.02 s; this one waits for nobody.
PATIENCE = 5.0

#: How long SQLite waits for a lock that cannot be had, in seconds.
INDEX_TIMEOUT = 0.05


class Faults:
    """The preloaded library.

    Args:
        directory: where calls may fail.
    """

    def __init__(self, directory: str) -> None:
        self._directory = os.path.realpath(directory).encode()
        self._library = ctypes.CDLL(None)
        self._library.faults_arm.argtypes = [ctypes.c_char_p, *[ctypes.c_int] * 2, *[ctypes.c_long] * 2, ctypes.c_int]
        self._library.faults_count.restype = ctypes.c_long
        self._library.faults_call.argtypes = [ctypes.c_long]
        self._library.faults_call.restype = ctypes.c_char_p

    def arm(self, error: str, first: int = sys.maxsize, *, onwards: bool = False) -> None:
        """Let the call with a number fail, by default none, or all from there on."""
        kinds = sum(KINDS[kind] for kind in ERRORS[error].split() if not (onwards and kind in PASSING))
        torn = error == "ENOSPC" and onwards
        last = sys.maxsize if onwards else first
        self._library.faults_arm(self._directory, getattr(errno, error, 0), kinds, first, last, torn)

    def disarm(self) -> None:
        self._library.faults_disarm()

    def count(self) -> int:
        """How many calls there were that might have failed."""
        count: int = self._library.faults_count()
        return count

    def call(self, number: int) -> str:
        text: bytes = self._library.faults_call(number)
        return text.decode("utf-8", "replace")


class Cache(Protocol):
    """A cache with everything in it that touches the disk."""

    local: LocalTier
    failures: Failures

    def request(self, number: int) -> str:
        """Ask for a numbered result, see that it is right, and say where it came from."""

    def look_up(self, number: int) -> bool:
        """Whether a numbered result is stored; it is right then."""

    def close(self) -> None: ...


class StoreCache:
    """The store and all that goes with it, used as `CompileCache` uses them, with results that cost nothing."""

    def __init__(self, directory: str) -> None:
        self._settings = Settings.load({"HOME": "/"}, dir=directory, size_limit=LIMIT, lock_timeout=1)
        limits = Limits(LIMIT)
        self._counters = Counters(directory)
        self._digests = Digests(directory)
        self.local = LocalTier(directory, limits, counters=self._counters)
        self.failures = Failures(self.local.layout, 600)
        self._store = Store([self.local], self._counters)

    def request(self, number: int) -> str:
        try:
            if self.look_up(number):
                self._counters.add("hits.local")
                return "hit"
            self._see_failure(number)
            with lease(self._settings, _key(number).name):
                if self.look_up(number):
                    return "hit"
                self._see_failure(number)
                if self._digests.of(__file__) is not None:
                    self._digests.save()
                self._store.put([_key(f"pto {number}")], _result(number))
                self._store.put([_key(number)], _result(number), _source(number))
                if number == NUMBER:
                    failed = ToolError("refused", tool="ptoas", command=["ptoas"], returncode=1, stderr=str(number))
                    self._store.try_to("remember", lambda: self.failures.put(_key(f"failed {number}"), failed, b""))
                self._counters.add("misses")
                return "compiled"
        finally:
            self._counters.flush()

    def look_up(self, number: int) -> bool:
        found = [self._store.get(_key(name)) for name in (number, f"pto {number}")]
        for one in found:
            assert one is None or one.entry.aibin == _result(number).aibin, "another result than the one stored"
        source = self.local.source(_key(number).name)
        assert source is None or pack_source(source) == _source(number), "another source than the one stored"
        return found[0] is not None

    def _see_failure(self, number: int) -> None:
        name = _key(f"failed {number}")
        failure = self._store.try_to("read a failure", lambda: self.failures.get(name, accept_all))
        assert failure is None or failure.stderr == str(number), "another failure than the one remembered"

    def close(self) -> None:
        self._counters.flush()
        self.local.close()


@functools.cache
def _key(name: object) -> Key:
    return make_key([("sweep", str(name).encode())])


@functools.cache
def _result(number: int) -> Entry:
    return make_entry(number.to_bytes(4, "little") * (SIZE // 4), seconds=1.5, created=1.7e9, facts={"number": number})


@functools.cache
def _source(number: int) -> bytes:
    return pack_source(f"kernel {number}\n" * 100)


class RealCache:
    """A `CompileCache`, and the emulated tools."""

    results: dict[int, bytes] = {}  # noqa: RUF012 - what came of each request the first time, when nothing failed

    def __init__(self, directory: str) -> None:
        self._cache = CompileCache(Settings.load(dir=directory, size_limit=REAL_LIMIT))
        self.local = self._cache.local
        self.failures = self._cache.failures

    def request(self, number: int) -> str:
        source = numbered_kernel(number)
        result = self._cache.compile(source)
        assert result.aibin == self.results.setdefault(number, result.aibin), "another result than without a fault"
        return "compiled" if result.origin == "compiled" else "hit"

    def look_up(self, number: int) -> bool:
        job = self._cache.prepare(numbered_kernel(number))
        found = self._cache._look_up(job)
        assert found is None or found.aibin == self.results[number], "another result than the one stored"
        return found is not None

    def close(self) -> None:
        self._cache.close()


#: What a full cache of the sweep with compiles may hold: some of the results that are stored in it.
REAL_LIMIT = 256 << 10
REAL_FILLING = range(10, 14)


class Case(NamedTuple):
    """One request during which calls fail."""

    error: str
    number: int
    onwards: bool
    call: str


class Sweep:
    """All cases of a scenario.

    Args:
        scenario: the name of one in `SCENARIOS`.
        make: opens a cache.
        filling: the numbers of what a full cache was asked for.
        limit: what the cache may hold.
        work: a directory for all this.
    """

    def __init__(self, scenario: str, make: Callable[[str], Cache], filling: range, limit: int, work: str) -> None:
        self._make = make
        self._limit = limit
        self._filling = filling
        self._template = os.path.join(work, "template")
        self._directory = os.path.join(work, "cache")
        self._faults = Faults(self._directory)
        self._expected = SCENARIOS[scenario]
        self._looks_up_all = make is StoreCache  # a lowered text's key is known to who lowers it
        self._damaged: set[str] = set()
        self.problems: list[str] = []
        self.cases = 0
        self.slowest = 0.0
        getattr(self, f"_prepare_{scenario}")()

    def calls(self, error: str, *, onwards: bool) -> list[str]:
        """The calls that may fail with an error, in order, of a request where none does."""
        with self._fresh() as cache:
            self._faults.arm(error, onwards=onwards)
            origin = cache.request(NUMBER)
            cache.close()
            self._faults.disarm()
            assert origin == self._expected, f"{origin} where nothing fails"
        return [self._faults.call(number) for number in range(self._faults.count())]

    def run(self, case: Case) -> None:
        """Make a request while calls fail, and check all that follows; what is wrong is noted."""
        self.cases += 1
        start = time.monotonic()
        try:
            self.check(case)
        except Exception:  # noqa: BLE001 - a failure of the test, told with the others
            self._faults.disarm()
            which = f"{case.number} and all later ones" if case.onwards else f"{case.number}"
            self.problems.append(f"{case.error} at call {which}: {case.call}\n{traceback.format_exc()}")
        self.slowest = max(self.slowest, time.monotonic() - start)

    def check(self, case: Case) -> None:
        """The result is right, then and afterwards, and the cache is whole again by itself and by `prune`."""
        descriptors = _descriptors()
        with self._fresh() as cache:
            start = time.monotonic()
            if case.error == KILL:
                assert self._kill(case.number), "it was not killed"
            else:
                self._request(cache, case)
            seconds = time.monotonic() - start
            assert seconds < PATIENCE, f"the request took {seconds:.1f} s"
            self._damage_is_a_miss(cache)
            cache.request(NUMBER)
            assert cache.request(NUMBER) == "hit", "nothing is stored although nothing fails any more"
        del cache
        assert _descriptors() == descriptors, f"open files were left: {_descriptors()}"
        self._with_another(self._is_whole_after_prune)

    def _request(self, cache: Cache, case: Case) -> None:
        self._faults.arm(case.error, case.number, onwards=case.onwards)
        try:
            cache.request(NUMBER)
            if (case.onwards and case.number % 2) or self._faults.count() <= case.number:
                cache.close()  # as when the process ends; else it goes on with what it has open
        finally:
            self._faults.disarm()

    def _kill(self, number: int) -> bool:
        """Let another process make the request, and be killed at a call; whether it was."""
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                self._request(self._make(self._directory), Case(KILL, number, onwards=False, call=""))
            os._exit(0)
        return os.waitpid(pid, 0)[1] == signal.SIGKILL

    def _is_whole_after_prune(self, cache: Cache) -> None:
        cache.request(NUMBER)  # a process may still have in memory what could not be stored
        assert cache.look_up(NUMBER), "it is not stored for others"
        self._damage_is_a_miss(cache)
        upkeep.prune(cache.local, cache.failures)
        assert not list(upkeep.verify(cache.local, cache.failures))
        assert not disorder(cache.local), disorder(cache.local)
        size = bytes_on_disk(self._directory) - disk_usage(cache.local.layout.failures)
        assert size <= self._limit, f"{size} bytes where {self._limit} may be"

    def _damage_is_a_miss(self, cache: Cache) -> None:
        """What `verify` finds was found by the look-ups too: it is gone afterwards."""
        if not os.path.exists(self._directory):
            return
        damages = list(upkeep.verify(cache.local, cache.failures))
        for damage in damages:
            known = any(output in f"{damage.path} {damage.problem}" for output in self._damaged)
            assert known or damage.problem.startswith("its output is gone"), damage
        for number in (NUMBER, *self._filling):
            cache.look_up(number)
        if damages and self._looks_up_all:
            assert not [damage for damage in upkeep.verify(cache.local, cache.failures) if damage in damages]

    def _with_another(self, use: Callable[[Cache], object]) -> object:
        other = self._make(self._directory)
        try:
            return use(other)
        finally:
            other.close()

    @contextlib.contextmanager
    def _fresh(self) -> Iterator[Cache]:
        shutil.rmtree(self._directory, ignore_errors=True)
        if os.path.exists(self._template):
            shutil.copytree(self._template, self._directory)
            for entry in os.scandir(os.path.join(self._directory, "outputs")):
                os.utime(entry, ns=(entry.stat().st_mtime_ns,) * 2)  # not used yet: copying was no use of it
        cache = self._make(self._directory)
        try:
            yield cache
        finally:
            cache.close()

    # The scenarios: what the cache directory is like before the request.

    def _prepare_empty(self) -> None:
        """There is none."""

    def _prepare_full(self) -> None:
        """For what is to be stored others must go."""
        self._fill(self._template)

    def _prepare_hit(self) -> None:
        """What is asked for is there, and was not used yet."""
        cache = self._make(self._template)
        cache.request(NUMBER)
        cache.close()

    def _prepare_damaged(self) -> None:
        """What is asked for is there, and damaged."""
        self._prepare_hit()
        folder = os.path.join(self._template, "outputs")
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), "r+b") as file:
                file.write(b"damaged")
            self._damaged.add(name)

    def _prepare_killed(self) -> None:
        """It is full, and was left by one that died while SQLite wrote: with a journal, a lock and half a file."""
        self._fill(self._template)
        with self._fresh():
            calls = self.calls(KILL, onwards=False)
        with self._fresh():
            last = max(number for number, call in enumerate(calls) if call.startswith("pwrite64 index/cache.db"))
            assert self._kill(last)
            shutil.rmtree(self._template)
            shutil.copytree(self._directory, self._template)
        os.makedirs(os.path.join(self._template, "temp"), exist_ok=True)
        with open(os.path.join(self._template, "temp", "0123456789abcdef"), "wb") as file:
            file.write(b"half")
        sizes = [entry.stat().st_size for entry in os.scandir(os.path.join(self._template, "index"))]
        assert len(sizes) > 1, "there is nothing but the database"
        assert min(sizes), "and its journal is empty"
        assert os.listdir(os.path.join(self._template, "locks"))

    def _fill(self, directory: str) -> None:
        cache = self._make(directory)
        for number in self._filling:
            assert cache.request(number) == "compiled"
        cache.close()


#: What a request finds in each of them where nothing fails.
SCENARIOS = {"empty": "compiled", "full": "compiled", "hit": "hit", "damaged": "compiled", "killed": "compiled"}


def _descriptors() -> dict[int, str]:
    """What this process has open. SQLite keeps a database open whose lock the system would not let it give back."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            path = os.readlink(f"/proc/self/fd/{name}").removesuffix(" (deleted)")
            if not os.path.basename(path).startswith("cache.db"):
                found[int(name)] = path
    return found


def all_cases(sweep: Sweep, error: str) -> Iterator[Case]:
    """Each call fails once; and from each call on all fail. A process is killed only once."""
    for onwards in (False, True) if error != KILL else (False,):
        for number, call in enumerate(sweep.calls(error, onwards=onwards)):
            yield Case(error, number, onwards, call)


def single_cases(sweep: Sweep, error: str) -> Iterator[Case]:
    """Each call fails once."""
    return (case for case in all_cases(sweep, error) if not case.onwards)


POWERS = {8, 64, 512}


def some_cases(sweep: Sweep, error: str) -> Iterator[Case]:
    """The first call of each function on each sort of file; where any call may fail, each power of eight.

    For good it is that of each function.
    """
    seen: collections.Counter[tuple[bool, str]] = collections.Counter()
    for case in all_cases(sweep, error):
        function, _, path = case.call.partition(" ")
        sort = path if path.startswith("index") else path.partition("/")[0]
        kind = (case.onwards, function if case.onwards else f"{function} {sort}")
        seen[kind] += 1
        if seen[kind] == 1 or (error in {"EIO", KILL} and seen[kind] in POWERS):
            yield case


def few_cases(sweep: Sweep, error: str) -> Iterator[Case]:
    """The first call of each function: once for the first function, for good for the second, and so on."""
    first: dict[str, dict[bool, Case]] = {}
    for case in all_cases(sweep, error):
        first.setdefault(case.call.partition(" ")[0], {}).setdefault(case.onwards, case)
    for number, choice in enumerate(first.values()):
        yield choice.get(number % 2 == 1, choice[False])


#: How thin a sweep is.
CHOICES = {"all": all_cases, "single": single_cases, "some": some_cases, "few": few_cases}


def main(level: str, scenario: str, errors: str, choice: str, work: str) -> None:
    """Run the cases of a scenario with some errors, and print what came of it."""
    os.environ.pop("LD_PRELOAD")  # the tools' own calls are none of the cache's
    index.TIMEOUT = INDEX_TIMEOUT
    upkeep._STORE_SECONDS = 0  # nobody else stores
    if level == "store":
        sweep = Sweep(scenario, StoreCache, FILLING, LIMIT, work)
    else:
        sweep = Sweep(scenario, RealCache, REAL_FILLING, REAL_LIMIT, work)
    cases = {}
    for error in errors.split():
        before = sweep.cases
        for case in CHOICES[choice](sweep, error):
            sweep.run(case)
        cases[error] = sweep.cases - before
    report = {
        "calls": sweep.calls("EIO", onwards=False),
        "cases": cases,
        "slowest": sweep.slowest,
        "problems": sweep.problems,
    }
    sys.stdout.write(json.dumps(report))
