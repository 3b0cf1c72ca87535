"""The statistics of a cache in Prometheus's text exposition format.

Names and units follow https://prometheus.io/docs/practices/naming/, the format
https://prometheus.io/docs/instrumenting/exposition_formats/.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ptocache.statistics import Statistics
from ptocache.text import printable

#: One sample: its labels, and its value.
Sample = tuple[dict[str, str], float]


def exposition(numbers: Statistics) -> str:
    """All metrics, each with its help and its type."""
    return "".join(_family(*family) for family in _families(numbers))


def _families(numbers: Statistics) -> Iterator[tuple[str, str, str, Iterable[Sample]]]:
    """Name, type, help and samples of each metric."""
    outcomes = [({"outcome": name}, count) for name, count in numbers.outcomes().items()]
    yield "ptocache_requests_total", "counter", "Requests by how they ended.", outcomes
    counters: dict[str, tuple[str, float]] = {
        "compile_seconds": ("Time that compilations took.", numbers.seconds_compiling),
        "saved_seconds": ("Time that the requests would have taken more without the cache.", numbers.seconds_saved),
        "evictions": ("Device binaries that were removed to make room.", numbers.evictions),
        "damaged": ("Damaged files that were found.", numbers.damaged),
        "errors": ("How often the cache could not do its work.", numbers.errors),
    }
    for name, (text, value) in counters.items():
        yield f"ptocache_{name}_total", "counter", text, [({}, value)]
    gauges: dict[str, tuple[str, float | None]] = {
        "entries": ("Device binaries that are stored.", numbers.entries),
        "size_bytes": ("What the cache directory takes on disk.", numbers.bytes),
        "size_limit_bytes": ("The size limit; 0 for none.", numbers.limit_bytes),
        "counting_since_timestamp_seconds": ("When counting began.", numbers.since),
    }
    for name, (text, number) in gauges.items():
        yield f"ptocache_{name}", "gauge", text, [({}, number)] if number is not None else []
    yield from _toolchains(numbers)
    yield from _engines(numbers)


def _toolchains(numbers: Statistics) -> Iterator[tuple[str, str, str, Iterable[Sample]]]:
    rows = [
        ({"kind": row.kind, "arch": row.arch, "toolchain": row.toolchain, "version": row.version}, row)
        for row in numbers.toolchains
    ]
    yield (
        "ptocache_toolchain_entries",
        "gauge",
        "Device binaries by the toolchain that made them.",
        [(labels, row.entries) for labels, row in rows],
    )
    yield (
        "ptocache_toolchain_size_bytes",
        "gauge",
        "What those take on disk.",
        [(labels, row.bytes) for labels, row in rows],
    )
    yield (
        "ptocache_toolchain_stale",
        "gauge",
        "1 where today's toolchain is another one.",
        [(labels, float(row.stale)) for labels, row in rows if row.stale is not None],
    )


#: What is counted of each engine: the end of the metric's name, the count, and what it is.
_ENGINE = (
    ("hits", "hits", "Requests that an engine of the shared tier answered."),
    ("misses", "misses", "Requests that it had nothing for."),
    ("errors", "errors", "Requests that it failed."),
    ("rejected", "rejected", "Objects that were not used: damaged, or not signed as they have to be."),
    ("skipped", "skipped", "Requests that it was not asked, as it had failed."),
    ("stores", "stores", "Objects that were stored there."),
    ("dropped", "dropped", "Objects that were not sent, as too many waited."),
    ("read_bytes", "bytes_read", "What was read from it."),
    ("written_bytes", "bytes_written", "What was written to it."),
    ("read_seconds", "seconds_reading", "Time that reading took."),
    ("write_seconds", "seconds_writing", "Time that writing took."),
)


def _engines(numbers: Statistics) -> Iterator[tuple[str, str, str, Iterable[Sample]]]:
    for name, counted, text in _ENGINE:
        samples = [({"engine": label}, counts[counted]) for label, counts in numbers.engines.items()]
        yield f"ptocache_engine_{name}_total", "counter", text, samples


def _family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> str:
    lines = [f"{name}{_labels(labels)} {value:.15g}\n" for labels, value in samples]
    return "".join([f"# HELP {name} {text}\n# TYPE {name} {kind}\n", *lines]) if lines else ""


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    # A line break is the only control character that the format can spell.
    shown = printable(text, kept="\n").encode("utf-8", "backslashreplace").decode()
    return shown.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
