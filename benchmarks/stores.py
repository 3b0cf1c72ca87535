"""What a store costs: `python benchmarks/stores.py`.

Measures in turn and in one run, for outputs of 16 and 256 KiB: writing a file and renaming it; the same with an
`fsync` in between; a store in a cache with room; one in a cache that is full, so that it evicts; and how long the
store after a limit was lowered to a tenth takes at most. It prints medians and the longest.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator

from ptocache.request import make_key
from ptocache.store.entry import Entry, make_entry
from ptocache.store.local import Limits, LocalTier

SIZES = (16 << 10, 256 << 10)
ROUNDS = 300
ENTRIES = 300


def main() -> None:
    """Measure and print the table."""
    for size in SIZES:
        with tempfile.TemporaryDirectory() as directory:
            measure(directory, size)


def measure(directory: str, size: int) -> None:
    """Measure with outputs of one size."""
    entries = numbered(size)
    roomy = LocalTier(os.path.join(directory, "roomy"))
    full = LocalTier(os.path.join(directory, "full"), Limits(ENTRIES * (size + 8192) // 2))
    for _ in range(ENTRIES):
        put(full, entries)
    steps: dict[str, Callable[[], object]] = {
        "write and rename": lambda: write(directory, next(entries)[1], flush=False),
        "write, fsync and rename": lambda: write(directory, next(entries)[1], flush=True),
        "store": lambda: put(roomy, entries),
        "store that evicts": lambda: put(full, entries),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append((time.perf_counter() - start) * 1e6)
    full.limits = Limits(full.limits.size // 10)
    times["store after the limit was lowered"] = lowered = []
    for _ in range(20):
        start = time.perf_counter()
        put(full, entries)
        lowered.append((time.perf_counter() - start) * 1e6)
    floor = statistics.median(times["write, fsync and rename"])
    for name, taken in times.items():
        median = statistics.median(taken)
        print(f"{size >> 10:4} KiB  {name:34} {median:7.0f} us ({median / floor:4.2f} x)  longest {max(taken):7.0f} us")
    for tier in (roomy, full):
        tier.close()


def numbered(size: int) -> Iterator[tuple[int, Entry]]:
    """Entries that differ, without an end."""
    number = 0
    while True:
        number += 1
        yield number, make_entry(os.urandom(size), seconds=1.0, created=0.0, facts={})


def put(tier: LocalTier, entries: Iterator[tuple[int, Entry]]) -> None:
    """Store the next entry, with a source of the usual size."""
    number, entry = next(entries)
    tier.put([make_key([("benchmark", str(number).encode())])], entry, b"s" * 2000)


def write(directory: str, entry: Entry, flush: bool) -> None:
    """Write a file as safely as anybody does."""
    path = os.path.join(directory, entry.action.sha256.hex())
    fd = os.open(f"{path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        os.write(fd, entry.aibin)
        if flush:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(f"{path}.tmp", path)


if __name__ == "__main__":
    main()
