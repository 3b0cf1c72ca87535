"""Fill the cache: compile many PTODSL sources, several at a time, each once.

A directory stands for all PTODSL sources below it; Python files without a kernel are passed over. With --from-log,
what an earlier run asked for is compiled: set PTOCACHE_REQUEST_LOG to a file in that run.

for example:
  ptocache warm kernels/ -j 16
  ptocache warm attention.py --arch a5 --arch a3
  PTOCACHE_REQUEST_LOG=requests.jsonl python train.py; ptocache clear -y; ptocache warm --from-log requests.jsonl
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator

from ptocache.cli import UsageError
from ptocache.cli.compile import add_tool_arguments, read_source, use_emulator
from ptocache.cli.output import print_json
from ptocache.cli.progress import progress_bar
from ptocache.errors import PtocacheError
from ptocache.frontend import CompileCache
from ptocache.request import ARCHS
from ptocache.text import plural, seconds_text
from ptocache.warm import Failure, Wanted, Warmed, distinct, logged, sources_below, warm


class _Found:
    """The sources that are to be compiled, and what else was found."""

    def __init__(self) -> None:
        self.wanted: list[Wanted] = []
        self.passed_over = 0
        self.damaged = 0
        self.unreadable: list[Failure] = []

    def cannot_read(self, path: str, error: OSError) -> None:
        self.unreadable.append(Failure(path, f"it cannot be read: {error.strerror or error}"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("paths", metavar="FILE|DIRECTORY", nargs="*", help="PTODSL sources")
    parser.add_argument("--from-log", metavar="LOG", help="compile what such a log has, instead")
    parser.add_argument(
        "-j", "--jobs", metavar="N", type=int, help="how many to compile at a time (default: one a CPU that it may use)"
    )
    parser.add_argument(
        "--arch", metavar="A", dest="archs", action="append", help=f"{', '.join(ARCHS)}; may be repeated"
    )
    add_tool_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print what was done as one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    jobs = _jobs(options.jobs)
    if bool(options.paths) == bool(options.from_log):
        raise UsageError("expected files and directories, or --from-log LOG (see ptocache warm --help)")
    if options.from_log and (options.archs or options.flags):
        raise UsageError("--from-log has the arch and the flags of each request: leave --arch and --flag out")
    use_emulator(options)
    found = _from_log(options.from_log) if options.from_log else _from_paths(options)
    _say_failures(found.unreadable)
    start = time.monotonic()
    so_far = Warmed()
    with CompileCache() as cache:
        cache.require_directory()
        if found.wanted:
            _refuse_at_once(cache, options)
        try:
            with progress_bar("warming") as show:

                def progress(warmed: Warmed, count: int) -> None:
                    nonlocal so_far
                    _say_failures(warmed.failures[len(so_far.failures) :])
                    so_far = warmed
                    if show is not None:
                        show(warmed.done, count, _counts(warmed))

                warmed = warm(cache, found.wanted, jobs, progress)
        except (KeyboardInterrupt, SystemExit):
            sys.stderr.write(f"ptocache: ended after {_summary(so_far, time.monotonic() - start)}\n")
            raise
    warmed = warmed._replace(failures=(*found.unreadable, *warmed.failures))
    _report(warmed, found, time.monotonic() - start, options.json)
    return 1 if warmed.failures else 0


def _jobs(given: int | None) -> int:
    if given is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not 1 <= given <= 1024:
        raise UsageError(f"-j {given}: expected a number from 1 to 1024")
    return given


def _refuse_at_once(cache: CompileCache, options: argparse.Namespace) -> None:
    """Where no source can be compiled, for want of tools or with such options, say so once and not for each."""
    cache.stamp()
    if not options.from_log:
        for arch in options.archs or [None]:
            cache.prepare("", arch, options.flags)


def _from_log(path: str) -> _Found:
    found = _Found()

    def undamaged() -> Iterator[Wanted]:
        for wanted in logged(path):
            if wanted is None:
                found.damaged += 1
            else:
                yield wanted

    found.wanted = distinct(undamaged())  # many processes may have asked for the same
    if not found.wanted:
        raise PtocacheError(f"{path}: there is no request in it: expected a log that PTOCACHE_REQUEST_LOG named")
    return found


def _from_paths(options: argparse.Namespace) -> _Found:
    found = _Found()
    flags = tuple(options.flags) if options.flags is not None else None
    for path in options.paths:
        for name, source in _sources(path, found):
            if source is None:
                found.passed_over += 1
            else:
                found.wanted += (Wanted(name, source, arch, flags) for arch in options.archs or [None])
    return found


def _sources(path: str, found: _Found) -> Iterator[tuple[str, str | None]]:
    if os.path.isdir(path):
        yield from sources_below(path, found.cannot_read)
    else:
        yield path, read_source(path)


def _say_failures(failures: Iterable[Failure]) -> None:
    for failure in failures:
        sys.stderr.write(f"ptocache: {failure.name}: {failure.error}\n")


def _report(warmed: Warmed, found: _Found, seconds: float, as_json: bool) -> None:
    if as_json:
        facts = {
            "hits": warmed.hits,
            "compiled": warmed.compiled,
            "failed": len(warmed.failures),
            "passed_over": found.passed_over,
            "damaged": found.damaged,
            "seconds": round(seconds, 3),
            "failures": [failure._asdict() for failure in warmed.failures],
        }
        print_json(facts)
        return
    more = [
        f"{plural(count, noun)} {what}"
        for count, noun, what in (
            (found.passed_over, "file", "without a kernel passed over"),
            (found.damaged, "line", "of the log damaged"),
        )
        if count
    ]
    sys.stdout.write("; ".join([_summary(warmed, seconds), *more]) + "\n")


def _summary(warmed: Warmed, seconds: float) -> str:
    return f"{plural(warmed.done, 'kernel source')}: {_counts(warmed)} in {seconds_text(seconds)}"


def _counts(warmed: Warmed) -> str:
    return f"{plural(warmed.hits, 'hit')}, {warmed.compiled} compiled, {len(warmed.failures)} failed"
