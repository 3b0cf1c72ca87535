"""Check that the cache can do its work here.

Looks at its directory (file system, permissions, locks, index, space), at each shared engine (reached, written, read
back, removed, latency, clock, signing), at the tools and what of them is in every key, at the settings that are not
the defaults and where they come from, and at TileLang.

Exit status: 0, it can; 1, something keeps it from working, and the lines with "error" say what to do.

for example:
  ptocache doctor
  ptocache doctor --json | jq -r '.findings[] | select(.state != "ok") | .text'
"""

from __future__ import annotations

import argparse
import sys

from ptocache.cli.compile import use_emulator
from ptocache.cli.output import print_json
from ptocache.cli.style import Style
from ptocache.doctor import Finding, examine
from ptocache.frontend import CompileCache


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--emulate", action="store_true", help="use the emulated CANN install")
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    use_emulator(options)
    with CompileCache() as cache:
        findings = list(examine(cache))
    works = all(finding.state != "error" for finding in findings)
    if options.json:
        print_json({"ok": works, "findings": [finding._asdict() for finding in findings]})
    else:
        style = Style(sys.stdout)
        sys.stdout.write("".join(f"{_line(finding, style)}\n" for finding in findings))
    return 0 if works else 1


def _line(finding: Finding, style: Style) -> str:
    mark = {"ok": style.good, "warning": style.warn}.get(finding.state, style.bad)
    return f"{mark(f'{finding.state:9}')}{finding.name:13}{finding.text}"
