"""Store in the cache what `ptocache export` wrote into a file.

Each kernel is checked before it is stored, its signature too if PTOCACHE_SIGNING_KEY is set. Exit status: 0, all that
was chosen is stored; 1, something is damaged, or not signed as it has to be.

  ptocache import kernels.ptocache
  ptocache import kernels.ptocache --arch a5
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
from ptocache.store.transfer import import_


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", metavar="FILE", help="the archive")
    add_selection(parser, is_local=False)


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    with CompileCache() as cache:
        chosen = selection(options, cache)
        cache.require_directory()
        cache.require_writable("stored", "import")
        with progress_bar("importing") as progress:
            moved = import_(cache.local, options.file, chosen, Signer(cache.settings.signing_keys), progress)
    if options.json:
        print_json({"file": options.file, **moved._asdict()})
    else:
        sys.stdout.write(f"{options.file}: {describe(moved, 'imported')}\n")
    return 1 if moved.rejected or moved.failed else 0
