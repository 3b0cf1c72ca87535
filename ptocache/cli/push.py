"""Store on the shared engines what this host's cache has.

Those marked #readonly are left out.
Exit status: 0, done; 1, something could not be moved.

  ptocache push
  ptocache push --kernel 'attention_*' --newer-than 7d
"""

from __future__ import annotations

import argparse

from ptocache.cli import UsageError
from ptocache.cli.progress import progress_bar
from ptocache.cli.selection import add_arguments as add_selection
from ptocache.cli.selection import report, selection
from ptocache.frontend import CompileCache
from ptocache.store.transfer import push


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_selection(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    with CompileCache() as cache:
        chosen = selection(options, cache)
        cache.require_directory()
        cache.require_writable("stored", "push")
        tiers = [tier for tier in cache.shared_tiers() if not tier.readonly]
        if not tiers:
            raise UsageError("there is nothing to store on: set PTOCACHE_SHARED to a URL that is not #readonly")
        results = {}
        for tier in tiers:
            with progress_bar(f"sending to {tier.label}") as progress:
                results[tier.label] = push(cache.local, tier, chosen, progress)
    return report(results, "sent", options.json)
