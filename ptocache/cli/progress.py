"""A progress bar for long work, where somebody is looking."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Protocol


class Progress(Protocol):
    """Shows how far it is."""

    def __call__(self, done: int, total: int, note: str = "") -> None:
        """Show it.

        Args:
            done: how many steps are done.
            total: how many there are.
            note: what came of them.
        """


@contextlib.contextmanager
def progress_bar(label: str) -> Iterator[Progress | None]:
    """Show how far the block's work is, on standard error.

    Args:
        label: what is being done.

    Yields:
        What to call after each step; `None` where standard error is no terminal.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich import progress
    from rich.console import Console  # 60 ms that only somebody who waits anyway pays

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(label, total=None)

        def update(done: int, total: int, note: str = "") -> None:
            bars.update(task, completed=done, total=total, description=f"{label}: {note}" if note else label)

        yield update
