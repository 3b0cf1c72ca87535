"""An engine costs no more time than was said, whatever it does; and what is to be sent never keeps a process."""

from __future__ import annotations

import contextlib
import functools
import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ptocache.counters import Counters
from ptocache.request import make_key
from ptocache.store import guard as guard_module
from ptocache.store import uploads as uploads_module
from ptocache.store.engines import EngineUrl
from ptocache.store.entry import make_entry
from ptocache.store.guard import FAILURES, EngineError, Guard, LeftAloneError
from ptocache.store.objects import Signer
from ptocache.store.shared import SharedTier
from ptocache.store.uploads import Uploads

WAIT = 60  # seconds after which something that was waited for will not come any more
FORK = multiprocessing.get_context("fork")
KEY = make_key([("text", b"kernel")])

T = TypeVar("T")


def until(condition: Callable[[], T], what: str = "a condition") -> T:
    deadline = time.monotonic() + WAIT
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {WAIT} s for {what}"
        time.sleep(0.002)
    return value


class Clock:
    """A time that only these tests move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(guard_module, "time", clock)
    return clock


class Engine:
    """Something to call, that hangs, fails or answers."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.released = threading.Event()
        self.answers = True
        self.hangs = False

    def ask(self) -> str:
        self.calls.append(threading.current_thread().name)
        if self.hangs:
            assert self.released.wait(WAIT)
        elif not self.answers:
            raise ConnectionError("no route")
        return "answer"


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine()
    yield engine
    engine.released.set()


def fail(guard: Guard, times: int = FAILURES) -> None:
    """Have calls fail, at once."""

    def refuse() -> None:
        raise ConnectionRefusedError("refused")

    for _ in range(times):
        with pytest.raises(EngineError, match="refused"):
            guard.call(refuse, WAIT)


def tried(guard: Guard) -> None:
    """Wait until the engine has been tried in the background."""
    until(lambda: not guard._is_trying, "the probe")


# What a call costs.


def test_what_is_answered_is_returned_and_what_is_raised_is_an_engine_error(engine: Engine) -> None:
    guard = Guard("it", engine.ask)
    assert guard.call(engine.ask, WAIT) == "answer"
    assert guard.call(lambda: None, WAIT) is None
    engine.answers = False
    with pytest.raises(EngineError, match="no route") as caught:
        guard.call(engine.ask, WAIT)
    assert not isinstance(caught.value, LeftAloneError)


def test_a_call_that_hangs_is_given_up_at_its_deadline(engine: Engine) -> None:
    engine.hangs = True
    guard = Guard("it", engine.ask)
    start = time.monotonic()
    with pytest.raises(EngineError, match="no answer"):
        guard.call(engine.ask, 0.05)
    assert 0.05 <= time.monotonic() - start < WAIT / 2


@pytest.mark.parametrize("seconds", [0.0, 1e-9])
def test_without_time_nothing_is_waited_for(engine: Engine, seconds: float) -> None:
    engine.hangs = True
    with pytest.raises(EngineError):
        Guard("it", engine.ask).call(engine.ask, seconds)


class Stop(BaseException):
    """What a library may raise that is no `Exception`: one that is written in Rust does so in a panic."""


@pytest.mark.parametrize("error", [Stop("stop"), SystemExit(3)], ids=repr)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_whatever_is_raised_ends_the_call_at_once(error: BaseException, engine: Engine) -> None:
    def stop() -> None:
        raise error

    guard = Guard("it", engine.ask)
    with pytest.raises(EngineError) as caught:
        guard.call(stop, 3)
    assert "no answer within" not in str(caught.value)
    assert guard._hanging == 0


def test_an_error_has_nothing_of_the_librarys_own_in_its_traceback(engine: Engine) -> None:
    def fail_with_secret() -> None:
        raise ConnectionError("redis://user:hunter2-the-password@host:6379 refused")

    with pytest.raises(EngineError) as caught:
        Guard("it", engine.ask).call(fail_with_secret, WAIT)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


# When it is left alone, and when it is asked again.


def test_two_failures_in_a_row_close_it_and_then_nothing_is_called_in_the_foreground(
    clock: Clock, engine: Engine
) -> None:
    guard = Guard("it", engine.ask)
    fail(guard, FAILURES - 1)
    assert guard.is_open()
    fail(guard, 1)
    assert not guard.is_open()
    for _ in range(10):
        with pytest.raises(LeftAloneError, match="it is left alone"):
            guard.call(engine.ask, WAIT)
    assert engine.calls == []


def test_failures_that_are_not_in_a_row_do_not(clock: Clock, engine: Engine) -> None:
    guard = Guard("it", engine.ask)
    for _ in range(5):
        fail(guard, FAILURES - 1)
        guard.call(engine.ask, WAIT)
    assert guard.is_open()


def test_after_a_pause_it_is_tried_in_the_background_once_and_used_again(clock: Clock, engine: Engine) -> None:
    guard = Guard("it", engine.ask, 30)
    fail(guard)
    clock.now += 29.9
    assert not guard.is_open()
    assert engine.calls == []
    engine.hangs = True
    clock.now += 0.2
    for _ in range(10):
        assert not guard.is_open()
        with pytest.raises(LeftAloneError):
            guard.call(engine.ask, WAIT)
    until(lambda: engine.calls)
    assert len(engine.calls) == 1
    assert threading.current_thread().name not in engine.calls
    engine.released.set()
    until(guard.is_open)
    assert guard.call(engine.ask, WAIT) == "answer"
    assert len(engine.calls) == 2
    fail(guard, FAILURES - 1)
    assert guard.is_open()


def test_pauses_double_and_are_bounded_and_begin_anew_once_it_has_answered(clock: Clock, engine: Engine) -> None:
    engine.answers = False
    guard = Guard("it", engine.ask, 30)
    fail(guard)
    pauses = []
    for count in range(1, 9):
        pauses.append(guard._try_at - clock.now)
        clock.now = guard._try_at - 0.001
        assert not guard.is_open()
        assert len(engine.calls) == count - 1
        clock.now = guard._try_at
        assert not guard.is_open()
        tried(guard)
        assert len(engine.calls) == count
    assert pauses == [30, 60, 120, 240, 480, 600, 600, 600]
    engine.answers = True
    clock.now = guard._try_at
    assert not guard.is_open()
    until(guard.is_open)
    fail(guard)
    assert guard._try_at - clock.now == 30


def test_a_probe_that_hangs_is_given_up_and_tried_again_later(engine: Engine) -> None:
    engine.hangs = True
    guard = Guard("it", engine.ask, 0.02)
    fail(guard)
    until(lambda: not guard.is_open() and engine.calls)
    tried(guard)
    engine.hangs = False
    until(guard.is_open)
    assert guard.call(engine.ask, WAIT) == "answer"


def test_calls_that_hang_are_bounded_and_come_back(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "FAILURES", 10**6)  # or it would be left alone
    engine.hangs = True
    guard = Guard("it", engine.ask)
    for _ in range(3 * guard_module._HANGING):
        with pytest.raises(EngineError):
            guard.call(engine.ask, 0.001)
    assert len(engine.calls) == guard_module._HANGING
    with pytest.raises(EngineError, match="have not come back"):
        guard.call(engine.ask, WAIT)
    engine.released.set()
    engine.hangs = False
    until(lambda: guard._hanging == 0, "the calls that hang")
    assert guard.call(engine.ask, WAIT) == "answer"


def test_threads_that_call_at_once_are_each_answered_and_none_waits_for_another(engine: Engine) -> None:
    guard, barrier = Guard("it", engine.ask), threading.Barrier(8)

    def call(number: int) -> int:
        def answer() -> int:
            barrier.wait(WAIT)  # all are in their calls at once
            return number

        return guard.call(answer, WAIT)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(call, range(8))) == list(range(8))
    assert guard.is_open()


def test_threads_that_fail_at_once_close_it_once(clock: Clock, engine: Engine) -> None:
    guard, barrier = Guard("it", engine.ask, 30), threading.Barrier(8)

    def refuse() -> None:
        barrier.wait(WAIT)
        raise ConnectionRefusedError("refused")

    def call(_: int) -> str:
        with pytest.raises(EngineError) as caught:
            guard.call(refuse, WAIT)
        return str(caught.value)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(call, range(8))) == {"refused"}
    assert not guard.is_open()
    assert guard._try_at - clock.now == 30


def test_many_threads_try_it_once(clock: Clock, engine: Engine) -> None:
    engine.hangs = True
    guard = Guard("it", engine.ask, 30)
    fail(guard)
    clock.now += 31
    with ThreadPoolExecutor(8) as pool:
        assert not any(pool.map(lambda _: guard.is_open(), range(200)))
    until(lambda: engine.calls)
    assert len(engine.calls) == 1


def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)


def test_without_another_thread_a_call_is_a_failure_and_no_more(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = Guard("it", engine.ask)
    with monkeypatch.context() as patch:
        no_threads(patch)
        with pytest.raises(EngineError, match="thread"):
            guard.call(engine.ask, WAIT)
    assert guard.call(engine.ask, WAIT) == "answer"


def test_without_another_thread_it_is_left_alone_until_there_is_one(
    clock: Clock, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = Guard("it", engine.ask, 30)
    fail(guard)
    clock.now += 31
    with monkeypatch.context() as patch:
        no_threads(patch)
        for _ in range(2):
            with pytest.raises(LeftAloneError):
                guard.call(engine.ask, WAIT)
    clock.now += 10_000

    def is_used_again() -> bool:
        with contextlib.suppress(LeftAloneError):
            return guard.call(engine.ask, WAIT) == "answer"
        return False

    deadline = time.monotonic() + 3
    while not (used := is_used_again()) and time.monotonic() < deadline:
        time.sleep(0.002)
    assert used


# Reading and writing.


class Disk:
    """An engine whose reading or writing fails."""

    def __init__(self, *fails: str) -> None:
        self.fails = set(fails)
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: object) -> object:
            if name == "abort":
                return None
            self.calls.append(name)
            if name in self.fails:
                raise OSError(28, "No space left on device")
            return True if name == "put" else None

        return call


def tier_on(disk: Disk) -> SharedTier:
    tier = SharedTier(EngineUrl("file:///disk"), Signer(), WAIT, Counters(""))
    tier._lazy_engine = disk
    return tier


def put(tier: SharedTier, times: int) -> None:
    for number in range(times):
        tier.put([KEY], make_entry(b"%d" % number, seconds=1, created=1, facts={"kernels": []}))
    assert tier.uploads.flush(WAIT)


def test_reading_goes_on_where_writing_fails() -> None:
    disk = Disk("put")
    tier = tier_on(disk)
    put(tier, 5)
    assert disk.calls.count("put") == FAILURES
    disk.calls.clear()
    for _ in range(5):
        assert tier.get(KEY) is None
    assert disk.calls == ["get"] * 5
    assert tier.reading.is_open()


def test_where_reading_fails_nothing_is_written_either() -> None:
    disk = Disk("get")
    tier = tier_on(disk)
    for _ in range(5):
        assert tier.get(KEY) is None
    put(tier, 5)
    assert disk.calls == ["get"] * FAILURES
    counted = tier._counters.engines()[tier.label]
    assert counted["errors"] == FAILURES
    assert counted["skipped"] == 3 + 5


def test_a_lookup_has_one_deadline_for_all_its_questions() -> None:
    """And not one for each state of the files that it looks at."""
    asked: list[float] = []
    tier = tier_on(Disk())
    real = tier.reading.call

    def call(function: Callable[[], T], seconds: float) -> T:
        asked.append(seconds)
        return real(function, seconds)

    tier.reading.call = call  # type: ignore[method-assign]
    assert tier.get(KEY) is None
    assert asked[0] <= WAIT


# Forks.


def in_child(work: Callable[[], object]) -> None:
    """Do something in a forked child, and fail if it does."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    deadline = time.monotonic() + WAIT
    while (done := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        time.sleep(0.002)
    assert os.waitstatus_to_exitcode(done[1]) == 0


def test_a_child_begins_anew(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "FAILURES", 10**6)
    engine.hangs = True
    guard = Guard("it", engine.ask)
    for _ in range(guard_module._HANGING + 1):
        with pytest.raises(EngineError):
            guard.call(engine.ask, 0.001)
    assert guard._hanging == guard_module._HANGING

    def work() -> None:
        assert guard.is_open()
        assert guard.call(lambda: "answer", WAIT) == "answer"
        assert guard._hanging == 0

    in_child(work)
    assert guard._hanging == guard_module._HANGING


def test_a_child_that_is_forked_while_the_lock_is_held_does_not_wait_for_it(engine: Engine) -> None:
    guard, queue, held, done = Guard("it", engine.ask), Uploads(WAIT), threading.Event(), threading.Event()

    def hold() -> None:
        with guard._lock, queue._changed:
            held.set()
            done.wait(WAIT)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(WAIT)

        def work() -> None:
            assert guard.call(lambda: "answer", WAIT) == "answer"
            sent: list[int] = []
            assert queue.add(lambda: sent.append(1), 1)
            assert queue.flush(WAIT)
            assert sent == [1]

        in_child(work)
    finally:
        done.set()
        thread.join(WAIT)


def test_a_child_tries_an_engine_that_its_parent_leaves_alone(clock: Clock, engine: Engine) -> None:
    guard = Guard("it", engine.ask)
    fail(guard)
    in_child(lambda: guard.call(engine.ask, WAIT))
    assert not guard.is_open()


# What is sent.


class Gate:
    """Something to be sent that waits to be let through."""

    def __init__(self) -> None:
        self.begun, self.opened = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        assert self.opened.wait(WAIT)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


def test_things_are_sent_in_their_order_one_after_the_other() -> None:
    queue, sent, at_once = Uploads(WAIT), [], []
    lock = threading.Lock()

    def send(number: int) -> None:
        assert lock.acquire(blocking=False)
        at_once.append(threading.current_thread().name)
        sent.append(number)
        lock.release()

    for number in range(200):
        assert queue.add(functools.partial(send, number), 1)
    assert queue.flush(WAIT)
    assert sent == list(range(200))
    assert threading.current_thread().name not in at_once


def test_many_threads_have_all_sent_each_in_its_order() -> None:
    queue = Uploads(WAIT)
    sent: list[tuple[int, int]] = []

    def work(thread: int) -> bool:
        return all(queue.add(functools.partial(sent.append, (thread, number)), 1) for number in range(50))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert queue.flush(WAIT)
    assert sorted(sent) == [(thread, number) for thread in range(8) for number in range(50)]
    for thread in range(8):
        assert [number for who, number in sent if who == thread] == list(range(50))


def test_no_more_things_wait_than_there_may(gate: Gate) -> None:
    queue = Uploads(WAIT)
    sent: list[int] = []
    assert queue.add(gate, 1)
    assert gate.begun.wait(WAIT)
    added = [queue.add(functools.partial(sent.append, number), 1) for number in range(1030)]
    assert added == [True] * uploads_module._MOST_ITEMS + [False] * 6
    gate.opened.set()
    assert queue.flush(WAIT)
    assert sent == list(range(uploads_module._MOST_ITEMS))
    assert queue.add(lambda: None, 1)


def test_no_more_bytes_wait_than_there_may(gate: Gate) -> None:
    queue, most = Uploads(WAIT), uploads_module._MOST_BYTES
    assert not queue.add(gate, most + 1)
    assert queue.add(gate, most)
    assert gate.begun.wait(WAIT)
    assert queue.add(lambda: None, most - 10)
    assert not queue.add(lambda: None, 11)
    assert queue.add(lambda: None, 10)
    assert not queue.add(lambda: None, 1)
    gate.opened.set()
    assert queue.flush(WAIT)
    assert queue._bytes == 0
    assert queue.add(lambda: None, most)
    assert queue.flush(WAIT)


def test_what_was_sent_is_kept_in_memory_no_longer() -> None:
    class Big:
        def send(self) -> None: ...

    queue = Uploads(WAIT)
    big = [Big()]
    queue.add(big[0].send, 1)
    assert queue.flush(WAIT)
    big.clear()
    until(lambda: not any(isinstance(one, Big) for one in gc.get_objects()), "what was sent to be gone")


def test_a_flush_waits_until_all_is_sent_and_gives_up_at_its_deadline(gate: Gate) -> None:
    queue = Uploads(0.02)
    assert queue.flush(0)
    assert queue.add(gate, 1)
    for seconds in (0, 0.02, None):
        start = time.monotonic()
        assert not queue.flush(seconds)
        assert (0.02 if seconds is None else seconds) <= time.monotonic() - start < WAIT / 2
    gate.opened.set()
    assert queue.flush(WAIT)


def test_every_thread_that_waits_is_told(gate: Gate) -> None:
    queue = Uploads(WAIT)
    queue.add(gate, 1)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(queue.flush, WAIT) for _ in range(4)]
        gate.opened.set()
        assert all(future.result(WAIT) for future in waiting)


def test_without_another_thread_nothing_is_added_and_nothing_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Uploads(WAIT)
    with monkeypatch.context() as patch:
        no_threads(patch)
        assert not queue.add(lambda: None, 1)
    assert queue.flush(0)
    sent: list[int] = []
    assert queue.add(lambda: sent.append(1), 1)
    assert queue.flush(WAIT)
    assert sent == [1]


def test_a_child_does_not_send_what_its_parent_has_to(gate: Gate, tmp_path: Path) -> None:
    queue, log = Uploads(WAIT), tmp_path / "log"

    def send(what: str) -> None:
        with log.open("a") as file:
            file.write(f"{what} {os.getpid()}\n")

    queue.add(gate, 1)
    assert gate.begun.wait(WAIT)
    queue.add(lambda: send("parent's"), 1)

    def work() -> None:
        assert queue.flush(0)  # nothing is its own
        assert queue.add(lambda: send("child's"), 1)
        assert queue.flush(WAIT)

    in_child(work)
    assert [line.split()[0] for line in log.read_text().splitlines()] == ["child's"]
    gate.opened.set()
    assert queue.flush(WAIT)
    last, pid = log.read_text().splitlines()[-1].split()
    assert (last, int(pid)) == ("parent's", os.getpid())
    assert len(log.read_text().splitlines()) == 2


# The end of a process. What is sent writes a line to a file, through a call in a thread of its own.

PROGRAM = """
import multiprocessing, os, sys, threading, time
from ptocache.store.guard import Guard
from ptocache.store.uploads import Uploads

log, how, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
queue, guard = Uploads(seconds), Guard("it", lambda: None)
gate = threading.Event()

def write(what):
    with open(log, "a") as file:
        file.write(what + "\\n")

def add(what, opened):
    queue.add(lambda: (opened.wait(60), guard.call(lambda: write(what), 60)), 1)

def work(what):
    opened = threading.Event()  # opened only when the end is near
    for number in range(3):
        add(f"{what}{number}", opened)
    threading.Timer(0.05, opened.set).start()

def hang():
    queue.add(gate.wait, 1)

if __name__ == "__main__":
    if how == "plain":
        work("a")
    elif how == "error":
        work("a")
        raise ValueError("the end")
    elif how == "exit":
        work("a")
        sys.exit(5)
    elif how == "os.fork":
        work("a")
        child = os.fork()
        if child == 0:
            work("b")
            sys.exit(0)
        os.waitpid(child, 0)
    elif how in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(how)
        work("p")
        children = [context.Process(target=work, args=(name,)) for name in "ab"]
        for child in children: child.start()
        for child in children: child.join(60)
        sys.exit(max(child.exitcode for child in children))
    elif how == "pool":
        from concurrent.futures import ProcessPoolExecutor
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
            pool.submit(work, "a").result(60)
    elif how == "hang":
        hang()
    elif how == "hang with multiprocessing":
        import multiprocessing.util
        hang()
    elif how == "hang in child":
        child = multiprocessing.get_context("fork").Process(target=hang)
        child.start()
        child.join(60)
        sys.exit(child.exitcode)
"""


def ended(tmp_path: Path, how: str, seconds: float = WAIT) -> tuple[int, list[str], str, float]:
    """Run the program: its status, what was sent, what it said, and how long it took."""
    (tmp_path / "program.py").write_text(PROGRAM)
    log = tmp_path / "log"
    start = time.monotonic()
    # Python warns of a fork beside threads, which is what is tried here.
    quiet = ["-W", "ignore::DeprecationWarning"]
    command = [sys.executable, *quiet, str(tmp_path / "program.py"), str(log), how, str(seconds)]
    environ = {name: value for name, value in os.environ.items() if name != "TMPDIR"}  # too long for a socket
    run = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=False, env=environ)
    sent = log.read_text().split() if log.exists() else []
    return run.returncode, sent, run.stderr, time.monotonic() - start


@pytest.mark.parametrize(
    ("how", "whose", "status"),
    [
        ("plain", "a", 0),
        ("error", "a", 1),
        ("exit", "a", 5),
        ("os.fork", "ab", 0),
        ("fork", "abp", 0),
        ("spawn", "abp", 0),
        ("forkserver", "abp", 0),
        ("pool", "a", 0),
    ],
)
def test_what_waits_at_the_end_of_a_process_is_sent_once(tmp_path: Path, how: str, whose: str, status: int) -> None:
    found, sent, said, _ = ended(tmp_path, how)
    assert found == status, said
    assert sorted(sent) == [f"{name}{number}" for name in whose for number in range(3)]
    for name in whose:
        assert [line for line in sent if line.startswith(name)] == [f"{name}{number}" for number in range(3)]
    assert said == "" or how == "error"


@pytest.mark.parametrize("how", ["hang", "hang with multiprocessing", "hang in child"])
def test_what_hangs_keeps_a_process_once_and_for_so_long_only(tmp_path: Path, how: str) -> None:
    status, _, said, seconds = ended(tmp_path, how, 0.3)
    assert status == 0
    assert 0.3 <= seconds < WAIT / 2
    assert said.count("1 object not sent") == 1, said
