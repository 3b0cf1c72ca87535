"""Show what the cache holds and what it was good for.

Requests are hits and misses; a miss is a compilation or a failure. A hit "after lowering" is one whose source was new
and led to a text that was known. The numbers are those of all processes that used this cache directory, up to their
last few seconds.

for example:
  ptocache stats                     a page
  ptocache stats --watch             the page, again every 2 seconds
  ptocache stats --history           a line for each day
  ptocache stats --json | jq .hits
  ptocache stats --prometheus
  ptocache stats --zero              count anew from now on
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

from ptocache.cli import UsageError
from ptocache.cli.output import print_json
from ptocache.cli.style import Style
from ptocache.errors import PtocacheError
from ptocache.frontend import CompileCache
from ptocache.statistics import KernelUse, Statistics, collect
from ptocache.text import bytes_text, plural, printable, seconds_text

#: How requests may end, as people call it.
OUTCOMES = {
    "memory": "from memory",
    "local": "from the local cache",
    "shared": "from the shared cache",
    "pto": "after lowering",
    "compiled": "compiled",
    "failed": "failed",
    "failure_remembered": "failed, remembered",
}

_BAR = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the numbers as one JSON object")
    form.add_argument("--prometheus", action="store_true", help="print them in Prometheus's text format")
    form.add_argument(
        "--watch",
        metavar="SECONDS",
        nargs="?",
        type=float,
        const=2.0,
        help="show the page again every so many seconds (2), until Ctrl-C",
    )
    form.add_argument("--zero", action="store_true", help="set the numbers to nought; what is stored stays")
    parser.add_argument(
        "--history", action="store_true", help="show each day of the last 90; with --json, each hour of them"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    with CompileCache() as cache:
        if options.zero:
            return _zero(cache)
        if options.watch is not None:
            return _watch(cache, options)
        numbers = collect(cache)
    if options.json:
        facts = numbers.json_facts()
        if not options.history:
            del facts["hours"]
        print_json(facts)
    elif options.prometheus:
        from ptocache.prometheus import exposition

        sys.stdout.write(exposition(numbers))
    else:
        sys.stdout.write(_text(numbers, options))
    return 0


def _zero(cache: CompileCache) -> int:
    cache.require_directory()
    cache.require_writable("written", "set the numbers to nought")
    if not cache.counters.zero():
        raise PtocacheError("another process keeps the statistics locked: try again")
    sys.stdout.write(f"the statistics of {cache.settings.dir} begin anew; what is stored stays\n")
    return 0


def _watch(cache: CompileCache, options: argparse.Namespace) -> int:
    if not sys.stdout.isatty():
        raise UsageError("--watch is for a terminal; a script can ask for --json as often as it likes")
    if not 0.1 <= options.watch <= 86_400:
        raise UsageError(f"--watch {options.watch:g}: expected a number of seconds from 0.1 to 86400")
    try:
        while True:
            page = _text(collect(cache), options)
            # Home, each line cleared to its end, then what is left of an older, longer page: no flicker.
            sys.stdout.write("\x1b[H" + page.replace("\n", "\x1b[K\n") + "\x1b[J")
            sys.stdout.flush()
            time.sleep(options.watch)
    except KeyboardInterrupt:
        sys.stdout.write("\n")
        return 0


def _text(numbers: Statistics, options: argparse.Namespace) -> str:
    style = Style(sys.stdout)
    lines = _history(numbers, style) if options.history else _page(numbers, style)
    return "".join(f"{line}\n" for line in lines)


def _page(numbers: Statistics, style: Style) -> Iterator[str]:
    since = f", since {_moment(numbers.since)}" if numbers.since is not None else ""
    yield f"{style.bold(printable(numbers.directory))}{since}"
    yield ""
    yield from _headline(numbers, style)
    yield ""
    yield style.bold("requests")
    for name, count in numbers.outcomes().items():
        share = f"{count / numbers.requests:6.0%}" if numbers.requests else ""
        yield f"  {OUTCOMES[name]:24}{count:12,}{share}"
    yield from _toolchains(numbers, style)
    yield from _kernels("used most", numbers.kernels_used, style)
    yield from _kernels("slowest to compile", numbers.kernels_slowest, style)
    for label, counts in numbers.engines.items():
        yield ""
        yield style.bold(f"shared: {printable(label)}")
        for name, text in _engine_rows(counts):
            yield f"  {name:14}{text}"


def _headline(numbers: Statistics, style: Style) -> Iterator[str]:
    hits = sum(numbers.hits.values())
    if numbers.hit_rate is None:
        yield "  hits      nothing was requested yet"
    else:
        requests = plural(numbers.requests, "request")
        yield f"  hits      {style.bar(numbers.hit_rate, _BAR)} {numbers.hit_rate:4.0%}  {hits:,} of {requests}"
    stored = f"{plural(numbers.entries, 'entry')}, {bytes_text(numbers.bytes)}"
    if numbers.limit_bytes:
        share = numbers.bytes / numbers.limit_bytes
        limit = bytes_text(numbers.limit_bytes)
        yield f"  size      {style.bar(share, _BAR, full_is_bad=True)} {share:4.0%}  {stored} of {limit}"
    else:
        yield f"  size      {stored}, no limit"
    saved, spent = seconds_text(numbers.seconds_saved), seconds_text(numbers.seconds_compiling)
    yield f"  time      {style.bold(f'{saved} saved')}, {spent} spent on compiling"
    removed = [
        f"{count:,} {what}"
        for count, what in (
            (numbers.evictions, "removed to make room"),
            (numbers.damaged, "damaged and removed"),
            (numbers.errors, "errors: see ptocache doctor"),
        )
        if count
    ]
    if removed:
        yield f"  also      {', '.join(removed)}"


def _toolchains(numbers: Statistics, style: Style) -> Iterator[str]:
    if not numbers.toolchains:
        return
    yield ""
    yield style.bold(f"{'toolchain':26}{'arch':8}{'entries':>10}{'size':>14}")
    for row in numbers.toolchains:
        version = printable(row.version) or "unknown"
        note = f"  {style.warn('stale')}" if row.stale else ""
        yield f"  {version:24}{printable(row.arch):8}{row.entries:10,}{bytes_text(row.bytes):>14}{note}"


def _kernels(title: str, rows: list[KernelUse], style: Style) -> Iterator[str]:
    if not rows:
        return
    yield ""
    yield style.bold(f"{title:34}{'hits':>10}{'compiled in':>14}{'saved':>16}")
    for row in rows:
        name = printable(", ".join(row.kernels)) or row.key
        short = name if len(name) <= 32 else f"{name[:31]}{style.ellipsis}"
        times = f"{seconds_text(row.seconds):>14}{seconds_text(row.seconds_saved):>16}"
        yield f"  {short:32}{row.hits:10,}{times}"


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


def _history(numbers: Statistics, style: Style) -> Iterator[str]:
    """A line for each day, of this machine's time zone, on which something was requested."""
    days: dict[str, dict[str, float]] = {}
    for hour, counts in numbers.hours.items():
        day = days.setdefault(time.strftime("%Y-%m-%d", time.localtime(hour * 3600)), {})
        for name, amount in counts.items():
            day[name] = day.get(name, 0) + amount
    if not days:
        yield "nothing was requested in the last 90 days"
        return
    yield style.bold(f"{'day':12}{'requests':>10}{'hits':>{_BAR + 8}}{'compiled':>10}{'failed':>8}{'saved':>12}")
    for date, counts in days.items():
        hits = sum(amount for name, amount in counts.items() if name.startswith("hits."))
        requests = hits + counts.get("misses", 0)
        if requests:
            share = hits / requests
            bar = f"  {style.bar(share, _BAR)} {share:5.0%}"
            compiled, failed = counts.get("compiles", 0), counts.get("failures", 0)
            saved = seconds_text(counts.get("seconds_saved", 0))
            yield f"{date:12}{requests:10,.0f}{bar}{compiled:10,.0f}{failed:8,.0f}{saved:>12}"


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
