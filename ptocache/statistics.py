"""What a cache holds and what it was good for, gathered for all that shows it: a page, JSON, Prometheus, a report."""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ptocache.counters import Use
from ptocache.errors import PtocacheError
from ptocache.frontend import CompileCache
from ptocache.log import get_logger
from ptocache.recipe import PTODSL
from ptocache.store.catalog import facts_of
from ptocache.store.entry import Action
from ptocache.store.upkeep import ask_index, usage

if TYPE_CHECKING:
    from ptocache.store.row import Group

#: How many kernels are named where it is not said otherwise.
KERNELS = 5


class Toolchain(NamedTuple):
    """The entries that one toolchain made for one arch.

    Attributes:
        kind: the kind of compilation: `source` for PTODSL, `ascendc`.
        arch: what they are for.
        toolchain: its stamp; empty where it is unknown.
        version: its version, as people know it.
        entries: how many device binaries.
        bytes: what they take on disk.
        stale: whether today's toolchain is another one; `None` where that cannot be told here.
    """

    kind: str
    arch: str
    toolchain: str
    version: str
    entries: int
    bytes: int
    stale: bool | None


class KernelUse(NamedTuple):
    """What one key was asked for.

    Attributes:
        key: the name of the source key, 32 hexadecimal digits.
        kernels: the names of the kernels in it.
        arch: what they are for.
        hits: how many requests were hits.
        seconds: how long the compilation took.
        seconds_saved: how long those hits would have taken, compiled.
    """

    key: str
    kernels: list[str]
    arch: str
    hits: int
    seconds: float
    seconds_saved: float


class Statistics(NamedTuple):
    """The numbers of a cache, under the names that `--json` prints. Sizes are in bytes, times in seconds.

    Attributes:
        directory: the cache directory.
        since: when counting began, in seconds since the epoch; `None` where nothing was counted yet.
        entries: how many device binaries it has.
        bytes: what all of the directory takes on disk.
        limit_bytes: the size limit; 0 for none.
        requests: all requests: hits and misses.
        hits: by where the result was found: `memory`, `local`, `shared`; `pto` where the source was lowered and the
            rest was found.
        misses: the other requests: those that were compiled, and those that failed.
        compiles: how many were compiled.
        failures: how many failed.
        failures_remembered: how many of those were answered from memory of an earlier one.
        errors: how often the cache could not do its work.
        damaged: how many damaged files were found.
        evictions: how many device binaries were removed to make room.
        seconds_compiling: how long the compilations took.
        seconds_saved: how much longer the requests would have taken without the cache.
        engines: what was counted of each engine of the shared tier, by its URL.
        hours: what was counted in each of the last 90 days' hours, in hours since the epoch, under the names of
            `ptocache.counters.NAMES`; only what is not nought.
        toolchains: the entries by what made them, the most bytes first.
        kernels_saved: the keys whose hits saved most time.
        kernels_used: the keys that were hit most often.
        kernels_slowest: the keys whose compilation took longest.
    """

    directory: str
    since: float | None
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
    hours: dict[int, dict[str, float]]
    toolchains: list[Toolchain]
    kernels_saved: list[KernelUse]
    kernels_used: list[KernelUse]
    kernels_slowest: list[KernelUse]

    @property
    def hit_rate(self) -> float | None:
        """The share of the requests that were hits, from 0 to 1; `None` where nothing was requested."""
        return sum(self.hits.values()) / self.requests if self.requests else None

    def outcomes(self) -> dict[str, int]:
        """How many requests ended in which way; together they are all requests."""
        return {
            **self.hits,
            "compiled": self.compiles,
            "failed": self.failures - self.failures_remembered,
            "failure_remembered": self.failures_remembered,
        }

    def json_facts(self) -> dict[str, Any]:
        """The same, as `json` takes it."""
        facts = self._asdict()
        for name in ("toolchains", "kernels_saved", "kernels_used", "kernels_slowest"):
            facts[name] = [row._asdict() for row in facts[name]]
        return facts


def collect(cache: CompileCache, kernels: int = KERNELS) -> Statistics:
    """Gather the statistics of a cache.

    Args:
        cache: the cache.
        kernels: how many kernels are named in each of the lists.

    Raises:
        RefusedDirectoryError: its directory is not used.
    """
    cache.require_directory()
    record = cache.counters.read()
    totals = record.totals
    hits = {tier: int(totals[f"hits.{tier}"]) for tier in ("memory", "local", "shared", "pto")}
    misses = int(totals["misses"])
    found = usage(cache.local)
    uses = cache.counters.uses()
    return Statistics(
        directory=cache.settings.dir,
        since=record.since,
        entries=found.entries,
        bytes=found.bytes,
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
        engines={label: _rounded(counts) for label, counts in sorted(record.engines.items())},
        hours=record.hours,
        toolchains=_toolchains(cache, ask_index(cache.local, lambda rows: rows.groups()) or []),
        kernels_saved=_top(cache, uses, kernels, lambda use: use.hits * use.seconds),
        kernels_used=_top(cache, uses, kernels, lambda use: use.hits),
        kernels_slowest=_top(cache, uses, kernels, lambda use: use.seconds),
    )


def today_stamp(cache: CompileCache) -> str | None:
    """The name of the stamp of the toolchain that would compile now; `None` where there is none that works."""
    try:
        return cache.stamp().name
    except PtocacheError as error:
        get_logger(__name__).debug("no toolchain to compare with: %s", error)
        return None


def version_of(stamp: str) -> str:
    """The version of a toolchain from its stamp's name, which ends with a digest of each half."""
    return stamp.rsplit("-", 2)[0]


def _toolchains(cache: CompileCache, groups: list[Group]) -> list[Toolchain]:
    today = today_stamp(cache) if groups else None
    rows = []
    for group in groups:
        words = group.name.split(" ")
        kind, arch, stamp = words if len(words) == 3 else ("", "", "")
        stale = stamp != today if today is not None and kind == PTODSL else None
        rows.append(Toolchain(kind, arch, stamp, version_of(stamp), group.entries, group.bytes, stale))
    return rows


def _top(cache: CompileCache, uses: dict[str, Use], count: int, cost: Callable[[Use], float]) -> list[KernelUse]:
    """The keys that have the most of something and are still stored."""
    ranked = heapq.nlargest(4 * count, ((cost(use), name) for name, use in uses.items() if cost(use)))
    found: list[KernelUse] = []
    for _, name in ranked:
        with contextlib.suppress(OSError):
            found += (_kernel_use(name, uses[name], action) for action in cache.local.actions(name)[:1])
        if len(found) == count:
            break
    return found


def _kernel_use(name: str, use: Use, action: Action) -> KernelUse:
    facts = facts_of(action)
    saved = round(use.hits * action.seconds, 3)
    return KernelUse(name, list(facts.kernels), facts.arch, use.hits, round(action.seconds, 3), saved)


def _rounded(counts: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) if name.startswith("seconds") else int(value) for name, value in counts.items()}
