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
from ptocache.counters import NAMES, Counters, _add_lines, _line

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
    return len((directory / "counters").read_text().split("\n")) // 2


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
    monkeypatch.setattr(counters_module, "_FOLD_BYTES", 500)
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
    assert (directory / "counters").stat().st_size <= counters_module._FOLD_BYTES
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
        monkeypatch.setattr(counters_module, "_FOLD_BYTES", 100)
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
    amounts = dict.fromkeys(NAMES, 0.0)
    _add_lines(amounts, data)
    assert set(amounts) == set(NAMES)
    assert all(0 <= amount < float("inf") for amount in amounts.values())


@given(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2**53) | st.floats(0, 1e15)))
def test_a_line_is_read_as_it_was_written(amounts: dict[str, float]):
    read = dict.fromkeys(NAMES, 0.0)
    _add_lines(read, _line(amounts))
    assert read == {**dict.fromkeys(NAMES, 0.0), **amounts}


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
    path.write_bytes(_line({"misses": 2}))
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

    monkeypatch.setattr(counters_module, "_ATTEMPTS", 3)
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
