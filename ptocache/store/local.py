"""The local tier: a directory on this host that all its processes share.

    actions/3f/9c…        what a compilation made: small files named by their key
    outputs/a0/71…        device binaries, named by their SHA-256
    index/                sizes and ages, for eviction and counts (diskcache)

A hit reads two files and checks them; no database is involved. Writing goes the other way round: first the
output, then the actions that point at it, each published whole. When an output was last used is its file's
modification time, kept coarse, so that a hit seldom writes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ptocache.errors import NotACacheError
from ptocache.log import get_logger
from ptocache.request import Key
from ptocache.store.entry import Accept, Action, Entry, accept_all, add_variant, decode_actions, encode_actions
from ptocache.store.files import DamagedError, make_root, publish, read_file, remove, touch

if TYPE_CHECKING:
    from ptocache.store.index import Index, Row

#: How often at most a hit marks an output as used, in seconds.
TOUCH_SECONDS = 3600

#: How many outputs one store may evict: a store must not pause, and stores add one at a time.
EVICTION_STEP = 16

#: An action is a few hundred bytes; the largest device binaries are some MiB. What is larger is not ours.
_ACTION_LIMIT = 1 << 20
_OUTPUT_LIMIT = 1 << 30
_SOURCE_LIMIT = 16 << 20

#: See https://bford.info/cachedir/: backup programs leave a directory with such a file out.
_TAG = "CACHEDIR.TAG"
_TAG_TEXT = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n# This directory is a cache of ptocache. It may be removed.\n"
)

#: All that ptocache keeps in a cache directory.
_OWN_NAMES = frozenset(
    {"actions", "outputs", "index", "index.lock", "locks", "counters", "digests", "failures", "sources", _TAG}
)


class LocalTier:
    """Entries in a directory.

    Args:
        directory: the cache directory; made, private to this user, with the first store.
        size_limit: how many bytes it may hold; 0 for no limit.
        readonly: store nothing and remove nothing.
    """

    name = "local"

    def __init__(self, directory: str, size_limit: int = 0, readonly: bool = False) -> None:
        self.directory = directory
        self._size_limit = size_limit
        self._readonly = readonly
        self._actions = os.path.join(directory, "actions")
        self._outputs = os.path.join(directory, "outputs")
        self._sources = os.path.join(directory, "sources")
        self._lazy_index: Index | None = None

    def get(self, key: Key, accept: Accept = accept_all) -> Entry | None:
        """The first entry under a key whose inputs are accepted, checked; what is damaged is removed."""
        for action in self.actions(key.name):
            if action.check == key.check and accept(action.inputs):
                return self._read_output(action, self._action_path(key.name))
        return None

    def actions(self, name: str) -> list[Action]:
        """The actions of the key with this name, the one stored last first; a damaged file is removed."""
        path = self._action_path(name)
        try:
            data, _ = read_file(path, _ACTION_LIMIT)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except DamagedError as error:
            self._discard(str(error), path)
            return []
        actions = decode_actions(data)
        if actions is None:
            self._discard(f"{path}: the actions do not match their own digest", path)
        return actions or []

    def put(self, keys: Sequence[Key], entry: Entry) -> None:
        """Keep an entry under all these keys, and make room for it."""
        if self._readonly:
            return
        from ptocache.store.index import Row  # only a store needs the database

        row = Row.of(len(entry.aibin), time.time(), tuple(key.name for key in keys))
        if self._size_limit and row.size > self._size_limit:
            get_logger(__name__).warning(
                "a device binary of %d bytes is larger than the whole cache may be (%d bytes): it is not stored. "
                "Raise PTOCACHE_SIZE_LIMIT to store it.",
                len(entry.aibin),
                self._size_limit,
            )
            return
        self._prepare()
        output = entry.action.sha256.hex()
        if not self._holds(output, entry):
            publish(self.directory, self._output_path(output), entry.aibin)
        for key in keys:
            stored: list[Action] = []
            with contextlib.suppress(OSError):  # what cannot be read is replaced
                stored = self.actions(key.name)
            actions = add_variant(stored, entry.action._replace(check=key.check))
            while len(data := encode_actions(actions)) > _ACTION_LIMIT and len(actions) > 1:
                actions.pop()
            if len(data) <= _ACTION_LIMIT:
                publish(self.directory, self._action_path(key.name), data)
        self._index.add(output, row)
        self._evict()

    def all_actions(self) -> Iterator[tuple[str, Action]]:
        """All stored actions, each with the name of its key, in no order."""
        for name, _ in _files(self._actions, 32):
            with contextlib.suppress(OSError):
                for action in self.actions(name):
                    yield name, action

    def keep_source(self, key: Key, text: str) -> None:
        """Keep the source of an action beside it, compressed, for explaining what changed since."""
        if not self._readonly:
            import zlib

            path = self._source_path(key.name)
            publish(self.directory, path, zlib.compress(text.encode("utf-8", "surrogateescape")))

    def source(self, name: str) -> str | None:
        """The source that was kept for the key with this name."""
        import zlib

        try:
            data, _ = read_file(self._source_path(name), _ACTION_LIMIT)
            unpacked = zlib.decompressobj().decompress(data, _SOURCE_LIMIT)
        except (OSError, DamagedError, zlib.error):
            return None
        return unpacked.decode("utf-8", "replace")

    def usage(self) -> tuple[int, int]:
        """How many outputs are stored, and how many bytes all of it takes."""
        if not os.path.isdir(self.directory):
            return 0, 0
        try:
            if not self._readonly and self._is_tagged() and os.access(self.directory, os.W_OK):
                return self._index.count(), self._index.bytes()
        except Exception as error:  # noqa: BLE001 - the files themselves can still be counted
            get_logger(__name__).debug("the index cannot be read: %s", error)
        sizes = [row.size for _, row in self._scan()]
        return len(sizes), sum(sizes)

    def clear(self) -> tuple[int, int]:
        """Remove all entries.

        Returns:
            How many outputs there were, and how many bytes they and their actions took.

        Raises:
            NotACacheError: the directory is not one of ptocache's.
            OSError: something cannot be removed.
        """
        if not os.path.isdir(self.directory):
            return 0, 0
        if not self.is_cache():
            raise NotACacheError(
                f"{self.directory} is not a cache of ptocache (it has no {_TAG} of one): nothing was removed. "
                "Check PTOCACHE_DIR."
            )
        entries, used = self.usage()
        for top in (self._actions, self._outputs, self._sources, os.path.join(self.directory, "failures")):
            remove(top)
            if os.path.lexists(top):
                raise OSError(None, "cannot be removed", top)
        try:
            self._index.clear()
        except Exception as error:  # noqa: BLE001 - an index that cannot be emptied is replaced
            get_logger(__name__).debug("the index cannot be emptied: %s", error)
            remove(os.path.join(self.directory, "index"))
            self._lazy_index = None
        return entries, used

    def is_cache(self) -> bool:
        """Whether the directory is one that ptocache made, which its tag tells, else that nothing foreign is in it."""
        return self._is_tagged() or (
            set(os.listdir(self.directory)) <= _OWN_NAMES
            and all(len(name) == 2 for top in (self._actions, self._outputs) for name in _names(top))
            and all(name.startswith("cache.db") for name in _names(os.path.join(self.directory, "index")))
        )

    def close(self) -> None:
        """Close the index, if it was opened."""
        if self._lazy_index is not None:
            self._lazy_index.close()

    def _read_output(self, action: Action, action_path: str) -> Entry | None:
        path = self._output_path(action.sha256.hex())
        try:
            aibin, status = read_file(path, min(action.size, _OUTPUT_LIMIT))
        except (FileNotFoundError, NotADirectoryError):
            self._discard(f"{action_path}: its output is gone", action_path)
            return None
        except DamagedError as error:
            self._discard(str(error), action_path, path)
            return None
        if not action.made(aibin):
            self._discard(f"{path}: the output does not match the digest in its action", action_path, path)
            return None
        if not self._readonly and time.time() - status.st_mtime > TOUCH_SECONDS:
            touch(path)
        return Entry(action, aibin)

    def _discard(self, reason: str, *paths: str) -> None:
        get_logger(__name__).info("removed from the cache: %s", reason)
        if not self._readonly:
            for path in paths:
                remove(path)

    def _holds(self, output: str, entry: Entry) -> bool:
        with contextlib.suppress(OSError, DamagedError):
            data, _ = read_file(self._output_path(output), len(entry.aibin))
            return data == entry.aibin
        return False

    def _evict(self) -> None:
        """Remove what was used longest ago until the limit holds, or a step is done.

        The order is that of the rows. One whose output was used since it was put there goes to the end once
        more (a "second chance"), so that no hit has to write to the database.
        """
        from ptocache.store.index import Row

        for _ in range(EVICTION_STEP):
            if not self._size_limit or self._index.bytes() <= self._size_limit:
                return
            found = self._index.oldest()
            if found is None:
                return
            output, row = found
            path = self._output_path(output)
            with contextlib.suppress(OSError):
                used = os.stat(path).st_mtime
                if row is not None and used > row.used + 1:
                    self._index.discard(output)
                    self._index.add(output, Row(row.size, used, row.actions))
                    continue
            for name in row.actions if row is not None else ():
                self._remove_action(name, output)
            remove(path)
            self._index.discard(output)

    def _remove_action(self, name: str, output: str) -> None:
        """Remove those actions of a key that lead to an output."""
        kept = [action for action in self.actions(name) if action.sha256.hex() != output]
        if kept:
            publish(self.directory, self._action_path(name), encode_actions(kept))
        else:
            remove(self._action_path(name))
            remove(self._source_path(name))

    def _scan(self) -> Iterator[tuple[str, Row]]:
        """The rows that the files themselves tell, last used last."""
        from ptocache.store.index import Row

        actions: dict[str, list[str]] = {}
        for name, action in self.all_actions():
            actions.setdefault(action.sha256.hex(), []).append(name)
        rows = []
        for output, path in _files(self._outputs, 64):
            with contextlib.suppress(OSError):
                status = os.stat(path, follow_symlinks=False)
                names = tuple(actions.get(output, ()))
                rows.append((output, Row.of(status.st_size, status.st_mtime, names)))
        rows.sort(key=lambda row: row[1].used)
        yield from rows

    @property
    def _index(self) -> Index:
        if self._lazy_index is None:
            from ptocache.store.index import Index  # 80 ms that a hit does not pay

            self._lazy_index = Index(self.directory, os.path.join(self.directory, "index"), self._scan)
        return self._lazy_index

    def _prepare(self) -> None:
        """Make the directory, private and marked as a cache."""
        make_root(self.directory)
        if not self._is_tagged():
            publish(self.directory, os.path.join(self.directory, _TAG), _TAG_TEXT)

    def _is_tagged(self) -> bool:
        try:
            return read_file(os.path.join(self.directory, _TAG), len(_TAG_TEXT))[0] == _TAG_TEXT
        except (OSError, DamagedError):
            return False

    def _action_path(self, name: str) -> str:
        return f"{self._actions}/{name[:2]}/{name[2:]}"

    def _source_path(self, name: str) -> str:
        return f"{self._sources}/{name[:2]}/{name[2:]}"

    def _output_path(self, name: str) -> str:
        return f"{self._outputs}/{name[:2]}/{name[2:]}"


def _names(folder: str) -> list[str]:
    """What is in a directory; nothing where there is none."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return os.listdir(folder)
    return []


def _files(top: str, length: int) -> Iterator[tuple[str, str]]:
    """The names and paths of the files two levels below a directory whose names are such digests."""
    for folder, _, names in os.walk(top):
        for name in names:
            full = os.path.basename(folder) + name
            if len(full) == length and all(digit in "0123456789abcdef" for digit in full):
                yield full, os.path.join(folder, name)
