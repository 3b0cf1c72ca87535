"""Files of a directory that others may have damaged: read carefully, published atomically, removed quietly."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Iterator
from typing import BinaryIO

#: How old what is in `temp` must be to be removed where locks do not tell whether its writer lives, in seconds.
STALE_SECONDS = 3600


#: How often a file is written before the directory counts as one in which that cannot be done.
_ATTEMPTS = 5


#: How long to wait for somebody else who is making the same directories, in seconds.
_PAUSE = 0.05


class DamagedError(Exception):
    """What is at a path is not a regular file of a sensible size."""


def read_file(path: str, limit: int, flags: int = 0) -> tuple[bytes, os.stat_result]:
    """Read a whole regular file.

    Args:
        path: the file; a link is not followed, and a pipe is not waited for.
        limit: the size in bytes above which the file cannot be what is looked for.
        flags: more flags for `open`, such as `os.O_NOATIME`.

    Returns:
        Its bytes and its status.

    Raises:
        DamagedError: there is something else, or a larger file.
        OSError: it cannot be read; `FileNotFoundError` where there is nothing.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    except OSError as error:
        if os.path.islink(path):
            raise DamagedError(f"{path}: a link, where a file was expected") from error
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            raise DamagedError(f"{path}: not a file of at most {limit} bytes")
        data = os.read(fd, status.st_size + 1)  # one more than there should be: a file that grows is noticed
        while len(data) < status.st_size:  # read() gives at most 2 GiB at a time, and less on a signal
            chunk = os.read(fd, status.st_size - len(data))
            if not chunk:
                break
            data += chunk
        return data, status
    finally:
        os.close(fd)


def publish(root: str, path: str, data: bytes) -> None:
    """Make a file appear whole or not at all, in place of whatever is there.

    It is written below `temp`, under a lock that tells `sweep` that its writer lives, and then renamed. It gets
    the permissions that the root has: what is in a directory that is shared is shared.

    No `fsync`: everything that is stored is checked when it is read, so a file that a power cut emptied is a
    miss, and flushing would cost a store several times its own time, without a bound on a busy disk.

    Args:
        root: a directory; what is missing of the way from it to the file is made, and what stands in the way
            is removed.
        path: the file, below `root`.
        data: its bytes.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    temporary = f"{root}/temp/{os.urandom(8).hex()}"
    for attempt in range(_ATTEMPTS):
        try:
            _write(root, temporary, data, path)
            return
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            # A directory is missing, or something stands in its way or the file's; or `sweep` came before the lock.
            if attempt == _ATTEMPTS - 1:
                raise
        make_directory(root, os.path.dirname(temporary))
        make_directory(root, os.path.dirname(path))
        if os.path.isdir(path):
            remove(path)


def _write(root: str, temporary: str, data: bytes, path: str) -> None:
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # without locks it is the age that tells
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mode = file_mode(root)
        if mode != 0o600:
            os.fchmod(fd, mode)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise
    finally:
        # The lock of a child that was forked meanwhile too: it has the same one.
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


@contextlib.contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """A file of the user's to write, which appears whole in place of what is there, or not at all.

    Args:
        path: where it is to be; a link there would be replaced.

    Raises:
        OSError: it cannot be written.
    """
    temporary = f"{path}.{os.urandom(8).hex()}.tmp"
    try:
        with open(temporary, "xb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def open_to_append(root: str, path: str) -> int:
    """Open a file of a cache directory to add to it, and make it if it is not there.

    Never through a link, never waiting for a pipe's other end, never handed to a child.

    Returns:
        The file descriptor.

    Raises:
        OSError: it cannot be opened; there may be no such directory.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        mode = file_mode(root)
        fd = os.open(path, flags | os.O_CREAT, 0o600)
        if mode != 0o600:
            with contextlib.suppress(PermissionError):  # somebody else was first
                os.fchmod(fd, mode)
        return fd


def sweep(folder: str, own: str, age: float = 0) -> int:
    """Remove what dead processes left in a directory of locked files; the kernel took their locks away.

    Args:
        folder: the directory of temporary files, or that of lock files.
        own: the regular expression of the names that ptocache gives there; others are left alone.
        age: how old they must be, in seconds: one that was just made is not locked yet.

    Returns:
        How many files were removed.
    """
    import re  # only a store sweeps

    swept = 0
    for name in filter(re.compile(own).fullmatch, _names(folder)):
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):
            if _is_abandoned(path, age):
                swept += 1
    return swept


def _is_abandoned(path: str, age: float) -> bool:
    """Remove a file that nobody has locked, while it is locked here; say whether that was so."""
    status = os.lstat(path)
    if time.time() - status.st_mtime < age:
        return False
    if not stat.S_ISREG(status.st_mode):
        remove(path)
        return not os.path.lexists(path)
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            if time.time() - status.st_mtime < STALE_SECONDS:
                return False
        if not os.path.samestat(os.fstat(fd), os.stat(path)):
            return False
        os.unlink(path)
        return True
    finally:
        os.close(fd)


def file_mode(root: str, umask: int = 0) -> int:
    """The permissions of a file in a cache directory: those of the directory, and reading and writing for its owner.

    Args:
        root: the cache directory.
        umask: the permissions that it is not to have, whatever the directory has.
    """
    return os.stat(root).st_mode & 0o666 & ~umask | 0o600


def make_root(path: str, umask: int | None = None) -> None:
    """Make a cache directory, and what is missing of the way to it.

    Args:
        path: the directory.
        umask: the permissions that it is not to have, as `PTOCACHE_UMASK` gives them; `None` for a private one.

    Raises:
        OSError: it cannot be made.
    """
    for _ in range(_ATTEMPTS if umask is not None else 0):
        try:
            _make_root(path, umask)
            return
        except (FileNotFoundError, PermissionError):  # others may be making it too, or what leads to it
            time.sleep(_PAUSE)
    _make_root(path, umask)


def _make_root(path: str, umask: int | None) -> None:
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        if umask is None:
            _mkdir(directory, 0o700)
            continue
        mode = 0o777 & ~umask
        if directory != missing[0]:  # it only leads there: others come through it, and write nothing in it
            mode &= ~0o022
        elif mode & stat.S_IWGRP:  # what is made in it belongs to the group that it is shared with
            mode |= stat.S_ISGID
        _mkdir(directory, mode)


def make_directory(root: str, path: str, umask: int = 0) -> None:
    """Make a directory at or below `root`, with the root's permissions, removing what is not one on the way to it.

    Args:
        root: the cache directory.
        path: the directory to make.
        umask: the permissions that it is not to have, whatever the root has.
    """
    if path == root:
        os.makedirs(path, mode=0o700, exist_ok=True)
        return
    make_directory(root, os.path.dirname(path), umask)
    if os.path.lexists(path) and not os.path.isdir(path):  # a file, or a link to nothing
        os.unlink(path)
    _mkdir(path, os.stat(root).st_mode & 0o2777 & ~umask | 0o700)


def _mkdir(path: str, mode: int) -> None:
    """Make a directory, if it is not there; nobody sees it without its permissions."""
    if mode == 0o700:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, mode)
        return
    if os.path.isdir(path):
        return
    unnamed = f"{path}.{os.urandom(8).hex()}"
    os.mkdir(unnamed, 0o700)
    try:
        os.chmod(unnamed, mode | os.stat(unnamed).st_mode & stat.S_ISGID)
        os.rename(unnamed, path)
    except OSError:
        os.rmdir(unnamed)
        if not os.path.isdir(path):  # or somebody else was first
            raise


def remove(path: str) -> None:
    """Remove a file, or a directory with all in it; nothing happens where that cannot be done."""
    try:
        os.unlink(path)
    except IsADirectoryError:
        shutil.rmtree(path, ignore_errors=True)
    except OSError:
        pass


def remove_foreign(path: str) -> None:
    """Remove what is at a path if it is something else than a regular file."""
    with contextlib.suppress(OSError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            remove(path)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
