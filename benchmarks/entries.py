"""What many entries cost: `python benchmarks/entries.py [COUNT]`.

Fills one cache with 1,000 entries and one with COUNT (100,000 by default), then measures in turn and in one run, on
both: a hit on a random key, a store, what `ptocache stats` reads, and the whole command. It prints the medians, and
the ratios of the large cache to the small one.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from ptocache.request import Key, make_key
from ptocache.store.entry import make_entry
from ptocache.store.local import LocalTier
from ptocache.store.upkeep import usage

SMALL = 1000
SIZE = 16 << 10
ROUNDS = 300
PROCESSES = 15


def main() -> None:
    """Measure and print the table."""
    large = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as directory:
        tiers = [fill(os.path.join(directory, str(count)), count) for count in (SMALL, large)]
        print(f"{'':24}{SMALL:>10,} {large:>12,}  ratio")
        for name, rounds, work in (
            ("hit on a random key", ROUNDS, hit),
            ("store", ROUNDS, store),
            ("what stats reads", ROUNDS, lambda tier, _: usage(tier)),
            ("ptocache stats, whole", PROCESSES, run_stats),
        ):
            few, many = compare(tiers, rounds, work)
            print(f"{name:24}{few:7.0f} us {many:9.0f} us {many / few:6.2f}")
        for tier in tiers:
            tier.close()


def fill(directory: str, count: int) -> LocalTier:
    """A cache with so many entries."""
    tier = LocalTier(directory)
    for number in range(count):
        tier.put([key_of(number)], make_entry(random.randbytes(SIZE), seconds=1.0, created=0.0, facts={}))
    return tier


def key_of(number: int) -> Key:
    """The key of an entry."""
    return make_key([("benchmark", str(number).encode())])


def compare(tiers: list[LocalTier], rounds: int, work: Callable[[LocalTier, int], object]) -> tuple[float, float]:
    """The medians on the small cache and on the large one, in microseconds."""
    times: list[list[float]] = [[], []]
    counts = [usage(tier).entries for tier in tiers]
    for _ in range(rounds):  # in turn, so that a machine that slows down slows both
        for tier, count, taken in zip(tiers, counts, times, strict=True):
            number = random.randrange(count)
            start = time.perf_counter()
            work(tier, number)
            taken.append((time.perf_counter() - start) * 1e6)
    few, many = (statistics.median(taken) for taken in times)
    return few, many


def hit(tier: LocalTier, number: int) -> None:
    """Find an entry that is there."""
    assert tier.get(key_of(number)) is not None


def store(tier: LocalTier, number: int) -> None:
    """Store a new one."""
    tier.put([key_of(-1 - number)], make_entry(random.randbytes(SIZE), seconds=1.0, created=0.0, facts={}))


def run_stats(tier: LocalTier, _number: int) -> None:
    """Run the command in a process of its own."""
    environment = {**os.environ, "PTOCACHE_DIR": tier.directory}
    subprocess.run([sys.executable, "-m", "ptocache", "stats"], env=environment, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
