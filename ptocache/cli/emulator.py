"""Write an emulated CANN install, for machines without one.

It has the real one's programs, files and variables, and compiles real PTODSL sources into real ELF files that no
NPU can run. `ptocache compile --emulate` uses one of its own; write one to use it as if it were installed:

  ptocache emulator ./cann
  . ./cann/set_env.sh
  ptocache compile kernel.py
"""

from __future__ import annotations

import argparse
import sys

from ptocache.emulator import DEFAULT_CANN_VERSION, write_install


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "directory", metavar="DIR", help="where to write it: a new or empty directory, or one of its kind"
    )
    parser.add_argument(
        "--cann-version",
        metavar="V",
        default=DEFAULT_CANN_VERSION,
        help="the version that it says it is (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    root = write_install(options.directory, options.cann_version)
    sys.stdout.write(
        f"wrote an emulated CANN {options.cann_version} to {root}\n"
        f"to use it as if it were installed:  . {root}/set_env.sh\n"
    )
    return 0
