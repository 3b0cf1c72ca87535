"""Check that the cache can do its work here: its directory, the file system, permissions, space, locks, the index.

Exit status: 0, it can; 1, something keeps it from working, and the last line says what to do.
"""

from __future__ import annotations

import argparse
import sys

from ptocache.doctor import Finding, examine
from ptocache.frontend import CompileCache


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    with CompileCache() as cache:
        findings = list(examine(cache))
    works = all(finding.state != "error" for finding in findings)
    if options.json:
        import json

        sys.stdout.write(json.dumps({"ok": works, "findings": [finding._asdict() for finding in findings]}) + "\n")
    else:
        sys.stdout.write("".join(_line(finding) for finding in findings))
    return 0 if works else 1


def _line(finding: Finding) -> str:
    return f"{finding.state:9}{finding.name:13}{finding.text}\n"
