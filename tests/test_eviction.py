"""The size limit is one of what is really on disk, at every moment, and what is used stays."""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_index import execute, mount, on_a_small_disk
from test_store import (
    FORK,
    WAIT,
    Neighbour,
    action_path,
    age,
    counted,
    files,
    filled,
    flip_a_byte,
    found,
    in_child,
    key,
    listing,
    on_disk,
    output_path,
    unprivileged,
    without_row,
)

from ptocache import CompileCache, Settings
from ptocache.counters import Counters
from ptocache.errors import ToolError
from ptocache.request import Key
from ptocache.store import files as files_module
from ptocache.store import local as local_module
from ptocache.store.entry import Entry
from ptocache.store.failures import Failures
from ptocache.store.layout import BLOCK
from ptocache.store.local import EVICTION_STEP, FAILURES_LIMIT, TOUCH_SECONDS, Limits, LocalTier
from ptocache.store.memory import MemoryTier
from ptocache.store.tiers import Store
from ptocache.store.upkeep import usage


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "cache"


@pytest.fixture
def counters(directory: Path) -> Counters:
    return Counters(str(directory))


@pytest.fixture
def tier_of(directory: Path, counters: Counters) -> Iterator[Callable[..., LocalTier]]:
    """Makes tiers of the directory, each with its own limits."""
    tiers: list[LocalTier] = []

    def make(size: int = 0, age: float = 0) -> LocalTier:
        tiers.append(LocalTier(str(directory), Limits(size, age), counters=counters))
        return tiers[-1]

    yield make
    for tier in tiers:
        tier.close()


TierOf = Callable[..., LocalTier]


def du(directory: Path) -> int:
    """What `du` says: with the directory itself."""
    return on_disk(directory) + directory.stat().st_blocks * 512


def has(tier: LocalTier, name: object) -> bool:
    """Whether there is an entry; one that is there is used by that."""
    return tier.get(key(name)) is not None


def stored(directory: Path, made: Entry) -> bool:
    """Whether an output is there, without using it."""
    return output_path(directory, made).exists()


def known(tier: LocalTier) -> int:
    """How many outputs the index knows."""
    return counted(tier)[0]


def queue(tier: LocalTier) -> list[str]:
    """The outputs in the order in which they would be evicted."""
    with tier.index.transaction() as rows:
        return [output for output, _ in rows.all()]


def set_back(tier: LocalTier, made: Entry, stored: float, used: float = 0) -> None:
    """Let an entry be stored, and last used, so many seconds ago; it goes to the end of the queue."""
    now = time.time()
    name = made.action.sha256.hex()
    with tier.index.transaction() as rows:
        row = rows.get(name)
        assert row is not None
        rows.add(name, row._replace(used=now - stored))
    os.utime(tier.layout.output(name), (now - (used or stored), now - stored))


# The limit is what the disk has.


@pytest.mark.parametrize(
    ("limit", "size", "source"),
    [
        (700_000, (1, 200), 0),
        (1_000_000, (1, 200), 700),
        (1_000_000, (20_000, 20_000), 3000),
        (1_000_000, (1, 60_000), 9000),
        (2_500_000, (3000, 9000), 700),
    ],
)
def test_after_every_store_the_directory_takes_no_more_than_the_limit(
    tier_of: TierOf, directory: Path, limit: int, size: tuple[int, int], source: int
):
    chance = random.Random(1)
    tier = tier_of(limit)
    most = 0
    for number in range(300):
        made = filled(number, chance.randint(*size) + 3)
        tier.put([key(number), key(("pto", number))], made, chance.randbytes(chance.randrange(source + 1)))
        taken = du(directory)
        assert taken <= limit, f"after {number + 1} stores: {taken - limit} too many"
        assert stored(directory, made)
        most = max(most, taken)
    assert most > limit * 0.8 or known(tier) == 300  # it makes use of what it may have
    assert without_row(tier) == set()
    assert counted(tier)[0] == len(files(directory, "outputs"))


@pytest.mark.parametrize("used", [False, True], ids=["unused", "used"])
def test_the_limit_holds_with_as_many_failures_as_there_may_be(tier_of: TierOf, directory: Path, used: bool):
    """Where everything is in use, all of it has a second chance, and yet something has to go."""
    limit = 8 << 20
    tier = tier_of(limit)
    failures = Failures(tier.layout, 600, tier.limits.failures)
    remember(failures, 200)
    for number in range(350):
        tier.put([key(number)], filled(number, 28_000))
        if used:
            tier.use(filled(number, 28_000))
        remember(failures, 1, first=200 + number)
        assert du(directory) <= limit, number
    assert 3 * EVICTION_STEP < known(tier) < 300


def test_the_limit_holds_after_a_large_entry_that_takes_the_place_of_many_small_ones(tier_of: TierOf, directory: Path):
    tier = tier_of(4_000_000)
    for number in range(500):
        tier.put([key(number)], filled(number, 2000))
    large = filled(1000, 2_000_000)
    tier.put([key("large")], large)
    assert stored(directory, large)
    assert du(directory) <= 4_000_000


def test_the_limit_holds_when_one_key_has_many_variants_of_one_output(tier_of: TierOf, directory: Path):
    """The file with the actions of the key grows, and there is a new row for none of them."""
    tier = tier_of(1_500_000)
    for number in range(40):
        made = filled(number, 4000)
        for variant in range(16):
            inputs = variant.to_bytes(1, "little") * 10_000
            tier.put([key(number)], made._replace(action=made.action._replace(inputs=inputs)))
        assert du(directory) <= 1_500_000, number


def test_one_output_under_ever_more_keys_is_stored_under_the_newest(tier_of: TierOf, directory: Path):
    """A kernel of which only comments change: its row grows, and must not be what is too large for the cache."""
    tier = tier_of(800_000)
    made = filled(1, 20_000)
    for number in range(150):
        tier.put([key(number)], made, b"source")
        assert has(tier, number), number
        assert du(directory) <= 800_000
    assert known(tier) == 1


def test_an_output_that_somebody_evicts_while_it_is_stored_is_stored_once_more(
    tier_of: TierOf, directory: Path, monkeypatch: pytest.MonkeyPatch
):
    """The neighbour has a transaction open, in which the row is gone, when the files of the entry appear."""
    tier = tier_of()
    made = filled(1, 20_000)
    output = made.action.sha256.hex()

    def evict(_: object) -> bool:
        evicted = threading.Event()

        def hold() -> None:
            with tier.index.transaction() as rows:
                tier.evict(rows, output, rows.get(output))
                evicted.set()
                time.sleep(0.5)

        threading.Thread(target=hold).start()
        return evicted.wait(WAIT)

    def publish(root: str, path: str, data: bytes) -> None:
        if path == tier.layout.output(output) and not done:
            done.append(neighbour())
        files_module.publish(root, path, data)

    done: list[bool] = []
    tier.put([key(0)], filled(0, 20_000))
    with Neighbour(evict) as neighbour:
        monkeypatch.setattr(local_module, "publish", publish)
        tier.put([key("a"), key("b")], made, b"source")
    assert done == [True]
    assert without_row(tier) == set()
    assert has(tier, "a")
    assert has(tier, "b")
    assert known(tier) == 2


def test_the_row_is_there_and_the_room_is_made_before_the_first_byte_is_written(
    tier_of: TierOf, directory: Path, monkeypatch: pytest.MonkeyPatch
):
    limit = 1_000_000
    tier = tier_of(limit)
    checked = []

    def publish(root: str, path: str, data: bytes) -> None:
        if os.path.dirname(path) == tier.layout.outputs:
            [(row,)] = execute(
                directory / "index" / "cache.db",
                f"SELECT value FROM Cache WHERE key = '{os.path.basename(path)}'",
            )
            assert row.count(key(("pto", len(checked))).name.encode()) == 1
            checked.append(du(directory) + len(data))
            assert checked[-1] <= limit
        files_module.publish(root, path, data)

    monkeypatch.setattr(local_module, "publish", publish)
    for number in range(60):
        tier.put([key(number), key(("pto", number))], filled(number, 30_000), b"source")
    assert len(checked) == 60
    assert known(tier) < 30


@pytest.mark.parametrize("step", range(6))
@pytest.mark.parametrize("moment", ["before", "within"])
def test_whoever_is_killed_while_storing_leaves_nothing_that_is_not_counted(
    tier_of: TierOf, directory: Path, monkeypatch: pytest.MonkeyPatch, step: int, moment: str
):
    """The tag, the output, and an action with its source for each of two keys are six files."""
    steps = iter(range(7))

    def die() -> None:
        if next(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def publish(root: str, path: str, data: bytes) -> None:
        if moment == "before":
            die()
        files_module.publish(root, path, data)

    replace = os.replace

    def rename(old: str, new: str) -> None:
        if moment == "within":
            die()
        replace(old, new)

    def store() -> None:
        monkeypatch.setattr(local_module, "publish", publish)
        monkeypatch.setattr(files_module.os, "replace", rename)
        LocalTier(str(directory)).put([key("a"), key("b")], made, b"source")

    made = filled(1, 20_000)
    process = FORK.Process(target=store)
    process.start()
    process.join(WAIT)
    assert process.exitcode == -signal.SIGKILL
    if (directory / "temp").exists():
        age(directory / "temp")
    tier = tier_of()
    assert without_row(tier) == set()
    assert known(tier) == (step > 0)
    tier.put([key("b"), key("a")], made, b"source")
    assert has(tier, "a")
    assert has(tier, "b")
    assert counted(tier) == (1, (5 + 2 * 2) * BLOCK)
    assert [len(files(directory, folder)) for folder in ("outputs", "actions", "sources", "temp")] == [1, 2, 2, 0]


# What is evicted.


def test_what_was_stored_last_is_kept(tier_of: TierOf, directory: Path):
    limit = 800_000
    tier = tier_of(limit)
    for number in range(60):
        tier.put([key(number), key(("pto", number))], filled(number, 20_000))
    kept = [number for number in range(60) if stored(directory, filled(number, 20_000))]
    assert kept == list(range(60 - len(kept), 60))
    assert len(kept) >= 10  # of 32 KiB each, beside the database
    assert len(files(directory, "actions")) == 2 * len(kept)
    assert known(tier) == len(kept)


def test_what_was_used_since_is_kept_longer_but_not_for_ever(tier_of: TierOf, directory: Path):
    tier = tier_of(800_000)
    made = [filled(number, 20_000) for number in range(100)]
    for number in range(3):
        tier.put([key(number)], made[number])
    assert has(tier, 0)
    numbers = iter(range(3, 100))
    for other in (1, 2):
        while stored(directory, made[other]):
            number = next(numbers)
            tier.put([key(number)], made[number])
        assert stored(directory, made[0])
    while stored(directory, made[0]):
        number = next(numbers)
        tier.put([key(number)], made[number])


def test_storing_again_counts_as_use(tier_of: TierOf, directory: Path):
    tier = tier_of(800_000)
    made = filled(0, 20_000)
    for number in range(100):
        tier.put([key(number)], filled(number, 20_000))
        if number % 5 == 0:
            tier.put([key("again")], made)
        assert stored(directory, made), number


def test_no_limit_evicts_nothing(tier_of: TierOf, counters: Counters):
    tier = tier_of(0)
    for number in range(20):
        tier.put([key(number)], filled(number, 20_000))
    assert known(tier) == 20
    assert counters.totals()["evictions"] == 0


def test_an_output_larger_than_the_limit_is_not_stored_and_evicts_nothing_which_is_said_once(
    tier_of: TierOf, directory: Path, counters: Counters, caplog: pytest.LogCaptureFixture
):
    limit = 500_000
    tier = tier_of(limit)
    store = Store([tier], counters)
    for number in range(5):
        store.put([key(number)], filled(number, 20_000))
    before = listing(directory / "outputs")
    with caplog.at_level(logging.DEBUG, "ptocache"):
        for _ in range(3):
            store.put([key("large")], filled(9, limit))
    told = [record for record in caplog.records if "does not fit" in record.getMessage()]
    assert [record.levelno for record in told] == [logging.WARNING, logging.DEBUG, logging.DEBUG]
    assert "PTOCACHE_SIZE_LIMIT" in told[0].getMessage()
    assert f"{limit} bytes" in told[0].getMessage()
    assert listing(directory / "outputs") == before
    assert counted(tier) == (5, 5 * (5 + 1) * BLOCK)
    assert found(store, "large") is None
    assert {name: counters.totals()[name] for name in ("errors", "evictions")} == {"errors": 0, "evictions": 0}
    caplog.clear()
    other = tier_of(limit)
    other.put([key("large")], filled(9, limit))
    assert "does not fit" in caplog.text  # another tier says it for itself


@pytest.mark.parametrize("used", [False, True], ids=["unused", "used"])
def test_a_lowered_limit_is_reached_after_some_stores_in_small_steps(
    tier_of: TierOf, directory: Path, counters: Counters, used: bool
):
    before = 5 * EVICTION_STEP
    big = tier_of()
    for number in range(before):
        big.put([key(number)], filled(number, 4000))
        assert not used or has(big, number)
    big.close()
    limit = 700_000
    small = tier_of(limit)
    stores = 0
    while du(directory) > limit:
        count, evicted = known(small), counters.totals()["evictions"]
        small.put([key(("new", stores))], filled(before + stores, 4000))
        assert counters.totals()["evictions"] - evicted == count + 1 - known(small) <= EVICTION_STEP
        stores += 1
        assert stores <= (2 if used else 1) * before // EVICTION_STEP + 2  # who was used is looked at twice
    assert stores >= 4
    assert stored(directory, filled(before + stores - 1, 4000))


def test_an_evicted_output_leaves_an_action_that_leads_elsewhere_by_now(tier_of: TierOf, directory: Path):
    tier = tier_of(700_000)
    tier.put([key("a")], filled(1, 100_000))
    tier.put([key("b")], filled(2, 100_000))
    tier.put([key("a")], filled(3, 100_000))
    for number in range(4, 20):
        tier.put([key(number)], filled(number, 100_000))
        if not stored(directory, filled(1, 100_000)):
            break
    assert not stored(directory, filled(1, 100_000))  # to which `a` once led
    assert stored(directory, filled(3, 100_000))
    entry = tier.get(key("a"))
    assert entry is not None
    assert entry.aibin == filled(3, 100_000).aibin


def test_an_evicted_variant_leaves_the_other_ones_of_its_key(tier_of: TierOf, directory: Path):
    tier = tier_of(700_000)
    variants = [filled(number, 100_000) for number in range(3)]
    variants = [one._replace(action=one.action._replace(inputs=bytes([n]))) for n, one in enumerate(variants)]
    for one in variants:
        tier.put([key("a")], one, b"source")
    for number in range(4, 20):
        if not stored(directory, variants[0]):
            break
        tier.put([key(number)], filled(number, 100_000))
    left = [one for one in variants if stored(directory, one)]
    assert 0 < len(left) < 3
    for one in left:
        got = tier.get(key("a"), lambda inputs, wanted=one.action.inputs: inputs == wanted)
        assert got is not None
        assert got.aibin == one.aibin
    assert tier.get(key("a"), lambda inputs: inputs == variants[0].action.inputs) is None
    assert files(directory, "sources") == [key("a").name]


# What counts as use.


def times(path: Path) -> tuple[int, int]:
    """Whoever sets a file's times changes these too; the kernel that notes a read does not."""
    status = path.stat()
    return status.st_mtime_ns, status.st_ctime_ns


def test_a_hit_marks_an_output_as_used_at_most_once_an_hour(tier_of: TierOf, directory: Path):
    tier = tier_of()
    made = filled(1, 20_000)
    tier.put([key("a")], made)
    path = output_path(directory, made)
    stored = path.stat()
    assert has(tier, "a")
    assert path.stat().st_atime_ns > path.stat().st_mtime_ns == stored.st_mtime_ns
    before = listing(directory)
    for other in (tier, tier_of()):
        assert has(other, "a")
        other.use(made)
    assert listing(directory) == before
    now = time.time()
    recent, old = now - TOUCH_SECONDS + 60, now - TOUCH_SECONDS - 60
    for read in (lambda: has(tier, "a"), lambda: tier.use(made)):
        os.utime(path, (recent, old - 1000))
        before_times = times(path)
        read()
        assert times(path) == before_times
        os.utime(path, (old, old - 1000))
        read()
        status = path.stat()
        assert status.st_atime >= now
        assert status.st_mtime == pytest.approx(old - 1000)
        before_times = times(path)
        read()
        assert times(path) == before_times


def test_a_hit_in_memory_counts_as_use(tier_of: TierOf, directory: Path, counters: Counters):
    tier = tier_of(900_000)
    store = Store([MemoryTier(), tier], counters)
    store.put([key("hot")], filled(0, 20_000))
    store.put([key("cold")], filled(1, 20_000))
    for number in range(2, 200):
        tier.put([key(number)], filled(number, 20_000))
        if number % 5 == 0:
            hit = store.get(key("hot"))
            assert hit is not None
            assert hit.origin == "memory"
    assert stored(directory, filled(0, 20_000))
    assert not stored(directory, filled(1, 20_000))


@pytest.mark.parametrize("reader", ["this tier", "another process", "memory"])
def test_what_is_read_now_and_then_survives_a_hundred_times_the_limit(
    tier_of: TierOf, directory: Path, counters: Counters, reader: str
):
    limit, size, hot = 2_000_000, 400_000, 50
    tier = tier_of(limit)
    memory = MemoryTier()
    local = Store([tier], counters)
    store = Store([memory, tier], counters) if reader == "memory" else local
    for number in range(hot):
        store.put([key(number)], filled(number, 4000))

    def read(_: object = None) -> int:
        return sum(found(store, number) == filled(number, 4000).aibin for number in range(hot))

    with Neighbour(read) as neighbour:
        for number in range(hot, hot + 100 * limit // size):
            local.put([key(number)], filled(number, size))
            if number % 2 == 0:
                assert (neighbour() if reader == "another process" else read()) == hot, number
            if number % 50 == 0:
                assert du(directory) <= limit
    if reader == "memory":
        assert counters.totals()["hits.local"] == 0
    assert sum(stored(directory, filled(number, 4000)) for number in range(hot)) == hot
    assert not stored(directory, filled(hot, size))
    assert counters.totals()["errors"] == 0


# The age.


def test_a_store_evicts_what_nobody_used_for_too_long(tier_of: TierOf, directory: Path, counters: Counters):
    tier = tier_of(age=3600)
    made = [filled(number, 4000) for number in range(9)]
    for number, one in enumerate(made):
        tier.put([key(number)], one)
    for one in made[:3]:
        set_back(tier, one, stored=7200)
    for one in made[3:6]:
        set_back(tier, one, stored=7200, used=600)
    for one in made[6:]:
        set_back(tier, one, stored=600)
    tier.put([key("new")], filled(99, 4000))
    assert [stored(directory, one) for one in made] == [False] * 3 + [True] * 6
    assert known(tier) == 7
    assert counters.totals()["evictions"] == 3
    names = [one.action.sha256.hex() for one in (*made[6:], filled(99, 4000), *made[3:6])]
    assert queue(tier) == names  # what was used has gone to the end
    assert has(tier, 3)


def test_what_was_put_to_the_end_expires_when_it_was_last_used_too_long_ago(tier_of: TierOf, directory: Path):
    tier = tier_of(age=3600)
    tier.put([key(1)], filled(1, 4000))
    set_back(tier, filled(1, 4000), stored=9000, used=3500)
    tier.put([key(2)], filled(2, 4000))
    assert stored(directory, filled(1, 4000))
    path = output_path(directory, filled(1, 4000))
    assert time.time() - path.stat().st_mtime == pytest.approx(3500, abs=60)  # it is as if stored when last used
    set_back(tier, filled(2, 4000), stored=3700)
    set_back(tier, filled(1, 4000), stored=3700)
    tier.put([key(3)], filled(3, 4000))
    assert known(tier) == 1


def test_without_an_age_nothing_expires(tier_of: TierOf, directory: Path):
    tier = tier_of()
    tier.put([key(1)], filled(1, 4000))
    set_back(tier, filled(1, 4000), stored=1e9)
    tier.put([key(2)], filled(2, 4000))
    assert has(tier, 1)


def test_no_store_evicts_more_than_a_step_of_what_expired(tier_of: TierOf):
    tier = tier_of()
    made = [filled(number, 100) for number in range(EVICTION_STEP + 10)]
    for number, one in enumerate(made):
        tier.put([key(number)], one)
    for one in made:
        set_back(tier, one, stored=7200)
    tier.close()
    tier = tier_of(age=3600)
    tier.put([key("new")], filled(5000, 100))
    assert known(tier) == 11
    tier.put([key("newer")], filled(5001, 100))
    assert known(tier) == 2


# Stores that fail.


@pytest.mark.parametrize("folder", ["outputs", "actions", "sources"])
def test_a_store_that_may_not_write_leaves_no_row_and_no_file(directory: Path, folder: str):
    tier = LocalTier(str(directory))
    tier.put([key("old")], filled(1, 20_000), b"source")
    before = counted(tier)
    tier.close()

    def use() -> None:
        (directory / folder).chmod(0o500)
        counters = Counters("")
        tier = LocalTier(str(directory))
        store = Store([tier], counters)
        store.put([key("new"), key("newer")], filled(2, 20_000), b"source")
        assert counters.totals()["errors"] == 1
        assert found(store, "new") is found(store, "newer") is None
        assert found(store, "old") == filled(1, 20_000).aibin
        left = [files(directory, name) for name in ("outputs", "actions", "sources", "temp")]
        assert left == [[filled(1, 20_000).action.sha256.hex()], [key("old").name], [key("old").name], []]
        assert counted(tier) == before
        (directory / folder).chmod(0o700)
        store.put([key("new")], filled(2, 20_000), b"source")
        assert found(store, "new") == filled(2, 20_000).aibin
        tier.close()

    unprivileged(use)


@pytest.mark.parametrize("folder", ["actions", "sources"])
def test_an_output_that_others_use_outlives_a_store_that_may_not_write(directory: Path, folder: str):
    tier = LocalTier(str(directory))
    made = filled(1, 20_000)
    tier.put([key("old")], made, b"source")
    tier.close()

    def use() -> None:
        (directory / folder).chmod(0o500)
        tier = LocalTier(str(directory))
        store = Store([tier], Counters(""))
        store.put([key("new")], made, b"source")
        assert found(store, "old") == made.aibin
        assert found(store, "new") is None
        assert known(tier) == 1
        assert without_row(tier) == set()
        tier.close()

    unprivileged(use)


@pytest.mark.parametrize("room", [0, 4, 5, 6], ids=["nothing", "a part", "the output", "the source"])
def test_a_store_that_the_disk_has_no_room_for_leaves_no_row_and_no_file(directory: Path, room: int):
    """The index is on another disk, so that its row can always be taken back."""
    made = filled(2, 20_000)  # 5 blocks, one for the source, and one for the action

    def use() -> None:
        index = directory / "cache" / "index"
        index.mkdir(parents=True)
        mount(str(index))
        counters = Counters("")
        tier = LocalTier(str(directory / "cache"))
        store = Store([tier], counters)
        store.put([key("old")], filled(1, 20_000), b"source")
        before = counted(tier)
        fill_with_files(directory, room)
        store.put([key("new")], made, b"source")
        assert counters.totals()["errors"] == 1
        assert found(store, "new") is None
        assert found(store, "old") == filled(1, 20_000).aibin
        left = [files(directory / "cache", name) for name in ("outputs", "actions", "sources", "temp")]
        assert left == [[filled(1, 20_000).action.sha256.hex()], [key("old").name], [key("old").name], []]
        assert counted(tier) == before
        (directory / "filler").unlink()
        store.put([key("new")], made, b"source")
        assert found(store, "new") == made.aibin
        assert counters.totals()["errors"] == 1
        tier.close()

    on_a_small_disk(directory, use)


def fill_with_files(disk: Path, room: int) -> None:
    """Leave so many blocks free."""
    status = os.statvfs(disk)
    with (disk / "filler").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, (status.f_bavail - room) * status.f_bsize)


# Counts.


def test_storing_again_does_not_count_twice(tier_of: TierOf):
    tier = tier_of()
    tier.put([key("a"), key("b")], filled(1, 20_000), b"source")
    before = counted(tier)
    for _ in range(3):
        tier.put([key("a"), key("b")], filled(1, 20_000), b"source")
        tier.put([key("b")], filled(1, 20_000), b"source")
    assert counted(tier) == before == (1, (5 + 2 * 2) * BLOCK)


def test_an_output_stored_under_further_keys_has_one_row_which_counts_them_all(tier_of: TierOf, directory: Path):
    tier = tier_of()
    for number in range(30):
        tier.put([key(number)], filled(number % 3, 20_000), b"source" if number % 2 else b"")
        tier.put([key(("pto", number % 3))], filled(number % 3, 20_000))
    assert known(tier) == 3
    before = usage(tier)
    assert before.bytes == on_disk(directory)
    sizes = counted(tier)
    tier.index.rebuild()
    assert counted(tier) == sizes == (3, 3 * 5 * BLOCK + 33 * BLOCK + 15 * BLOCK)
    assert usage(tier).bytes == on_disk(directory)
    with tier.index.transaction() as rows:
        assert sorted(len(row.actions) for _, row in rows.all() if row) == [11, 11, 11]


def test_evictions_and_damage_are_counted(tier_of: TierOf, directory: Path, counters: Counters):
    tier = tier_of(800_000)
    for number in range(60):
        tier.put([key(number)], filled(number, 20_000))
    kept = [number for number in range(60) if stored(directory, filled(number, 20_000))]
    assert counters.totals()["evictions"] == 60 - len(kept)
    for number in set(range(60)) - set(kept):
        assert not has(tier, number)
    assert counters.totals()["damaged"] == 0  # what was evicted is not missed
    flip_a_byte(output_path(directory, filled(kept[0], 20_000)))
    flip_a_byte(action_path(directory, kept[1]))
    output_path(directory, filled(kept[2], 20_000)).unlink()
    for _ in range(2):
        assert [has(tier, number) for number in kept[:4]] == [False, False, False, True]
    assert counters.totals()["damaged"] == 3
    assert counters.totals()["evictions"] == 60 - len(kept)
    assert Counters(str(directory)).totals()["damaged"] == 3  # others see it too


# Files of somebody else.

NOBODY = 54321


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that every user can reach, which the test's own temporary one is not."""
    top = Path(tempfile.mkdtemp(prefix="ptocache-test-", dir="/tmp"))
    top.chmod(0o755)
    yield top / "cache"
    shutil.rmtree(top)


def become_somebody_else() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("used", [False, True], ids=["unused", "used"])
def test_somebody_who_does_not_own_the_files_makes_room_all_the_same(shared: Path, used: bool):
    limit = 900_000
    owner = LocalTier(str(shared), Limits(limit), umask=0)
    mine = [filled(number, 20_000) for number in range(15)]
    for number, made in enumerate(mine):
        owner.put([key(number)], made, zlib.compress(b"source"))
        if used:
            assert has(owner, number)
    owner.close()

    def use() -> None:
        path = output_path(shared, mine[0])
        assert path.stat().st_uid == 0
        with pytest.raises(PermissionError):
            os.utime(path, (1, 1))
        counters = Counters("")
        tier = LocalTier(str(shared), Limits(limit), umask=0, counters=counters)
        store = Store([tier], counters)
        for number in range(100, 160):
            store.put([key(number)], filled(number, 20_000), zlib.compress(b"source"))
            assert du(shared) <= limit
            assert found(store, number) is not None
        assert not any(stored(shared, made) for made in mine)
        assert counters.totals()["errors"] == 0
        assert counters.totals()["evictions"] > 40
        assert without_row(tier) == set()
        tier.close()

    in_child(use, become_somebody_else)
    assert known(owner) == len(files(shared, "outputs"))
    owner.put([key("back")], filled(1000, 20_000))
    assert has(owner, "back")
    assert du(shared) <= limit
    owner.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_what_somebody_else_uses_is_kept(shared: Path):
    """Who does not own a file can set its times to now only, and does so once an hour."""
    owner = LocalTier(str(shared), Limits(900_000), umask=0)
    made = filled(0, 20_000)
    owner.put([key(0)], made)
    owner.put([key(1)], filled(1, 20_000))
    set_back(owner, made, stored=2 * TOUCH_SECONDS)
    set_back(owner, filled(1, 20_000), stored=2 * TOUCH_SECONDS)
    path = output_path(shared, made)

    def use() -> None:
        tier = LocalTier(str(shared), Limits(900_000), umask=0)
        assert has(tier, 0)
        assert time.time() - path.stat().st_mtime < 60
        before = times(path)
        assert has(tier, 0)
        assert times(path) == before

    in_child(use, become_somebody_else)
    for number in range(2, 60):
        owner.put([key(number)], filled(number, 20_000))
        if not stored(shared, filled(1, 20_000)):
            break
    assert not stored(shared, filled(1, 20_000))
    assert stored(shared, made)
    owner.close()


# Remembered failures.


def remember(failures: Failures, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        error = ToolError(
            "ptoas failed", tool="ptoas", command=["ptoas"], returncode=1, stderr="x" * (number * 37 % 5000)
        )
        failures.put(Key(key(("failure", number)).name, bytes(32)), error, b"")


@pytest.mark.parametrize("limit", [6 << 20, 20 << 20, 100 << 20])
def test_remembered_failures_keep_within_their_share_of_the_limit(tmp_path: Path, limit: int):
    with CompileCache(Settings.load({}, dir=tmp_path / "cache", size_limit=limit)) as cache:
        for first in range(0, 1000, 250):
            remember(cache.failures, 250, first)
            taken = [path.stat().st_blocks * 512 for path in (tmp_path / "cache" / "failures").glob("*/*")]
            assert 0 < sum(taken) <= limit // 64
    assert sum(taken) > limit // 64 // 2 or len(taken) == 1000


def test_the_share_of_remembered_failures_is_kept_free_for_them():
    assert Limits(64 << 20).failures == 1 << 20
    assert Limits(1 << 40).failures == Limits(0).failures == FAILURES_LIMIT
    assert not Limits(64 << 20).is_exceeded(62 << 20)
    assert Limits(64 << 20).is_exceeded((63 << 20) + 1)
    assert not Limits(0).is_exceeded(1 << 60)
