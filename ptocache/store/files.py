"""Files of a directory that others may have damaged: read carefully, published atomically, removed quietly."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import threading


class DamagedError(Exception):
    """What is at a path is not a regular file of a sensible size."""


def read_file(path: str, limit: int) -> tuple[bytes, os.stat_result]:
    """Read a whole regular file.

    Args:
        path: the file; a link is not followed, and a pipe is not waited for.
        limit: the size in bytes above which the file cannot be what is looked for.

    Returns:
        Its bytes and its status.

    Raises:
        DamagedError: there is something else, or a larger file.
        OSError: it cannot be read; `FileNotFoundError` where there is nothing.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
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

    No `fsync`: everything that is stored is checked when it is read, so a file that a power cut emptied is a
    miss, and flushing would cost a store several times its own time.

    Args:
        root: a directory; what is missing of the way from it to the file is made, and what stands in the way
            is removed.
        path: the file, below `root`.
        data: its bytes.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    temporary = f"{path}.{os.getpid()}-{threading.get_ident()}.tmp"
    try:
        fd = _create(temporary)
    except (FileNotFoundError, NotADirectoryError):
        make_directory(root, os.path.dirname(path))
        fd = _create(temporary)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
        try:
            os.replace(temporary, path)
        except IsADirectoryError:
            remove(path)
            os.replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise


def make_root(path: str) -> None:
    """Make a cache directory, private to this user, and the way to it."""
    if not os.path.isdir(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)


def make_directory(root: str, path: str) -> None:
    """Make a directory at or below `root`, private to this user, removing what is not one on the way to it."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except (FileExistsError, FileNotFoundError, NotADirectoryError):  # a file or, not found, a link to nothing
        if path == root:
            raise
        make_directory(root, os.path.dirname(path))
        if os.path.lexists(path) and not os.path.isdir(path):
            os.unlink(path)
        os.makedirs(path, mode=0o700, exist_ok=True)


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


def touch(path: str) -> None:
    """Set a file's times to now, if it can be done."""
    with contextlib.suppress(OSError):
        os.utime(path)


def _create(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
