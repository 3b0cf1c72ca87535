"""Remove everything from the cache, or what you choose. The statistics stay.

Without a choice all goes, remembered failures too. With one those entries go that match all of it: an entry's device
binary too, unless an entry that stays has the same one. Remembered failures then stay; --failures is for those.

Asks first on a terminal. A directory that is not a cache of ptocache is left alone.

for example:
  ptocache clear
  ptocache clear --kernel 'attention_*' --dry-run      list what would go, as ptocache ls does, and remove nothing
  ptocache clear --stale -y                            what another toolchain made than today's
  ptocache clear --older-than 7d --unused-for 2d
  ptocache clear --failures
"""

from __future__ import annotations

import argparse
import sys

from ptocache.cli.ls import listed, print_entries, print_failures
from ptocache.cli.output import print_json
from ptocache.cli.progress import progress_bar
from ptocache.cli.selection import add_filters, selection
from ptocache.frontend import CompileCache
from ptocache.store.catalog import Selection
from ptocache.store.layout import disk_usage
from ptocache.store.upkeep import Usage, clear, remove_chosen, require_cache, usage
from ptocache.text import bytes_text, plural


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_filters(parser, with_failures=True)
    parser.add_argument("--dry-run", action="store_true", help="list what would be removed, and remove nothing")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument("--json", action="store_true", help="print what was removed as one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    with CompileCache() as cache:
        cache.require_directory()
        chosen = selection(options, cache)
        if options.dry_run:
            list_chosen(cache, chosen, options)
            return 0
        cache.require_writable("removed", "clear the cache")
        if not options.yes and sys.stdin is not None and sys.stdin.isatty() and not _agreed(cache, chosen):
            sys.stderr.write("ptocache: nothing was removed\n")
            return 1
        noun = "remembered failure" if chosen.failures else "entry"
        count, used = _remove(cache, chosen)
    if options.json:
        name = "failures" if chosen.failures else "entries"
        print_json({"directory": cache.settings.dir, name: count, "bytes": used})
    else:
        sys.stdout.write(f"removed {plural(count, noun)}, {bytes_text(used)}, from {cache.settings.dir}\n")
    return 0


def list_chosen(cache: CompileCache, chosen: Selection, options: argparse.Namespace) -> None:
    """List what would be removed."""
    if chosen.failures:
        print_failures(cache, options.json)
    else:
        print_entries(sorted(listed(cache, chosen), key=lambda row: (-row.created, row.key)), options)


def _remove(cache: CompileCache, chosen: Selection) -> Usage:
    if chosen.is_everything:
        return clear(cache.local)
    if chosen.failures:
        return _forget(cache)
    with progress_bar("removing") as progress:
        return remove_chosen(cache.local, chosen, progress)


def _forget(cache: CompileCache) -> Usage:
    """Forget all failures."""
    folder = cache.local.layout.failures
    before = disk_usage(folder)
    if not before:
        return Usage(0, 0)
    require_cache(cache.local)
    return Usage(cache.failures.clear(), before - disk_usage(folder))


def _agreed(cache: CompileCache, chosen: Selection) -> bool:
    """Ask; where nothing is there to be removed there is no need to."""
    if chosen.is_everything:
        entries, used = usage(cache.local)
        what = f"{plural(entries, 'entry')}, {bytes_text(used)},"
    elif chosen.failures:
        count = sum(1 for _ in cache.failures.all())
        what = f"{plural(count, 'remembered failure')}"
        if not count:
            return True
    else:
        sizes = [row.bytes for row in listed(cache, chosen)]
        what = f"{plural(len(sizes), 'entry')}, {bytes_text(sum(sizes))} of device binaries,"
        if not sizes:
            return True
    sys.stderr.write(f"Remove {what} from {cache.settings.dir}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
