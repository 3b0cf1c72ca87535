"""Read all that is stored, and check it.

Every read of the cache is checked anyway, and what is damaged is compiled again: this is for a disk that is not
trusted any more. What is bad is listed. Exit status: 0, all is well or was repaired; 1, something is bad.

for example:
  ptocache verify
  ptocache verify --repair
"""

from __future__ import annotations

import argparse
import sys

from ptocache.cli.output import print_json
from ptocache.cli.progress import progress_bar
from ptocache.frontend import CompileCache
from ptocache.store.upkeep import measure, repair, verify
from ptocache.text import plural


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--repair", action="store_true", help="remove what is bad, so that it is compiled again")
    parser.add_argument("--json", action="store_true", help="print what was found as one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    with CompileCache() as cache:
        cache.require_directory()
        if options.repair:
            cache.require_writable("repaired", "repair the cache")
        entries, _ = measure(cache.local)
        with progress_bar("verifying") as progress:
            damages = list(verify(cache.local, cache.failures, progress))
        if options.repair:
            repair(cache.local, damages)
    if options.json:
        facts = {
            "directory": cache.settings.dir,
            "entries": entries,
            "bad": [damage._asdict() for damage in damages],
            "repaired": bool(options.repair),
        }
        print_json(facts)
    else:
        for damage in damages:
            sys.stdout.write(f"{damage.path}: {damage.problem}\n")
        if not damages:
            outcome = "all is well"
        elif options.repair:
            outcome = f"{plural(len(damages), 'file')} removed, and compiled again when asked for"
        else:
            outcome = f"{plural(len(damages), 'bad file')}; ptocache verify --repair removes them"
        sys.stdout.write(f"{cache.settings.dir}: {plural(entries, 'entry')} read, {outcome}\n")
    return 1 if damages and not options.repair else 0
