"""Statistics that many processes add to, and that come out exact."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptocache import counters as counters_module
from ptocache import sums
from ptocache.counters import HISTORY_HOURS, NAMES, Counters, Use, _Lines, _words

WAIT = 60  # seconds after which something that was waited for will not come any more
FORK = multiprocessing.get_context("fork")

SCRIPT = """
import sys
from ptocache.counters import Counters
counters = Counters(sys.argv[1])
for _ in range(int(sys.argv[2])):
    counters.add("hits.local")
    counters.add("seconds_saved", 0.25)
"""

PROGRAM = """
import multiprocessing, sys
from ptocache.counters import Counters

def count(directory):
    counters = Counters(directory)
    for _ in range(500):
        counters.add("hits.local")
        counters.add("seconds_saved", 0.25)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    processes = [context.Process(target=count, args=sys.argv[3:]) for _ in range(int(sys.argv[2]))]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(any(process.exitcode for process in processes))
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "cache"
    path.mkdir()
    return path


def totals(directory: Path) -> dict[str, float]:
    """What a new reader sees, without what is nought."""
    return {name: amount for name, amount in Counters(str(directory)).totals().items() if amount}


def count(directory: str, amount: int, flush_every: int = 0) -> None:
    """Count in a process that ends as its kind of process does, with nothing said about the counters."""
    counters = Counters(directory)
    for number in range(1, amount + 1):
        counters.add("hits.local")
        counters.add("seconds_saved", 0.25)
        if flush_every and number % flush_every == 0:
            counters.flush()


def run_in_processes(context: Any, number: int, *arguments: Any) -> None:
    processes = [context.Process(target=count, args=arguments) for _ in range(number)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(WAIT)
    assert [process.exitcode for process in processes] == [0] * number


def lines(directory: Path) -> int:
    return sum(line.startswith("@") for line in (directory / "counters").read_text().splitlines())


# Adding up.


def test_nothing_counted_is_nought_under_every_name(directory: Path):
    assert Counters(str(directory)).totals() == dict.fromkeys(NAMES, 0.0)
    assert not list(directory.iterdir())


def test_what_is_counted_is_in_the_totals_at_once(directory: Path):
    counters = Counters(str(directory))
    counters.add("misses")
    counters.add("misses", 2)
    counters.add("seconds_compiling", 0.5)
    assert {name: amount for name, amount in counters.totals().items() if amount} == {
        "misses": 3,
        "seconds_compiling": 0.5,
    }
    assert totals(directory) == {"misses": 3, "seconds_compiling": 0.5}


def test_many_counts_are_one_line(directory: Path):
    counters = Counters(str(directory))
    for _ in range(1000):
        counters.add("hits.memory")
    assert not (directory / "counters").exists()
    counters.flush()
    counters.flush()
    assert lines(directory) == 1
    assert totals(directory) == {"hits.memory": 1000}


def test_counts_wait_in_memory_until_the_directory_exists(tmp_path: Path):
    directory = tmp_path / "later"
    counters = Counters(str(directory))
    counters.add("misses")
    counters.flush()
    assert not directory.exists()
    assert counters.totals()["misses"] == 1
    directory.mkdir()
    counters.add("misses")
    counters.flush()
    assert totals(directory) == {"misses": 2}


def test_counts_are_written_every_few_seconds_while_requests_go_on(directory: Path, monkeypatch: pytest.MonkeyPatch):
    counters = Counters(str(directory))
    monkeypatch.setattr(counters_module, "FLUSH_SECONDS", 3600)
    counters.add("misses")
    assert totals(directory) == {}
    monkeypatch.setattr(counters_module, "FLUSH_SECONDS", -1)
    counters.add("misses")
    assert totals(directory) == {"misses": 2}


def test_counters_that_are_dropped_are_written_and_do_not_live_until_the_process_ends(directory: Path):
    import weakref

    counters = Counters(str(directory))
    counters.add("misses")
    alive = weakref.ref(counters)
    del counters
    gc.collect()
    assert alive() is None
    assert totals(directory) == {"misses": 1}


# Many processes.


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_multiprocessing_lose_nothing(directory: Path, tmp_path: Path, method: str):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    number = 8 if method == "fork" else 3
    command = [sys.executable, str(program), method, str(number), str(directory)]
    # The fork server's socket has its path below TMPDIR: a long one does not fit into an address.
    subprocess.run(command, env={**os.environ, "TMPDIR": "/tmp"}, check=True, timeout=WAIT)
    assert totals(directory) == {"hits.local": number * 500, "seconds_saved": number * 125}


def test_programs_lose_nothing(directory: Path):
    command = [sys.executable, "-c", SCRIPT, str(directory), "500"]
    programs = [subprocess.Popen(command) for _ in range(4)]
    assert [program.wait(WAIT) for program in programs] == [0] * 4
    assert totals(directory) == {"hits.local": 2000, "seconds_saved": 500}


def test_a_program_that_fails_has_counted(directory: Path):
    command = [sys.executable, "-c", f"{SCRIPT}\nraise ValueError", str(directory), "3"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1
    assert totals(directory)["hits.local"] == 3


def test_eight_processes_that_write_all_the_time_lose_nothing_while_the_file_is_folded(
    directory: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sums, "FOLD_BYTES", 500)
    run_in_processes(FORK, 8, str(directory), 500, 5)
    assert totals(directory) == {"hits.local": 4000, "seconds_saved": 1000}
    assert (directory / "counters").stat().st_size < 5000  # 800 lines would be 30 KB
    assert list((directory / "temp").iterdir()) == []


def test_threads_lose_nothing(directory: Path):
    counters = Counters(str(directory))

    def work() -> None:
        for number in range(500):
            counters.add("misses")
            if number % 50 == 0:
                counters.flush()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert counters.totals()["misses"] == 4000
    assert totals(directory) == {"misses": 4000}


def test_a_file_that_has_grown_is_replaced_with_its_sum(directory: Path):
    counters = Counters(str(directory))
    for _ in range(2500):
        counters.add("misses")
        counters.add("seconds_compiling", 0.125)
        counters.flush()
    assert lines(directory) < 2500
    assert (directory / "counters").stat().st_size <= sums.FOLD_BYTES
    assert totals(directory) == {"misses": 2500, "seconds_compiling": 312.5}


def test_a_forked_child_writes_its_own_counts_and_not_its_parents(directory: Path):
    counters = Counters(str(directory))
    counters.add("misses", 5)

    def child() -> None:
        counters.add("misses", 100)

    processes = [FORK.Process(target=child) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(WAIT)
    assert totals(directory) == {"misses": 300}
    counters.flush()
    assert totals(directory) == {"misses": 305}


def test_a_program_that_forks_by_hand_counts_once(directory: Path):
    script = f"""{SCRIPT}
import os
if os.fork() == 0:
    counters.add("misses", 7)
else:
    os.wait()
"""
    subprocess.run([sys.executable, "-c", script, str(directory), "3"], check=True, timeout=WAIT)
    assert totals(directory) == {"hits.local": 3, "seconds_saved": 0.75, "misses": 7}


def test_a_child_forked_in_the_middle_of_a_write_does_not_keep_the_file_locked(
    directory: Path, monkeypatch: pytest.MonkeyPatch
):
    """A data loader lives for hours: meanwhile the file would grow and never be replaced with its sum."""
    children: list[int] = []
    leash, end = os.pipe()
    write = os.write

    def write_and_fork(fd: int, data: bytes) -> int:
        if not children:
            children.append(os.fork())
            if not children[0]:
                os.close(end)
                os.read(leash, 1)  # until the parent lets go
                os._exit(0)
        return write(fd, data)

    counters = Counters(str(directory))
    counters.add("misses")
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", write_and_fork)
            counters.flush()
        assert children
        monkeypatch.setattr(sums, "FOLD_BYTES", 100)
        for _ in range(20):
            counters.add("misses")
            counters.flush()
        assert (directory / "counters").stat().st_size < 200
    finally:
        os.close(end)
        os.close(leash)
        os.waitpid(children[0], 0)
    assert totals(directory) == {"misses": 21}


# Damage.


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0" * 100,
        b"\xff\xfe garbage\n",
        b"misses\n=5\n=\n==\nmisses==5\nmisses=\nmisses=five\nother=5\nMISSES=5\n",
        b"misses=nan\nmisses=inf\nmisses=-inf\nmisses=-5\nmisses=1e400\nmisses=99999999999999999999\n",
        b"misses=0x10\n m\xc3\xadsses=5\n\xff=5\n",
        b"\nmiss",
        b"misses=1" + b"e" * 5000,
    ],
)
def test_what_is_not_a_count_is_left_out(directory: Path, garbage: bytes):
    counters = Counters(str(directory))
    counters.add("misses", 2)
    counters.flush()
    with (directory / "counters").open("ab") as file:
        file.write(garbage)
    counters.add("misses", 3)
    counters.flush()
    assert totals(directory) == {"misses": 5}


def test_a_line_that_was_cut_short_does_not_spoil_the_next(directory: Path):
    (directory / "counters").write_bytes(b"\nmisses=2 hits.local=3\n\nmisses=4 hits.lo")
    counters = Counters(str(directory))
    counters.add("misses")
    counters.flush()
    assert totals(directory) == {"misses": 7, "hits.local": 3}


@given(st.binary(max_size=200))
def test_any_bytes_add_up_to_something_finite(data: bytes):
    record = _Lines(data).record()
    amounts = record.totals
    assert set(amounts) == set(NAMES)
    assert all(0 <= amount < float("inf") for amount in amounts.values())


@given(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2**53) | st.floats(0, 1e15)))
def test_a_line_is_read_as_it_was_written(amounts: dict[str, float]):
    assert _Lines(_words(amounts).encode()).record().totals == {**dict.fromkeys(NAMES, 0.0), **amounts}


@pytest.mark.parametrize(
    "kind", ["directory", "full directory", "fifo", "read fifo", "dangling link", "link", "link to itself"]
)
def test_something_else_in_place_of_the_file_is_replaced(directory: Path, tmp_path: Path, kind: str):
    path = directory / "counters"
    treasure = tmp_path / "treasure"
    treasure.write_text("gold")
    reader = -1
    if "directory" in kind:
        path.mkdir()
        if kind.startswith("full"):
            (path / "x").write_text("x")
    elif "fifo" in kind:
        os.mkfifo(path)
        if kind.startswith("read"):
            reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    else:
        path.symlink_to({"link": treasure, "link to itself": path}.get(kind, "/nonexistent"))
    try:
        assert totals(directory) == {}
        counters = Counters(str(directory))
        counters.add("misses")
        counters.flush()
    finally:
        if reader >= 0:
            os.close(reader)
    assert totals(directory) == {"misses": 1}
    assert path.is_file()
    assert not path.is_symlink()
    assert treasure.read_text() == "gold"


def test_a_file_too_large_for_counts_is_begun_anew(directory: Path):
    path = directory / "counters"
    path.touch()
    os.truncate(path, 1 << 40)  # sparse: it takes no space
    assert totals(directory) == {}
    counters = Counters(str(directory))
    counters.add("misses")
    counters.flush()
    assert path.stat().st_size < 1000
    counters.add("misses")
    counters.flush()
    assert totals(directory)["misses"] >= 1


def test_a_file_that_is_removed_is_begun_anew(directory: Path):
    counters = Counters(str(directory))
    counters.add("misses")
    counters.flush()
    (directory / "counters").unlink()
    counters.add("misses", 3)
    counters.flush()
    assert totals(directory) == {"misses": 3}


def test_a_line_is_not_written_to_a_file_that_was_just_replaced(directory: Path, monkeypatch: pytest.MonkeyPatch):
    """Another process folds the file after this one has opened it and before it has locked it."""
    import fcntl

    path = directory / "counters"
    path.write_bytes(b"\nmisses=2\n")
    flock = fcntl.flock
    replaced: list[bool] = []

    def replace_and_lock(fd: int, kind: int) -> None:
        if not replaced:
            replaced.append(True)
            (directory / "sum").write_bytes(path.read_bytes())
            (directory / "sum").rename(path)
        flock(fd, kind)

    monkeypatch.setattr(fcntl, "flock", replace_and_lock)
    counters = Counters(str(directory))
    counters.add("misses")
    counters.flush()
    assert replaced
    assert totals(directory) == {"misses": 3}


def test_a_file_that_somebody_keeps_locked_keeps_nobody_waiting(directory: Path, monkeypatch: pytest.MonkeyPatch):
    import fcntl

    monkeypatch.setattr(sums, "_ATTEMPTS", 3)
    counters = Counters(str(directory))
    counters.add("misses")
    counters.flush()
    with (directory / "counters").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        counters.add("misses")
        counters.flush()
        assert counters.totals()["misses"] == 2
    assert totals(directory) == {"misses": 1}
    counters.flush()
    assert totals(directory) == {"misses": 2}


# Read-only.


def test_readonly_reads_and_writes_nothing(directory: Path):
    written = Counters(str(directory))
    written.add("misses", 4)
    written.flush()
    before = [(path, path.stat().st_mtime_ns, path.read_bytes()) for path in directory.iterdir()]
    counters = Counters(str(directory), readonly=True)
    counters.add("misses")
    counters.flush()
    assert counters.totals()["misses"] == 5  # its own too, as far as this process goes
    assert totals(directory) == {"misses": 4}
    assert [(path, path.stat().st_mtime_ns, path.read_bytes()) for path in directory.iterdir()] == before


def test_readonly_makes_no_file(directory: Path):
    counters = Counters(str(directory), readonly=True)
    counters.add("misses")
    counters.flush()
    assert counters.totals()["misses"] == 1
    assert not list(directory.iterdir())


# Since when, and by hour.


def at(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let it be that time, in seconds since the epoch."""
    monkeypatch.setattr(counters_module.time, "time", lambda: seconds)


def test_a_new_file_says_since_when_it_counts(directory: Path, monkeypatch: pytest.MonkeyPatch):
    assert Counters(str(directory)).read().since is None
    for now in (1_800_000_000, 1_800_009_999):
        at(monkeypatch, now)
        counters = Counters(str(directory))
        counters.add("misses")
        counters.flush()
        assert counters.read().since == 1_800_000_000


def test_hours_stay_apart_and_add_up(directory: Path, monkeypatch: pytest.MonkeyPatch):
    counters = Counters(str(directory))
    for hour in (500_000, 500_001, 500_001, 500_003):
        at(monkeypatch, hour * 3600 + 1800)
        counters.add("misses")
        counters.add("seconds_saved", 0.5)
        counters.flush()
    record = counters.read()
    assert record.hours == {
        500_000: {"misses": 1, "seconds_saved": 0.5},
        500_001: {"misses": 2, "seconds_saved": 1},
        500_003: {"misses": 1, "seconds_saved": 0.5},
    }
    assert record.totals["misses"] == 4


def test_folding_keeps_90_days_of_hours_and_all_of_the_totals(directory: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sums, "FOLD_BYTES", 2000)
    counters = Counters(str(directory))
    first = 500_000
    hours = HISTORY_HOURS + 400
    for hour in range(first, first + hours):
        at(monkeypatch, hour * 3600)
        counters.add("hits.local", 3)
        counters.add_engine("redis://host/0", "hits", 2)
        counters.flush()
    record = counters.read()
    assert record.since == first * 3600
    assert record.totals["hits.local"] == 3 * hours
    assert record.engines["redis://host/0"]["hits"] == 2 * hours
    assert list(record.hours) == list(range(first + 400, first + hours))
    assert (directory / "counters").stat().st_size < HISTORY_HOURS * 32 * 3 + 2000


@pytest.mark.parametrize("word", ["@", "@x", "@-5", "@99999999999", "@" + "9" * 5000, "@1"])
def test_an_hour_that_is_none_counts_as_long_ago(directory: Path, word: str):
    (directory / "counters").write_text(f"\n{word} misses=2\n")
    record = Counters(str(directory)).read()
    assert record.totals["misses"] == 2
    assert record.hours == {}


def test_zero_begins_anew(directory: Path, monkeypatch: pytest.MonkeyPatch):
    (directory / "actions").mkdir()
    at(monkeypatch, 1_800_000_000)
    counters = Counters(str(directory))
    counters.hit("hits.local", "a" * 32, 1.0)
    counters.flush()
    counters.hit("hits.local", "a" * 32, 1.0)
    at(monkeypatch, 1_800_000_500)
    assert counters.zero()
    record = counters.read()
    assert record.since == 1_800_000_500
    assert not any(record.totals.values())
    assert counters.uses() == {}
    assert Counters(str(directory / "none")).zero()


def test_zero_gives_up_where_somebody_keeps_the_file_locked(directory: Path, monkeypatch: pytest.MonkeyPatch):
    import fcntl

    monkeypatch.setattr(sums, "_ATTEMPTS", 3)
    counters = Counters(str(directory))
    counters.add("misses")
    counters.flush()
    with (directory / "counters").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not counters.zero()
    assert totals(directory) == {"misses": 1}


# Uses of keys.


def test_uses_of_a_key_are_its_hits_and_its_longest_compilation(directory: Path):
    counters = Counters(str(directory))
    counters.compiled("a" * 32, 2.5)
    counters.hit("hits.memory", "a" * 32, 2.5)
    counters.flush()
    counters.hit("hits.local", "a" * 32, 2.5)
    counters.hit("hits.local", "b" * 32, 1.0)
    assert counters.uses() == {"a" * 32: Use(2, 2.5), "b" * 32: Use(1, 1.0)}
    assert Counters(str(directory)).uses() == counters.uses()
    assert {name: amount for name, amount in counters.totals().items() if amount} == {
        "hits.memory": 1,
        "hits.local": 2,
        "misses": 1,
        "compiles": 1,
        "seconds_compiling": 2.5,
        "seconds_saved": 6.0,
    }


def test_folding_forgets_the_uses_of_what_is_not_stored_any_more(directory: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sums, "FOLD_BYTES", 1000)
    stored = [f"{number:032x}" for number in range(10)]
    (directory / "actions").mkdir()
    for name in stored:
        (directory / "actions" / name).touch()
    counters = Counters(str(directory))
    for number in range(100):
        counters.hit("hits.local", f"{number:032x}", 1.0)
        counters.flush()
    uses = counters.uses()
    assert set(stored) <= set(uses)
    assert len(uses) < 50
    assert all(uses[name] == Use(1, 1.0) for name in stored)


def test_of_too_many_keys_those_that_saved_most_are_kept(directory: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sums, "FOLD_BYTES", 1000)
    monkeypatch.setattr(counters_module, "MOST_USES", 10)
    (directory / "actions").mkdir()
    counters = Counters(str(directory))
    for number in range(100):
        name = f"{number:032x}"
        (directory / "actions" / name).touch()
        counters.compiled(name, 1.0 + (number % 7 == 0) * 10)
        counters.flush()
    assert {f"{number:032x}" for number in range(0, 42, 7)} <= set(counters.uses())
    assert len(counters.uses()) < 50


@pytest.mark.parametrize(
    "garbage", [b"\0", b"x=1,2", b"a" * 32 + b"=1", b"a" * 32 + b"=-1,1", b"a" * 32 + b"=1,nan", b"\xff" * 32 + b"=1,1"]
)
def test_what_is_no_use_is_left_out(directory: Path, garbage: bytes):
    (directory / "uses").write_bytes(garbage)
    counters = Counters(str(directory))
    counters.hit("hits.local", "b" * 32, 1.0)
    assert counters.uses() == {"b" * 32: Use(1, 1.0)}


def hit_often(directory: str, amount: int) -> None:
    counters = Counters(directory)
    for number in range(amount):
        counters.hit("hits.memory", f"{number % 7:032x}", 0.25)
        if number % 50 == 0:
            counters.flush()


def test_sixteen_processes_of_a_thousand_requests_each_count_exactly(directory: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sums, "FOLD_BYTES", 4000)
    (directory / "actions").mkdir()
    for number in range(7):
        (directory / "actions" / f"{number:032x}").touch()
    processes = [FORK.Process(target=hit_often, args=(str(directory), 1000)) for _ in range(16)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(WAIT)
    assert [process.exitcode for process in processes] == [0] * 16
    assert totals(directory) == {"hits.memory": 16_000, "seconds_saved": 4000}
    record = Counters(str(directory)).read()
    assert sum(amounts["hits.memory"] for amounts in record.hours.values()) == 16_000
    assert sum(use.hits for use in Counters(str(directory)).uses().values()) == 16_000
