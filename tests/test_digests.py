"""Digests of contents: remembered across processes, and never a wrong one."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import xxhash

from ptocache import digests as module
from ptocache.digests import RACY_NS, Digests

#: Computes digests in a process of its own, and sees with an audit hook which files it opens.
PROGRAM = """\
import json, os, sys
opened = set()
def note(event, arguments):
    if event == "open":
        opened.add(str(arguments[0]))
from ptocache.digests import Digests
sys.addaudithook(note)
digests = Digests(sys.argv[1])
found = [digests.of(path).hex() for path in sys.argv[2:]]
digests.save()
print(json.dumps([found, [path in opened for path in sys.argv[2:]]]))
"""


def in_another_process(directory: Path, *paths: Path) -> list[list[object]]:
    """The digests of files, and of each whether it was opened for that."""
    command = [sys.executable, "-c", PROGRAM, str(directory), *map(str, paths)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found: list[list[object]] = json.loads(result.stdout)
    return found


def settled(path: Path, data: bytes) -> Path:
    """Write a file, and wait until it is older than a clock's granularity."""
    path.write_bytes(data)
    while time.time_ns() - path.stat().st_ctime_ns <= 2 * RACY_NS:
        time.sleep(0.005)
    return path


def many(directory: Path, count: int) -> list[Path]:
    """Files with different contents, all of them settled."""
    paths = [directory / f"tool {number}" for number in range(count)]
    for path in paths:
        path.write_bytes(path.name.encode())
    settled(directory / "last", b"")
    return paths


def right(path: Path) -> bytes:
    return xxhash.xxh3_128_digest(path.read_bytes())


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    directory = tmp_path / "digest cache"
    directory.mkdir()
    return directory


def test_a_digest_is_computed_once_and_then_remembered_by_all_processes(tmp_path: Path, cache: Path) -> None:
    tools = [settled(tmp_path / name, os.fsencode(name)) for name in ("one", "two words", "größe", "\udcff")]
    expected = [right(path).hex() for path in tools]
    assert in_another_process(cache, *tools) == [expected, [True] * 4]
    assert in_another_process(cache, *tools) == [expected, [False] * 4]
    settled(tools[0], b"another")
    assert in_another_process(cache, *tools) == [[right(tools[0]).hex(), *expected[1:]], [True, False, False, False]]


def test_a_path_with_a_line_break_is_right_and_harms_no_other(tmp_path: Path, cache: Path) -> None:
    odd, plain = settled(tmp_path / "a\nb", b"odd"), settled(tmp_path / "plain", b"plain")
    for opened in (True, False):
        assert in_another_process(cache, odd, plain) == [[right(odd).hex(), right(plain).hex()], [True, opened]]


@pytest.mark.parametrize(
    "change", ["content", "same size and times", "replaced", "link elsewhere", "moved to another name"]
)
def test_another_content_is_never_taken_for_the_remembered_one(tmp_path: Path, cache: Path, change: str) -> None:
    first = settled(tmp_path / "first", b"first")
    other = settled(tmp_path / "other", b"other")
    path = tmp_path / "tool"
    path.symlink_to(first)
    digests = Digests(str(cache))
    assert digests.of(str(path)) == right(first)
    digests.save()
    if change == "content":
        first.write_bytes(b"first, longer")
    elif change == "same size and times":
        status = first.stat()
        first.write_bytes(b"FIRST")
        os.utime(first, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "replaced":
        os.utime(other, ns=(first.stat().st_atime_ns, first.stat().st_mtime_ns))
        other.rename(first)
    elif change == "link elsewhere":
        path.unlink()
        path.symlink_to(other)
    else:
        path.unlink()
        other.rename(path)
    assert digests.of(str(path)) == Digests(str(cache)).of(str(path)) == right(path)


def test_a_file_that_changed_just_now_is_not_remembered(tmp_path: Path, cache: Path) -> None:
    """Its times may not show the next change; here they are set to say what they said."""
    path = tmp_path / "racy"
    digests = Digests(str(cache))
    path.write_bytes(b"one")
    future = time.time_ns() + 3600 * 10**9  # as a file server's clock may have it, ahead of ours
    os.utime(path, ns=(future, future))
    assert digests.of(str(path)) == right(path)
    digests.save()
    assert in_another_process(cache, path)[1] == [True]
    assert in_another_process(cache, path)[1] == [True]


def test_a_file_that_is_written_while_it_is_read_is_not_remembered(tmp_path: Path, cache: Path) -> None:
    """The reader is stopped in the middle, and its clock is ahead of the one that gives files their times."""
    path = settled(tmp_path / "large", b"a" * (3 << 20))
    stop, go = threading.Event(), threading.Event()

    hasher = xxhash.xxh3_128()

    class Stopping:
        def __init__(self) -> None:
            self.hasher = hasher
            self.digest = self.hasher.digest

        def update(self, chunk: bytes) -> None:
            self.hasher.update(chunk)
            stop.set()
            assert go.wait(30)

    found: list[bytes] = []
    digests = Digests(str(cache))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.xxhash, "xxh3_128", Stopping)
        patch.setattr(module, "time", SimpleNamespace(time_ns=lambda: time.time_ns() + 10**10))
        reader = threading.Thread(target=lambda: found.append(digests.of(str(path))))
        reader.start()
        assert stop.wait(30)
        with path.open("r+b") as file:
            file.write(b"b")
        go.set()
        reader.join(30)
    assert found
    assert digests.of(str(path)) == right(path)


def test_a_file_that_is_replaced_while_it_is_read_gives_the_digest_of_what_was_read(
    tmp_path: Path, cache: Path
) -> None:
    """A writer renames one of two whole files to the path, again and again."""
    path = tmp_path / "tool"
    contents = [bytes([letter]) * (1 << 20) for letter in b"ab"]
    allowed = {xxhash.xxh3_128_digest(content) for content in contents}
    path.write_bytes(contents[0])
    done = threading.Event()

    def replace() -> None:
        for number in range(200):
            (tmp_path / "new").write_bytes(contents[number % 2])
            (tmp_path / "new").rename(path)
        done.set()

    writer = threading.Thread(target=replace)
    writer.start()
    digests = Digests(str(cache))
    while not done.is_set():
        assert digests.of(str(path)) in allowed
    writer.join()
    digests.save()
    assert Digests(str(cache)).of(str(path)) == digests.of(str(path)) == right(path)


@pytest.mark.parametrize("what", ["directory", "pipe", "socket", "missing", "dangling link", "a link to itself"])
def test_what_is_no_file_is_an_error_at_once(tmp_path: Path, what: str) -> None:
    path = tmp_path / "x"
    if what == "directory":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "socket":
        import socket

        socket.socket(socket.AF_UNIX).bind(str(path))
    elif what == "dangling link":
        path.symlink_to(tmp_path / "nowhere")
    elif what == "a link to itself":
        path.symlink_to(path)
    with pytest.raises(OSError, match=str(path)):
        Digests().of(str(path))


def harm(path: Path, damage: str) -> None:
    data = path.read_bytes()
    path.unlink()
    if damage == "directory":
        path.mkdir()
    elif damage == "pipe":
        os.mkfifo(path)
    elif damage == "link":
        (path.parent / "elsewhere").write_bytes(data)
        path.symlink_to(path.parent / "elsewhere")
    elif damage == "huge":
        with path.open("wb") as file:
            file.truncate(1 << 36)
    elif damage == "garbage":
        path.write_bytes(random.Random(1).randbytes(50_000) + b"\n" * 5 + data)
    elif damage == "well made lines":
        bodies = (b"x", b"xx 1 2 3 4 5 /path", b"00 g 2 3 4 5 /path", b"00 1 2", b"\xff\xfe\xff 1 2 3 4 5 /p", b"")
        lines = (b"%s %s\n" % (xxhash.xxh3_64_hexdigest(body).encode(), body) for body in bodies)
        path.write_bytes(b"".join(lines))
    elif damage == "flipped":
        for position in range(0, len(data), 3):
            data = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        path.write_bytes(data)
    elif damage == "truncated":
        path.write_bytes(data[: len(data) // 2])
    else:
        path.write_bytes(b"")


DAMAGES = ["directory", "pipe", "link", "huge", "garbage", "flipped", "truncated", "empty"]


@pytest.mark.parametrize("damage", [*DAMAGES, "well made lines"])
def test_a_damaged_memory_is_no_error_and_gives_no_wrong_digest(tmp_path: Path, cache: Path, damage: str) -> None:
    path = settled(tmp_path / "tool", b"content")
    first = Digests(str(cache))
    first.of(str(path))
    first.save()
    harm(cache / "digests", damage)
    other = settled(tmp_path / "other", b"other content")
    for _ in range(2):
        digests = Digests(str(cache))
        assert [digests.of(str(tool)) for tool in (path, other)] == [right(path), right(other)]
        digests.save()


def test_a_memory_that_may_not_be_written_is_read_and_left_as_it_is(tmp_path: Path, cache: Path) -> None:
    one, two = settled(tmp_path / "one", b"one"), settled(tmp_path / "two", b"two")
    in_another_process(cache, one)
    before = (cache / "digests").read_bytes()
    digests = Digests(str(cache), readonly=True)
    assert [digests.of(str(path)) for path in (one, two)] == [right(one), right(two)]
    digests.save()
    assert (cache / "digests").read_bytes() == before
    assert in_another_process(cache, one)[1] == [False]


def test_without_a_directory_nothing_is_made(tmp_path: Path) -> None:
    path = settled(tmp_path / "tool", b"tool")
    digests = Digests(str(tmp_path / "none"))
    assert digests.of(str(path)) == right(path)
    digests.save()
    assert not (tmp_path / "none").exists()


def test_eight_processes_that_append_at_once_lose_nothing_and_mix_nothing(tmp_path: Path, cache: Path) -> None:
    tools = many(tmp_path, 24)
    in_another_process(cache, settled(tmp_path / "first", b"first"))  # so that the file is there to append to
    commands = [
        [sys.executable, "-c", PROGRAM, str(cache), *map(str, tools[number * 3 : number * 3 + 3])]
        for number in range(8)
    ]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for command in commands]
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert in_another_process(cache, *tools) == [[right(path).hex() for path in tools], [False] * 24]


def test_the_memory_does_not_grow_without_bound(tmp_path: Path, cache: Path) -> None:
    """Ten thousand things in one process and then in many: what is newest is kept."""
    digests = Digests(str(cache))
    for number in range(10_000):
        digests.remember("something", number.to_bytes(16, "little"), b"x" * 16)
        if number % 2500 == 2499:
            digests.save()
            assert (cache / "digests").stat().st_size <= module._FILE_LIMIT
    again = Digests(str(cache))
    assert again.fact("something", (9999).to_bytes(16, "little")) == b"x" * 16
    for number in range(250, 500):
        one = Digests(str(cache))
        one.remember(f"a name of many letters {'x' * 1000}", number.to_bytes(16, "little"), b"y")
        one.save()
    assert (cache / "digests").stat().st_size <= module._FILE_LIMIT


def test_what_is_not_lasting_is_known_to_its_process_alone(cache: Path) -> None:
    digests = Digests(str(cache))
    digests.remember("answer", bytes(16), b"no", lasting=False)
    digests.save()
    assert digests.fact("answer", bytes(16)) == b"no"
    assert Digests(str(cache)).fact("answer", bytes(16)) is None


def test_threads_share_digests(tmp_path: Path, cache: Path) -> None:
    tools = many(tmp_path, 20)
    digests = Digests(str(cache))
    wrong: list[Path] = []

    def look() -> None:
        for path in tools * 5:
            if digests.of(str(path)) != right(path):
                wrong.append(path)
            digests.save()

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
