"""Content digests of files, computed once and remembered across processes.

A digest is remembered by the file's path, device, inode, size and both times. A file that changed within the
clock's granularity of being read might change again without its times showing it, so such a digest is not
remembered; the file is simply read again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
from typing import BinaryIO

import xxhash

from ptocache.forks import watch_forks
from ptocache.store.files import DamagedError, open_to_append, publish, read_file

#: A file system's clock may tick as seldom as every 10 ms (a kernel's jiffy at 100 Hz); twice that is safe.
RACY_NS = 20_000_000

#: A larger memory file is begun anew: about a thousand digests, many times what one toolchain needs.
_FILE_LIMIT = 256 << 10

_CHUNK = 1 << 20

Identity = tuple[str, int, int, int, int, int]


class Digests:
    """The digests that are known, in memory and in a file of the cache directory.

    Args:
        directory: the cache directory, or an empty text to remember within this process only.
        readonly: write nothing there.
    """

    def __init__(self, directory: str = "", readonly: bool = False) -> None:
        self._directory = directory
        self._path = os.path.join(directory, "digests") if directory else ""
        self._readonly = readonly
        self._known: dict[Identity, bytes] | None = None
        self._new: list[bytes] = []
        self._lock = threading.Lock()
        watch_forks(self)

    def of(self, path: str) -> bytes:
        """The XXH3-128 digest of a file's content, links resolved; raises `OSError` where it cannot be read."""
        identity = _identity(path, os.stat(path))
        known = self._load()
        digest = known.get(identity)
        if digest is not None:
            return digest
        started = time.time_ns()
        hasher = xxhash.xxh3_128()
        with open_regular(path) as file:
            # The file that is read, which a rename may have put at the path since the `stat`.
            identity = _identity(path, os.fstat(file.fileno()))
            while chunk := file.read(_CHUNK):
                hasher.update(chunk)
            unchanged = identity == _identity(path, os.fstat(file.fileno()))
        digest = hasher.digest()
        if unchanged and started - max(identity[4:]) > RACY_NS:
            with self._lock:
                known[identity] = digest
                self._new.append(_line(identity, digest))
        return digest

    def fact(self, name: str, identity: bytes) -> bytes | None:
        """What `remember` was told about something with this name and identity: a digest, or `None`."""
        return self._load().get(_fact(name, identity))

    def remember(self, name: str, identity: bytes, digest: bytes, *, lasting: bool = True) -> None:
        """Remember a digest that was costly to make, of something that has an identity of 16 bytes.

        Where it is not `lasting`, the next process makes it again.
        """
        with self._lock:
            self._load()[_fact(name, identity)] = digest
            if lasting:
                self._new.append(_line(_fact(name, identity), digest))

    def save(self) -> None:
        """Add what is new to the file. Where that cannot be done, the next process computes it again."""
        if not self._new or self._readonly or not self._path or not os.path.isdir(self._directory):
            return
        with self._lock:
            new, self._new = _end_of(self._new), []
        with contextlib.suppress(OSError):
            size = os.stat(self._path, follow_symlinks=False).st_size if os.path.lexists(self._path) else _FILE_LIMIT
            if size + len(new) > _FILE_LIMIT:
                publish(self._directory, self._path, new)
                return
            fd = open_to_append(self._directory, self._path)
            try:
                os.write(fd, new)
            finally:
                os.close(fd)

    def after_fork(self) -> None:
        """In a forked child: a thread that is not there may have held the lock."""
        self._lock = threading.Lock()

    def _load(self) -> dict[Identity, bytes]:
        if self._known is None:
            known: dict[Identity, bytes] = {}
            if self._path:
                with contextlib.suppress(OSError, DamagedError):
                    data, _ = read_file(self._path, 2 * _FILE_LIMIT)
                    for line in data.split(b"\n"):
                        _read_line(line, known)
            self._known = known
        return self._known


def open_regular(path: str) -> BinaryIO:
    """Open a regular file for reading, links resolved; a pipe is not waited for, and a device not touched."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(code, "a directory" if code == errno.EISDIR else "not a regular file", path)
    # Not to be kept waiting by a pipe that takes the file's place in this moment either.
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def _identity(path: str, status: os.stat_result) -> Identity:
    return (path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _fact(name: str, identity: bytes) -> Identity:
    first, second = int.from_bytes(identity[:8], "little"), int.from_bytes(identity[8:16], "little")
    return (f"<{name}>", first, second, 0, 0, 0)


def _end_of(lines: list[bytes]) -> bytes:
    """The last lines, as many as fit into the file."""
    size = 0
    for start in range(len(lines), 0, -1):
        size += len(lines[start - 1])
        if size > _FILE_LIMIT:
            return b"".join(lines[start:])
    return b"".join(lines)


def _line(identity: Identity, digest: bytes) -> bytes:
    path, *numbers = identity
    words = [digest.hex(), *(f"{number:x}" for number in numbers), path]
    body = " ".join(words).encode("utf-8", "surrogateescape")
    # A path with a line break in it is remembered in this process only.
    return b"" if b"\n" in body else b"%s %s\n" % (xxhash.xxh3_64_hexdigest(body).encode(), body)


def _read_line(line: bytes, known: dict[Identity, bytes]) -> None:
    check, _, body = line.partition(b" ")
    if not body or xxhash.xxh3_64_hexdigest(body).encode() != check:
        return
    with contextlib.suppress(ValueError):  # well made, and not by us
        digest, device, inode, size, mtime, ctime, path = body.decode("utf-8", "surrogateescape").split(" ", 6)
        identity = (path, int(device, 16), int(inode, 16), int(size, 16), int(mtime, 16), int(ctime, 16))
        known[identity] = bytes.fromhex(digest)
