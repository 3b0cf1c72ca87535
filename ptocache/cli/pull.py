"""Store in this host's cache what the shared engines have.

An engine that cannot list what it has (a web server without PROPFIND) cannot be pulled from; its kernels are
still found one by one when they are asked for.
Exit status: 0, done; 1, something could not be moved.

  ptocache pull
  ptocache pull --kernel 'attention_*' --newer-than 7d
"""

from __future__ import annotations

import argparse

from ptocache.cli import UsageError
from ptocache.cli.progress import progress_bar
from ptocache.cli.selection import add_arguments as add_selection
from ptocache.cli.selection import report, selection
from ptocache.frontend import CompileCache
from ptocache.store.transfer import Moved, TransferError, pull


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_selection(parser, is_local=False)


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    with CompileCache() as cache:
        chosen = selection(options, cache)
        cache.require_directory()
        cache.require_writable("stored", "pull")
        tiers = list(cache.shared_tiers())
        if not tiers:
            raise UsageError("there is nothing to pull from: set PTOCACHE_SHARED")
        results = {}
        for tier in tiers:
            with progress_bar(f"receiving from {tier.label}") as progress:
                try:
                    results[tier.label] = pull(cache.local, tier, chosen, progress)
                except TransferError as error:  # the next one may do
                    results[tier.label] = Moved(failed=1, problem=str(error))
    return report(results, "received", options.json)
