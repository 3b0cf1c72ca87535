"""Say why a PTODSL source is a hit or a miss, without compiling it.

Prints the parts of its key; for a miss also the nearest compilation that is stored, and what differs: the source (as
a diff; the cache keeps each source beside its result), the arch, the flags, a tool, a helper module.
"""

from __future__ import annotations

import argparse
import sys

from ptocache.cli.compile import add_request_arguments, read_source, use_emulator
from ptocache.explain import Explanation, explain
from ptocache.frontend import CompileCache


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_request_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the explanation as one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    source = read_source(options.file)
    use_emulator(options)
    with CompileCache() as cache:
        explanation = explain(cache, cache.prepare(source, options.arch, options.flags))
    if options.json:
        _print_json(explanation)
    else:
        sys.stdout.write(_page(explanation))
    return 0


def _print_json(explanation: Explanation) -> None:
    import json

    facts = explanation._asdict()
    facts["parts"] = dict(explanation.parts)
    if explanation.nearest is not None:
        facts["nearest"] = explanation.nearest._asdict()
        facts["nearest"]["differences"] = [difference._asdict() for difference in explanation.nearest.differences]
    sys.stdout.write(json.dumps(facts) + "\n")


def _page(explanation: Explanation) -> str:
    lines = [
        f"{'hit, ' + explanation.hit if explanation.hit else 'miss'}: key {explanation.key}",
        "",
        "parts of the key",
    ]
    lines += [_row(name, value) for name, value in explanation.parts]
    if explanation.inputs:
        lines += ["", "read beside the source, and the same now", *(f"  {name}" for name in explanation.inputs)]
    nearest = explanation.nearest
    if explanation.hit is None and nearest is None:
        lines += ["", "Nothing is stored yet to compare it with."]
    if nearest is not None:
        lines += ["", f"nearest stored: {nearest.key} ({', '.join(nearest.kernels)})"]
        lines += [f"  {part}: {_short(stored)} -> {_short(now)}" for part, stored, now in nearest.differences]
        if not nearest.differences:
            lines.append("  nothing differs: its output was removed")
        if nearest.diff:
            lines += ["", nearest.diff.rstrip("\n")]
    return "\n".join(lines) + "\n"


def _row(name: str, value: str) -> str:
    return f"  {name:18}{_short(value)}"


def _short(value: str) -> str:
    text = ", ".join(value.splitlines()) or "none"
    return text if len(text) <= 200 else f"{text[:200]}…"
