"""What is stored comes back as it was, or not at all, whatever happens to the directory."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import multiprocessing
import os
import random
import shutil
import signal
import socket
import sqlite3
import stat
import struct
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptocache.counters import Counters
from ptocache.errors import NotACacheError
from ptocache.request import Key, make_key
from ptocache.store import index as index_module
from ptocache.store.entry import Entry, decode_actions, encode_actions, make_entry
from ptocache.store.files import DamagedError, publish, read_file
from ptocache.store.local import TOUCH_SECONDS, Limits, LocalTier
from ptocache.store.memory import MemoryTier
from ptocache.store.tiers import Found, Store
from ptocache.store.upkeep import clear, require_cache, usage

WAIT = 60  # seconds after which something that was waited for will not come any more
FORK = multiprocessing.get_context("fork")


def key(name: object) -> Key:
    return make_key([("test", str(name).encode())])


def entry(aibin: bytes, seconds: float = 1.5) -> Entry:
    return make_entry(aibin, seconds=seconds, created=1.7e9, facts={"kernels": ["main_kernel"]})


def filled(number: int, size: int) -> Entry:
    return entry(number.to_bytes(4, "little") * (size // 4))


def found(store: Store, name: object) -> bytes | None:
    result = store.get(key(name))
    return None if result is None else result.entry.aibin


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "cache"


@pytest.fixture
def counters(directory: Path) -> Counters:
    return Counters(str(directory))


@pytest.fixture
def local(directory: Path) -> Iterator[LocalTier]:
    tier = LocalTier(str(directory))
    yield tier
    tier.close()


@pytest.fixture
def store(local: LocalTier, counters: Counters) -> Store:
    return Store([local], counters)


def action_path(directory: Path, name: object) -> Path:
    return directory / "actions" / key(name).name


def output_path(directory: Path, made: Entry) -> Path:
    return directory / "outputs" / made.action.sha256.hex()


def counted(tier: LocalTier) -> tuple[int, int]:
    """How many outputs the index knows, and how many bytes they take with their actions and sources, as it says."""
    with tier.index.transaction() as rows:
        return rows.count(), rows.bytes()


def files(directory: Path, folder: str) -> list[str]:
    """The names of what is in a directory of the cache."""
    try:
        return sorted(os.listdir(directory / folder))
    except FileNotFoundError:
        return []


def age(folder: Path) -> None:
    """Let what is in a directory be so old that it cannot be what somebody has just begun to write."""
    for path in folder.iterdir():
        os.utime(path, (1, 1))


def without_row(tier: LocalTier) -> set[str]:
    """The outputs and actions on disk that the index does not know, so that nothing would ever remove them."""
    with tier.index.transaction() as rows:
        known = {name for output, row in rows.all() for name in (output, *(row.actions if row else ()))}
    directory = Path(tier.directory)
    return {name for folder in ("outputs", "actions", "sources") for name in files(directory, folder)} - known


def listing(top: Path) -> dict[str, tuple[Any, ...]]:
    """All that is below a directory, with contents and times."""
    seen: dict[str, tuple[Any, ...]] = {}
    for folder, folders, files in os.walk(top):
        for path in (folder, *(os.path.join(folder, name) for name in (*folders, *files))):
            status = os.lstat(path)
            data = Path(path).read_bytes() if stat.S_ISREG(status.st_mode) else b""
            seen[path] = (status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, data)
    return seen


def on_disk(top: Path) -> int:
    """The bytes that the file system says all below a directory takes."""
    total = 0
    for folder, folders, names in os.walk(top):
        for name in (*folders, *names):
            with contextlib.suppress(FileNotFoundError):  # others may be at work there
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total


def sizes(top: Path) -> list[int]:
    all_sizes = []
    for folder, _, names in os.walk(top):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # others may be at work there
                all_sizes.append(os.lstat(os.path.join(folder, name)).st_size)
    return all_sizes


def drop_privileges() -> None:
    """Let permissions count for root too, as they do for everybody else."""
    if os.geteuid() == 0:
        header = struct.pack("<II", 0x20080522, 0)
        data = (ctypes.c_uint32 * 6)(0, 0, 0, 0, 0, 0)
        assert ctypes.CDLL(None, use_errno=True).capset(header, data) == 0


def start(process: Any) -> None:
    """Start a process. Since Python 3.12 filelock 4 refuses the second of two forks at once, for whoever forks."""
    for _ in range(1000):
        try:
            process.start()
        except RuntimeError as error:
            if "filelock" not in str(error):
                raise
            time.sleep(0.005)
        else:
            return
    raise AssertionError("filelock refuses all forks")


def in_child(function: Callable[[], object], before: Callable[[], object] = lambda: None) -> None:
    """Run something in a forked process, and fail as it fails."""

    def run(sender: Any) -> None:
        try:
            before()
            function()
        except BaseException:  # noqa: BLE001 - it is told to the parent, whatever it is
            sender.send(traceback.format_exc())
        else:
            sender.send("")

    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=run, args=(sender,))
    start(process)
    sender.close()
    try:
        assert receiver.poll(WAIT), "the child does not answer"
        report = receiver.recv()
    finally:
        process.kill()
        process.join()
    assert not report, report


def unprivileged(function: Callable[[], object]) -> None:
    in_child(function, before=drop_privileges)


class Neighbour:
    """Another process, which does one thing with each message that it is sent, and answers with what came of it."""

    def __init__(self, work: Callable[[Any], Any], before: Callable[[], object] = lambda: None) -> None:
        self._pipe, other = FORK.Pipe()
        self.process = FORK.Process(target=self._serve, args=(work, before, other))
        self.process.start()
        other.close()

    def _serve(self, work: Callable[[Any], Any], before: Callable[[], object], pipe: Any) -> None:
        self._pipe.close()
        before()
        with contextlib.suppress(EOFError):
            while True:
                message = pipe.recv()
                try:
                    pipe.send(("", work(message)))
                except BaseException:  # noqa: BLE001 - it is told to the parent, whatever it is
                    pipe.send((traceback.format_exc(), None))

    def __call__(self, message: Any = None) -> Any:
        self.tell(message)
        return self.answer()

    def tell(self, message: Any = None) -> None:
        self._pipe.send(message)

    def answer(self) -> Any:
        assert self._pipe.poll(WAIT), "the neighbour does not answer"
        report, answer = self._pipe.recv()
        assert not report, report
        return answer

    def __enter__(self) -> Neighbour:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pipe.close()
        self.process.join(WAIT)
        self.process.kill()
        self.process.join()


# An action's file.


@given(st.binary(max_size=100), st.floats(allow_nan=False), st.binary(min_size=32, max_size=32))
def test_an_action_is_read_as_it_was_written(aibin: bytes, seconds: float, check: bytes):
    action = entry(aibin, seconds).action._replace(check=check)
    assert decode_actions(encode_actions([action])) == [action]
    assert action.made(aibin)
    assert action.details() == {"kernels": ["main_kernel"]}


@given(st.data())
def test_an_action_with_one_changed_bit_is_none(data: st.DataObject):
    encoded = bytearray(encode_actions([entry(b"x").action._replace(check=bytes(32))]))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert decode_actions(bytes(encoded)) is None


@given(st.integers(0, 200), st.binary(max_size=20))
def test_an_action_cut_short_or_lengthened_is_none(length: int, more: bytes):
    encoded = encode_actions([entry(b"x").action._replace(check=bytes(32))])
    assert decode_actions(encoded[: min(length, len(encoded) - 1)]) is None
    if more:
        assert decode_actions(encoded + more) is None


@given(st.binary(max_size=300))
def test_any_bytes_are_no_action(data: bytes):
    assert decode_actions(data) is None


def test_an_action_knows_its_output_from_another_of_the_same_size():
    action = entry(b"abc").action
    assert not action.made(b"abd")
    assert not action.made(b"abcd")


# Storing and finding.


def test_what_was_put_is_found_by_this_and_every_other_reader(store: Store, directory: Path, counters: Counters):
    made = entry(b"\x7fELF device binary")
    store.put([key("a")], made)
    expected = Found(Entry(made.action._replace(check=key("a").check), made.aibin), "local")
    assert store.get(key("a")) == expected
    assert Store([LocalTier(str(directory))], counters).get(key("a")) == expected
    assert Store([LocalTier(str(directory), readonly=True)], counters).get(key("a")) == expected
    assert counters.totals()["errors"] == 0


def test_what_was_not_put_is_a_miss_and_makes_nothing(store: Store, directory: Path, counters: Counters):
    assert store.get(key("a")) is None
    assert not directory.exists()
    assert counters.totals()["errors"] == 0


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 3 << 20])
def test_an_output_of_any_size_comes_back(store: Store, size: int):
    aibin = random.Random(size).randbytes(size)
    store.put([key("a")], entry(aibin))
    assert found(store, "a") == aibin


def test_two_keys_share_one_output(store: Store, local: LocalTier, directory: Path):
    made = entry(b"shared" * 1000)
    store.put([key("source"), key("pto")], made)
    store.put([key("another source")], made)
    assert {found(store, name) for name in ("source", "pto", "another source")} == {made.aibin}
    assert len(sizes(directory / "outputs")) == 1
    assert len(sizes(directory / "actions")) == 3
    assert usage(local).entries == 1


def test_a_key_put_again_leads_to_the_new_output(store: Store):
    store.put([key("a")], entry(b"old"))
    store.put([key("a")], entry(b"new"))
    assert found(store, "a") == b"new"


def test_a_key_of_the_same_name_with_another_check_is_a_miss(store: Store, directory: Path):
    """XXH3 is not cryptographic: two requests could be made to share a name."""
    store.put([key("a")], entry(b"mine"))
    impostor = key("a")._replace(check=key("b").check)
    assert store.get(impostor) is None
    assert found(store, "a") == b"mine"
    store.put([impostor], entry(b"theirs"))
    assert found(store, "a") is None
    result = store.get(impostor)
    assert result is not None
    assert result.entry.aibin == b"theirs"


def test_the_directory_is_private_and_tagged_and_holds_nothing_else(store: Store, directory: Path):
    umask = os.umask(0)
    try:
        store.put([key("a")], entry(b"x"))
    finally:
        os.umask(umask)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert (directory / "CACHEDIR.TAG").read_bytes().startswith(b"Signature: 8a477f597d28d172789f06886806bc55\n")
    names = {"actions", "outputs", "temp", "index", "index.lock", "CACHEDIR.TAG"}
    assert {path.name for path in directory.iterdir()} == names
    assert permissions(directory) == ({0o700}, {0o600})


def permissions(top: Path) -> tuple[set[int], set[int]]:
    """Those of the directories, and those of the files."""
    paths = [top, *top.rglob("*")]
    folders, others = (
        {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_dir() == is_folder}
        for is_folder in (True, False)
    )
    return folders, others


@pytest.mark.parametrize(("umask", "folders", "others"), [(0o002, 0o2775, 0o664), (0o027, 0o750, 0o640)])
def test_a_directory_that_is_shared_has_the_permissions_that_were_asked_for(
    directory: Path, counters: Counters, umask: int, folders: int, others: int
):
    old = os.umask(0o077)
    try:
        tier = LocalTier(str(directory), umask=umask)
        Store([tier], counters).put([key("a")], entry(b"x"), b"source")
        assert permissions(directory) == ({folders}, {others})  # the database is open, with its side files
        tier.close()
    finally:
        os.umask(old)


def test_a_hit_opens_no_database_and_changes_nothing(store: Store, directory: Path, counters: Counters):
    store.put([key("a")], entry(b"x"))
    assert found(store, "a") == b"x"  # the first one marks the output as used
    before = listing(directory)
    tier = LocalTier(str(directory))
    assert found(Store([tier], counters), "a") == b"x"
    assert tier._lazy_index is None
    assert listing(directory) == before


# Damage: a miss, which repairs itself.


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def to_garbage(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(10_000))


def to_directory(path: Path) -> None:
    path.unlink()
    (path / "inside").mkdir(parents=True)
    (path / "inside" / "file").write_text("x")


def to_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def to_socket(path: Path) -> None:
    path.unlink()
    here = os.open(path.parent, os.O_RDONLY)  # the path itself may be too long for a socket's address
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


def to_dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nonexistent/target")


def to_link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def to_huge(path: Path) -> None:
    os.truncate(path, 1 << 40)  # sparse: it takes no space


def to_link_to_a_good_copy(path: Path) -> None:
    copy = path.parents[2] / "copy"
    path.rename(copy)
    path.symlink_to(copy)


def remove(path: Path) -> None:
    path.unlink()


DAMAGES = [truncate, flip_a_byte, empty, lengthen, to_garbage, remove]
REPLACEMENTS = [to_directory, to_fifo, to_socket, to_dangling_link, to_link_to_itself, to_huge, to_link_to_a_good_copy]
Damage = Callable[[Path], None]


@pytest.mark.parametrize("damage", DAMAGES + REPLACEMENTS)
@pytest.mark.parametrize("what", ["action", "output"])
def test_what_is_damaged_is_a_miss_until_it_is_put_again(
    store: Store, local: LocalTier, directory: Path, what: str, damage: Damage
):
    made, other = filled(1, 5000), filled(2, 5000)
    store.put([key("a")], made)
    store.put([key("b")], other)
    before = counted(local)
    damage(action_path(directory, "a") if what == "action" else output_path(directory, made))
    assert found(store, "a") is None
    assert found(store, "a") is None
    assert found(store, "b") == other.aibin
    store.put([key("a")], made)
    assert found(store, "a") == made.aibin
    assert found(Store([LocalTier(str(directory))], Counters(str(directory))), "a") == made.aibin
    assert counted(local) == before
    assert sorted(sizes(directory / "outputs")) == [5000, 5000]


@pytest.mark.parametrize("damage", [flip_a_byte, truncate, to_directory, to_fifo, to_dangling_link, to_huge])
def test_a_damaged_action_is_removed_and_its_output_kept(store: Store, directory: Path, damage: Damage):
    made = entry(b"x" * 100)
    store.put([key("a"), key("b")], made)
    damage(action_path(directory, "a"))
    assert found(store, "a") is None
    assert not os.path.lexists(action_path(directory, "a"))
    assert found(store, "b") == made.aibin


@pytest.mark.parametrize("damage", [flip_a_byte, truncate, to_directory, to_fifo, to_dangling_link, to_huge])
def test_a_damaged_output_is_removed_with_the_action_that_led_there(store: Store, directory: Path, damage: Damage):
    made = entry(b"x" * 100)
    store.put([key("a"), key("b")], made)
    damage(output_path(directory, made))
    assert found(store, "a") is None
    assert not os.path.lexists(output_path(directory, made))
    assert not os.path.lexists(action_path(directory, "a"))
    assert found(store, "b") is None


def test_a_link_is_removed_and_what_it_points_to_left_alone(store: Store, directory: Path, tmp_path: Path):
    made = entry(b"x" * 100)
    store.put([key("a")], made)
    treasure = tmp_path / "treasure"
    treasure.write_bytes(made.aibin)
    path = output_path(directory, made)
    path.unlink()
    path.symlink_to(treasure)
    assert found(store, "a") is None
    assert not path.is_symlink()
    assert treasure.read_bytes() == made.aibin


@pytest.mark.parametrize("what", ["actions", "outputs", "sources", "temp"])
@pytest.mark.parametrize("kind", ["file", "dangling link", "fifo", "nothing"])
def test_a_directory_that_something_else_replaced_is_made_anew(store: Store, directory: Path, what: str, kind: str):
    made = entry(b"x" * 100)
    store.put([key("a")], made, b"source")
    path = directory / what
    path.rename(directory.parent / "aside")
    if kind == "file":
        path.write_text("x")
    elif kind == "dangling link":
        path.symlink_to("/nonexistent/target")
    elif kind == "fifo":
        os.mkfifo(path)
    assert found(store, "a") == (None if what in {"actions", "outputs"} else made.aibin)
    store.put([key("a")], made, b"source")
    assert found(store, "a") == made.aibin
    assert (directory / "sources" / key("a").name).read_bytes() == b"source"
    assert files(directory, "temp") == []


@pytest.mark.parametrize("damage", DAMAGES + REPLACEMENTS)
def test_a_damaged_tag_is_written_anew_with_the_next_store(store: Store, directory: Path, damage: Damage):
    store.put([key("a")], entry(b"x"))
    tag = directory / "CACHEDIR.TAG"
    text = tag.read_bytes()
    damage(tag)
    assert found(store, "a") == b"x"
    store.put([key("b")], entry(b"y"))
    assert not tag.is_symlink()
    assert tag.read_bytes() == text


@pytest.mark.parametrize("what", ["action", "output", "tag"])
def test_what_may_not_be_read_is_a_miss_until_it_is_put_again(
    store: Store, local: LocalTier, directory: Path, what: str
):
    made = entry(b"x" * 100)
    store.put([key("a")], made)
    local.close()
    path = {
        "action": action_path(directory, "a"),
        "output": output_path(directory, made),
        "tag": directory / "CACHEDIR.TAG",
    }[what]
    path.chmod(0)

    def use() -> None:
        with pytest.raises(PermissionError):
            path.open("rb")
        again = Store([LocalTier(str(directory))], Counters(str(directory)))
        assert found(again, "a") == (made.aibin if what == "tag" else None)
        again.put([key("a"), key("b")], made)
        assert found(again, "a") == found(again, "b") == made.aibin

    unprivileged(use)


def test_a_directory_that_may_not_be_written_is_read(store: Store, local: LocalTier, directory: Path):
    store.put([key("a")], entry(b"x"))
    assert found(store, "a") == b"x"  # it is marked as used, and not once more for an hour
    damaged = entry(b"y" * 100)
    store.put([key("d")], damaged)
    local.close()
    flip_a_byte(output_path(directory, damaged))
    paths = [directory, *directory.rglob("*")]
    for path in paths:
        path.chmod(0o500 if path.is_dir() else 0o400)

    def use() -> None:
        tier = LocalTier(str(directory))
        counters = Counters(str(directory))
        again = Store([tier], counters)
        assert found(again, "a") == b"x"
        assert found(again, "d") is None
        again.put([key("b")], entry(b"z"))
        assert found(again, "b") is None
        assert counters.totals()["errors"] >= 1
        assert usage(tier).entries == 2

    before = listing(directory)
    try:
        unprivileged(use)
        assert listing(directory) == before
    finally:
        for path in paths:
            path.chmod(0o700)


@pytest.mark.parametrize("kind", ["file", "below a file", "dangling link", "fifo"])
def test_a_cache_directory_that_cannot_be_one_is_left_alone(tmp_path: Path, counters: Counters, kind: str):
    path = tmp_path / "users"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "dangling link":
        path.symlink_to(tmp_path / "no" / "where")
    else:
        path.write_text("data")
    before = listing(tmp_path)
    store = Store([LocalTier(str(path / "cache" if kind == "below a file" else path))], counters)
    assert found(store, "a") is None
    store.put([key("a")], entry(b"x"))
    assert found(store, "a") is None
    assert listing(tmp_path).keys() == before.keys()
    assert kind not in {"file", "below a file"} or path.read_text() == "data"
    assert counters.totals()["errors"] >= 1


@pytest.mark.parametrize("room", [2_000, 500_000], ids=["for no database", "for no output"])
def test_a_full_disk_leaves_nothing_behind(directory: Path, counters: Counters, room: int):
    """The limit on a file's size stands in for the disk: the write fails the same way, half-way."""
    made = entry(b"x" * 1_000_000)

    def use() -> None:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        store = Store([LocalTier(str(directory))], Counters(str(directory)))
        store.put([key("a")], made)
        assert found(store, "a") is None

    in_child(use)
    assert [files(directory, folder) for folder in ("outputs", "actions", "temp")] == [[], [], []]
    tier = LocalTier(str(directory))
    assert counted(tier) == (0, 0)
    store = Store([tier], counters)
    store.put([key("a")], made)
    assert found(store, "a") == made.aibin
    assert counters.totals()["errors"] == 1  # the child's
    tier.close()


# Clearing.


def test_clear_removes_every_entry_and_says_what_it_was(store: Store, local: LocalTier, directory: Path):
    assert clear(local) == (0, 0)
    assert not directory.exists()
    for number in range(5):
        store.put([key(number)], filled(number, 20_000), b"source")
    (directory / "counters").write_text("\nmisses=5\n")
    before = on_disk(directory)
    cleared = clear(local)
    assert cleared == (5, before - on_disk(directory))
    assert cleared.bytes >= 5 * 20_000
    assert usage(local).entries == 0
    assert [found(store, number) for number in range(5)] == [None] * 5
    assert [files(directory, folder) for folder in ("outputs", "actions", "sources", "temp")] == [[], [], [], []]
    assert (directory / "counters").read_text() == "\nmisses=5\n"
    assert clear(local).entries == 0
    store.put([key("a")], entry(b"x"))
    assert found(store, "a") == b"x"
    assert usage(local).entries == 1


def test_clear_works_without_the_tag(store: Store, local: LocalTier, directory: Path):
    store.put([key("a")], filled(1, 20_000))
    (directory / "CACHEDIR.TAG").unlink()
    require_cache(local)
    assert clear(local).entries == 1
    assert found(store, "a") is None


def test_usage_is_what_the_disk_says_from_the_index_and_from_the_files(store: Store, local: LocalTier, directory: Path):
    for number in range(5):
        store.put([key(number), key(f"pto {number}")], filled(number, 20_000 + number * 4), b"source")
    expected = (5, on_disk(directory))
    assert usage(local) == expected
    assert usage(LocalTier(str(directory), readonly=True)) == expected
    assert usage(LocalTier(str(directory / "nowhere"))) == (0, 0)


@pytest.mark.parametrize(
    "names",
    [
        ["thesis.tex"],
        ["outputs/run1/weights.bin"],
        ["outputs/x"],
        ["actions/deploy.yml"],
        ["index/index.html"],
        [f"actions/{'a' * 32}", f"outputs/{'b' * 64}", "notes"],
        [f"actions/{'a' * 31}"],
        [f"outputs/{'b' * 63}"],
        ["CACHEDIR.TAG"],
    ],
)
def test_a_directory_that_is_no_cache_is_not_touched(tmp_path: Path, names: Sequence[str]):
    directory = tmp_path / "project"
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("Signature: 8a477f597d28d172789f06886806bc55\n# of another program\nprecious")
    before = listing(directory)
    tier = LocalTier(str(directory))
    assert found(Store([tier], Counters(str(tmp_path))), "a") is None
    usage(tier)
    if names != ["CACHEDIR.TAG"]:  # with nothing but a tag in it, there is nothing to lose
        with pytest.raises(NotACacheError, match="PTOCACHE_DIR") as caught:
            clear(tier)
        assert str(directory) in str(caught.value)
    assert listing(directory) == before


def test_storing_into_a_directory_with_files_of_the_user_removes_none(tmp_path: Path, counters: Counters):
    directory = tmp_path / "project"
    names = ["index/index.html", "outputs/run1/weights.bin", "actions/deploy.yml", "thesis.tex"]
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("precious")
    store = Store([LocalTier(str(directory), Limits(400_000))], counters)
    for number in range(10):
        store.put([key(number)], filled(number, 20_000))
    assert found(store, 9) is not None
    assert [(directory / name).read_text() for name in names] == ["precious"] * 4


# Read-only.


def test_readonly_changes_nothing(store: Store, local: LocalTier, directory: Path):
    good, bad, gone = filled(1, 20_000), filled(2, 20_000), filled(3, 20_000)
    for name, made in (("good", good), ("bad", bad), ("gone", gone)):
        store.put([key(name)], made)
    local.close()
    flip_a_byte(output_path(directory, bad))
    output_path(directory, gone).unlink()
    old = time.time() - 10 * TOUCH_SECONDS
    os.utime(output_path(directory, good), (old, old))
    before = listing(directory)
    tier = LocalTier(str(directory), Limits(1), readonly=True)
    reader = Store([tier], Counters(str(directory), readonly=True))
    assert found(reader, "good") == good.aibin
    assert found(reader, "bad") is None
    assert found(reader, "gone") is None
    assert found(reader, "never") is None
    reader.put([key("new")], filled(4, 20_000))
    assert found(reader, "new") is None
    assert usage(tier).entries == 2
    tier.close()
    assert listing(directory) == before


def test_readonly_makes_no_directory(directory: Path):
    tier = LocalTier(str(directory), readonly=True)
    tier.put([key("a")], entry(b"x"))
    assert tier.get(key("a")) is None
    assert usage(tier) == (0, 0)
    assert not directory.parent.exists()


# Memory.


def test_memory_keeps_what_was_used_last_within_its_bound():
    tier = MemoryTier(limit=1000)
    for number in range(10):
        tier.put([key(number)], filled(number, 100))
    assert tier.get(key(0)) == filled(0, 100)
    tier.put([key("new")], filled(10, 200))
    assert tier.get(key(0)) is not None
    assert [tier.get(key(number)) for number in (1, 2)] == [None, None]
    assert tier.get(key(3)) is not None
    assert tier.get(key("new")) == filled(10, 200)


def test_memory_does_not_take_what_is_larger_than_its_bound():
    tier = MemoryTier(limit=1000)
    tier.put([key("small")], filled(1, 1000))
    tier.put([key("large")], filled(2, 1004))
    assert tier.get(key("large")) is None
    assert tier.get(key("small")) is not None


def test_memory_counts_a_key_that_is_put_again_once():
    tier = MemoryTier(limit=1000)
    tier.put([key("kept")], filled(1, 400))
    for number in range(50):
        tier.put([key("again")], filled(number, 400 + 4 * (number % 40)))
    assert tier.get(key("kept")) is not None
    assert tier.get(key("again")) == filled(49, 400 + 36)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 150), st.booleans()), max_size=60))
def test_memory_is_a_dictionary_that_forgets_what_was_used_longest_ago(steps: list[tuple[int, int, bool]]):
    tier = MemoryTier(limit=1000)
    model: dict[int, Entry] = {}
    for name, size, reads in steps:
        if reads:
            assert tier.get(key(name)) == model.get(name)
            if name in model:
                model[name] = model.pop(name)
        else:
            made = filled(size, size * 4)
            tier.put([key(name)], made)
            model.pop(name, None)
            model[name] = made
            while sum(len(made.aibin) for made in model.values()) > 1000:
                del model[next(iter(model))]
    for name in range(6):
        assert tier.get(key(name)) == model.get(name)


# The tiers together.


class Broken:
    """A tier that fails as it is told to."""

    name = "broken"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def get(self, key: Key, accept: object = None, state: object = None) -> Entry | None:
        raise self.error

    def put(self, keys: Sequence[Key], entry: Entry, source: bytes = b"", state: object = None) -> None:
        raise self.error

    def use(self, entry: Entry) -> None:
        raise self.error


def test_what_a_farther_tier_had_is_kept_in_the_nearer_ones(store: Store, local: LocalTier, counters: Counters):
    made = entry(b"x")
    store.put([key("a"), key("b")], made)
    both = Store([MemoryTier(), local], counters)
    assert [getattr(both.get(key("a")), "origin", None) for _ in range(2)] == ["local", "memory"]
    assert getattr(both.get(key("b")), "origin", None) == "local"
    assert found(both, "a") == b"x"


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device"), ValueError(), sqlite3.OperationalError("x"), RecursionError(), KeyError()],
)
def test_a_failing_tier_is_passed_over_counted_and_told_once(
    local: LocalTier, counters: Counters, caplog: pytest.LogCaptureFixture, error: Exception
):
    store = Store([Broken(error), local], counters)
    with caplog.at_level(logging.DEBUG, "ptocache"):
        store.put([key("a")], entry(b"x"))
        result = store.get(key("a"))
        assert store.get(key("b")) is None
    assert result is not None
    assert result.origin == "local"
    assert counters.totals()["errors"] == 4  # put; get and the promotion after it; get
    records = [record for record in caplog.records if "broken" in record.getMessage()]
    assert [record.levelno for record in records] == [logging.WARNING] + [logging.DEBUG] * 3
    assert (str(error) or type(error).__name__) in records[0].getMessage()
    assert "PTOCACHE_DIR" in records[0].getMessage()


def test_a_farther_tier_that_fails_to_note_a_use_costs_no_hit(counters: Counters):
    memory = MemoryTier()
    memory.put([key("a")], entry(b"x"))
    store = Store([memory, Broken(OSError(5, "Input/output error"))], counters)
    assert [found(store, "a") for _ in range(2)] == [b"x"] * 2
    assert counters.totals()["errors"] == 2


def test_an_interrupt_is_not_a_fault_of_the_cache(counters: Counters):
    store = Store([Broken(KeyboardInterrupt())], counters)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        store.get(key("a"))


# Files.


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path):
    """A reader that never stops looking sees one of the versions, at every moment."""
    path = tmp_path / "below" / "file"
    versions = [bytes([number]) * 300_000 for number in range(4)]
    publish(str(tmp_path), str(path), versions[0])
    done = threading.Event()
    seen: set[bytes] = set()

    def read() -> None:
        while not done.is_set():
            seen.add(read_file(str(path), 1 << 20)[0])

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(200):
        publish(str(tmp_path), str(path), versions[number % 4])
    done.set()
    thread.join(WAIT)
    assert seen <= set(versions)
    assert len(seen) > 1
    assert [files(tmp_path, folder) for folder in ("below", "temp")] == [["file"], []]


def test_a_file_above_the_limit_is_not_read(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_file(str(path), 5)[0] == b"12345"
    with pytest.raises(DamagedError):
        read_file(str(path), 4)


# Many processes and threads.


def run_together(count: int, work: Callable[[int], object]) -> None:
    """Run something in many forked processes that start at the same moment; fail as they fail."""
    gate = FORK.Barrier(count)
    results: Any = FORK.SimpleQueue()

    def run(number: int) -> None:
        try:
            gate.wait(WAIT)
            work(number)
            results.put("")
        except BaseException:  # noqa: BLE001 - it is told to the parent, whatever it is
            results.put(traceback.format_exc())

    processes = [FORK.Process(target=run, args=(number,)) for number in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(WAIT)
    hanging = [process for process in processes if process.is_alive()]
    for process in hanging:
        process.kill()
    assert not hanging
    reports = [results.get() for _ in processes]
    assert not any(reports), "\n".join(reports)


@pytest.mark.parametrize("limit", [0, 1_000_000], ids=["no limit", "evicting"])
def test_eight_processes_get_the_right_bytes_or_none(directory: Path, limit: int):
    expected = {number: filled(number, 8_000 + 4 * number) for number in range(40)}

    def work(me: int) -> None:
        chance = random.Random(me)
        tier = LocalTier(str(directory), Limits(limit))  # without a `Store`, that would hide what fails
        for _ in range(60):
            number = chance.randrange(40)
            if chance.random() < 0.5:
                tier.put([key(number), key(f"pto {number}")], expected[number])
            got = tier.get(key(number))
            assert got is None or got.aibin == expected[number].aibin
            name = f"mine {me}"
            tier.put([key(name)], filled(1000 + me, 4000))
            assert limit or tier.get(key(name)) is not None
        tier.close()

    run_together(8, work)
    tier = LocalTier(str(directory), Limits(limit))
    store = Store([tier], Counters(str(directory)))
    for number, made in expected.items():
        assert found(store, number) in {None, made.aibin}
    for number in range(3):
        store.put([key(f"last {number}")], filled(2000 + number, 4000))
    assert files(directory, "temp") == []
    assert without_row(tier) == set()
    assert counted(tier)[0] == len(files(directory, "outputs"))
    assert not limit or on_disk(directory) <= limit
    tier.close()


def test_eight_processes_begin_a_cache_at_once(directory: Path):
    def work(me: int) -> None:
        counters = Counters(str(directory))
        store = Store([LocalTier(str(directory), Limits(10**9))], counters)
        store.put([key("same"), key(me)], filled(7, 4000))
        assert found(store, "same") == found(store, me) == filled(7, 4000).aibin
        assert counters.totals()["errors"] == 0

    run_together(8, work)
    assert usage(LocalTier(str(directory))).entries == 1


def test_processes_survive_a_neighbour_that_damages_everything(directory: Path):
    def work(me: int) -> None:
        chance = random.Random(me)
        store = Store([LocalTier(str(directory), Limits(500_000))], Counters(str(directory)))
        for step in range(40):
            number = chance.randrange(10)
            if me:
                store.put([key(number)], filled(number, 4000))
                assert found(store, number) in {None, filled(number, 4000).aibin}
            else:
                paths = [directory / top / name for top in ("actions", "outputs") for name in files(directory, top)]
                with contextlib.suppress(OSError, IndexError):
                    path = chance.choice(paths)
                    chance.choice([truncate, empty, flip_a_byte, to_directory, to_fifo, remove])(path)
                if step % 10 == 9:
                    shutil.rmtree(directory, ignore_errors=True)

    run_together(4, work)


def test_threads_share_a_store(store: Store):
    failures: list[str] = []

    def work(me: int) -> None:
        try:
            for number in range(25):
                store.put([key(number), key((me, number))], filled(number, 4000))
                assert found(store, number) == found(store, (me, number)) == filled(number, 4000).aibin
        except BaseException:  # noqa: BLE001
            failures.append(traceback.format_exc())

    threads = [threading.Thread(target=work, args=(me,)) for me in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert not failures


def test_a_child_forked_from_a_process_that_uses_the_cache_can_use_it(store: Store, local: LocalTier):
    store.put([key("a")], entry(b"x"))

    def use() -> None:
        store.put([key("b")], entry(b"y"))
        assert found(store, "a") == b"x"
        assert found(store, "b") == b"y"

    for _ in range(3):
        in_child(use)
    store.put([key("c")], entry(b"z"))
    assert [found(store, name) for name in "abc"] == [b"x", b"y", b"z"]
    assert usage(local).entries == 3


def test_a_child_forked_while_a_thread_holds_every_lock_is_not_held_up(
    directory: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(index_module, "TIMEOUT", 0.2)
    memory, local, counters = MemoryTier(), LocalTier(str(directory)), Counters(str(directory))
    store = Store([memory, local], counters)
    store.put([key("a")], entry(b"x"))
    local.close()
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with memory._lock, counters._lock, local.index._lock:
            held.set()
            release.wait(WAIT)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(WAIT)

    def use() -> None:
        store.put([key("b")], entry(b"y"))
        assert found(store, "a") == b"x"
        assert found(store, "b") == b"y"
        counters.add("misses")
        counters.flush()

    try:
        in_child(use)
    finally:
        release.set()
        thread.join(WAIT)
    assert counters.totals()["misses"] == 1
    assert found(store, "b") == b"y"


def test_a_process_killed_while_it_stores_leaves_nothing_that_is_half_done(directory: Path, counters: Counters):

    def work(started: Any) -> None:
        store = Store([LocalTier(str(directory), Limits(2_000_000))], Counters(str(directory)))
        number = 0
        while True:
            store.put([key(number % 30)], filled(number % 30, 100_000))
            number += 1
            if number >= 2:
                started.send(number)

    for kills_after in (1, 7, 20, 33):
        receiver, sender = FORK.Pipe(duplex=False)
        process = FORK.Process(target=work, args=(sender,))
        process.start()
        for _ in range(kills_after):
            assert receiver.poll(WAIT)
            receiver.recv()
        process.kill()
        process.join()
    age(directory / "temp")
    tier = LocalTier(str(directory), Limits(2_000_000))
    store = Store([tier], counters)
    for number in range(30):
        assert found(store, number) in {None, filled(number, 100_000).aibin}
        store.put([key(number)], filled(number, 100_000))
        assert found(store, number) == filled(number, 100_000).aibin
    assert on_disk(directory) <= 2_000_000
    assert files(directory, "temp") == []
    assert without_row(tier) == set()
    assert counters.totals()["errors"] == 0
    tier.close()


def test_many_inputs_push_the_oldest_variants_out_and_are_never_too_many_to_read(directory: Path, counters: Counters):
    store = Store([LocalTier(str(directory))], counters)
    made = [entry(bytes([number])) for number in range(3)]
    made = [one._replace(action=one.action._replace(inputs=bytes([n]) * 600_000)) for n, one in enumerate(made)]
    for one in made:
        store.put([key("a")], one)
        found = store.get(key("a"), lambda inputs, wanted=one.action.inputs: inputs == wanted)
        assert found is not None
        assert found.entry.aibin == one.aibin
    too_many = made[0]._replace(action=made[0].action._replace(inputs=bytes(2_000_000)))
    store.put([key("b")], too_many)
    assert store.get(key("b"), lambda _: True) is None
    assert store.get(key("a"), lambda inputs: inputs == made[2].action.inputs) is not None
