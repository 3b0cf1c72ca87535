"""The lease on a key: one process of a host compiles, the others wait and then find what it stored.

A lease is a lock on a file (filelock). The kernel releases it when its holder dies, however it dies, so a dead
compiler blocks nobody.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from filelock import FileLock, Timeout

from ptocache.log import get_logger
from ptocache.settings import Settings
from ptocache.store.files import make_directory, make_root, remove_foreign

#: How often a waiting process looks, in seconds: little beside a compilation, and 32 of them cost no core.
POLL_SECONDS = 0.05


@contextlib.contextmanager
def lease(settings: Settings, name: str) -> Iterator[bool]:
    """Hold the lease on a key while the block runs.

    Args:
        settings: where the cache is, and how long to wait for whoever holds the lease.
        name: the key's name.

    Yields:
        Whether the lease is held. If not, the wait took too long or the lock cannot be made, and the caller
        goes on without it: compiling twice is a waste, not a fault.
    """
    if settings.readonly:
        yield False
        return
    timeout = settings.lock_timeout
    folder = os.path.join(settings.dir, "locks")
    path = os.path.join(folder, f"{name}.lock")
    start = time.monotonic()
    lock: FileLock | None = None
    try:
        make_root(settings.dir)
        make_directory(settings.dir, folder)
        remove_foreign(path)
        lock = FileLock(path, timeout=timeout, poll_interval=POLL_SECONDS, thread_local=False)
        lock.acquire()
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
            lock.release()
