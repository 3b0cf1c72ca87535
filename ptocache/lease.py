"""The lease on a key: one process of a host compiles, the others wait and then find what it stored.

A lease is a lock on a file (filelock's `FileLock`, which is `flock`). The kernel releases it when its holder dies,
however it dies, so a dead compiler blocks nobody. filelock's other kinds, which are markers that a file system
without locks can hold too, know a dead holder only by a timeout, or by a process number that means nothing in
another container; and the local tier is only ever on a local file system. Where `flock` fails all the same, the
work goes on without a lease at once: compiling twice is a waste, not a fault.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from filelock import BaseFileLock, Timeout

from ptocache.log import get_logger
from ptocache.settings import Settings
from ptocache.store.files import make_directory, make_root
from ptocache.store.layout import Layout
from ptocache.store.locks import acquire, release

#: How often a waiting process looks, in seconds: little beside a compilation, and 32 of them cost no core.
POLL_SECONDS = 0.05


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
