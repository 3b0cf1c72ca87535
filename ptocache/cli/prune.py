"""Apply the size and the age limit now, and remove what belongs to no entry.

Stores keep to the limits by themselves, a little at a time; this is for a limit that was lowered, and for what killed
processes and power cuts leave: rows of the index without a file, files without a row, half-written files, lock files.
An output that was left without a row and can still be found is given one.
"""

from __future__ import annotations

import argparse
import sys

from ptocache.cli.progress import progress_bar
from ptocache.errors import SettingsError
from ptocache.frontend import CompileCache
from ptocache.store.upkeep import Pruned, prune
from ptocache.text import bytes_text, plural


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print what was removed as one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    with CompileCache() as cache:
        cache.require_directory()
        if cache.settings.readonly:
            raise SettingsError("PTOCACHE_READONLY is set: nothing is removed. Unset it to prune the cache.")
        with progress_bar("pruning") as progress:
            pruned = prune(cache.local, cache.failures, progress)
    if options.json:
        import json

        sys.stdout.write(json.dumps({"directory": cache.settings.dir, **pruned._asdict()}) + "\n")
    else:
        sys.stdout.write(_page(pruned, cache.settings.dir))
    return 0


def _page(pruned: Pruned, directory: str) -> str:
    counts = (
        (pruned.expired, "entry", "not used for too long"),
        (pruned.evicted, "entry", "used longest ago, for the size limit"),
        (pruned.failures, "remembered failure", ""),
        (pruned.rows, "row", "without a file"),
        (pruned.outputs, "output", "that nothing leads to"),
        (pruned.actions, "action", "that leads nowhere" if pruned.actions == 1 else "that lead nowhere"),
        (pruned.sources, "source", "without an action"),
        (pruned.temporary, "temporary file", "of dead processes"),
        (pruned.locks, "lock file", "of dead processes"),
        (pruned.strays, "other file", ""),
    )
    lines = [f"  {plural(count, noun)} {what}".rstrip() for count, noun, what in counts if count]
    if pruned.adopted:
        has = "has" if pruned.adopted == 1 else "have"
        lines.append(f"  and {plural(pruned.adopted, 'output')} without a row in the index, which {has} one now")
    return "\n".join([f"removed {bytes_text(pruned.bytes)} from {directory}", *lines]) + "\n"
