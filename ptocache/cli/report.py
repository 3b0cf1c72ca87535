"""Write a report on the cache: one page of HTML with what `ptocache stats` tells, drawn.

The page loads nothing, from this host or another, and can be sent to others as it is.

for example:
  ptocache report                       writes ptocache-report.html
  ptocache report -o - | gzip > report.html.gz
"""

from __future__ import annotations

import argparse
import sys
from datetime import datetime

from ptocache.cli.output import write_file
from ptocache.frontend import CompileCache
from ptocache.report import render
from ptocache.statistics import collect
from ptocache.text import bytes_text, plural

#: Of so many of the kernels that were used most, and of the slowest, the report tells.
_KERNELS = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        default="ptocache-report.html",
        help="where to write it; - for standard output (default: ptocache-report.html)",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    with CompileCache() as cache:
        statistics = collect(cache, kernels=_KERNELS)
    page = render(statistics, datetime.now().astimezone()).encode()
    if options.output == "-":
        sys.stdout.buffer.write(page)
        return 0
    write_file(options.output, page, "the report")
    sys.stdout.write(f"{options.output}: {bytes_text(len(page))}, {plural(statistics.requests, 'request')}\n")
    return 0
