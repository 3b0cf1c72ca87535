"""The leases on a key: one process of a host compiles, and one host of a fleet; the others wait, then find the result.

A host's lease is a lock on a file (filelock's `FileLock`, which is `flock`). The kernel releases it when its holder
dies, however it dies, so a dead compiler blocks nobody. filelock's other kinds, which are markers that a file system
without locks can hold too, know a dead holder only by a timeout, or by a process number that means nothing in
another container; and the local tier is only ever on a local file system. Where `flock` fails all the same, the
work goes on without a lease at once: compiling twice is a waste, not a fault.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from filelock import BaseFileLock, Timeout

from ptocache.errors import PtocacheError
from ptocache.log import get_logger
from ptocache.process import is_ending
from ptocache.settings import Settings
from ptocache.store.files import make_directory, make_root
from ptocache.store.guard import EngineError
from ptocache.store.layout import Layout
from ptocache.store.locks import acquire, release

if TYPE_CHECKING:
    from ptocache.store.engines.redis import RedisLease
    from ptocache.store.shared import SharedTier

T = TypeVar("T")

#: How often a waiting process looks, in seconds: little beside a compilation, and 32 of them cost no core.
POLL_SECONDS = 0.05

#: How often a waiting host asks the server, in seconds: a hundred hosts are a thousand small requests a second.
FLEET_POLL_SECONDS = 0.1


@contextlib.contextmanager
def lease(settings: Settings, name: str) -> Iterator[bool]:
    """Hold the lease on a key while the block runs.

    Args:
        settings: where the cache is, who may use it, and how long to wait for whoever holds the lease.
        name: the key's name.

    Yields:
        Whether the lease is held. If not, the wait took too long or the lock cannot be made, and the caller
        goes on without it: compiling twice is a waste, not a fault.
    """
    if settings.readonly:
        yield False
        return
    timeout = settings.lock_timeout
    layout = Layout(settings.dir)
    path = layout.lock(name)
    start = time.monotonic()
    lock: BaseFileLock | None = None
    try:
        make_root(layout.root, settings.umask)
        make_directory(layout.root, layout.locks)
        lock = acquire(layout.root, path, timeout, POLL_SECONDS)
    except Timeout:
        lock = None
        if not is_ending():
            get_logger(__name__).warning(
                "waited %.0f s for another process to compile %s: compiling it here too", timeout, name
            )
    except (OSError, RuntimeError) as error:
        lock = None
        get_logger(__name__).debug("no lease on %s: %s", name, error)
    waited = time.monotonic() - start
    if lock is not None and waited > POLL_SECONDS:
        get_logger(__name__).info("waited %.2f s while another process compiled %s", waited, name)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            # Removed while it is held, or the directory would grow with every key. Whoever waits for this file
            # sees that it has no name any more and begins anew with the next one.
            with contextlib.suppress(OSError):
                os.unlink(path)
            release(lock)


@contextlib.contextmanager
def fleet_lease(tier: SharedTier, settings: Settings, name: str) -> Iterator[bool]:
    """Hold the lease that all hosts of a fleet have on a key, on a Redis server, while the block runs.

    It lasts for `PTOCACHE_LEASE_SECONDS` and is renewed while the block runs, so it ends by itself when its host does.

    Args:
        tier: an engine that has leases.
        settings: how long a lease lasts, and how long to wait for whoever holds it.
        name: the key's name.

    Yields:
        Whether the lease is held. If not, the wait took too long or the server does not answer, and the caller goes
        on without it: compiling twice is a waste, not a fault.
    """
    held = _FleetLease(tier, settings.lease_seconds, name)
    start = time.monotonic()
    is_held = is_in_vain = False
    try:
        while not (is_held := held.acquire()):
            if is_ending():
                break
            if time.monotonic() - start > settings.lock_timeout:
                get_logger(__name__).warning(
                    "waited %.0f s for another host to compile %s: compiling it here too", settings.lock_timeout, name
                )
                break
            time.sleep(FLEET_POLL_SECONDS)
    except EngineError as error:
        get_logger(__name__).debug("no lease of the fleet on %s: %s", name, error)
    waited = time.monotonic() - start
    if is_held and waited > FLEET_POLL_SECONDS:
        get_logger(__name__).info("waited %.2f s while another host compiled %s", waited, name)
    try:
        yield is_held
        # Whoever has the lease next is to find the result, or not to wait for it.
        is_in_vain = is_held and not tier.uploads.flush(tier.timeout)
    except PtocacheError:
        is_in_vain = True
        raise
    finally:
        if is_held:
            held.release(is_in_vain)


class _FleetLease:
    """A lease on a Redis server that a thread renews."""

    def __init__(self, tier: SharedTier, seconds: float, name: str) -> None:
        self._tier = tier
        self._seconds = seconds
        self._name = name
        self._lease: RedisLease | None = None
        self._is_done = threading.Event()

    def acquire(self) -> bool:
        """Take it if nobody has it; raises `EngineError`."""
        is_held = self._ask(lambda: self._get().acquire())
        if is_held is None:
            raise EngineError("there is none to wait for")
        if is_held:
            with contextlib.suppress(RuntimeError):  # no more threads: it lasts as long as it lasts
                threading.Thread(target=self._renew, name="ptocache-lease", daemon=True).start()
        return is_held

    def release(self, in_vain: bool) -> None:
        """Give it back, if it is still held; say whether there is no result."""
        self._is_done.set()
        try:
            self._ask(lambda: self._get().release(in_vain))
        except EngineError as error:  # it ends by itself
            get_logger(__name__).debug("the lease on %s could not be given back: %s", self._name, error)

    def _renew(self) -> None:
        while not self._is_done.wait(self._seconds / 3):
            try:
                if not self._ask(lambda: self._get().renew()):
                    get_logger(__name__).debug("the lease on %s is not held any more", self._name)
                    return
            except EngineError as error:  # somebody else may compile it too
                get_logger(__name__).debug("the lease on %s could not be renewed: %s", self._name, error)

    def _get(self) -> RedisLease:
        if self._lease is None:
            self._lease = self._tier.lease(self._name, self._seconds)
        return self._lease

    def _ask(self, function: Callable[[], T]) -> T:
        return self._tier.leasing.call(function, self._tier.timeout)
