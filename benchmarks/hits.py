"""How a hit compares with reading a file: `python benchmarks/hits.py`.

For each size of device binary it measures, in turn and in one run: the floor (open, fstat and read of a file of that
size), a hit in the local tier (found by its key, read and checked) and a hit in memory. It prints the medians, and
the ratios to the floor, which travel between machines better than microseconds do.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable

from ptocache.request import make_key
from ptocache.store.entry import make_entry
from ptocache.store.local import LocalTier
from ptocache.store.memory import MemoryTier

SIZES = (16 << 10, 256 << 10, 4 << 20)
ROUNDS = 200


def main() -> None:
    """Measure and print the table."""
    print(f"{'size':>8} {'floor':>10} {'local hit':>12} {'memory hit':>12}")
    for size in SIZES:
        with tempfile.TemporaryDirectory() as directory:
            floor, local, memory = measure(directory, size)
        ratios = f"{local:8.1f} us ({local / floor:.1f} x) {memory:8.2f} us"
        print(f"{size >> 10:5} KiB {floor:7.1f} us {ratios}")


def measure(directory: str, size: int) -> tuple[float, float, float]:
    """The medians for one size, in microseconds: the floor, a local hit, a memory hit."""
    plain = os.path.join(directory, "plain")
    with open(plain, "wb") as file:
        file.write(os.urandom(size))
    key = make_key([("benchmark", b"hits")])
    entry = make_entry(os.urandom(size), seconds=1.0, created=0.0, facts={})
    tiers = LocalTier(os.path.join(directory, "cache")), MemoryTier()
    for tier in tiers:
        tier.put([key], entry)
    steps: list[Callable[[], object]] = [lambda: read(plain), *(lambda tier=tier: tier.get(key) for tier in tiers)]
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(ROUNDS):  # in turn, so that a machine that slows down slows all three
        for step, taken in zip(steps, times, strict=True):
            start = time.perf_counter()
            step()
            taken.append((time.perf_counter() - start) * 1e6)
    floor, local, memory = (statistics.median(taken) for taken in times)
    return floor, local, memory


def read(path: str) -> bytes:
    """Open, fstat and read: what any cache in files has to do."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


if __name__ == "__main__":
    main()
