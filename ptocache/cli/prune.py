"""Apply the size and the age limit now, and remove what belongs to no entry.

Stores keep to the limits by themselves, a little at a time; this is for a limit that was lowered, and for what killed
processes and power cuts leave: rows of the index without a file, files without a row, half-written files, lock files.
An output that was left without a row and can still be found is given one.

With --shared, objects are removed from the engines that PTOCACHE_SHARED names: those that were stored or used longer
ago than an age, then the oldest ones above a size. That is for file:// and Redis; other engines have rules of their own
(docs/fleets.md).

  ptocache prune
  ptocache prune --shared --older-than 30d --size 100GiB
"""

from __future__ import annotations

import argparse
import sys

from ptocache.cli import UsageError
from ptocache.cli.progress import progress_bar
from ptocache.errors import SettingsError
from ptocache.frontend import CompileCache
from ptocache.settings import parse_age, parse_size
from ptocache.store.upkeep import Pruned, prune
from ptocache.text import bytes_text, plural


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--shared", action="store_true", help="prune the shared engines, and not the local cache")
    parser.add_argument("--older-than", metavar="AGE", help="with --shared: remove what is older: 30d, 12h")
    parser.add_argument("--size", metavar="SIZE", help="with --shared: keep so much, the newest: 100GiB")
    parser.add_argument("--json", action="store_true", help="print what was removed as one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    if options.shared:
        return _prune_shared(options)
    if options.older_than is not None or options.size is not None:
        raise UsageError(
            "--older-than and --size are for --shared; the local cache has PTOCACHE_MAX_AGE and _SIZE_LIMIT"
        )
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


def _prune_shared(options: argparse.Namespace) -> int:
    from ptocache.store.shared import prune_shared

    try:
        age = parse_age(options.older_than) if options.older_than is not None else None
        size = parse_size(options.size) if options.size is not None else None
    except ValueError as error:
        raise UsageError(str(error)) from None
    if age is None and size is None:
        raise UsageError("say what to remove: --older-than AGE, --size SIZE, or both")
    with CompileCache() as cache:
        tiers = [tier for tier in cache.shared_tiers() if not tier.readonly]
        if not tiers:
            raise UsageError("there is nothing to prune: set PTOCACHE_SHARED to a URL that is not #readonly")
        results = {}
        for tier in tiers:
            with progress_bar(f"pruning {tier.label}") as progress:
                results[tier.label] = prune_shared(tier, age, size, progress)
    if options.json:
        import json

        sys.stdout.write(json.dumps({label: pruned._asdict() for label, pruned in results.items()}) + "\n")
    else:
        for label, pruned in results.items():
            text = f"{plural(pruned.removed, 'object')} removed, {bytes_text(pruned.bytes)}"
            sys.stdout.write(f"{label}: {text}; {pruned.kept} kept, {bytes_text(pruned.bytes_kept)}\n")
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
