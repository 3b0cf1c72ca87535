"""Remove everything from the cache. The statistics stay.

Asks first on a terminal. A directory that is not a cache of ptocache is left alone.
"""

from __future__ import annotations

import argparse
import sys

from ptocache.errors import SettingsError
from ptocache.frontend import CompileCache
from ptocache.store.upkeep import clear, usage
from ptocache.text import bytes_text, plural


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument("--json", action="store_true", help="print what was removed as one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    with CompileCache() as cache:
        cache.require_directory()
        if cache.settings.readonly:
            raise SettingsError("PTOCACHE_READONLY is set: nothing is removed. Unset it to clear the cache.")
        entries, used = usage(cache.local)
        if (
            not options.yes
            and sys.stdin is not None
            and sys.stdin.isatty()
            and not _agreed(entries, used, cache.settings.dir)
        ):
            sys.stderr.write("ptocache: nothing was removed\n")
            return 1
        entries, used = clear(cache.local)
    if options.json:
        import json

        sys.stdout.write(json.dumps({"directory": cache.settings.dir, "entries": entries, "bytes": used}) + "\n")
    else:
        sys.stdout.write(f"removed {plural(entries, 'entry')}, {bytes_text(used)}, from {cache.settings.dir}\n")
    return 0


def _agreed(entries: int, used: int, directory: str) -> bool:
    sys.stderr.write(f"Remove {plural(entries, 'entry')}, {bytes_text(used)}, from {directory}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
