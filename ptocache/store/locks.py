"""Locks on files of a cache directory, with the permissions that the directory has."""

from __future__ import annotations

import contextlib
import time

from filelock import BaseFileLock, FileLock

from ptocache.process import is_ending
from ptocache.store.files import file_mode, remove_foreign

#: How long a lock file of somebody else's may lack its permissions, in seconds: they are set right after it is made.
_UNFINISHED_SECONDS = 0.5


def acquire(root: str, path: str, timeout: float, poll: float = 0.05) -> BaseFileLock:
    """Wait for a lock, and hold it.

    Args:
        root: the cache directory.
        path: the lock file, below it; what else is there is removed.
        timeout: how long to wait, in seconds.
        poll: how often to look, in seconds.

    Returns:
        The lock, to be released by the caller.

    Raises:
        filelock.Timeout: it took too long.
        OSError, RuntimeError: it cannot be made, or the file system has no locks.
    """
    remove_foreign(path)
    deadline = time.monotonic() + _UNFINISHED_SECONDS
    while True:
        try:
            lock = FileLock(
                path,
                timeout=timeout,
                mode=file_mode(root),
                thread_local=False,
                poll_interval=poll,
                fallback_to_soft=False,
            )
            lock.acquire(cancel_check=is_ending)
            return lock
        except PermissionError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def release(lock: BaseFileLock) -> None:
    """Give a lock back; where the system does not do that now, it does when the process lets go of the file."""
    with contextlib.suppress(OSError):
        lock.release()
