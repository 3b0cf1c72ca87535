"""The memory tier: what this process used last, bounded in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from ptocache.forks import watch_forks
from ptocache.request import Key
from ptocache.store.entry import Entry

#: The default bound: a few hundred kernels of the usual 16 to 256 KiB, and little beside a framework.
MEMORY_LIMIT = 64 << 20


class MemoryTier:
    """Entries in a dictionary, the ones used last kept.

    Args:
        limit: how many bytes of device binaries to hold.
    """

    name = "memory"

    def __init__(self, limit: int = MEMORY_LIMIT) -> None:
        self._limit = limit
        self._bytes = 0
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self._lock = threading.Lock()
        watch_forks(self)

    def get(self, key: Key) -> Entry | None:
        """The entry under a key, or `None`."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def put(self, keys: Sequence[Key], entry: Entry) -> None:
        """Keep an entry; one larger than the limit is not kept."""
        if len(entry.aibin) > self._limit:
            return
        with self._lock:
            for key in keys:
                old = self._entries.pop(key, None)
                self._bytes += len(entry.aibin) - (len(old.aibin) if old else 0)
                self._entries[key] = entry
            while self._bytes > self._limit:
                _, old = self._entries.popitem(last=False)
                self._bytes -= len(old.aibin)

    def after_fork(self) -> None:
        """In a forked child: a thread that is not there may have held the lock."""
        self._lock = threading.Lock()
