"""A progress bar for long work, where somebody is looking."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show how far the block's work is, on standard error.

    Args:
        label: what is being done.

    Yields:
        A function to call with the number of steps that are done and of all steps; `None` where standard error is
        no terminal.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # 60 ms that only somebody who waits anyway pays
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=None)

        def update(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield update
