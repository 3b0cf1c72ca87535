"""Files of lines that many processes add to and that a reader adds up, exactly.

A process appends a line in a single write, under a lock that any number of them share. Whoever sees that a file has
grown replaces it with its sum, under the same lock held alone, unless another process is just doing that.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable

from ptocache.store.files import DamagedError, open_to_append, publish, read_file, remove_foreign

#: A file that has grown by so much, and to twice its sum, is replaced with its sum: about a thousand lines, which take
#: a millisecond to add up.
FOLD_BYTES = 64 << 10
_READ_LIMIT = 64 << 20

#: A line waits at most this often, for a hundredth of a second, while the file is being replaced.
_ATTEMPTS = 100

#: How a file that was replaced begins: with the size of the sum. It looks like a sum of that name, and is none.
_FOLDED = b"folded="

# Never through a link, never waiting for a pipe's other end, never handed to a child.
_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class SumFile:
    """One such file in a cache directory.

    Args:
        directory: the cache directory.
        name: the file's name there.
        add_up: makes the lines of their sum out of all that the file has.
        first: makes what a new file begins with.
    """

    def __init__(
        self, directory: str, name: str, add_up: Callable[[bytes], bytes], first: Callable[[], bytes] = bytes
    ) -> None:
        self._directory = directory
        self._path = os.path.join(directory, name) if directory else ""
        self._add_up = add_up
        self._first = first

    def read(self) -> bytes:
        """All lines; nothing where there are none, or what is there is no such file."""
        try:
            return read_file(self._path, _READ_LIMIT)[0]
        except (OSError, DamagedError):  # one that is too large for sums begins anew when it is next replaced
            return b""

    def append(self, words: str) -> bool:
        """Add a line, and replace the file with its sum where it has grown; whether the line is there.

        Args:
            words: what the line says, without its end.
        """
        # With a line break before it too: a line that a full disk cut short must not spoil the next.
        line = f"\n{words}\n".encode()
        for _ in range(_ATTEMPTS):
            remove_foreign(self._path)
            try:
                fd = open_to_append(self._directory, self._path)
            except OSError:
                return False
            try:
                if self._lock(fd, fcntl.LOCK_SH):
                    if not os.fstat(fd).st_size:
                        line = self._first() + line
                    written = os.write(fd, line) == len(line)
                    size = os.fstat(fd).st_size
                    break
            except OSError:
                return False
            finally:
                _unlock(fd)
            time.sleep(0.01)
        else:
            return False
        if size > FOLD_BYTES:
            self._fold(size)
        return written

    def replace(self, make: Callable[[bytes], bytes]) -> bool:
        """Replace the file with something made of it, unless another process is just doing that; whether it was.

        Args:
            make: makes the new lines out of the old ones.

        Raises:
            OSError: it cannot be replaced.
        """
        fd = os.open(self._path, os.O_RDONLY | _SAFE)
        try:
            if not self._lock(fd, fcntl.LOCK_EX):
                return False
            publish(self._directory, self._path, make(self.read()))
            return True
        finally:
            _unlock(fd)

    def zero(self) -> bool:
        """Begin anew; whether that could be done. A file that is not there is nought already.

        Raises:
            OSError: it cannot be replaced.
        """
        if not os.path.lexists(self._path):
            return True
        for _ in range(_ATTEMPTS):
            if self.replace(lambda _: self._first()):
                return True
            time.sleep(0.01)
        return False

    def _fold(self, size: int) -> None:
        with contextlib.suppress(OSError):
            if size > 2 * self._folded() + FOLD_BYTES:
                self.replace(self._fold_lines)

    def _fold_lines(self, data: bytes) -> bytes:
        lines = self._add_up(data)
        return _FOLDED + str(len(lines)).encode() + b"\n" + lines

    def _folded(self) -> int:
        """The size of the sum that the file began with."""
        with open(os.open(self._path, os.O_RDONLY | _SAFE), "rb", buffering=0) as file:
            head = (file.read(32) or b"").partition(b"\n")[0]
        number = head.removeprefix(_FOLDED)
        return int(number) if head.startswith(_FOLDED) and number.isdigit() else 0

    def _lock(self, fd: int, kind: int) -> bool:
        """Lock the open file if that can be done at once and it is still the one at the path."""
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return os.path.samestat(os.fstat(fd), os.stat(self._path))


def _unlock(fd: int) -> None:
    """Close the file, and its lock: a child that was forked meanwhile has it open too, and would keep the lock."""
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)
    with contextlib.suppress(OSError):  # what could not be written is counted again
        os.close(fd)
