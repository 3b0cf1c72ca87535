"""People of one group share a cache: each uses, keeps, removes and repairs what another one stored."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
from conftest import KERNEL

import ptocache.cli.clear
import ptocache.cli.doctor
import ptocache.cli.prune
import ptocache.cli.stats
import ptocache.cli.verify  # noqa: F401 - loaded here: another user may not be able to read the interpreter's files
from ptocache import CompileCache, Settings
from ptocache.cli import main
from ptocache.emulator import write_install
from ptocache.errors import LoweringError
from ptocache.lease import lease
from ptocache.request import Key, make_key
from ptocache.store.entry import Entry, make_entry
from ptocache.store.files import publish
from ptocache.store.index import Index
from ptocache.store.upkeep import clear, prune, repair, verify

WAIT = 60  # seconds after which something that was waited for will not come any more
FORK = multiprocessing.get_context("fork")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users, and mount file systems")


class User(NamedTuple):
    """Somebody with a number, a group of their own, and other groups."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    umask: int = 0o022

    def become(self) -> None:
        os.umask(self.umask)
        os.setgroups(list(self.groups))
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)


TEAM = 54400
ANN = User(54321, 54321, (TEAM,))
BOB = User(54322, 54322, (TEAM,))
EVE = User(54323, 54323)


class Child:
    """Something that another user does, in a forked process: all modules are loaded before it is another user."""

    started: ClassVar[list[Child]] = []

    def __init__(self, user: User | None, work: Callable[[], Any]) -> None:
        self._receiver, sender = FORK.Pipe(duplex=False)
        self.process = FORK.Process(target=self._run, args=(user, work, sender))
        self.process.start()
        self.started.append(self)
        sender.close()

    def _run(self, user: User | None, work: Callable[[], Any], sender: Any) -> None:
        try:
            os.chdir("/")
            if user is not None:
                user.become()
            result = work()
        except BaseException:  # noqa: BLE001 - it is told to the parent, whatever it is
            sender.send((None, traceback.format_exc()))
        else:
            sender.send((result, ""))

    def result(self) -> Any:
        """What came of it; fails as it failed."""
        try:
            assert self._receiver.poll(WAIT), "the child does not answer"
            value, report = self._receiver.recv()
        finally:
            self.kill()
        assert not report, report
        return value

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    @property
    def is_waiting(self) -> bool:
        return not self._receiver.poll()


def as_user(user: User | None, work: Callable[[], Any]) -> Any:
    return Child(user, work).result()


def command(*arguments: str) -> tuple[int, str, str]:
    """A ptocache command in this process: its exit status, and what it wrote."""
    import io

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(arguments)
    return status, out.getvalue(), err.getvalue()


@contextlib.contextmanager
def public_directory() -> Iterator[Path]:
    """A directory that everybody can come to; pytest's own are private."""
    place = Path(tempfile.mkdtemp(prefix="ptocache-test-", dir="/tmp"))
    place.chmod(0o755)
    try:
        yield place
    finally:
        while Child.started:  # those of a test that failed may still be at work
            Child.started.pop().kill()
        shutil.rmtree(place)


@pytest.fixture
def public() -> Iterator[Path]:
    with public_directory() as place:
        yield place


def key(name: object) -> Key:
    return make_key([("test", str(name).encode())])


def filled(number: int, size: int = 5000) -> Entry:
    aibin = number.to_bytes(4, "little") * (size // 4)
    return make_entry(aibin, seconds=1.5, created=1.7e9, facts={"kernels": ["main_kernel"]})


class Shared(NamedTuple):
    """A cache directory that a team shares."""

    directory: Path
    umask: str

    def settings(self, **more: object) -> Settings:
        return Settings.load({"HOME": "/nonexistent"}, dir=self.directory, umask=self.umask, **more)

    @contextlib.contextmanager
    def cache(self, **more: object) -> Iterator[CompileCache]:
        with CompileCache(self.settings(**more)) as cache:
            assert cache.place.refused == ""
            yield cache

    def put(self, *numbers: int, size: int = 5000, **more: object) -> None:
        with self.cache(**more) as cache:
            for number in numbers:
                cache.local.put([key(number), key(f"pto {number}")], filled(number, size), b"")

    def holds(self, *numbers: int) -> list[bool]:
        """Which of these this process finds, whole."""
        found = []
        with self.cache() as cache:
            for number in numbers:
                entry = cache.local.get(key(number))
                assert entry is None or entry.aibin == filled(number, len(entry.aibin)).aibin
                found.append(entry is not None)
        return found

    def check_modes(self) -> set[str]:
        """See that each file and directory is the team's, with the permissions that were asked for; their names."""
        mask = int(self.umask, 8) if not self.prepared else 0o007
        names = set()
        for path in (self.directory, *self.directory.rglob("*")):
            status = path.lstat()
            expected = 0o2777 & ~mask if stat.S_ISDIR(status.st_mode) else 0o666 & ~mask
            assert (oct(stat.S_IMODE(status.st_mode)), status.st_gid) == (oct(expected), TEAM), path
            names.add(str(path.relative_to(self.directory)))
        return names

    @property
    def prepared(self) -> bool:
        return self.directory.name == "prepared"


@pytest.fixture(
    params=[
        # how the directory comes to be, PTOCACHE_UMASK, and the umask of the processes
        ("prepared", "007", 0o077),
        ("prepared", "002", 0o022),
        ("new", "007", 0o022),
        ("new", "002", 0o077),
    ],
    ids=lambda param: f"{param[0]}, {param[1]}, umask {param[2]:03o}",
)
def setup(request: pytest.FixtureRequest) -> tuple[str, str, int]:
    return request.param


@pytest.fixture
def ann(setup: tuple[str, str, int]) -> User:
    return ANN._replace(umask=setup[2])


@pytest.fixture
def bob(setup: tuple[str, str, int]) -> User:
    return BOB._replace(umask=setup[2])


@pytest.fixture
def shared(setup: tuple[str, str, int], public: Path, ann: User) -> Shared:
    """The team's directory: prepared by one of them as the documentation says, or still to be made."""
    kind, umask, _ = setup
    team = public / "team"
    team.mkdir()
    os.chown(team, 0, TEAM)
    if kind == "new":
        team.chmod(0o2770)  # what is made in it belongs to the team
        return Shared(team / "deep" / "cache", umask)
    team.chmod(0o1777)
    script = f"mkdir -m 2770 {team}/prepared && chgrp {TEAM} {team}/prepared"
    as_user(ann, lambda: subprocess.run(["sh", "-c", script], check=True))
    return Shared(team / "prepared", umask)


pytestmark = needs_root


def test_each_hits_what_the_other_stored_and_stores_more(shared: Shared, ann: User, bob: User):
    as_user(ann, lambda: shared.put(1, 2))
    assert as_user(bob, lambda: shared.holds(1, 2, 3)) == [True, True, False]
    as_user(bob, lambda: shared.put(2, 3, 4))  # 2 is there already, and as if it were stored now
    assert as_user(ann, lambda: shared.holds(1, 2, 3, 4)) == [True] * 4
    as_user(ann, lambda: shared.put(1, 4, 5))
    assert as_user(bob, lambda: shared.holds(1, 2, 3, 4, 5)) == [True] * 5
    names = shared.check_modes()
    assert {"actions", "outputs", "index", "index/cache.db", "index.lock", "temp", "CACHEDIR.TAG"} <= names
    owners = {path.stat().st_uid for path in (shared.directory / "outputs").iterdir()}
    assert owners == {ann.uid, bob.uid}


def test_both_have_the_index_open_at_once_with_all_its_files(shared: Shared, ann: User, bob: User):
    """SQLite's side files may be there only while somebody has the database open."""

    def work() -> set[str]:
        with shared.cache() as cache, cache.local.index.transaction() as rows:
            assert rows.count() == 1
            names = shared.check_modes()
        shared.put(2)
        return names

    for first, second in ((ann, bob), (bob, ann)):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(shared.directory / "index")  # the second time it is made by the other one
            (shared.directory / "index.lock").unlink()
        as_user(None, lambda: shutil.rmtree(shared.directory / "outputs", ignore_errors=True))
        barrier = FORK.Barrier(2)

        def hold(barrier: Any = barrier) -> None:
            with shared.cache() as cache:
                cache.local.put([key(1)], filled(1))
                barrier.wait(WAIT)  # the database is open, and stays so
                barrier.wait(WAIT)

        holder = Child(first, hold)
        barrier.wait(WAIT)
        names = as_user(second, work)
        assert "index/cache.db" in names
        assert any(name.startswith("index/cache.db-") for name in names)
        barrier.wait(WAIT)
        holder.result()
        assert as_user(first, lambda: shared.holds(1, 2)) == [True, True]


def test_each_makes_room_by_removing_what_the_other_stored(shared: Shared, ann: User, bob: User):
    limit = 600_000
    as_user(ann, lambda: shared.put(*range(12), size=20_000, size_limit=limit))
    as_user(bob, lambda: shared.put(*range(12, 40), size=20_000, size_limit=limit))
    assert as_user(ann, lambda: shared.holds(*range(12))) == [False] * 12
    assert {path.stat().st_uid for path in (shared.directory / "outputs").iterdir()} == {bob.uid}
    as_user(ann, lambda: shared.put(*range(40, 70), size=20_000, size_limit=limit))
    assert {path.stat().st_uid for path in (shared.directory / "outputs").iterdir()} == {ann.uid}
    assert as_user(bob, lambda: shared.holds(39, 69)) == [False, True]
    shared.check_modes()


def test_what_one_uses_the_others_stores_do_not_remove(shared: Shared, ann: User, bob: User):
    limit = 600_000
    as_user(ann, lambda: shared.put(*range(5), size=20_000, size_limit=limit))
    output = shared.directory / "outputs" / filled(0, 20_000).action.sha256.hex()
    for number in range(5):  # stored two hours ago
        then = time.time() - 7200
        os.utime(shared.directory / "outputs" / filled(number, 20_000).action.sha256.hex(), (then, then))

    as_user(ann, lambda: age_rows(shared))
    assert as_user(bob, lambda: shared.holds(0)) == [True]
    as_user(bob, lambda: shared.put(*range(5, 25), size=20_000, size_limit=limit))
    assert output.exists()
    assert as_user(ann, lambda: shared.holds(0, 1, 2)) == [True, False, False]


def age_rows(shared: Shared) -> None:
    """Let it be two hours ago that the rows were put in."""
    with shared.cache() as cache, cache.local.index.transaction() as rows:
        for name, row in list(rows.all()):
            assert row is not None
            rows.add(name, row._replace(used=time.time() - 7200))


def put_and_die(shared: Shared, number: int) -> None:
    """Store something, and be killed when it is written and has no name yet."""

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with shared.cache() as cache:
        os.replace = die  # type: ignore[assignment]
        cache.local.put([key(number)], filled(number))


def hold_and_die(shared: Shared, name: str) -> None:
    with lease(shared.settings(), name) as held:
        assert held
        os.kill(os.getpid(), signal.SIGKILL)


def test_each_prunes_what_the_other_left(shared: Shared, ann: User, bob: User):
    for first, second in ((ann, bob), (bob, ann)):
        as_user(first, lambda: shared.put(1, 2, 3))
        for work in (lambda: put_and_die(shared, 4), lambda: hold_and_die(shared, key(5).name)):
            child = Child(first, work)
            child.process.join(WAIT)
            assert child.process.exitcode == -signal.SIGKILL
        assert len(list((shared.directory / "temp").iterdir())) == 1
        assert len(list((shared.directory / "locks").iterdir())) == 1
        shared.check_modes()  # of these two as well
        (shared.directory / "outputs" / filled(2).action.sha256.hex()).unlink()
        as_user(first, lambda: age_rows(shared))

        def work() -> tuple[int, ...]:
            with shared.cache() as cache:
                pruned = prune(cache.local, cache.failures)
                return pruned.temporary, pruned.locks, pruned.rows

        # The row of what was being stored, and that of what is gone.
        assert as_user(second, work) == (1, 1, 2)
        assert list((shared.directory / "temp").iterdir()) == list((shared.directory / "locks").iterdir()) == []
        assert as_user(first, lambda: shared.holds(1, 2, 3)) == [True, False, True]
        assert as_user(second, lambda: expire(shared)) >= 2
        assert list((shared.directory / "outputs").iterdir()) == []
        shared.check_modes()


def expire(shared: Shared) -> int:
    """Prune everything that is older than nothing at all."""
    with shared.cache(max_age=1e-6) as cache:
        return prune(cache.local, cache.failures).expired


def test_each_repairs_and_clears_what_the_other_stored(shared: Shared, ann: User, bob: User):
    for first, second in ((ann, bob), (bob, ann)):
        as_user(first, lambda: shared.put(1, 2, 3))
        for number, folder in ((1, "outputs"), (2, "actions")):
            name = filled(number).action.sha256.hex() if folder == "outputs" else key(number).name
            os.truncate(shared.directory / folder / name, 10)

        def mend() -> int:
            with shared.cache() as cache:
                damages = list(verify(cache.local, cache.failures))
                repair(cache.local, damages)
                assert list(verify(cache.local, cache.failures)) == []
                return len(damages)

        # The output, its two actions, and the other action.
        assert as_user(second, mend) == 4
        assert as_user(first, lambda: shared.holds(1, 2, 3)) == [False, False, True]

        def empty() -> int:
            with shared.cache() as cache:
                return clear(cache.local).entries

        assert as_user(second, empty) >= 1
        assert as_user(first, lambda: shared.holds(1, 2, 3)) == [False] * 3
        shared.check_modes()


def test_each_uses_the_commands_on_what_the_other_stored(
    shared: Shared, ann: User, bob: User, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PTOCACHE_DIR", str(shared.directory))
    monkeypatch.setenv("PTOCACHE_UMASK", shared.umask)
    monkeypatch.setenv("HOME", "/nonexistent")
    as_user(ann, lambda: shared.put(1, 2, 3))
    status, out, err = as_user(bob, lambda: command("doctor", "--json"))
    found = {finding["name"]: finding["state"] for finding in json.loads(out)["findings"]}
    assert {name for name, state in found.items() if state != "ok"} <= {"tools"}, out  # Bob has none
    assert as_user(bob, lambda: command("stats", "--json"))[0] == 0
    (shared.directory / "outputs" / filled(2).action.sha256.hex()).unlink()
    as_user(ann, lambda: age_rows(shared))
    status, out, err = as_user(bob, lambda: command("prune", "--json"))
    assert (status, err) == (0, "")
    assert json.loads(out)["rows"] == 1
    os.truncate(shared.directory / "outputs" / filled(1).action.sha256.hex(), 10)
    assert as_user(bob, lambda: command("verify"))[0] == 1
    assert as_user(bob, lambda: command("verify", "--repair"))[0] == 0
    status, out, err = as_user(bob, lambda: command("clear", "-y", "--json"))
    assert (status, err) == (0, "")
    assert as_user(ann, lambda: json.loads(command("stats", "--json")[1])["entries"]) == 0
    shared.check_modes()


def test_a_lease_that_one_holds_makes_the_other_wait(shared: Shared, ann: User, bob: User):
    def try_now() -> bool:
        with lease(shared.settings(lock_timeout=0), "a" * 32) as held:
            return held

    def wait() -> bool:
        with lease(shared.settings(lock_timeout=WAIT), "a" * 32) as held:
            return held

    for first, second in ((ann, bob), (bob, ann)):
        barrier = FORK.Barrier(2)

        def hold(barrier: Any = barrier) -> bool:
            with lease(shared.settings(), "a" * 32) as held:
                barrier.wait(WAIT)
                barrier.wait(WAIT)
                return held

        holder = Child(first, hold)
        barrier.wait(WAIT)
        shared.check_modes()
        assert as_user(second, try_now) is False
        waiting = Child(second, wait)
        time.sleep(0.1)  # long enough for it to wait; were it not, the test would still hold
        assert waiting.is_waiting
        barrier.wait(WAIT)
        assert holder.result() is True
        assert waiting.result() is True
        dead = Child(first, lambda: hold_and_die(shared, "a" * 32))
        dead.process.join(WAIT)
        assert os.listdir(shared.directory / "locks") == [f"{'a' * 32}.lock"]
        assert as_user(second, try_now) is True
        assert os.listdir(shared.directory / "locks") == []


def test_the_counts_of_both_add_up(shared: Shared, ann: User, bob: User):
    def count(number: int) -> float:
        with shared.cache() as cache:
            for _ in range(number):
                cache.counters.add("misses")
            return cache.counters.totals()["misses"]

    as_user(ann, lambda: shared.put(1))
    assert as_user(ann, lambda: count(2)) == 2
    assert as_user(bob, lambda: count(3)) == 5
    # Whoever sees that the file has grown replaces it with its sum.
    padding = b"\n" * (80 << 10)
    for user, total in ((bob, 6), (ann, 7)):
        with open(shared.directory / "counters", "ab") as file:
            file.write(padding)
        assert as_user(user, lambda: count(1)) == total
        assert (shared.directory / "counters").stat().st_size < 1000
        assert (shared.directory / "counters").stat().st_uid == user.uid
    assert "counters" in shared.check_modes()


def test_digests_and_failures_are_shared(shared: Shared, ann: User, bob: User):
    error = LoweringError("no such tile", tool="frontend", command=["x"], returncode=1, stderr="NameError: x")

    def remember(number: int) -> None:
        with shared.cache() as cache:
            cache.local.prepare()
            cache.digests.remember(f"fact {number}", bytes([number]) * 16, bytes([number]) * 16)
            cache.digests.save()
            cache.failures.put(key(number), error, b"")

    def known(number: int) -> tuple[bytes | None, bool]:
        with shared.cache() as cache:
            digest = cache.digests.fact(f"fact {number}", bytes([number]) * 16)
            return digest, cache.failures.get(key(number), lambda _: True) is not None

    as_user(ann, lambda: remember(1))
    as_user(bob, lambda: remember(2))
    for user in (ann, bob):
        for number in (1, 2):
            assert as_user(user, lambda number=number: known(number)) == (bytes([number]) * 16, True)
    names = shared.check_modes()
    assert {"digests", "failures"} <= names


def test_both_at_once_lose_nothing(shared: Shared, ann: User, bob: User):
    barrier = FORK.Barrier(4)

    def work(me: int) -> float:
        barrier.wait(WAIT)
        with shared.cache() as cache:
            for step in range(15):
                for number in (step, 100 * me + step):
                    cache.local.put([key(number)], filled(number))
                    entry = cache.local.get(key(number))
                    assert entry is not None
                    assert entry.aibin == filled(number).aibin
            return cache.counters.totals()["errors"]

    children = [Child(user, lambda me=me: work(me)) for me, user in enumerate((ann, bob, ann, bob), 1)]
    assert [child.result() for child in children] == [0] * 4
    assert all(as_user(bob, lambda: shared.holds(*range(15), *(100 * me + n for me in range(1, 5) for n in range(15)))))
    shared.check_modes()


@pytest.mark.parametrize("umask", ["002", "007"])
def test_others_read_what_the_mask_lets_them_and_write_nothing(public: Path, umask: str):
    team = public / "team"
    team.mkdir()
    os.chown(team, 0, TEAM)
    team.chmod(0o2775)
    shared = Shared(team / "cache", umask)
    as_user(ANN, lambda: shared.put(1))
    before = shared.check_modes()

    def use() -> list[bool]:
        found = []
        with shared.cache() as cache:
            for number in (1, 2):
                entry = None
                with contextlib.suppress(PermissionError):
                    entry = cache.local.get(key(number))
                found.append(entry is not None)
            with pytest.raises(PermissionError):
                cache.local.put([key(2)], filled(2))
        return found

    assert as_user(EVE, use) == [umask == "002", False]
    assert shared.check_modes() == before


def test_somebody_who_may_only_read_can_look(public: Path, monkeypatch: pytest.MonkeyPatch):
    directory = public / "cache"
    directory.mkdir()
    os.chown(directory, ANN.uid, ANN.gid)
    directory.chmod(0o755)

    def put() -> None:
        with CompileCache(Settings.load({"HOME": "/nonexistent"}, dir=directory, umask="022")) as cache:
            for number in (1, 2):
                cache.local.put([key(number)], filled(number))
            cache.counters.add("misses", 7)

    as_user(ANN, put)
    for name, value in (("PTOCACHE_DIR", str(directory)), ("PTOCACHE_UMASK", "022"), ("HOME", "/nonexistent")):
        monkeypatch.setenv(name, value)
    status, out, err = as_user(EVE, lambda: command("stats", "--json"))
    assert (status, err) == (0, "")
    assert (json.loads(out)["entries"], json.loads(out)["misses"]) == (2, 7)
    status, out, err = as_user(EVE, lambda: command("verify", "--json"))
    assert (status, err) == (0, "")
    assert (json.loads(out)["entries"], json.loads(out)["bad"]) == (2, [])
    for words in (["prune"], ["clear", "-y"]):
        status, out, err = as_user(EVE, lambda words=words: command(*words))
        assert (status, out) == (1, "")
        assert err.count("\n") == 1
    assert as_user(ANN, lambda: json.loads(command("stats", "--json")[1])["entries"]) == 2


def test_a_file_of_a_shared_cache_is_readable_from_the_first_moment_that_it_has_a_name(public: Path):
    """It gets its permissions before its name, so that nobody finds a file that they may not read."""
    root = public / "cache"
    root.mkdir()
    os.chown(root, 0, TEAM)
    root.chmod(0o2770)
    modes = []
    replace = os.replace

    def look(source: str, target: str) -> None:
        status = os.stat(source)
        modes.append((stat.S_IMODE(status.st_mode), status.st_gid))
        replace(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", look)
        publish(str(root), str(root / "actions" / "a"), b"x")
    assert modes == [(0o660, TEAM)]


@contextlib.contextmanager
def late(path: Path, user: User) -> Iterator[Any]:
    """A file of somebody's that is private at first, as a lock file is until it has been given its permissions.

    Yields:
        A barrier: a moment after it is passed, the file is shared.
    """
    path.touch(0o600)
    os.chown(path, user.uid, TEAM)
    barrier = FORK.Barrier(2)

    def share() -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait(WAIT)
        time.sleep(0.05)
        path.chmod(0o660)

    thread = threading.Thread(target=share)
    thread.start()
    try:
        yield barrier
    finally:
        barrier.abort()
        thread.join()


def test_a_lock_of_the_index_that_was_just_made_does_not_stop_the_other(shared: Shared, ann: User, bob: User):
    as_user(ann, lambda: shared.put(1))
    (shared.directory / "index.lock").unlink()
    with late(shared.directory / "index.lock", ann) as barrier:

        def work() -> None:
            barrier.wait(WAIT)
            shared.put(2)

        as_user(bob, work)
    assert as_user(ann, lambda: shared.holds(1, 2)) == [True, True]


def test_a_lease_that_was_just_taken_is_waited_for(shared: Shared, ann: User, bob: User):
    as_user(ann, lambda: hold_briefly(shared))
    with late(shared.directory / "locks" / "key.lock", ann) as barrier:

        def wait() -> bool:
            barrier.wait(WAIT)
            with lease(shared.settings(lock_timeout=WAIT), "key") as held:
                return held

        assert as_user(bob, wait) is True


def hold_briefly(shared: Shared) -> None:
    with lease(shared.settings(), "key") as held:
        assert held


def test_what_is_made_while_the_directory_is_being_made_is_shared_too(public: Path):
    """Two processes begin at once: the one must not find the directory before it has its permissions."""
    team = public / "team"
    team.mkdir()
    os.chown(team, 0, TEAM)
    team.chmod(0o2770)
    shared = Shared(team / "cache", "002")
    barrier = FORK.Barrier(2)

    def put_slowly() -> None:
        chmod = os.chmod

        def chmod_later(path: str, mode: int) -> None:
            os.chmod = chmod
            barrier.wait(WAIT)  # something is made, and has no permissions yet
            barrier.wait(WAIT)
            chmod(path, mode)

        os.chmod = chmod_later  # type: ignore[assignment]
        shared.put(1)

    slow = Child(ANN, put_slowly)
    barrier.wait(WAIT)
    as_user(ANN, lambda: shared.put(2))
    barrier.wait(WAIT)
    slow.result()
    as_user(BOB, lambda: shared.put(3))
    assert as_user(BOB, lambda: shared.holds(1, 2, 3)) == [True] * 3
    shared.check_modes()


def interpreter(home: Path) -> list[str]:
    """A command that runs ptocache as another user can, from copies that they can read."""
    import importlib.util

    for name in ("ptocache", "diskcache", "filelock", "xxhash", "elftools"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        shutil.copytree(Path(spec.origin).parent, home / name, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["chmod", "-R", "a+rX", str(home)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (os.path.realpath(sys.executable), f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        words = [python, "-c", "import ptocache.frontend, ptocache.store.index, elftools"]
        with contextlib.suppress(OSError):
            done = subprocess.run(
                words, user=ANN.uid, group=ANN.gid, extra_groups=[], env={"PYTHONPATH": str(home)}, check=False, cwd="/"
            )
            if done.returncode == 0:
                return [python, "-m", "ptocache"]
    pytest.skip("no Python of this version that other users can run")


def test_two_people_compile_a_kernel_once(public: Path):
    """The whole way, with the command, as it is used."""
    words = interpreter(public / "packages")
    cann = write_install(public / "cann")
    subprocess.run(["chmod", "-R", "a+rX", str(cann)], check=True)
    team = public / "team"
    team.mkdir()
    os.chown(team, 0, TEAM)
    team.chmod(0o2770)
    (public / "kernel.py").write_text(KERNEL)
    (public / "kernel.py").chmod(0o644)
    environ = {
        "PYTHONPATH": f"{public / 'packages'}:{cann / 'python'}",
        "PATH": f"{cann / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "ASCEND_HOME_PATH": str(cann),
        "PTOAS_BIN": str(cann / "bin" / "ptoas"),
        "PTOCACHE_EMULATOR_PYTHON": words[0],
        "PTOCACHE_DIR": str(team / "cache"),
        "PTOCACHE_UMASK": "002",
    }

    def run(user: User, *arguments: str) -> dict[str, Any]:
        home = public / f"home-{user.uid}"
        home.mkdir(exist_ok=True)
        os.chown(home, user.uid, user.gid)
        done = subprocess.run(
            [*words, *arguments, "--json"],
            user=user.uid,
            group=user.gid,
            extra_groups=user.groups,
            umask=0o077,
            env={**environ, "HOME": str(home), "TMPDIR": str(home)},
            cwd=home,
            capture_output=True,
            text=True,
            timeout=WAIT,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        facts: dict[str, Any] = json.loads(done.stdout)
        return facts

    first = run(ANN, "compile", str(public / "kernel.py"))
    second = run(BOB, "compile", str(public / "kernel.py"))
    assert (first["origin"], second["origin"]) == ("compiled", "local")
    assert first["aibin_sha256"] == second["aibin_sha256"]
    assert run(BOB, "compile", str(public / "kernel.py"), "--arch", "a3")["origin"] == "compiled"
    assert run(ANN, "compile", str(public / "kernel.py"), "--arch", "a3")["origin"] == "local"
    for user in (ANN, BOB):
        numbers = run(user, "stats")
        assert (numbers["requests"], numbers["compiles"], numbers["hits"]["local"]) == (4, 2, 2)
    assert run(BOB, "verify")["bad"] == []
    assert run(BOB, "clear", "-y")["entries"] == 2
    Shared(team / "cache", "002").check_modes()


def test_the_index_is_made_by_one_of_many_that_begin_at_once(shared: Shared, ann: User, bob: User):
    barrier = FORK.Barrier(6)

    def work(me: int) -> float:
        barrier.wait(WAIT)
        with shared.cache() as cache:
            cache.local.put([key(me)], filled(me))
            assert isinstance(cache.local.index, Index)
            return cache.counters.totals()["errors"]

    children = [Child((ann, bob)[me % 2], lambda me=me: work(me)) for me in range(6)]
    assert [child.result() for child in children] == [0] * 6
    assert as_user(ann, lambda: shared.holds(*range(6))) == [True] * 6
    shared.check_modes()
