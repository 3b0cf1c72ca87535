"""Apply the size and the age limit now, and remove what belongs to no entry.

Stores keep to the limits by themselves, a little at a time; this is for a limit that was lowered, and for what killed
processes and power cuts leave: rows of the index without a file, files without a row, half-written files, lock files.
An output that was left without a row and can still be found is given one.

With a choice the entries that match all of it are removed too, whatever the limits, as ptocache clear does; and it does
not ask. --dry-run lists them, and does nothing else.

With --shared, objects are removed from the engines that PTOCACHE_SHARED names: those that were stored or used longer
ago than an age, then the oldest ones above a size. That is for file:// and Redis; other engines have rules of their own
(docs/fleets.md).

for example:
  ptocache prune
  ptocache prune --unused-for 30d
  ptocache prune --stale --dry-run
  ptocache prune --shared --older-than 30d --size 100GiB
"""

from __future__ import annotations

import argparse
import sys

from ptocache.cli import UsageError
from ptocache.cli.clear import list_chosen
from ptocache.cli.output import print_json
from ptocache.cli.progress import progress_bar
from ptocache.cli.selection import add_filters, selection
from ptocache.frontend import CompileCache
from ptocache.settings import parse_age, parse_size
from ptocache.store.upkeep import Pruned, prune
from ptocache.text import bytes_text, plural


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--shared", action="store_true", help="prune the shared engines, and not the local cache")
    parser.add_argument("--size", metavar="SIZE", help="with --shared: keep so much, the newest: 100GiB")
    add_filters(parser, with_failures=True)
    parser.add_argument("--dry-run", action="store_true", help="list the entries that the choice would remove")
    parser.add_argument("--json", action="store_true", help="print what was removed as one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    if options.shared:
        return _prune_shared(options)
    if options.size is not None:
        raise UsageError("--size is for --shared; the local cache has PTOCACHE_SIZE_LIMIT")
    with CompileCache() as cache:
        cache.require_directory()
        chosen = selection(options, cache)
        if options.dry_run:
            if chosen.is_everything:
                raise UsageError("--dry-run lists what is chosen: choose with --kernel, --unused-for, …")
            list_chosen(cache, chosen, options)
            return 0
        cache.require_writable("removed", "prune the cache")
        with progress_bar("pruning") as progress:
            pruned = prune(cache.local, cache.failures, progress, None if chosen.is_everything else chosen)
    if options.json:
        print_json({"directory": cache.settings.dir, **pruned._asdict()})
    else:
        sys.stdout.write(_page(pruned, cache.settings.dir))
    return 0


def _prune_shared(options: argparse.Namespace) -> int:
    from ptocache.store.shared import can_be_pruned, prune_shared

    words = (options.kernel, options.arch, options.toolchain, options.newer_than, options.unused_for)
    if options.stale or options.failures or options.dry_run or any(word is not None for word in words):
        raise UsageError("with --shared only --older-than and --size choose: engines do not tell more")
    try:
        age = parse_age(options.older_than) if options.older_than is not None else None
        size = parse_size(options.size) if options.size is not None else None
    except ValueError as error:
        raise UsageError(str(error)) from None
    if age is None and size is None:
        raise UsageError("say what to remove: --older-than AGE, --size SIZE, or both")
    with CompileCache() as cache:
        cache.require_writable("removed", "prune")
        tiers = [tier for tier in cache.shared_tiers() if not tier.readonly]
        if not tiers:
            raise UsageError("there is nothing to prune: set PTOCACHE_SHARED to a URL that is not #readonly")
        # Those with rules of their own are left out, unless there are no others.
        results = {}
        for tier in [tier for tier in tiers if can_be_pruned(tier)] or tiers:
            with progress_bar(f"pruning {tier.label}") as progress:
                results[tier.label] = prune_shared(tier, age, size, progress)
    if options.json:
        print_json({label: pruned._asdict() for label, pruned in results.items()})
    else:
        for label, pruned in results.items():
            text = f"{plural(pruned.removed, 'object')} removed, {bytes_text(pruned.bytes)}"
            problem = f" ({pruned.problem})" if pruned.problem else ""
            sys.stdout.write(f"{label}: {text}; {pruned.kept} kept, {bytes_text(pruned.bytes_kept)}{problem}\n")
    return 1 if any(pruned.problem for pruned in results.values()) else 0


def _page(pruned: Pruned, directory: str) -> str:
    counts = (
        (pruned.chosen, "entry", "that you chose"),
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
