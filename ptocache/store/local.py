"""The local tier: a directory on this host that all its processes share.

    actions/9c3f…         what a compilation made: small files named by their key
    outputs/71a0…         device binaries, named by their SHA-256
    sources/9c3f…         what an action was made from, compressed, for `ptocache explain`
    index/                sizes and ages, for eviction and counts (diskcache)
    temp/, locks/         what is being written, and who compiles what

A hit reads two files and checks them; no database is involved. Writing begins with a row in the index, which makes
room, then come the output and the actions that point at it, each published whole: whatever is on disk has a row,
whoever is killed in between, and the limit holds before the first byte is written.

An output's modification time tells when it was stored, or was put to the end of the queue of those to evict; its
access time when it was last used since, kept coarse, so that a hit seldom writes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ptocache.log import get_logger
from ptocache.request import Key
from ptocache.store.entry import (
    Accept,
    Action,
    Entry,
    State,
    accept_all,
    add_variant,
    decode_actions,
    encode_actions,
    unknown,
)
from ptocache.store.files import DamagedError, make_root, publish, read_file, remove, sweep
from ptocache.store.layout import BLOCK, LOCK, TEMPORARY, Layout, blocks
from ptocache.store.row import Row

if TYPE_CHECKING:
    from ptocache.counters import Counters
    from ptocache.store.index import Index, Rows

#: How often at most a hit marks an output as used, in seconds.
TOUCH_SECONDS = 3600

#: How many rows one store looks at to make room. Each costs 0.1 to 0.2 ms (benchmarks/stores.py), so no store pauses
#: for more than about 12 ms; and as stores add one at a time, a limit that was lowered is reached all the same.
EVICTION_STEP = 64

#: What a store may add beside its entry: pages of the database, a block of a directory, counts.
_GROWTH = 16 * BLOCK

#: The part of the size limit that is kept for remembered failures (one of this many), and the most that it is.
FAILURES_SHARE = 64
FAILURES_LIMIT = 64 << 20

#: How old what a killed process left must be before the next one that stores removes it, in seconds.
_SWEEP_SECONDS = 60

#: How often a store begins anew when what it has written was removed before it was done.
_ATTEMPTS = 3

#: An action is a few hundred bytes; the largest device binaries are some MiB. What is larger is not ours.
ACTION_LIMIT = 1 << 20
OUTPUT_LIMIT = 1 << 30
SOURCE_LIMIT = 16 << 20

_TAG_TEXT = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n# This directory is a cache of ptocache. It may be removed.\n"
)


class Limits(NamedTuple):
    """What a cache may hold.

    Attributes:
        size: how many bytes on disk; 0 for any number.
        age: how long, in seconds, it keeps what is not used; 0 for ever.
    """

    size: int = 0
    age: float = 0

    @property
    def failures(self) -> int:
        """How many bytes of the size the remembered failures may take."""
        return min(self.size // FAILURES_SHARE, FAILURES_LIMIT) if self.size else FAILURES_LIMIT

    def is_exceeded(self, size: int) -> bool:
        """Whether so many bytes, with what failures and one more store may add, are more than there may be."""
        return bool(self.size) and size + self.failures + _GROWTH > self.size


class LocalTier:
    """Entries in a directory.

    Args:
        directory: the cache directory; made with the first store.
        limits: what it may hold.
        readonly: store nothing and remove nothing.
        umask: the permissions that a directory made here is not to have; `None` for a private one.
        counters: where damage and evictions are counted.
    """

    name = "local"

    def __init__(
        self,
        directory: str,
        limits: Limits = Limits(),  # noqa: B008 - it cannot change
        readonly: bool = False,
        umask: int | None = None,
        counters: Counters | None = None,
    ) -> None:
        self.directory = directory
        self.layout = Layout(directory)
        self.limits = limits
        self.readonly = readonly
        self._umask = umask
        self._counters = counters
        self._lazy_index: Index | None = None
        self._is_swept = False
        self._has_warned = False

    def get(self, key: Key, accept: Accept = accept_all, state: State = unknown) -> Entry | None:
        """The first entry under a key whose inputs are accepted, checked; what is damaged is removed."""
        for action in self.actions(key.name):
            if action.check == key.check and accept(action.inputs):
                return self.read(key.name, action)
        return None

    def actions(self, name: str) -> list[Action]:
        """The actions of the key with this name, the one stored last first; a damaged file is removed."""
        path = self.layout.action(name)
        try:
            data, _ = read_file(path, ACTION_LIMIT)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except DamagedError as error:
            self._discard(str(error), path)
            return []
        actions = decode_actions(data)
        if actions is None:
            self._discard(f"{path}: the actions do not match their own digest", path)
        return actions or []

    def read(self, name: str, action: Action) -> Entry | None:
        """An action of the key with this name together with its output; `None` where that is gone or damaged."""
        output = action.sha256.hex()
        path = self.layout.output(output)
        problem = "the output does not match the digest in its action"
        try:
            aibin, status = read_file(path, min(action.size, OUTPUT_LIMIT))
            if action.made(aibin):
                self._mark_used(path, status)
                return Entry(action, aibin)
        except (FileNotFoundError, NotADirectoryError):
            problem = "the output is gone"
        except DamagedError as error:
            problem = str(error)
        self._discard(f"{path}: {problem}", path)
        if not self.readonly:
            self.remove_action(name, output)  # the key's others may be whole
        return None

    def use(self, entry: Entry) -> None:
        """Note that an entry was used that a nearer tier had."""
        path = self.layout.output(entry.action.sha256.hex())
        with contextlib.suppress(OSError):
            self._mark_used(path, os.stat(path))

    def put(self, keys: Sequence[Key], entry: Entry, source: bytes = b"", state: State = unknown) -> None:
        """Make room for an entry, and keep it under all these keys."""
        if self.readonly:
            return
        self.prepare()
        output = entry.action.sha256.hex()
        files = {key.name: self._encode(key, entry.action) for key in keys}
        files = {name: data for name, data in files.items() if len(data) <= ACTION_LIMIT}
        sizes = {name: blocks(len(data)) + blocks(len(source)) for name, data in files.items()}
        for _ in range(_ATTEMPTS if files else 0):
            new = self._reserve(output, len(entry.aibin), sizes, entry.action.group())
            if new is None:
                return
            try:
                if not self._holds(output, entry):
                    publish(self.directory, self.layout.output(output), entry.aibin)
                for name, data in files.items():
                    if source:
                        publish(self.directory, self.layout.source(name), source)
                    publish(self.directory, self.layout.action(name), data)
            except OSError:
                self._give_up(output, new)
                raise
            # Somebody may have evicted it meanwhile, cleared the cache, or made the index anew. Whoever is just doing
            # that has removed files already, and not the row yet: a transaction waits for them.
            with self.index.transaction() as rows:
                if rows.get(output) is not None and os.path.exists(self.layout.output(output)):
                    return

    def all_actions(self) -> Iterator[tuple[str, Action]]:
        """All stored actions, each with the name of its key, in no order."""
        from ptocache.store.layout import is_digest, list_directory

        for found in list_directory(self.layout.actions):
            if is_digest(found.name, 32):
                with contextlib.suppress(OSError):
                    for action in self.actions(found.name):
                        yield found.name, action

    def source(self, name: str) -> str | None:
        """The source that was kept for the key with this name; `None` where there is none, or a damaged one."""
        try:
            return unpack_source(read_file(self.layout.source(name), ACTION_LIMIT)[0])
        except (OSError, DamagedError):
            return None

    def make_room(self, rows: Rows, keep: str = "", needed: int = 0) -> int:
        """Remove what was used longest ago until the limits hold, or a step is done.

        The order is that of the rows. One whose output was used since it was put there goes to the end once
        more (a "second chance"), so that no hit has to write to the database.

        Args:
            rows: the index, in a transaction.
            keep: an output that is not removed.
            needed: how many bytes at least to free, however many rows that takes.

        Returns:
            How many outputs were removed.
        """
        overhead = self.layout.overhead()
        before = rows.bytes()
        evicted = looked = 0
        while looked < EVICTION_STEP or before - rows.bytes() < needed:
            found = rows.oldest()
            if found is None or found[0] == keep:
                break
            output, row = found
            if row is not None and not (self.is_expired(row.used) or self.limits.is_exceeded(rows.bytes() + overhead)):
                break
            looked += 1
            if row is None or looked > 2 * EVICTION_STEP or not self._requeue(rows, output, row):
                self.evict(rows, output, row)
                evicted += 1
        if evicted and self._counters is not None:
            self._counters.add("evictions", evicted)
        return evicted

    def evict(self, rows: Rows, output: str, row: Row | None) -> None:
        """Remove an output, the actions that lead to it, and its row. The row goes last."""
        for name in row.actions if row is not None else ():
            self.remove_action(name, output)
        remove(self.layout.output(output))
        rows.discard(output)

    def is_expired(self, used: float) -> bool:
        """Whether what was last used then has not been used for too long."""
        return bool(self.limits.age) and time.time() - used > self.limits.age

    def last_used(self, output: str) -> float:
        """When an output was last used, or stored, as far as its file tells; 0 where there is no file."""
        try:
            return _last_used(os.stat(self.layout.output(output)))
        except OSError:
            return 0

    def scan(self) -> Iterator[tuple[str, Row]]:
        """The rows that the files themselves tell, last used last."""
        from ptocache.store.layout import is_digest, list_directory

        actions: dict[str, list[str]] = {}
        groups: dict[str, str] = {}
        for name, action in self.all_actions():
            actions.setdefault(action.sha256.hex(), []).append(name)
            groups[action.sha256.hex()] = action.group()
        rows = []
        for found in list_directory(self.layout.outputs):
            if is_digest(found.name, 64):
                names = tuple(actions.get(found.name, ()))
                size, used = self.size_of(found.name, names), self.last_used(found.name)
                rows.append((found.name, Row(size, used, names, groups.get(found.name, ""))))
        rows.sort(key=lambda row: row[1].used)
        yield from rows

    def size_of(self, output: str, names: Sequence[str]) -> int:
        """The bytes on disk of an output, of the actions with these names and of their sources."""
        return _size_on_disk(self.layout.output(output)) + self._size_of_actions(names)

    def _size_of_actions(self, names: Sequence[str]) -> int:
        return sum(_size_on_disk(self.layout.action(name)) + _size_on_disk(self.layout.source(name)) for name in names)

    def is_tagged(self) -> bool:
        """Whether the directory is marked as a cache of ptocache's."""
        try:
            return read_file(self.layout.tag, len(_TAG_TEXT))[0] == _TAG_TEXT
        except (OSError, DamagedError):
            return False

    @property
    def index(self) -> Index:
        """The index; it is loaded when it is first needed."""
        if self._lazy_index is None:
            from ptocache.store.index import Index  # 80 ms that a hit does not pay

            self._lazy_index = Index(self.layout, self.scan)
        return self._lazy_index

    def prepare(self) -> None:
        """Make the directory, mark it as a cache, and clear away what killed processes left."""
        make_root(self.directory, self._umask)
        if not self.is_tagged():
            publish(self.directory, self.layout.tag, _TAG_TEXT)
        if not self._is_swept:
            self._is_swept = True
            sweep(self.layout.temp, TEMPORARY, _SWEEP_SECONDS)
            sweep(self.layout.locks, LOCK, _SWEEP_SECONDS)

    def close(self) -> None:
        """Close the index, if it was opened."""
        if self._lazy_index is not None:
            self._lazy_index.close()

    def _mark_used(self, path: str, status: os.stat_result) -> None:
        """Set an output's access time: the first time that it is used, and then at most once an hour."""
        now = time.time()
        is_old = now - status.st_atime > TOUCH_SECONDS
        if self.readonly or not (is_old or status.st_atime_ns <= status.st_mtime_ns):
            return
        try:
            os.utime(path, ns=(max(int(now * 1e9), status.st_mtime_ns + 1), status.st_mtime_ns))
        except PermissionError:
            if is_old:  # somebody else's file: only both times can be set, and only to now
                with contextlib.suppress(OSError):
                    os.utime(path)
        except OSError:
            pass

    def _discard(self, reason: str, *paths: str) -> None:
        get_logger(__name__).info("removed from the cache: %s", reason)
        if self._counters is not None:
            self._counters.add("damaged")
        if not self.readonly:
            for path in paths:
                remove(path)

    def _encode(self, key: Key, action: Action) -> bytes:
        """The file of a key's actions with a new one among them: as many of the older ones as fit."""
        stored: list[Action] = []
        with contextlib.suppress(OSError):  # what cannot be read is replaced
            stored = self.actions(key.name)
        actions = add_variant(stored, action._replace(check=key.check))
        while len(data := encode_actions(actions)) > ACTION_LIMIT and len(actions) > 1:
            actions.pop()
        return data

    def _reserve(self, output: str, size: int, sizes: Mapping[str, int], group: str) -> tuple[str, ...] | None:
        """Put a row in for an output and make room; not where there could not be enough.

        Args:
            output: the output's name.
            size: its bytes.
            sizes: the names of the actions that will lead to it, with what each takes on disk.
            group: what it is counted with.

        Returns:
            Those of the names that the row did not have; `None` if there is no row now.
        """
        with self.index.transaction() as rows:
            overhead = self.layout.overhead()
            old = rows.get(output)
            kept = tuple(name for name in old.actions if name not in sizes) if old is not None else ()
            taken = blocks(size) + sum(sizes.values())
            row = Row(taken + self._size_of_actions(kept), time.time(), (*sizes, *kept), group)
            if kept and self.limits.is_exceeded(row.size + overhead):
                self.evict(rows, output, old)  # with ever more actions: those of now are enough
                old, row = None, Row(taken, time.time(), tuple(sizes), group)
            if self.limits.is_exceeded(row.size + overhead):
                self._warn_of_size(size, overhead)
                return None
            rows.add(output, row)
            self.make_room(rows, keep=output, needed=row.size - (old.size if old is not None else 0))
        return tuple(name for name in sizes if old is None or name not in old.actions)

    def _give_up(self, output: str, new: Sequence[str]) -> None:
        """Take back what was stored of an entry that could not be stored whole.

        Args:
            output: its output.
            new: the actions that would lead to it.
        """
        with contextlib.suppress(Exception), self.index.transaction() as rows:  # as far as it can be done
            row = rows.get(output)
            kept = tuple(name for name in row.actions if name not in new) if row is not None else ()
            if row is None or not kept or not os.path.exists(self.layout.output(output)):
                self.evict(rows, output, row)
                return
            for name in new:
                self.remove_action(name, output)
            rows.add(output, row._replace(size=self.size_of(output, kept), actions=kept))

    def _warn_of_size(self, size: int, overhead: int) -> None:
        logger = get_logger(__name__)
        log = logger.debug if self._has_warned else logger.warning
        self._has_warned = True
        log(
            "a device binary of %d bytes does not fit into a cache of at most %d bytes (its own files take %d of "
            "them): it is not stored. Raise PTOCACHE_SIZE_LIMIT to store it.",
            size,
            self.limits.size,
            overhead + self.limits.failures + _GROWTH,
        )

    def _holds(self, output: str, entry: Entry) -> bool:
        """Whether an output is stored already, whole; it is then as if it were stored now."""
        path = self.layout.output(output)
        with contextlib.suppress(OSError, DamagedError):
            data, _ = read_file(path, len(entry.aibin))
            if data == entry.aibin:
                os.utime(path)
                return True
        return False

    def _requeue(self, rows: Rows, output: str, row: Row) -> bool:
        """Put the oldest row to the end if its output was used since and may stay for another round."""
        path = self.layout.output(output)
        try:
            status = os.stat(path)
        except OSError:
            return False
        used = _last_used(status)
        if not _was_used(status, row.used) or self.is_expired(used):
            return False
        rows.add(output, row._replace(used=used))
        with contextlib.suppress(OSError):  # somebody else's file: then it is the row that tells
            os.utime(path, (used, used))
        return True

    def remove_action(self, name: str, output: str) -> None:
        """Remove those actions of a key that lead to an output."""
        kept: list[Action] = []
        with contextlib.suppress(OSError):  # what cannot be read leads nowhere
            kept = [action for action in self.actions(name) if action.sha256.hex() != output]
        with contextlib.suppress(OSError):
            self.keep_actions(name, kept)

    def keep_actions(self, name: str, actions: Sequence[Action]) -> None:
        """Let a key have these actions and no others; raises `OSError` where they cannot be written."""
        if actions:
            publish(self.directory, self.layout.action(name), encode_actions(actions))
        else:
            remove(self.layout.action(name))
            remove(self.layout.source(name))


def _size_on_disk(path: str) -> int:
    try:
        return blocks(os.stat(path, follow_symlinks=False).st_size)
    except OSError:
        return 0


def _last_used(status: os.stat_result) -> float:
    return max(status.st_atime, status.st_mtime)


def _was_used(status: os.stat_result, queued: float) -> bool:
    """Whether an output was used since its row was put where it is.

    The access time tells. Somebody who does not own the file can only set both times, and does so once an hour;
    the file itself is written a moment after its row.
    """
    is_marked = status.st_atime_ns > status.st_mtime_ns or status.st_mtime > queued + TOUCH_SECONDS / 2
    return is_marked and _last_used(status) > queued


def pack_source(text: str) -> bytes:
    """A source as it is kept; nothing of one that is too long for that."""
    import zlib

    data = text.encode("utf-8", "surrogateescape")
    packed = zlib.compress(data) if len(data) < SOURCE_LIMIT else b""
    return packed if len(packed) <= ACTION_LIMIT else b""


def unpack_source(data: bytes) -> str | None:
    """The text of a source that was kept; `None` for bytes that are none."""
    import zlib

    unpacker = zlib.decompressobj()
    try:
        unpacked = unpacker.decompress(data, SOURCE_LIMIT)
    except zlib.error:
        return None
    return unpacked.decode("utf-8", "replace") if unpacker.eof else None
