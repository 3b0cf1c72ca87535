"""Objects as files below a directory that any number of hosts may have mounted.

    v1/9c/9c3f…     an object
    v1/temp/…       what is being written, by host, process and a random number

What is sound on network file systems is little: a file is written under a name of its own and then linked to its
name, which fails where there is one, on every host. Nothing is locked, nothing is renamed over a file that somebody
may be reading, no directory is removed, no clock is compared with another host's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from ptocache.store.engines import VERSION, Stored
from ptocache.store.files import DamagedError, file_mode, make_directory, make_root, read_file, remove
from ptocache.store.layout import is_digest, list_directory

T = TypeVar("T")

#: What a network file system says of a file that another host has replaced or removed: to ask again helps.
_AGAIN = frozenset({errno.ESTALE, errno.EBUSY, errno.EINTR, errno.EAGAIN})
_ATTEMPTS = 4
_PAUSE = 0.02

#: How often an object is written while its directories are still being made, by others too.
_MAKING = 16

#: What a file system says that has no links.
_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EMLINK, errno.EACCES, errno.EXDEV})

#: How old a temporary file must be to belong to nobody, in seconds: nobody writes an object for a day.
_ABANDONED_SECONDS = 86400

#: How often at most a hit marks an object as used, in seconds, for `ptocache prune --shared`.
_TOUCH_SECONDS = 86400


def path_of(url: str) -> str:
    """The directory that a `file://` URL names."""
    from urllib.parse import unquote, urlsplit

    return os.path.abspath(unquote(urlsplit(url).path, errors="surrogateescape"))


class FileEngine:
    """Objects below a directory (a `ptocache.store.engines.Engine`).

    Args:
        root: the directory; it is made with the first object.
        umask: the permissions that it is not to have. `None`: it is private where it is made, and where it is there
            already, what is made in it has its permissions, without everybody's to write.
        readonly: do not mark objects as used.
    """

    def __init__(self, root: str, umask: int | None = None, readonly: bool = False) -> None:
        self.root = root
        self._readonly = readonly
        self._umask = umask
        self._denied = 0o002 if umask is None else umask
        self._top = f"{root}/{VERSION}"
        self._temp = f"{root}/{VERSION}/temp"

    def get(self, name: str, limit: int) -> bytes | None:
        """What is stored under a name."""
        path = self._path(name)
        try:
            data, status = _again(lambda: read_file(path, limit))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except DamagedError:
            return b""  # something is there, and no object
        self._mark_used(path, status)
        return data

    def put(self, name: str, data: bytes, replace: bool) -> bool:
        """Store something so that nobody sees a part of it."""
        path = self._path(name)
        for attempt in range(_MAKING):
            try:
                return _again(lambda: self._put(path, data, replace))
            except (FileNotFoundError, NotADirectoryError):
                if attempt == _MAKING - 1:
                    raise
            if attempt:  # others are making the same directories
                time.sleep(_PAUSE)
            make_root(self.root, self._umask)
            make_directory(self.root, self._temp, self._denied)
            make_directory(self.root, os.path.dirname(path), self._denied)
        return False

    def delete(self, name: str) -> None:
        """Remove what is stored under a name."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            _again(lambda: _remove(self._path(name)))

    def list(self) -> Iterator[Stored]:
        """All that is stored; what goes away meanwhile is left out."""
        now = self.clock() or time.time()
        for folder in _listed(self._top):
            if is_digest(folder.name, 2):
                for file in _listed(folder.path):
                    if is_digest(file.name, 32):
                        with contextlib.suppress(OSError):
                            status = _again(lambda path=file.path: os.lstat(path))  # type: ignore[misc]
                            yield Stored(file.name, status.st_size, now - status.st_mtime)

    def clock(self) -> float | None:
        """The file system's time of day: that of a file that is made now."""
        if self._readonly:
            return None
        path = self._temporary()
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            return os.stat(path).st_mtime
        except OSError:  # not there yet, or not to be written to
            return None
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def sweep(self) -> int:
        """Remove what dead writers left; the number of files."""
        now = self.clock()
        removed = 0
        for file in list_directory(self._temp) if now else ():
            with contextlib.suppress(OSError):
                if now and now - file.stat(follow_symlinks=False).st_mtime > _ABANDONED_SECONDS:
                    os.unlink(file.path)
                    removed += 1
        return removed

    def _path(self, name: str) -> str:
        return f"{self._top}/{name[:2]}/{name}"

    def _temporary(self) -> str:
        return f"{self._temp}/{os.uname().nodename}-{os.getpid()}-{os.urandom(8).hex()}"

    def _put(self, path: str, data: bytes, replace: bool) -> bool:
        if not replace and os.path.lexists(path):
            return False
        temporary = self._temporary()
        try:
            self._write(temporary, data)
            if replace:
                with contextlib.suppress(FileNotFoundError):
                    _remove(path)
            return _link(temporary, path)
        finally:
            # A network file system may say that it is busy, or that it is gone although it just was there.
            with contextlib.suppress(OSError):
                os.unlink(temporary)

    def _write(self, temporary: str, data: bytes) -> None:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            mode = file_mode(self.root, self._denied)
            if mode != 0o600:
                os.fchmod(fd, mode)
            view = memoryview(data)
            while view:
                written = os.write(fd, view)
                if not written:
                    raise OSError(errno.EIO, "nothing was written", temporary)
                view = view[written:]
        finally:
            os.close(fd)  # where a network file system says that it is full

    def _mark_used(self, path: str, status: os.stat_result) -> None:
        if not self._readonly and abs(time.time() - status.st_mtime) > _TOUCH_SECONDS:
            with contextlib.suppress(OSError):
                os.utime(path)


def _listed(folder: str) -> list[os.DirEntry[str]]:
    """What is in a directory; nothing where there is none. One that cannot be read is not an empty one."""

    def listed() -> list[os.DirEntry[str]]:
        with os.scandir(folder) as entries:
            return list(entries)

    try:
        return _again(listed)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except (IsADirectoryError, PermissionError):
        if not os.path.isdir(path) or os.path.islink(path):
            raise
        remove(path)


def _link(temporary: str, path: str) -> bool:
    """Give a file its name; `False` where there is one of that name."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            return False
        os.rename(temporary, path)  # two at once: both are whole, and one stays
    return True


def _again(action: Callable[[], T]) -> T:
    """Do something; again a few times where a network file system says that it has changed meanwhile."""
    for attempt in range(_ATTEMPTS):
        try:
            return action()
        except OSError as error:
            if error.errno not in _AGAIN or attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_PAUSE)
    raise AssertionError("not reached")
