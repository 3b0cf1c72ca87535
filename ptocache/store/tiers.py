"""The tiers in order, as one store that never fails: here, and only here, a fault of a cache becomes a miss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ptocache.log import get_logger
from ptocache.request import Key
from ptocache.store.entry import Accept, Entry, State, Tier, accept_all, unknown

if TYPE_CHECKING:
    from ptocache.counters import Counters


T = TypeVar("T")


class Found(NamedTuple):
    """An entry, and the name of the tier that had it."""

    entry: Entry
    origin: str


class Store:
    """Looks in one tier after the other, and keeps in the nearer ones what a farther one had.

    Args:
        near: the tiers of this host, the nearest first.
        make_far: makes those that it has in common with others, when the near ones do not do.
        counters: where errors are counted.
    """

    def __init__(
        self, near: Sequence[Tier], counters: Counters, make_far: Callable[[], Sequence[Tier]] = tuple
    ) -> None:
        self._near = tuple(near)
        self._make_far = make_far
        self._counters = counters
        self._warned: set[str] = set()

    def get(
        self, key: Key, accept: Accept = accept_all, state: State = unknown, *, only_near: bool = False
    ) -> Found | None:
        """The entry under a key whose inputs are accepted, from the nearest tier that has it.

        Args:
            key: what to look for.
            accept: tells whether an action's inputs are the same now.
            state: gives what an input is now.
            only_near: ask only the tiers of this host.
        """
        before: list[Tier] = []
        for tier in self._tiers(only_near):
            try:
                entry = tier.get(key, accept, state)
            except Exception as error:  # noqa: BLE001 - a cache may fail in any way; the compilation does not
                self._report(tier.name, "read", error)
                continue
            finally:
                before.append(tier)
            if entry is not None:
                self._put(before[:-1], [key], entry, b"", state)
                self._use(self._near[len(before) :], entry)
                return Found(entry, tier.name)
        return None

    def put(self, keys: Sequence[Key], entry: Entry, source: bytes = b"", state: State = unknown) -> None:
        """Keep an entry in all tiers, and its source where one keeps it."""
        self._put(self._tiers(), keys, entry, source, state)

    def try_to(self, doing: str, action: Callable[[], T]) -> T | None:
        """Do something else with the local cache directory; `None` where that fails."""
        try:
            return action()
        except Exception as error:  # noqa: BLE001
            self._report("local", doing, error)
            return None

    def _tiers(self, only_near: bool = False) -> Iterator[Tier]:
        yield from self._near
        if not only_near:
            yield from self._make_far()

    def _use(self, tiers: Sequence[Tier], entry: Entry) -> None:
        for tier in tiers:
            try:
                tier.use(entry)
            except Exception as error:  # noqa: BLE001
                self._report(tier.name, "mark as used", error)

    def _put(self, tiers: Iterable[Tier], keys: Sequence[Key], entry: Entry, source: bytes, state: State) -> None:
        for tier in tiers:
            try:
                tier.put(keys, entry, source, state)
            except Exception as error:  # noqa: BLE001
                self._report(tier.name, "write", error)

    def _report(self, tier: str, doing: str, error: Exception) -> None:
        self._counters.add("errors")
        logger = get_logger(__name__)
        log = logger.debug if tier in self._warned else logger.warning
        self._warned.add(tier)
        log(
            "the %s cache cannot be used (%s: %s); kernels are compiled all the same. "
            "See that PTOCACHE_DIR names a directory that you can write to, with free space.",
            tier,
            doing,
            str(error) or type(error).__name__,
        )
