"""A directory that many have mounted: nobody sees a part of an object, whatever the file system does."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import multiprocessing
import os
import random
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from conftest import KERNEL, numbered_kernel
from fuse_faults import ALWAYS, DONE, ONCE, SHORT, SOMETIMES, FaultyFileSystem, mounted

from ptocache import CompileCache, Settings
from ptocache.counters import Counters
from ptocache.request import make_key
from ptocache.store import place as place_module
from ptocache.store.engines import VERSION, EngineUrl, parse_urls
from ptocache.store.engines.file import FileEngine, path_of
from ptocache.store.entry import make_entry
from ptocache.store.objects import Signer, decode_object
from ptocache.store.place import Place, filesystem_of, find_place, is_network
from ptocache.store.shared import SharedTier, make_shared_tiers, prune_shared

FORK = multiprocessing.get_context("fork")
WAIT = 60  # seconds after which something that was waited for will not come any more
NAME, OTHER = "ab" * 16, "cd" * 16
LIMIT = 4 << 20
DAY = 86400


def at_once(works: list[Callable[[], Any]]) -> list[Any]:
    """What these give, each in a process of its own, begun at once."""
    barrier = FORK.Barrier(len(works))
    results = FORK.SimpleQueue()

    def run(number: int) -> None:
        barrier.wait(WAIT)
        try:
            results.put((number, works[number](), ""))
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            results.put((number, None, repr(error)))

    processes = [FORK.Process(target=run, args=(number,)) for number in range(len(works))]
    for process in processes:
        process.start()
    found: dict[int, Any] = {}
    deadline = time.monotonic() + WAIT
    try:
        while len(found) < len(works):
            if not results.empty():
                number, value, problem = results.get()
                assert problem == ""
                found[number] = value
            else:
                assert time.monotonic() < deadline, "processes hang"
                time.sleep(0.001)
    finally:
        for process in processes:
            process.join(max(deadline - time.monotonic(), 0.1))
            if process.is_alive():
                process.kill()
                process.join()
    return [found[number] for number in range(len(works))]


def sealed(number: int, size: int) -> bytes:
    """Bytes that tell whether they are whole."""
    data = random.Random(number).randbytes(size)
    return hashlib.sha256(data).digest() + data


def is_whole(data: bytes) -> bool:
    return hashlib.sha256(data[32:]).digest() == data[:32]


def temporaries(root: Path) -> list[str]:
    folder = root / VERSION / "temp"
    return os.listdir(folder) if folder.is_dir() else []


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "shared"


@pytest.fixture
def engine(root: Path) -> FileEngine:
    return FileEngine(str(root))


def refuse_links(monkeypatch: pytest.MonkeyPatch, number: int = errno.EPERM) -> None:
    def link(*arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.link", link)


# Many at once.


@pytest.mark.parametrize("umask", [None, 0o002])
def test_of_16_processes_the_first_one_wins_and_all_see_what_it_stored(root: Path, umask: int | None) -> None:
    """And the first of them makes the directory."""
    names = [f"{number:02x}" * 16 for number in range(6)]

    def work(process: int) -> list[tuple[bool, bytes | None]]:
        engine = FileEngine(str(root), umask)
        return [
            (engine.put(name, sealed(process, 5000 + process), replace=False), engine.get(name, LIMIT))
            for name in names
        ]

    results = at_once([functools.partial(work, process) for process in range(16)])
    for number, name in enumerate(names):
        winners = [process for process in range(16) if results[process][number][0]]
        assert len(winners) == 1
        expected = sealed(winners[0], 5000 + winners[0])
        assert all(result[number][1] == expected for result in results)
        assert FileEngine(str(root)).get(name, LIMIT) == expected
    assert temporaries(root) == []
    assert sorted(os.listdir(root / VERSION)) == sorted([*(name[:2] for name in names), "temp"])


@pytest.mark.parametrize("has_links", [True, False], ids=["links", "no links"])
def test_nobody_ever_sees_a_part_while_others_replace(
    root: Path, engine: FileEngine, has_links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_links:
        refuse_links(monkeypatch)
    engine.put(NAME, sealed(0, 1000), replace=False)
    left = FORK.Value("i", 3)

    def write(seed: int) -> int:
        chance = random.Random(seed)
        try:
            for number in range(60):
                engine.put(NAME, sealed(seed * 1000 + number, chance.choice([0, 1, 4000, 300_000])), replace=True)
        finally:
            with left.get_lock():
                left.value -= 1
        return 0

    def read() -> int:
        seen = 0
        deadline = time.monotonic() + WAIT
        while left.value and time.monotonic() < deadline:
            data = engine.get(NAME, LIMIT)
            if data is not None:
                assert is_whole(data)
                seen += 1
        return seen

    results = at_once([*(functools.partial(write, seed) for seed in range(3)), read, read, read])
    assert min(results[3:]) > 0
    last = engine.get(NAME, LIMIT)
    assert last is not None
    assert is_whole(last)
    assert temporaries(root) == []


def test_what_is_listed_while_others_store_and_delete_is_what_was_there(engine: FileEngine) -> None:
    names = [f"{number:02x}" * 16 for number in range(12)]
    for name in names:
        engine.put(name, sealed(0, 100), replace=False)
    left = FORK.Value("i", 1)

    def write() -> None:
        try:
            for number in range(400):
                name = names[number % 6]  # the others stay
                if number % 12 < 6:
                    engine.delete(name)
                else:
                    engine.put(name, sealed(number, 100), replace=False)
        finally:
            left.value = 0

    def look() -> bool:
        while left.value:
            found = list(engine.list())
            assert {stored.size for stored in found} <= {132}
            assert set(names[6:]) <= {stored.name for stored in found} <= set(names)
            assert len(found) == len({stored.name for stored in found})
        return True

    assert at_once([write, look, look])[1:] == [True, True]


# What is stored, and how.


@pytest.mark.parametrize("size", [0, 1, 4096, 1 << 20])
def test_what_is_read_and_written_in_small_parts_is_whole(
    engine: FileEngine, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_read, real_write, chance = os.read, os.write, random.Random(size)
    monkeypatch.setattr("os.read", lambda fd, count: real_read(fd, chance.randint(1, max(count // 3, 1))))
    monkeypatch.setattr("os.write", lambda fd, data: real_write(fd, data[: chance.randint(1, max(len(data) // 3, 1))]))
    data = sealed(1, size)
    assert engine.put(NAME, data, replace=False)
    assert engine.get(NAME, LIMIT) == data


def test_a_file_system_that_writes_nothing_and_says_no_error_is_an_error(
    root: Path, engine: FileEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is not asked for ever."""
    engine.put(OTHER, b"other", replace=False)
    asked: list[int] = []

    def write(fd: int, data: bytes) -> int:
        asked.append(len(data))
        if len(asked) > 1000:
            raise KeyboardInterrupt
        return 0

    with monkeypatch.context() as patch:
        patch.setattr("os.write", write)
        try:
            with pytest.raises(OSError):  # noqa: PT011 - whichever
                engine.put(NAME, b"data", replace=False)
        except KeyboardInterrupt:
            pytest.fail("it is asked again and again")
    assert engine.get(NAME, LIMIT) is None
    assert temporaries(root) == []


def test_an_object_is_read_up_to_its_limit(engine: FileEngine) -> None:
    engine.put(NAME, bytes(1000), replace=False)
    assert engine.get(NAME, 1000) == bytes(1000)
    assert engine.get(NAME, 999) != bytes(1000)


MODES = [
    (None, 0o700, 0o600),
    (0o077, 0o700, 0o600),
    (0o007, 0o2770, 0o660),
    (0o002, 0o2775, 0o664),
    (0, 0o2777, 0o666),
]


@pytest.mark.parametrize("own", [0o000, 0o022, 0o077], ids="{:o}".format)
@pytest.mark.parametrize(("umask", "folder", "file"), [*MODES, (0o022, 0o755, 0o644)])
def test_permissions_are_those_that_the_umask_leaves_whatever_the_processs_own(
    tmp_path: Path, umask: int | None, folder: int, file: int, own: int
) -> None:
    root = tmp_path / "way" / "shared"
    before = os.umask(own)
    try:
        FileEngine(str(root), umask).put(NAME, b"data", replace=False)
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (root, *root.rglob("*"))}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {folder}
    assert {mode for path, mode in modes.items() if path.is_file()} == {file}
    assert not stat.S_IMODE(root.parent.stat().st_mode) & 0o022


@pytest.mark.parametrize(("mode", "file"), [(0o700, 0o600), (0o750, 0o640), (0o2770, 0o660), (0o2775, 0o664)])
def test_permissions_are_those_of_a_directory_that_is_there(root: Path, mode: int, file: int) -> None:
    root.mkdir()
    root.chmod(mode)
    FileEngine(str(root)).put(NAME, b"data", replace=False)
    assert stat.S_IMODE(root.stat().st_mode) == mode
    for path in root.rglob("*"):
        assert oct(stat.S_IMODE(path.stat().st_mode)) == oct(mode if path.is_dir() else file), path


@pytest.mark.parametrize(
    ("umask", "folder", "file"), [(None, 0o775, 0o664), (0o022, 0o755, 0o644), (0o077, 0o700, 0o600)]
)
def test_not_everybody_may_write_to_what_is_made_where_everybody_may(
    root: Path, umask: int | None, folder: int, file: int
) -> None:
    root.mkdir()
    root.chmod(0o1777)
    FileEngine(str(root), umask).put(NAME, b"data", replace=False)
    for path in root.rglob("*"):
        assert oct(stat.S_IMODE(path.stat().st_mode)) == oct(folder if path.is_dir() else file), path


def test_what_is_written_can_be_read_by_nobody_before_it_has_its_permissions(
    root: Path, engine: FileEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = os.fchmod, []

    def fchmod(fd: int, mode: int) -> None:
        seen.append((stat.S_IMODE(os.fstat(fd).st_mode), os.fstat(fd).st_size))
        real(fd, mode)

    root.mkdir(mode=0o700)
    root.chmod(0o755)
    monkeypatch.setattr("os.fchmod", fchmod)
    engine.put(NAME, b"data", replace=False)
    assert seen == [(0o600, 0)]


KINDS = ["link", "link to nothing", "link to a directory", "directory", "full directory", "pipe", "socket"]


def place(kind: str, path: Path, elsewhere: Path) -> None:
    """Something at a path that is no regular file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind.startswith("link"):
        elsewhere.mkdir()
        (elsewhere / "file").write_bytes(b"precious")
        ends = {"link": "file", "link to nothing": "nothing", "link to a directory": "."}
        path.symlink_to(elsewhere / ends[kind])
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    else:
        path.mkdir()
        if kind == "full directory":
            (path / "deep").mkdir()
            (path / "deep" / "file").write_bytes(b"")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_in_the_place_of_an_object_is_none_and_is_replaced(
    root: Path, engine: FileEngine, tmp_path: Path, kind: str
) -> None:
    engine.put(OTHER, b"other", replace=False)
    place(kind, root / VERSION / "ab" / NAME, tmp_path / "elsewhere")
    found: bytes | None = b""
    with contextlib.suppress(OSError):  # a socket cannot be opened
        found = engine.get(NAME, LIMIT)
    assert found == b""
    assert not engine.put(NAME, b"data", replace=False)
    assert engine.put(NAME, b"data", replace=True)
    assert engine.get(NAME, LIMIT) == b"data"
    assert engine.get(OTHER, LIMIT) == b"other"
    assert temporaries(root) == []
    if kind.startswith("link"):
        assert (tmp_path / "elsewhere" / "file").read_bytes() == b"precious"


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_in_the_place_of_an_object_is_deleted(
    root: Path, engine: FileEngine, tmp_path: Path, kind: str
) -> None:
    engine.put(OTHER, b"other", replace=False)
    path = root / VERSION / "ab" / NAME
    place(kind, path, tmp_path / "elsewhere")
    assert OTHER in {stored.name for stored in engine.list()}
    engine.delete(NAME)
    assert not os.path.lexists(path)
    if kind.startswith("link"):
        assert (tmp_path / "elsewhere" / "file").read_bytes() == b"precious"


@pytest.mark.parametrize("kind", ["file", "link to nothing"])
@pytest.mark.parametrize("where", ["", VERSION, f"{VERSION}/temp", f"{VERSION}/ab"])
def test_what_stands_in_the_way_to_an_object_is_a_miss_and_removed(
    root: Path, engine: FileEngine, tmp_path: Path, kind: str, where: str
) -> None:
    path = root / where if where else root
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "file":
        path.write_bytes(b"in the way")
    else:
        path.symlink_to(tmp_path / "nothing")
    assert engine.get(NAME, LIMIT) is None
    assert list(engine.list()) == []
    engine.delete(NAME)
    if where:  # what is at the root is not ours
        assert engine.put(NAME, b"data", replace=False)
        assert engine.get(NAME, LIMIT) == b"data"
    elif kind == "file":
        with pytest.raises(OSError):  # noqa: PT011 - whichever
            engine.put(NAME, b"data", replace=False)
        assert path.read_bytes() == b"in the way"


def test_only_what_is_named_as_an_object_is_listed(root: Path, engine: FileEngine) -> None:
    engine.put(NAME, b"data", replace=False)
    for name in ("ab/README", f"ab/{NAME[:-1]}", f"ab/{NAME.upper()}", f"zz/{NAME}", f"temp/{NAME}", NAME):
        path = root / VERSION / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"something else")
    assert [(stored.name, stored.size) for stored in engine.list()] == [(NAME, 4)]


def test_what_vanishes_while_it_is_listed_is_left_out(engine: FileEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {f"{number:02x}" * 16 for number in range(8)}
    for name in names:
        engine.put(name, b"data", replace=False)
    real = os.lstat
    gone: set[str] = set()

    def lstat(path: Any, **options: Any) -> os.stat_result:
        if os.path.basename(path) in names and len(gone) < 4:
            gone.add(os.path.basename(path))
            os.unlink(path)
        return real(path, **options)

    monkeypatch.setattr("os.lstat", lstat)
    assert {stored.name for stored in engine.list()} == names - gone
    assert len(gone) == 4


# Times.


def test_the_clock_is_the_file_systems_and_leaves_nothing(
    root: Path, engine: FileEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engine.clock() is None
    engine.put(NAME, b"data", replace=False)
    before = time.time()
    monkeypatch.setattr("time.time", lambda: before + 100 * DAY)
    now = engine.clock()
    assert now is not None
    assert abs(now - before) < WAIT
    assert temporaries(root) == []


def test_ages_are_told_by_the_file_systems_clock_and_not_by_this_hosts(
    root: Path, engine: FileEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.put(NAME, b"data", replace=False)
    (root / VERSION / "temp" / "left").write_bytes(b"half")
    real = time.time
    for wrong in (100 * DAY, -100 * DAY):
        monkeypatch.setattr("time.time", lambda wrong=wrong: real() + wrong)
        assert [abs(stored.age) < WAIT for stored in engine.list()] == [True]
        assert engine.sweep() == 0


def test_only_old_temporary_files_are_swept(root: Path, engine: FileEngine, tmp_path: Path) -> None:
    assert engine.sweep() == 0
    assert not root.exists()
    engine.put(NAME, b"data", replace=False)
    folder, now = root / VERSION / "temp", time.time()
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    os.utime(precious, (1, 1))
    ages = {"old": 2 * DAY, "ancient": now - 1, "young": DAY - WAIT, "new": 0, "of tomorrow": -DAY}
    for name, age in ages.items():
        (folder / name).write_bytes(b"half")
        os.utime(folder / name, (now - age, now - age))
    (folder / "link").symlink_to(precious)
    os.utime(folder / "link", (1, 1), follow_symlinks=False)
    path = root / VERSION / "ab" / NAME
    os.utime(path, (1, 1))
    assert engine.sweep() == 3
    assert set(os.listdir(folder)) == {"young", "new", "of tomorrow"}
    assert precious.read_bytes() == b"precious"
    assert path.exists()


def test_a_hit_marks_an_object_as_used_once_a_day(root: Path, engine: FileEngine) -> None:
    engine.put(NAME, b"data", replace=False)
    path, now = root / VERSION / "ab" / NAME, time.time()
    for age, is_marked in ((2 * DAY, True), (DAY / 2, False)):
        os.utime(path, (now - age, now - age))
        engine.get(NAME, LIMIT)
        assert (time.time() - path.stat().st_mtime < WAIT) == is_marked


# Which directory.


@pytest.mark.parametrize(
    "name",
    ["plain", "a b", "a#b", "a?b=c", "a%20b", "a;b&c", "é☃", "a\nb", "#readonly", "a@b", "\udcff\udcfe"],
    ids=ascii,
)
def test_a_directory_of_any_name_is_shared_that_the_cache_was_moved_from(tmp_path: Path, name: str) -> None:
    directory = str(tmp_path / name)
    settings = Settings.load(dir=tmp_path / "cache")
    key, entry = make_key([("text", b"")]), make_entry(b"data", seconds=1, created=1, facts={"kernels": []})
    entry = entry._replace(action=entry.action._replace(check=key.check))
    for is_stored in (True, False):
        (tier,) = make_shared_tiers(settings, Place("", "", directory, "nfs4"), Counters(""))
        assert tier.store(key, entry) == is_stored
    assert tier.get(key) == entry
    assert (Path(directory) / VERSION / key.name[:2] / key.name).is_file()
    assert sorted(os.listdir(tmp_path)) == sorted(["home", "temp", name])


@pytest.mark.parametrize("name", ["plain", "a b", "a#b", "a?b", "a%20b", "é"])
def test_a_url_names_the_directory_that_was_quoted(name: str) -> None:
    (url,) = parse_urls(f"file:///mnt/{quote(name)}")
    assert path_of(url.url) == f"/mnt/{name}"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_directory_whose_name_is_in_no_encoding_is_shared(
    tmp_path: Path, known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ptocache.store.shared.FLUSH_SECONDS", 3)
    for host, origin in (("one", "compiled"), ("other", "shared")):
        assert answer(tmp_path / host, f"file://{tmp_path}/\udcff", wait=3) == (known.aibin, origin)


# File systems of which nothing is sure.


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyFileSystem]:
    base = tmp_path_factory.mktemp("fuse")
    with contextlib.ExitStack() as stack:
        try:
            system = stack.enter_context(mounted(base / "backing", base / "mount"))
        except OSError as reason:
            pytest.skip(str(reason))
        yield system


class Share(NamedTuple):
    """A directory of a faulty file system, and the same one as it is behind that."""

    system: FaultyFileSystem
    root: Path
    backing: Path

    def whole(self) -> set[str]:
        """The names of what is stored, all of it whole."""
        names = set()
        for path in self.backing.glob(f"{VERSION}/??/*"):
            if stat.S_ISREG(path.lstat().st_mode):
                decode_object(path.read_bytes(), path.name, Signer())
                names.add(path.name)
        return names


@pytest.fixture
def share(faulty: FaultyFileSystem, tmp_path: Path) -> Iterator[Share]:
    faulty.heal()
    yield Share(faulty, faulty.target / tmp_path.name, faulty.backing / tmp_path.name)
    faulty.heal()


class Known(NamedTuple):
    """A kernel that was compiled, and the engine that has it."""

    aibin: bytes
    url: str


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Known:
    base = tmp_path_factory.mktemp("known")
    url = f"file://{base}/seed"
    with CompileCache(Settings.load({}, dir=base / "cache", shared=url, toolchain="emulated")) as cache:
        return Known(cache.compile(KERNEL).aibin, url)


def answer(place: Path, shared: str, wait: float = WAIT, **more: object) -> tuple[bytes, str]:
    """What a new host gets, and where from."""
    more = {"shared_timeout": WAIT, "toolchain": "emulated", **more}
    with CompileCache(Settings.load({}, dir=place, shared=shared, **more)) as cache:
        result = cache.compile(KERNEL)
        assert all(tier.uploads.flush(wait) for tier in cache.shared_tiers())
    return result.aibin, result.origin


#: The errors of each operation that a request asks for, beside those of any.
ANY = ("ESTALE", "EIO")
ERRORS = {
    "getattr": ("ENOENT", "ELOOP", "ENOTCONN"),
    "create": ("ENOSPC", "EACCES", "ENOENT", f"{DONE}EEXIST"),
    "write": (SHORT, "ENOSPC", "EDQUOT"),
    "chmod": ("EPERM",),
    "flush": ("ENOSPC", "EDQUOT", "EINTR"),
    "link": ("EPERM", "EEXIST", "ENOENT", f"{DONE}EEXIST", f"{DONE}EIO"),
    "unlink": ("EBUSY", f"{DONE}ENOENT"),
    "mkdir": ("EACCES", "ENOENT", f"{DONE}EEXIST"),
    "open": ("ENOENT", "EACCES", "EMFILE"),
    "read": (SHORT, "EAGAIN"),
    "lock": ("ENOLCK",),
    "flock": ("ENOLCK",),
}


@pytest.mark.parametrize("operation", ERRORS)
def test_whatever_fails_the_bytes_are_right_and_what_is_published_is_whole(
    operation: str, share: Share, known: Known, tmp_path: Path
) -> None:
    """One host finds a kernel elsewhere and stores it there; another one looks for it, while something fails."""
    failed = 0
    for number, error in enumerate((*ANY, *ERRORS[operation])):
        for when in (ONCE, SOMETIMES, ALWAYS):
            case = f"{number}-{when}"
            path, root = tmp_path / case, share.root / case
            # Permissions are set where the directory's are not those of a new file.
            umask = "022" if operation == "chmod" else ""
            share.root.mkdir(exist_ok=True)
            share.system.fail(operation, error, when, case)
            for host in ("writer", "reader"):
                aibin, _ = answer(path / host, f"file://{root} {known.url}", umask=umask)
                assert aibin == known.aibin, (operation, error, when, host)
            failed += share.system.heal()["failed"]
            there = Share(share.system, root, share.backing / case)
            there.whole()
            if operation not in {"unlink", "getattr"}:  # by which it would be removed
                assert temporaries(there.backing) == [], (operation, error, when)
            assert {len(path.name) for path in there.backing.glob(f"{VERSION}/*")} <= {2, 4}, (operation, error, when)
        # It is the engine as before once that is over.
        answer(path / "after", f"file://{root} {known.url}")
        assert len(there.whole()) == 1
    assert answer(path / "last", f"file://{root}") == (known.aibin, "shared")
    assert failed or operation == "flock", "it never came to that"


def is_kept_without_links(root: Path, system: FaultyFileSystem, error: str) -> None:
    engine = FileEngine(str(root))
    system.fail("link", error)
    assert engine.put(NAME, b"first", replace=False)
    assert not engine.put(NAME, b"second", replace=False)
    assert engine.get(NAME, LIMIT) == b"first"
    assert engine.put(NAME, b"third", replace=True)
    assert engine.get(NAME, LIMIT) == b"third"
    assert system.heal()["rename"] == 2
    assert temporaries(root) == []


@pytest.mark.parametrize("error", ["EPERM", "ENOTSUP", "EMLINK", "EACCES", "EXDEV"])
def test_without_hard_links_the_first_one_wins_too(share: Share, error: str) -> None:
    is_kept_without_links(share.root, share.system, error)


@pytest.mark.parametrize("fault", [("rename", "EIO"), ("rename", "EACCES"), ("rename", "ESTALE")], ids=" ".join)
def test_without_hard_links_a_name_that_cannot_be_given_is_an_error(
    share: Share, fault: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FileEngine(str(share.root))
    refuse_links(monkeypatch)
    engine.put(OTHER, b"other", replace=False)
    share.system.fail(*fault)
    with pytest.raises(OSError):  # noqa: PT011 - whichever
        engine.put(NAME, b"data", replace=False)
    assert share.system.heal()["failed"] > 0
    assert engine.get(NAME, LIMIT) is None
    assert temporaries(share.backing) == []


@pytest.mark.parametrize("operation", ["open", "read", "create", "link", "unlink"])
@pytest.mark.parametrize("error", ["ESTALE", "EBUSY"])
def test_what_has_changed_meanwhile_is_asked_for_again(share: Share, operation: str, error: str) -> None:
    engine = FileEngine(str(share.root))
    engine.put(OTHER, b"other", replace=False)
    share.system.fail(operation, error, ONCE)
    assert engine.put(NAME, b"data", replace=False)
    assert engine.get(NAME, LIMIT) == b"data"
    engine.delete(NAME)
    assert share.system.heal()["failed"] == 1
    assert engine.get(NAME, LIMIT) is None


def test_a_full_disk_that_says_so_when_a_file_is_closed_publishes_nothing(share: Share) -> None:
    engine = FileEngine(str(share.root))
    engine.put(OTHER, b"other", replace=False)
    share.system.fail("flush", "ENOSPC")
    with pytest.raises(OSError, match="No space"):
        engine.put(NAME, b"data", replace=False)
    share.system.heal()
    assert engine.get(NAME, LIMIT) is None
    assert temporaries(share.backing) == []


@pytest.mark.parametrize("when", [SOMETIMES, ALWAYS])
def test_what_was_listed_and_is_gone_is_left_out(share: Share, when: str) -> None:
    engine = FileEngine(str(share.root))
    names = {f"{number:02x}" * 16 for number in range(6)}
    for name in names:
        engine.put(name, b"data", replace=False)
    share.system.fail("getattr", "ENOENT", when, f"{VERSION}/0")
    found = {stored.name for stored in engine.list()}
    assert found <= names
    assert share.system.heal()["failed"] > 0
    assert {stored.name for stored in engine.list()} == names


def tier_at(root: Path) -> SharedTier:
    return SharedTier(EngineUrl(f"file://{root}"), Signer(), WAIT, Counters(""))


def test_to_prune_what_others_remove_meanwhile_is_no_error(share: Share) -> None:
    engine = FileEngine(str(share.root))
    for number in range(6):
        engine.put(f"{number:02x}" * 16, b"data", replace=False)
    share.system.fail("unlink", "ENOENT", SOMETIMES)
    assert prune_shared(tier_at(share.root), None, 0).removed == 6
    share.system.fail("unlink", "EBUSY")
    assert "busy" in prune_shared(tier_at(share.root), None, 0).problem


@pytest.mark.parametrize("error", ["EIO", "EACCES", "ENOTCONN"])
def test_a_directory_that_cannot_be_listed_is_not_an_empty_one(share: Share, error: str) -> None:
    engine = FileEngine(str(share.root))
    engine.put(NAME, b"data", replace=False)
    share.system.fail("readdir", error)
    assert prune_shared(tier_at(share.root), None, 0).problem


@pytest.mark.parametrize(
    ("operation", "error", "when"),
    [
        ("getattr", "EIO", ALWAYS),
        ("create", "EROFS", ALWAYS),
        ("link", "ENOSYS", ALWAYS),
        ("read", "ESTALE", SOMETIMES),
    ],
)
def test_what_cannot_be_shared_is_compiled(
    operation: str, error: str, when: str, share: Share, known: Known, tmp_path: Path
) -> None:
    share.root.mkdir()
    share.system.fail(operation, error, when, tmp_path.name)
    for host in ("one", "other"):
        assert answer(tmp_path / host, f"file://{share.root}")[0] == known.aibin
    share.system.heal()
    assert len(share.whole()) == (0 if operation in {"getattr", "create"} else 2)


@pytest.fixture
def own_system(tmp_path: Path, faulty: FaultyFileSystem) -> Iterator[FaultyFileSystem]:
    """A faulty file system that the test may end."""
    with mounted(tmp_path / "backing", tmp_path / "mount") as system:
        yield system


def test_a_file_system_that_knows_no_links_is_shared(
    own_system: FaultyFileSystem, known: Known, tmp_path: Path
) -> None:
    is_kept_without_links(own_system.target / "objects", own_system, "ENOSYS")
    shared = f"file://{own_system.target}/shared"
    for host, origin in (("one", "compiled"), ("other", "shared")):
        assert answer(tmp_path / host, shared) == (known.aibin, origin)


def test_a_file_system_whose_server_is_gone_costs_only_misses(
    own_system: FaultyFileSystem, known: Known, tmp_path: Path
) -> None:
    shared = f"file://{own_system.target}/shared {known.url}"
    with CompileCache(Settings.load({}, dir=tmp_path / "one", shared=shared, toolchain="emulated")) as cache:
        assert cache.compile(KERNEL).aibin == known.aibin
        own_system.kill()
        with pytest.raises(OSError, match="not connected"):
            os.listdir(own_system.target)
        sources = [numbered_kernel(number) for number in (1, 2)]
        assert [cache.compile(source).origin for source in sources] == ["compiled"] * 2
    assert answer(tmp_path / "other", shared) == (known.aibin, "shared")


def test_a_file_system_that_hangs_costs_its_timeouts_and_no_more(
    own_system: FaultyFileSystem, known: Known, tmp_path: Path
) -> None:
    shared = f"file://{own_system.target}/shared {known.url}"
    settings = Settings.load({}, dir=tmp_path / "one", shared=shared, toolchain="emulated", shared_timeout=0.1)
    own_system.pause()
    try:
        start = time.monotonic()
        with CompileCache(settings) as cache:
            assert cache.compile(KERNEL).aibin == known.aibin
            for number in (1, 2, 3):
                cache.compile(numbered_kernel(number))
            tier = cache.shared_tiers()[0]
            assert not tier.reading.is_open()
        assert time.monotonic() - start < WAIT / 2
        counted = cache.counters.engines()[tier.label]
        assert counted["seconds_reading"] < WAIT / 4
        assert counted["skipped"] > 0
    finally:
        own_system.go_on()
    assert answer(tmp_path / "other", shared) == (known.aibin, "shared")


# The cache's own directory there.


class Network(NamedTuple):
    """A cache directory on a faulty file system, that hosts have as theirs."""

    share: Share
    tmp_path: Path
    monkeypatch: pytest.MonkeyPatch

    @contextlib.contextmanager
    def host(self, name: str, **more: object) -> Iterator[CompileCache]:
        """A host with a local directory of its own."""
        local = self.tmp_path / name
        local.mkdir(exist_ok=True)
        with self.monkeypatch.context() as patch:
            patch.setattr(place_module, "_LOCAL_DIRECTORIES", (str(local),))
            more = {"toolchain": "emulated", "shared_timeout": WAIT, **more}
            with CompileCache(Settings.load({}, dir=self.share.root, **more)) as cache:
                yield cache
                cache.close()
                assert all(tier.uploads.flush(WAIT) for tier in cache.shared_tiers())

    def assert_only_objects(self) -> None:
        """Nothing of a local cache is there."""
        if self.share.backing.exists():
            assert set(os.listdir(self.share.backing)) <= {VERSION}
        self.share.whole()


@pytest.fixture
def network(share: Share, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Network:
    return Network(share, tmp_path, monkeypatch)


def test_a_cache_there_is_local_and_its_directory_is_shared(network: Network, known: Known) -> None:
    root = network.share.root
    assert filesystem_of(str(root)) == "fuse.faulty"
    assert is_network("fuse.faulty")
    with network.host("one") as cache:
        assert (cache.place.moved_from, cache.place.filesystem) == (str(root), "fuse.faulty")
        assert cache.settings.dir.startswith(f"{network.tmp_path}/one/ptocache-{os.getuid()}/")
        result = cache.compile(KERNEL)
        assert (result.origin, result.aibin) == ("compiled", known.aibin)
    assert len(network.share.whole()) == 2
    with network.host("other") as cache:
        results = [cache.compile(KERNEL) for _ in range(2)]
        assert [result.origin for result in results] == ["shared", "memory"]
        assert {result.aibin for result in results} == {known.aibin}
    with network.host("other") as cache:
        assert cache.compile(KERNEL).origin == "local"
    with network.host("one", recompile="1") as cache:
        assert cache.compile(KERNEL).aibin == known.aibin
    network.assert_only_objects()
    assert stat.S_IMODE(network.share.backing.stat().st_mode) == 0o700


def test_a_cache_there_that_is_only_read_changes_nothing_there(network: Network, known: Known) -> None:
    with network.host("one") as cache:
        cache.compile(KERNEL)

    def state() -> dict[str, tuple[int, int, int]]:
        found = {path: path.stat() for path in sorted(network.share.backing.rglob("*"))}
        return {str(path): (one.st_mtime_ns, one.st_ino, one.st_size) for path, one in found.items()}

    for path in network.share.backing.rglob("*"):
        os.utime(path, (10**9, 10**9))
    before = state()
    with network.host("reader", readonly="1") as cache:
        result = cache.compile(KERNEL)
        assert (result.origin, result.aibin) == ("shared", known.aibin)
        assert cache.compile(numbered_kernel(1)).origin == "compiled"
    assert state() == before


def test_a_directory_there_that_others_can_write_to_is_shared_only_if_all_is_signed(
    network: Network, known: Known
) -> None:
    network.share.root.mkdir()
    network.share.root.chmod(0o777)
    with network.host("one") as cache:
        assert cache.compile(KERNEL).origin == "compiled"
        assert cache.shared_tiers() == ()
    assert os.listdir(network.share.backing) == []
    key = {"signing_key": "a key of at least sixteen".replace(" ", "-")}
    for host, origin in (("two", "compiled"), ("three", "shared")):
        with network.host(host, **key) as cache:
            result = cache.compile(KERNEL)
            assert (result.origin, result.aibin) == (origin, known.aibin)


@pytest.mark.parametrize("operation", ["getattr", "create", "write", "flush", "link", "mkdir", "open", "read"])
@pytest.mark.parametrize("when", [ONCE, SOMETIMES, ALWAYS])
def test_whatever_fails_a_cache_there_is_right_and_nothing_but_objects_is_in_it(
    network: Network, known: Known, operation: str, when: str
) -> None:
    with network.host("one") as cache:
        cache.compile(KERNEL)
    name = network.tmp_path.name
    for host in ("two", "three"):
        network.share.system.fail(operation, "EIO", when, name)
        with network.host(host) as cache:
            assert cache.compile(KERNEL).aibin == known.aibin
        assert network.share.system.heal()["failed"] > 0 or operation in {"create", "write", "flush", "link", "mkdir"}
        network.assert_only_objects()
    with network.host("last") as cache:
        assert cache.compile(KERNEL).origin == "shared"


@pytest.mark.parametrize("error", ["EIO", "ESTALE", "EACCES"])
def test_a_directory_whose_status_cannot_be_read_is_on_what_is_mounted_there(
    share: Share, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite would be used on a network file system otherwise, once that answers again."""
    (tmp_path / "var").mkdir()
    monkeypatch.setattr(place_module, "_LOCAL_DIRECTORIES", (str(tmp_path / "var"),))
    share.root.mkdir()
    share.system.fail("getattr", error)
    found = find_place(str(share.root))
    share.system.heal()
    assert found.moved_from == str(share.root)


def test_hosts_that_begin_at_once_there_share(network: Network, known: Known) -> None:
    def work(host: str) -> bytes:
        with network.host(host) as cache:
            return cache.compile(KERNEL).aibin

    hosts = ("one", "one", "other", "other")
    assert at_once([functools.partial(work, host) for host in hosts]) == [known.aibin] * 4
    network.assert_only_objects()
    assert len(network.share.whole()) == 2
    with network.host("last") as cache:
        assert cache.compile(KERNEL).origin == "shared"
