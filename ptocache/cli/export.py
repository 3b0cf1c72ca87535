"""Write what the cache has into one file, to be taken to a machine without a network.

Signed with PTOCACHE_SIGNING_KEY, if that is set.

  ptocache export kernels.ptocache
  ptocache export kernels.ptocache --toolchain 9.0.0
"""

from __future__ import annotations

import argparse
import sys

from ptocache.cli.output import print_json
from ptocache.cli.progress import progress_bar
from ptocache.cli.selection import add_arguments as add_selection
from ptocache.cli.selection import describe, selection
from ptocache.frontend import CompileCache
from ptocache.store.objects import Signer
from ptocache.store.transfer import export


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", metavar="FILE", help="the archive to write: a tar file, compressed with zstd")
    add_selection(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    with CompileCache() as cache:
        chosen = selection(options, cache)
        cache.require_directory()
        with progress_bar("exporting") as progress:
            moved = export(cache.local, options.file, chosen, Signer(cache.settings.signing_keys), progress)
    if options.json:
        print_json({"file": options.file, **moved._asdict()})
    else:
        sys.stdout.write(f"{options.file}: {describe(moved, 'exported')}\n")
    return 1 if moved.rejected else 0
