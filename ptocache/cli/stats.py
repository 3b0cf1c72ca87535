"""Show what the cache holds and what it was good for.

Requests are hits and misses; a miss is a compilation or a failure. The numbers are those of all processes that
used this cache directory, up to their last few seconds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import NamedTuple

from ptocache.frontend import CompileCache
from ptocache.store.upkeep import usage
from ptocache.text import bytes_text, plural, seconds_text


class Statistics(NamedTuple):
    """The numbers of a cache, under the names that `--json` prints. Sizes are in bytes, times in seconds."""

    directory: str
    entries: int
    bytes: int
    limit_bytes: int
    requests: int
    hits: dict[str, int]
    misses: int
    compiles: int
    failures: int
    failures_remembered: int
    errors: int
    damaged: int
    evictions: int
    seconds_compiling: float
    seconds_saved: float
    engines: dict[str, dict[str, float]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print the numbers as one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    with CompileCache() as cache:
        statistics = collect(cache)
    if options.json:
        import json

        sys.stdout.write(json.dumps(statistics._asdict()) + "\n")
    else:
        sys.stdout.write(_page(statistics))
    return 0


def collect(cache: CompileCache) -> Statistics:
    """Gather the statistics of a cache; raises `RefusedDirectoryError` where its directory is not used."""
    cache.require_directory()
    entries, used = usage(cache.local)
    totals = cache.counters.totals()
    hits = {tier: int(totals[f"hits.{tier}"]) for tier in ("memory", "local", "shared")}
    misses = int(totals["misses"])
    return Statistics(
        directory=cache.settings.dir,
        entries=entries,
        bytes=used,
        limit_bytes=cache.settings.size_limit,
        requests=sum(hits.values()) + misses,
        hits=hits,
        misses=misses,
        compiles=int(totals["compiles"]),
        failures=int(totals["failures"]),
        failures_remembered=int(totals["failures_remembered"]),
        errors=int(totals["errors"]),
        damaged=int(totals["damaged"]),
        evictions=int(totals["evictions"]),
        seconds_compiling=round(totals["seconds_compiling"], 3),
        seconds_saved=round(totals["seconds_saved"], 3),
        engines={label: _rounded(counts) for label, counts in sorted(cache.counters.engines().items())},
    )


def _page(numbers: Statistics) -> str:
    limit = f" of {bytes_text(numbers.limit_bytes)}" if numbers.limit_bytes else ", no limit"
    hits = sum(numbers.hits.values())
    share = f" ({hits / numbers.requests:.0%})" if numbers.requests else ""
    tiers = ", ".join(f"{count} {tier}" for tier, count in numbers.hits.items())
    rows = (
        ("directory", numbers.directory),
        ("size", f"{plural(numbers.entries, 'entry')}, {bytes_text(numbers.bytes)}{limit}"),
        ("requests", numbers.requests),
        ("hits", f"{hits}{share}: {tiers}"),
        ("misses", f"{numbers.misses}: {numbers.compiles} compiled, {numbers.failures} failed"),
        ("removed", f"{numbers.evictions} to make room, {numbers.damaged} damaged"),
        ("time compiling", seconds_text(numbers.seconds_compiling)),
        ("time saved", seconds_text(numbers.seconds_saved)),
    )
    lines = [f"{name:16}{value}\n" for name, value in rows]
    for label, counts in numbers.engines.items():
        lines.append(f"\nshared: {label}\n")
        lines += (f"  {name:14}{value}\n" for name, value in _engine_rows(counts))
    return "".join(lines)


def _engine_rows(counts: dict[str, float]) -> Iterator[tuple[str, str]]:
    reads = counts["hits"] + counts["misses"]
    latency = f", {seconds_text(counts['seconds_reading'] / reads)} each" if reads else ""
    yield (
        "read",
        f"{counts['hits']:.0f} hits, {counts['misses']:.0f} misses, {bytes_text(counts['bytes_read'])}{latency}",
    )
    latency = f", {seconds_text(counts['seconds_writing'] / counts['stores'])} each" if counts["stores"] else ""
    yield "written", f"{plural(round(counts['stores']), 'object')}, {bytes_text(counts['bytes_written'])}{latency}"
    problems = (
        ("errors", "errors"),
        ("skipped", "not asked, as it had failed"),
        ("rejected", "objects not used"),
        ("dropped", "not sent, as too many waited"),
    )
    found = ", ".join(f"{counts[name]:.0f} {what}" for name, what in problems if counts[name])
    if found:
        yield "problems", found


def _rounded(counts: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) if name.startswith("seconds") else int(value) for name, value in counts.items()}
