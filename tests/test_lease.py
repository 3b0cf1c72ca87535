"""One process of a host compiles a kernel at a time, and a dead one blocks nobody."""

from __future__ import annotations

import logging
import multiprocessing
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ptocache.lease import lease
from ptocache.settings import Settings

WAIT = 60  # seconds after which something that was waited for will not come any more
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.load({"HOME": str(tmp_path)}, dir=tmp_path / "cache", lock_timeout=WAIT)


def locks(settings: Settings) -> list[str]:
    return sorted(os.listdir(os.path.join(settings.dir, "locks")))


class Holder:
    """A process that holds a lease until it is told to end."""

    def __init__(self, settings: Settings, name: str = "key") -> None:
        self._pipe, other = FORK.Pipe()
        self.process = FORK.Process(target=self._hold, args=(settings, name, other))
        self.process.start()
        other.close()
        assert self._pipe.poll(WAIT)
        assert self._pipe.recv() == "held"

    def _hold(self, settings: Settings, name: str, pipe: Any) -> None:
        self._pipe.close()
        with lease(settings, name) as held:
            pipe.send("held" if held else "not held")
            pipe.poll(WAIT)  # until the parent lets go

    def __enter__(self) -> Holder:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pipe.close()
        self.process.join(WAIT)
        self.process.kill()
        self.process.join()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def test_a_lease_is_held_and_leaves_nothing_behind(settings: Settings):
    with lease(settings, "key") as held:
        assert held
        assert locks(settings) == ["key.lock"]
    assert locks(settings) == []
    with lease(settings, "key") as held:
        assert held
    assert locks(settings) == []


def test_the_directories_are_private(settings: Settings):
    with lease(settings, "key"):
        for path in (settings.dir, os.path.join(settings.dir, "locks")):
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o700


def test_an_error_in_the_block_passes_and_gives_the_lease_back(settings: Settings):
    for error in (ValueError, OSError, RuntimeError, KeyboardInterrupt):
        with pytest.raises(error), lease(settings, "key"):
            raise error
        assert locks(settings) == []
    with lease(settings._replace(lock_timeout=0), "key") as held:
        assert held


def test_one_process_at_a_time_is_inside(settings: Settings, tmp_path: Path):
    """Each reads a number and writes the next: what two do at once is lost."""
    number = tmp_path / "number"
    number.write_text("0")

    def work() -> None:
        for _ in range(8):
            with lease(settings, "key") as held:
                assert held
                fd = os.open(tmp_path / "inside", os.O_CREAT | os.O_EXCL)  # fails if another one is
                before = int(number.read_text())
                os.sched_yield()
                number.write_text(str(before + 1))
                os.unlink(tmp_path / "inside")
                os.close(fd)

    processes = [FORK.Process(target=work) for _ in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(WAIT)
    assert [process.exitcode for process in processes] == [0] * 6
    assert number.read_text() == "48"
    assert locks(settings) == []


def test_one_thread_at_a_time_is_inside(settings: Settings):
    inside, most, done = 0, 0, []

    def work() -> None:
        nonlocal inside, most
        with lease(settings, "key") as held:
            inside += 1
            most = max(most, inside)
            os.sched_yield()
            inside -= 1
            done.append(held)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert done == [True] * 6
    assert most == 1


def test_leases_on_two_keys_do_not_wait_for_each_other(settings: Settings):
    with Holder(settings, "one"), lease(settings._replace(lock_timeout=0), "two") as held:
        assert held


def test_a_wait_that_takes_too_long_goes_on_without_the_lease(settings: Settings, caplog: pytest.LogCaptureFixture):
    with Holder(settings) as holder:
        with (
            caplog.at_level(logging.WARNING, "ptocache"),
            lease(settings._replace(lock_timeout=0.1), "key") as held,
        ):
            assert not held
        assert "compiling it here too" in caplog.text
        assert locks(settings) == ["key.lock"]  # the holder's, which is not taken away
        with lease(settings._replace(lock_timeout=0), "key") as held:
            assert not held
        assert holder.process.is_alive()
    with lease(settings, "key") as held:
        assert held


def test_whoever_waits_gets_the_lease_when_it_is_given_back(settings: Settings):
    got: list[bool] = []

    def work() -> None:
        with lease(settings, "key") as held:
            got.append(held)

    with Holder(settings):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(0.2)
        assert got == []
    thread.join(WAIT)
    assert got == [True]


def test_a_killed_holder_blocks_nobody(settings: Settings):
    with Holder(settings) as holder:
        holder.kill()
        assert locks(settings) == ["key.lock"]  # it could not take it away any more
        with lease(settings._replace(lock_timeout=0), "key") as held:
            assert held
    assert locks(settings) == []


def test_a_waiting_process_takes_over_from_a_killed_holder(settings: Settings):
    with Holder(settings) as holder:
        killer = threading.Timer(0.1, holder.process.kill)
        killer.start()
        with lease(settings, "key") as held:
            assert held
        killer.join()


def test_a_program_started_by_the_holder_does_not_keep_the_lease(settings: Settings):
    import subprocess

    with lease(settings, "key"):
        program = subprocess.Popen(["sleep", str(WAIT)])
    try:
        with lease(settings._replace(lock_timeout=0), "key") as held:
            assert held
    finally:
        program.kill()
        program.wait()


def test_a_child_forked_by_the_holder_does_not_keep_the_lease(settings: Settings):
    leash, end = os.pipe()
    with lease(settings, "key"):
        child = os.fork()
        if not child:
            os.close(end)
            os.read(leash, 1)
            os._exit(0)
    try:
        with lease(settings._replace(lock_timeout=0), "key") as held:
            assert held
    finally:
        os.close(end)
        os.close(leash)
        os.waitpid(child, 0)


def make_file(path: Path) -> None:
    path.write_text("x")


def make_dangling_link(path: Path) -> None:
    path.symlink_to("/nonexistent/target")


Maker = Callable[[Path], None]


@pytest.mark.parametrize("make", [make_file, make_dangling_link, os.mkfifo])
def test_something_else_in_place_of_the_lock_directory_is_replaced(settings: Settings, make: Maker):
    os.mkdir(settings.dir)
    make(Path(settings.dir, "locks"))
    with lease(settings, "key") as held:
        assert held
    assert locks(settings) == []


@pytest.mark.parametrize("make", [os.mkdir, make_file, make_dangling_link, os.mkfifo])
def test_something_else_in_place_of_the_lock_is_replaced(settings: Settings, make: Maker):
    os.makedirs(os.path.join(settings.dir, "locks"))
    make(Path(settings.dir, "locks", "key.lock"))
    with lease(settings, "key") as held:
        assert held
    assert locks(settings) == []


@pytest.mark.parametrize("make", [make_file, make_dangling_link])
def test_where_no_lock_can_be_made_the_work_goes_on_without(settings: Settings, tmp_path: Path, make: Maker):
    make(tmp_path / "blocked")
    with lease(settings._replace(dir=str(tmp_path / "blocked")), "key") as held:
        assert not held
    with lease(settings._replace(dir="/proc/nowhere/cache"), "key") as held:
        assert not held


def test_readonly_makes_nothing(settings: Settings):
    with lease(settings._replace(readonly=True), "key") as held:
        assert not held
    assert not os.path.exists(settings.dir)
