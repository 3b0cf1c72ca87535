"""A disk that fails at any call, and bits that flip in any file: every answer is right, or a miss."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import xxhash
from faults.soundness import bytes_on_disk, disorder
from faults.sweep import ERRORS, KILL, SCENARIOS

from ptocache.counters import Counters
from ptocache.digests import RACY_NS, Digests
from ptocache.errors import ToolError
from ptocache.request import Key, make_key
from ptocache.store import upkeep
from ptocache.store.entry import Entry, accept_all, make_entry
from ptocache.store.failures import Failures
from ptocache.store.layout import OWN_NAMES
from ptocache.store.local import Limits, LocalTier, pack_source
from ptocache.store.tiers import Store

TESTS = Path(__file__).parent

#: Runs something of `faults.sweep` in a process with the library in front of libc.
PROGRAM = f"import sys; sys.path.insert(0, {str(TESTS)!r}); from faults import sweep; "

#: All errors; and all, and a process that is killed.
ALL = " ".join(error for error in ERRORS if error != KILL)
ALL_AND_KILL = " ".join(ERRORS)

#: Some of what a request is known to do, as functions and sorts of files: by it one sees that the faults reach all of
#: Python, SQLite and filelock.
SEEN = {
    "hit": {("open", "actions"), ("read", "outputs"), ("utimensat", "outputs"), ("flock", "counters")},
    "compiled": {
        *(("open", "actions"), ("flock", "locks"), ("unlink", "locks"), ("write", "temp"), ("rename", "actions")),
        *(("rename", "failures"), ("open", "digests"), ("close", "counters"), ("flock", "index.lock")),
        *(("open", "index"), ("fcntl", "index"), ("pread", "index"), ("pwrite", "index"), ("readdir", "index")),
    },
}


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that lets calls fail."""
    compiler = next(filter(None, map(shutil.which, ("gcc", "cc"))), None)
    if compiler is None:
        pytest.skip("there is no C compiler to make the library with that lets calls fail")
    path = tmp_path_factory.mktemp("library") / "faults.so"
    source = TESTS / "faults" / "faults.c"
    options = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(path)]
    result = subprocess.run(
        [compiler, *options, str(source), "-ldl"], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    return path


@contextlib.contextmanager
def directory_in_memory(otherwise: Path) -> Iterator[Path]:
    """A directory for caches that are made anew hundreds of times: in memory, if possible."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield otherwise
        return
    path = memory / f"ptocache-test-{os.getpid()}-{os.urandom(4).hex()}"
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path)


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    with directory_in_memory(otherwise=tmp_path / "home") as path:
        yield path


def with_faults(library: Path, program: str, *arguments: str, timeout: float) -> str:
    """What a program prints that runs with the library in front of libc."""
    environ = {**os.environ, "LD_PRELOAD": str(library)}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM + program, *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


def sweep(
    library: Path, level: str, scenario: str, errors: str, choice: str, work: Path, timeout: float = 240
) -> dict[str, Any]:
    """Run the cases of a scenario; none of them may show a problem."""
    program = "sweep.main(*sys.argv[1:])"
    output = with_faults(library, program, level, scenario, errors, choice, str(work), timeout=timeout)
    report: dict[str, Any] = json.loads(output)
    problems = report["problems"]
    assert not problems, f"{len(problems)} of {report['cases']} cases:\n" + "\n".join(problems[:5])
    assert all(report["cases"].values()), report["cases"]
    return report


# The harness itself.

HARNESS = """
import errno, json, os, sqlite3
work = sys.argv[1]
inside, outside = f"{work}/cache", f"{work}/cache-of-others"
for folder in (inside, outside):
    os.mkdir(folder)
    sqlite3.connect(f"{folder}/db").execute("CREATE TABLE t (n)").close()
    os.close(os.open(f"{folder}/file", os.O_CREAT | os.O_WRONLY))

def error_of(function):
    try:
        function()
    except OSError as error:
        return errno.errorcode[error.errno]
    except sqlite3.OperationalError as error:
        return str(error)

def ask(folder):
    sqlite3.connect(f"{folder}/db").execute("INSERT INTO t VALUES (1)").close()

faults = sweep.Faults(inside)
seen = []
for use in (os.listdir, os.stat, ask, lambda folder: os.utime(f"{folder}/file")):
    faults.arm("EIO", 0, onwards=True)
    seen.append([error_of(lambda: use(folder)) for folder in (inside, outside)])
    count = faults.count()
    faults.disarm()
    seen[-1] += [count > 0, error_of(lambda: use(inside))]
fd = os.open(f"{inside}/file", os.O_WRONLY)
faults.arm("ENOSPC", 1)
os.write(fd, b"1")
seen.append([error_of(lambda: os.write(fd, b"2")), error_of(lambda: os.write(fd, b"3")), faults.call(1)])
faults.arm("ENOSPC", 0, onwards=True)
seen.append([os.write(fd, b"1234"), error_of(lambda: os.write(fd, b"34")), error_of(lambda: os.stat(inside))])
print(json.dumps(seen))
"""


def test_a_fault_strikes_the_chosen_calls_below_the_directory_and_no_others(library: Path, work: Path) -> None:
    seen = json.loads(with_faults(library, HARNESS, str(work), timeout=60))
    assert seen == [
        ["EIO", None, True, None],
        ["EIO", None, True, None],
        ["unable to open database file", None, True, None],
        ["EIO", None, True, None],
        ["ENOSPC", None, "write file"],
        [2, "ENOSPC", None],
    ]


# A disk that fails.


@pytest.mark.parametrize(
    ("scenario", "errors"),
    [
        ("empty", "ENOSPC EACCES EMFILE"),
        ("full", f"EIO {KILL}"),
        ("hit", ALL_AND_KILL),
        ("damaged", "EROFS"),
        ("killed", "ENOSPC ENOLCK"),
    ],
)
def test_whichever_call_fails_a_request_is_answered_and_the_cache_recovers(
    library: Path, work: Path, scenario: str, errors: str
) -> None:
    """Calls of each sort, of all that touch the disk in the cache: see `faults.sweep` for what is checked."""
    report = sweep(library, "store", scenario, errors, "some", work)
    calls = {tuple(re.split(r"(?:64)? |/", call)[:2]) for call in report["calls"]}
    assert calls >= SEEN[SCENARIOS[scenario]], "a part of the cache is out of the faults' reach"


@pytest.mark.usefixtures("toolchain")
@pytest.mark.parametrize(("scenario", "errors"), [("empty", "EIO"), ("hit", ALL)])
def test_whichever_call_fails_a_compilation_does_not(library: Path, work: Path, scenario: str, errors: str) -> None:
    """Each function once, with the emulated tools."""
    sweep(library, "compile", scenario, errors, "few", work)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("scenario", "errors", "choice"),
    [("empty", "EIO", "single"), ("full", "EIO", "single"), ("hit", ALL_AND_KILL, "all")],
)
def test_whichever_call_of_all_fails_a_request_is_answered(
    library: Path, work: Path, scenario: str, errors: str, choice: str
) -> None:
    sweep(library, "store", scenario, errors, choice, work, timeout=800)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("toolchain")
@pytest.mark.parametrize(
    ("scenario", "errors", "choice"),
    [("empty", "ENOSPC", "some"), ("hit", ALL, "some")],
)
def test_whichever_call_of_all_fails_a_compilation_does_not(
    library: Path, work: Path, scenario: str, errors: str, choice: str
) -> None:
    """Each call that may find the disk full fails once, with the emulated tools; and some others."""
    sweep(library, "compile", scenario, errors, choice, work, timeout=800)


# Bits that flip.

FLIPS = 1000
FLIPPED_LIMIT = 2 << 20
NAMES = [f"kernel {number}" for number in range(20)]


@functools.cache
def key(name: str) -> Key:
    return make_key([("test", name.encode())])


@functools.cache
def made(name: str) -> Entry:
    aibin = random.Random(name).randbytes(2000)
    return make_entry(aibin, seconds=1.5, created=1.7e9, facts={"kernels": [name]})


def source(name: str) -> str:
    return f"# {name}\n" * 20


class Flipped:
    """A cache of 20 entries, with remembered failures and digests beside them, that lies in files as they are kept.

    It is as a process leaves it that is killed while it stores: SQLite's journal is there, too.
    """

    def __init__(self, top: Path) -> None:
        self.directory = top / "cache"
        self.tool = top / "tool"
        self.tool.write_bytes(b"a tool")
        while time.time_ns() - self.tool.stat().st_ctime_ns <= 2 * RACY_NS:
            time.sleep(0.005)
        self._fill(top / "built")
        self.pristine = {
            str(path.relative_to(self.directory)): path.read_bytes()
            for path in sorted(self.directory.rglob("*"))
            if path.is_file() and not path.name.endswith("-shm")  # where there is one, SQLite makes it anew
        }

    def _fill(self, built: Path) -> None:
        counters = Counters(str(built))
        tier = LocalTier(str(built), counters=counters)
        for name in NAMES:
            tier.put([key(name), key(f"pto {name}")], made(name), pack_source(source(name)))
            error = ToolError("refused", tool="ptoas", command=["ptoas"], returncode=1, stderr=name)
            Failures(tier.layout, 3600).put(key(f"failed {name}"), error, b"")
            counters.add("misses")
            counters.hit("hits.local", key(name).name, 1.0)
        counters.flush()
        digests = Digests(str(built))
        digests.of(str(self.tool))
        digests.save()
        with tier.index.transaction() as rows:
            output, row = next(rows.all())
            assert row is not None
            rows.add(output, row)
            shutil.copytree(built, self.directory)
        tier.close()

    def restore(self) -> None:
        """Put all files back as they were."""
        for folder, _, names in os.walk(self.directory):
            for name in names:
                path = os.path.join(folder, name)
                if path.removeprefix(f"{self.directory}/") not in self.pristine:
                    os.unlink(path)
        for name, data in self.pristine.items():
            path = os.path.join(self.directory, name)
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                if file.read() == data:
                    continue
            os.makedirs(os.path.dirname(path), exist_ok=True)
            Path(path).write_bytes(data)

    def flip(self, name: str, bit: int) -> None:
        data = bytearray(self.pristine[name])
        data[bit // 8] ^= 1 << bit % 8
        (self.directory / name).write_bytes(data)

    def ask(self) -> int:
        """Ask for everything, and see that each answer is right; how many of the 40 keys are found."""
        with self._opened() as (tier, store, failures):
            found = 0
            for name in NAMES:
                for one in (store.get(key(name)), store.get(key(f"pto {name}"))):
                    assert one is None or one.entry.aibin == made(name).aibin
                    found += one is not None
                assert tier.source(key(name).name) in {source(name), None}
                failure = failures.get(key(f"failed {name}"), accept_all)
                assert failure is None or (failure.stderr, failure.returncode) == (name, 1)
        assert Digests(str(self.directory)).of(str(self.tool)) == xxhash.xxh3_128_digest(b"a tool")
        assert Counters(str(self.directory)).totals()["errors"] == 0, "the tier raised an error"
        return found

    def store_something(self) -> None:
        """Store a new entry: the second time at the latest it is found again."""
        new = "another kernel"
        with self._opened() as (_, store, _):
            for _ in range(2):
                store.put([key(new)], made(new), pack_source(source(new)))
                if (found := store.get(key(new))) is not None:
                    break
            assert found is not None, "nothing can be stored any more"
            assert found.entry.aibin == made(new).aibin

    def repair(self) -> None:
        """Let the commands that are for this find and remove the damage."""
        with self._opened() as (tier, _, failures):
            upkeep.repair(tier, list(upkeep.verify(tier, failures)))
            upkeep.prune(tier, failures)
            assert not list(upkeep.verify(tier, failures))
            assert not disorder(tier), disorder(tier)
            assert bytes_on_disk(str(self.directory)) <= FLIPPED_LIMIT

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[LocalTier, Store, Failures]]:
        counters = Counters(str(self.directory))
        tier = LocalTier(str(self.directory), Limits(FLIPPED_LIMIT), counters=counters)
        with contextlib.closing(tier):
            yield tier, Store([tier], counters), Failures(tier.layout, 3600)
        counters.flush()


@pytest.fixture(scope="module")
def flipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flipped]:
    with directory_in_memory(otherwise=tmp_path_factory.mktemp("flipped")) as top:
        yield Flipped(top)


def test_these_sorts_of_files_are_all_that_a_cache_is_made_of(flipped: Flipped) -> None:
    """What is flipped below is everything."""
    assert {name.split("/")[0] for name in flipped.pristine} == OWN_NAMES - {"locks", "temp"}
    assert sum(name.startswith("index/") and data != b"" for name, data in flipped.pristine.items()) == 2
    flipped.restore()
    assert flipped.ask() == 40


@pytest.mark.parametrize("part", range(4))
def test_a_flipped_bit_in_any_file_is_at_worst_a_miss(flipped: Flipped, part: int) -> None:
    chance = random.Random(part)
    names = {
        in_index: [name for name, data in flipped.pristine.items() if data and name.startswith("index/") is in_index]
        for in_index in (False, True)
    }
    for number in range(FLIPS // 4):
        in_index = number % 8 == 0
        name = chance.choice(names[in_index])
        bit = chance.randrange(8 * len(flipped.pristine[name]))
        flipped.restore()
        flipped.flip(name, bit)
        try:
            assert flipped.ask() >= 38, "more than what was damaged is lost"
            if in_index or number % 50 == 1:
                flipped.store_something()
                flipped.repair()
        except Exception as error:
            raise AssertionError(f"bit {bit} of {name}") from error


FIRST = "WHERE rowid = (SELECT min(rowid) FROM Cache)"

#: What may stand in the index by chance, or by whoever can write to it: it stays a database that SQLite can read.
NONSENSE = [
    *(f"UPDATE Settings SET value = {value} WHERE key = 'size'" for value in (-(2**60), 2**60, "'x'", "NULL", 1.5)),
    *(f"UPDATE Settings SET value = {value} WHERE key = 'count'" for value in (-(2**60), 2**60, "x'ff'", "'12'")),
    *(f"UPDATE Settings SET value = 'x; y' WHERE key = '{name}'" for name in ("eviction_policy", "sqlite_cache_size")),
    *(f"UPDATE Settings SET key = {key} WHERE key = 'cull_limit'" for key in ("'sqlite_x; y'", "x'ff'", 7)),
    *(f"DELETE FROM Settings WHERE key = '{name}'" for name in ("size", "count")),
    *(f"DROP TABLE {table}" for table in ("Settings", "Cache")),
    *(f"DROP TRIGGER Settings_{name}" for name in ("count_insert", "size_delete")),
    "DROP INDEX Cache_key_raw",
    "CREATE TRIGGER refusing AFTER INSERT ON Cache BEGIN SELECT RAISE(ABORT, 'no'); END",
    "CREATE TRIGGER keeping BEFORE DELETE ON Cache BEGIN SELECT RAISE(IGNORE); END",
    *(f"UPDATE Cache SET key = {key} {FIRST}" for key in ("NULL", 5, "x'ff'", "'abc'", "CAST(x'ff' AS TEXT)")),
    *(f"UPDATE Cache SET value = {value}" for value in ("NULL", 5, "x''", "x'ffffffffffffffffffffffffffffffff'")),
    *(f"UPDATE Cache SET size = {size} {FIRST}" for size in ("NULL", -(10**9), 10**12, "'x'")),
    *(f"UPDATE Cache SET rowid = {number} {FIRST}" for number in (-5, 2**63 - 1)),
    *(f"UPDATE Cache SET expire_time = {when} {FIRST}" for when in (0, "'x'", "x'ff'")),
    *(f"UPDATE Cache SET {what}" for what in ("raw = 'x'", "mode = 9", "filename = '/etc/hostname'")),
    "PRAGMA user_version = 7",
    "PRAGMA application_id = 7",
]


@pytest.mark.parametrize("statement", NONSENSE)
def test_nonsense_in_the_index_costs_no_entry_and_is_got_rid_of(flipped: Flipped, statement: str) -> None:
    flipped.restore()
    with contextlib.closing(
        sqlite3.connect(flipped.directory / "index" / "cache.db", isolation_level=None)
    ) as database:
        database.execute(statement)
    assert flipped.ask() == 40
    flipped.store_something()
    flipped.repair()
    flipped.store_something()
