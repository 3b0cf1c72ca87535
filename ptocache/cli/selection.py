"""The options that choose compilations, and what is said of them, the same for all commands that move them."""

from __future__ import annotations

import argparse
import sys

from ptocache.cli import UsageError
from ptocache.settings import parse_age
from ptocache.store.transfer import Moved, Selection
from ptocache.text import bytes_text, plural


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    chosen = parser.add_argument_group("which compilations", "all, or those that match all of these")
    chosen.add_argument(
        "--kernel", metavar="GLOB", default="", help="those of a kernel with such a name: 'attention_*'"
    )
    chosen.add_argument("--newer-than", metavar="AGE", default="0", help="those made since then: 7d, 12h")
    parser.add_argument("--json", action="store_true", help="print what was done as one JSON object")
    chosen.add_argument("--toolchain", metavar="STAMP", default="", help="those whose toolchain's stamp begins so")


def selection(options: argparse.Namespace) -> Selection:
    """What they say; raises `UsageError`."""
    try:
        return Selection(options.kernel, parse_age(options.newer_than), options.toolchain)
    except ValueError as error:
        raise UsageError(f"--newer-than: {error}") from None


def report(results: dict[str, Moved], verb: str, as_json: bool) -> int:
    """Print what came of it for each engine, and return the exit status."""
    if as_json:
        import json

        sys.stdout.write(json.dumps({label: moved._asdict() for label, moved in results.items()}) + "\n")
    else:
        for label, moved in results.items():
            sys.stdout.write(f"{label}: {describe(moved, verb)}\n")
    return 1 if any(moved.failed or moved.rejected for moved in results.values()) else 0


def describe(moved: Moved, verb: str) -> str:
    """What came of it, in one line: `12 entries sent, 340.2 KiB; 3 were there already`."""
    parts = [f"{plural(moved.moved, 'entry')} {verb}, {bytes_text(moved.bytes)}"]
    if moved.present:
        parts.append(f"{moved.present} {'was' if moved.present == 1 else 'were'} there already")
    if moved.rejected:
        parts.append(f"{moved.rejected} not used")
    if moved.failed:
        parts.append(f"{moved.failed} failed")
    text = "; ".join(parts)
    return f"{text} ({moved.problem})" if moved.problem else text
