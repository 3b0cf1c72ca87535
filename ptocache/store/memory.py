"""The memory tier: what this process used last, bounded in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from ptocache.forks import watch_forks
from ptocache.request import Key
from ptocache.store.entry import VARIANTS, Accept, Entry, State, accept_all, unknown

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
        self._entries: OrderedDict[Key, list[Entry]] = OrderedDict()
        self._lock = threading.Lock()
        watch_forks(self)

    def get(self, key: Key, accept: Accept = accept_all, state: State = unknown) -> Entry | None:
        """The first entry under a key whose inputs are accepted, or `None`."""
        with self._lock:
            variants = self._entries.get(key)
            if variants is None:
                return None
            self._entries.move_to_end(key)
        # Outside the lock, as it may read files; what is in the list now stays in it.
        return next((entry for entry in tuple(variants) if accept(entry.action.inputs)), None)

    def put(self, keys: Sequence[Key], entry: Entry, source: bytes = b"", state: State = unknown) -> None:
        """Keep an entry; one larger than the limit is not kept, nor is its source."""
        if len(entry.aibin) > self._limit:
            return
        with self._lock:
            for key in keys:
                old = self._entries.pop(key, [])
                kept = [other for other in old if other.action.inputs != entry.action.inputs][: VARIANTS - 1]
                self._entries[key] = [entry, *kept]
                self._bytes += _size(self._entries[key]) - _size(old)
            while self._bytes > self._limit:
                _, old = self._entries.popitem(last=False)
                self._bytes -= _size(old)

    def use(self, entry: Entry) -> None:
        """Nothing: there is no nearer tier."""

    def after_fork(self) -> None:
        """In a forked child: a thread that is not there may have held the lock."""
        self._lock = threading.Lock()


def _size(variants: list[Entry]) -> int:
    return sum(len(entry.aibin) for entry in variants)
