"""What a forked child must not take over from its parent: locks that a vanished thread holds, unwritten counts."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """An object that renews its state in a forked child."""

    def after_fork(self) -> None:
        """Called once in the child, before anything else runs there."""


_watched: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch_forks(owner: Forkable) -> None:
    """Call the object's `after_fork` in every child that is forked while the object lives."""
    _watched.add(owner)


def _after_fork() -> None:
    for owner in list(_watched):
        owner.after_fork()


os.register_at_fork(after_in_child=_after_fork)
