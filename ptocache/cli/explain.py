"""Say why a PTODSL source is a hit or a miss, without compiling it.

Prints the parts of its key; for a miss also the nearest compilation that is stored, and what differs: the source (as
a diff; the cache keeps each source, compressed, in the directory `sources`), the arch, the flags, a tool, a helper.

for example:
  ptocache explain kernel.py
  ptocache explain kernel.py --arch a3 --json
"""

from __future__ import annotations

import argparse
import sys
import time

from ptocache.cli.compile import add_request_arguments, read_source, use_emulator
from ptocache.cli.output import print_json
from ptocache.explain import Explanation, Nearest, explain
from ptocache.frontend import CompileCache
from ptocache.text import printable

#: A longer value is cut: who needs it whole asks for JSON.
_WIDTH = 200


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
    facts = explanation._asdict()
    facts["parts"] = dict(explanation.parts)
    facts["inputs"] = [item._asdict() for item in explanation.inputs]
    if explanation.nearest is not None:
        facts["nearest"] = explanation.nearest._asdict()
        facts["nearest"]["differences"] = [difference._asdict() for difference in explanation.nearest.differences]
    print_json(facts)


def _page(explanation: Explanation) -> str:
    lines = [
        f"{'hit, ' + explanation.hit if explanation.hit else 'miss'}: key {explanation.key}",
        *explanation.notes,
        "",
        "parts of the key",
        *(f"  {name:18}{_short(value)}" for name, value in explanation.parts),
    ]
    if explanation.inputs:
        lines += ["", "read beside the source, and the same now"]
        lines += [f"  {item.kind:18}{item.name}" for item in explanation.inputs]
    if explanation.failure is not None:
        lines += ["", "remembered failure, which is the answer until it is forgotten", *_indented(explanation.failure)]
    if explanation.hit is None:
        lines += ["", *_nearest(explanation.nearest)]
    return printable("\n".join(lines) + "\n", kept="\n\t")


def _nearest(nearest: Nearest | None) -> list[str]:
    if nearest is None:
        return ["nothing is stored yet to compare it with"]
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(nearest.created))
    lines = [f"nearest stored: {nearest.key} ({', '.join(nearest.kernels)}), of {made}", "what differs"]
    lines += [f"  {part:18}{_short(stored)} -> {_short(now)}" for part, stored, now in nearest.differences]
    if not nearest.differences:
        lines.append("  nothing; but its output is gone or damaged")
    if nearest.diff:
        lines += ["", *nearest.diff.splitlines()]
    elif any(difference.part == "source" for difference in nearest.differences):
        lines += ["", "the stored source is not kept any more, so there is no diff"]
    return lines


def _short(value: str) -> str:
    text = ", ".join(value.splitlines()) or "none"
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}…"


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]
