"""Where everything is in a cache directory, and what it takes on disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

#: See https://bford.info/cachedir/: backup programs leave a directory with such a file out.
TAG = "CACHEDIR.TAG"

#: What a broken index is renamed to, for whoever wants to know what happened to it; there is one at most.
BROKEN = "cache.db.broken"

#: What a file takes on disk is a multiple of this on the usual file systems.
BLOCK = 4096

#: All that ptocache keeps in a cache directory.
OWN_NAMES = frozenset(
    {
        "actions",
        "outputs",
        "sources",
        "failures",
        "locks",
        "temp",
        "index",
        "index.lock",
        "counters",
        "uses",
        "digests",
        TAG,
    }
)


#: The names of the files in `temp` and in `locks`, as regular expressions.
TEMPORARY = "[0-9a-f]{16}"
LOCK = r"[0-9a-f]{32}\.lock"


class Layout:
    """The paths below a cache directory.

    Entries lie in three flat directories: today's file systems find a name among a million in one directory as
    fast as in 256 smaller ones, and three directories can be counted towards the size limit by asking three times.

    Args:
        root: the cache directory.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.actions = f"{root}/actions"
        self.outputs = f"{root}/outputs"
        self.sources = f"{root}/sources"
        self.failures = f"{root}/failures"
        self.locks = f"{root}/locks"
        self.temp = f"{root}/temp"
        self.index = f"{root}/index"
        self.tag = f"{root}/{TAG}"

    def action(self, name: str) -> str:
        """The file with the actions of the key with this name."""
        return f"{self.actions}/{name}"

    def source(self, name: str) -> str:
        """The file with the source of the key with this name."""
        return f"{self.sources}/{name}"

    def output(self, name: str) -> str:
        """The file with the output whose SHA-256, in hexadecimal, this is."""
        return f"{self.outputs}/{name}"

    def failure(self, name: str) -> str:
        """The file with the remembered failure of the key with this name, in one of 16 directories."""
        return f"{self.failures}/{name[0]}/{name[1:]}"

    def lock(self, name: str) -> str:
        """The lock file of the key with this name."""
        return f"{self.locks}/{name}.lock"

    def overhead(self) -> int:
        """The bytes on disk of all that belongs to no entry: the database, counts, digests, the directories."""
        return sum(_size_of(entry) for folder in (self.root, self.index) for entry in list_directory(folder))


def blocks(size: int) -> int:
    """The bytes on disk of a file with so many bytes in it."""
    return -(-size // BLOCK) * BLOCK


def list_directory(folder: str) -> Iterator[os.DirEntry[str]]:
    """What is in a directory; nothing where there is none, or where it cannot be read."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        yield from entries


def disk_usage(top: str) -> int:
    """The bytes on disk of all that is below a directory."""
    return sum(
        _size_of(entry) + (disk_usage(entry.path) if entry.is_dir(follow_symlinks=False) else 0)
        for entry in list_directory(top)
    )


def is_digest(name: str, length: int) -> bool:
    """Whether a name is a hexadecimal number of so many digits."""
    return len(name) == length and not name.strip("0123456789abcdef")


def _size_of(entry: os.DirEntry[str]) -> int:
    with contextlib.suppress(OSError):
        return entry.stat(follow_symlinks=False).st_blocks * 512
    return 0
