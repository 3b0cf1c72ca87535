"""What a forked child must not share with its parent: databases, locks of threads that are gone, unwritten counts."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from typing import Protocol


class Forkable(Protocol):
    """An object that renews its state in a forked child."""

    def after_fork(self) -> None:
        """Called once in the child, before anything else runs there."""


class Closable(Forkable, Protocol):
    """An object that closes what a child must not inherit, and holds still while the process forks."""

    def before_fork(self) -> bool:
        """Called in the parent, before it forks; whether that was waited for, and there is something to end."""

    def after_fork_in_parent(self) -> None:
        """Called in the parent, once it has forked, by the thread for which `before_fork` was true."""


_watched: weakref.WeakSet[Forkable] = weakref.WeakSet()
_closed: weakref.WeakSet[Closable] = weakref.WeakSet()


class _Forking(threading.local):
    """What the thread that is forking has closed: two threads may fork at once."""

    owners: tuple[Closable, ...] = ()


_forking = _Forking()


def watch_forks(owner: Forkable) -> None:
    """Call the object's `after_fork` in every child that is forked while the object lives."""
    _watched.add(owner)


def close_at_forks(owner: Closable) -> None:
    """Call the object's `before_fork`, and what follows it, at every fork while the object lives."""
    _register()
    _closed.add(owner)


@functools.cache
def _register() -> None:
    # What is registered last is called first. filelock, which was imported for the first of these objects, keeps all
    # its locks as they are while a process forks: a thread that we wait for here could not give one back.
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent)


def _before_fork() -> None:
    _forking.owners = ()
    asked: set[Closable] = set()
    # While one is waited for, another thread may make a new one.
    while new := set(_closed) - asked:
        for owner in new:
            if owner.before_fork():
                _forking.owners += (owner,)
        asked |= new


def _after_fork_in_parent() -> None:
    for owner in _forking.owners:
        owner.after_fork_in_parent()
    _forking.owners = ()


def _after_fork() -> None:
    _forking.owners = ()
    for owner in (*_watched, *_closed):
        owner.after_fork()


os.register_at_fork(after_in_child=_after_fork)
