"""What `ptocache stats` tells: a page, JSON, Prometheus's format, the history; and that its numbers add up."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import KERNEL, run_ptocache
from prometheus_client.parser import text_string_to_metric_families

from ptocache import CompileCache, Settings
from ptocache import counters as counters_module
from ptocache.errors import ToolError
from ptocache.prometheus import exposition
from ptocache.request import Key
from ptocache.statistics import Statistics, collect
from ptocache.store.entry import Entry, make_entry

WAIT = 60  # seconds after which something that was waited for will not come any more


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(directory: Path) -> Iterator[CompileCache]:
    with CompileCache(Settings.load({}, dir=directory)) as cache:
        yield cache


def entry(number: int, *, toolchain: str, arch: str = "a5", kernels: tuple[str, ...] = ("k",)) -> Entry:
    facts = {"kind": "source", "kernels": list(kernels), "arch": arch, "flags": [], "toolchain": toolchain}
    return make_entry(number.to_bytes(2, "big") * 500, seconds=1.0 + number, created=time.time(), facts=facts)


def key(number: int) -> Key:
    return Key(f"{number:032x}", number.to_bytes(32, "big"))


def facts(*arguments: str) -> dict[str, Any]:
    result = run_ptocache("stats", "--json", *arguments)
    assert (result.returncode, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


# The numbers.


def test_each_request_ends_in_one_way_and_all_are_the_requests(toolchain: Path, cache: CompileCache) -> None:
    renamed = f"{KERNEL}# another source, the same text\n"
    cache.compile(KERNEL)
    cache.compile(KERNEL)
    cache.compile(renamed)
    with CompileCache(cache.settings) as again:
        again.compile(KERNEL)
    for _ in range(3):
        with pytest.raises(ToolError):
            cache.compile(KERNEL, flags=["--pto-backend=emitc"])
    numbers = collect(cache)
    assert numbers.outcomes() == {
        "memory": 1,
        "local": 1,
        "shared": 0,
        "pto": 1,
        "compiled": 1,
        "failed": 1,
        "failure_remembered": 2,
    }
    assert numbers.requests == sum(numbers.outcomes().values()) == 7
    assert numbers.hit_rate == 3 / 7
    assert numbers.misses == numbers.compiles + numbers.failures


def test_entries_and_bytes_by_toolchain_follow_stores_and_evictions(cache: CompileCache) -> None:
    for number in range(6):
        made = entry(
            number, toolchain="9.0.0-aa-bb" if number % 2 else "9.1.0-cc-dd", arch="a3" if number == 5 else "a5"
        )
        cache.local.put([key(number)], made)
    rows = {(row.version, row.arch): row.entries for row in collect(cache).toolchains}
    assert rows == {("9.1.0", "a5"): 3, ("9.0.0", "a5"): 2, ("9.0.0", "a3"): 1}
    with cache.local.index.transaction() as table:
        assert sum(group.bytes for group in table.groups()) == table.bytes()
        for number in (0, 2):
            output = entry(number, toolchain="9.1.0-cc-dd").action.sha256.hex()
            cache.local.evict(table, output, table.get(output))
    rows = {(row.version, row.arch): row.entries for row in collect(cache).toolchains}
    assert rows == {("9.1.0", "a5"): 1, ("9.0.0", "a5"): 2, ("9.0.0", "a3"): 1}
    cache.local.index.rebuild()
    assert {(row.version, row.arch): row.entries for row in collect(cache).toolchains} == rows


def test_what_another_toolchain_made_is_stale(toolchain: Path, cache: CompileCache) -> None:
    cache.compile(KERNEL)
    cache.local.put([key(1)], entry(1, toolchain="1.0-aa-bb"))
    assert {row.version: row.stale for row in collect(cache).toolchains} == {"1.0": True, "emulated-9.0.0": False}


def test_without_a_toolchain_nothing_is_known_to_be_stale(cache: CompileCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    cache.local.put([key(1)], entry(1, toolchain="1.0-aa-bb"))
    assert [row.stale for row in collect(cache).toolchains] == [None]


def test_facts_that_make_no_sense_are_counted_as_unknown(cache: CompileCache) -> None:
    cache.local.put([key(1)], entry(1, toolchain="a b"))
    cache.local.put([key(2)], entry(2, toolchain="\x1b[31mred", kernels=("\x1b[2Jgone", "\u202edesrever")))
    cache.counters.hit("hits.local", key(2).name, 1.0)
    cache.counters.add_engine("file:///\x1b[2J", "hits")
    cache.close()
    assert [(row.version, row.entries) for row in collect(cache).toolchains] == [("", 2)]
    for arguments in (["stats"], ["stats", "--prometheus"]):
        shown = run_ptocache(*arguments, env={**os.environ, "PTOCACHE_DIR": cache.settings.dir}).stdout
        assert not {"\x1b", "\u202e"} & set(shown)


def test_kernels_are_ranked_by_hits_and_by_cost(cache: CompileCache) -> None:
    for number in range(8):
        cache.local.put([key(number)], entry(number, toolchain="1-a-b", kernels=(f"k{number}",)))
        cache.counters.compiled(key(number).name, 1.0 + number)
        for _ in range(8 - number):
            cache.counters.hit("hits.local", key(number).name, 1.0)
    cache.counters.hit("hits.local", "f" * 32, 1.0)  # not stored any more
    numbers = collect(cache)
    saved = [row.seconds_saved for row in numbers.kernels_saved]
    assert saved == sorted(((1.0 + number) * (8 - number) for number in range(8)), reverse=True)[:5]
    assert [row.kernels for row in numbers.kernels_used] == [[f"k{number}"] for number in range(5)]
    assert [row.kernels for row in numbers.kernels_slowest] == [[f"k{number}"] for number in (7, 6, 5, 4, 3)]
    assert (numbers.kernels_used[1].hits, numbers.kernels_used[1].seconds_saved) == (7, 14.0)
    assert len(collect(cache, kernels=100).kernels_used) == 8


# The page.


def test_the_page_fits_a_terminal_and_says_what_json_says(
    toolchain: Path, cache: CompileCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTOCACHE_DIR", cache.settings.dir)
    cache.compile(KERNEL)
    cache.compile(KERNEL)
    cache.local.put([key(1)], entry(1, toolchain="1.0-aa-bb", kernels=("a" * 100,)))
    cache.counters.hit("hits.local", key(1).name, 2.0)
    cache.close()
    page = run_ptocache("stats").stdout
    assert max(map(len, page.splitlines())) <= max(80, len(cache.settings.dir) + 30)
    for words in (
        "2 of 3 requests",
        "from memory",
        "after lowering",
        "stale",
        "used most",
        "slowest to compile",
        "since",
    ):
        assert words in page
    numbers = facts()
    assert (numbers["requests"], numbers["hits"]) == (3, {"memory": 1, "local": 1, "shared": 0, "pto": 0})
    assert "hours" not in numbers
    assert sum(hour["misses"] for hour in facts("--history")["hours"].values() if "misses" in hour) == 1


def test_an_empty_cache_has_a_page_too() -> None:
    page = run_ptocache("stats")
    assert page.returncode == 0
    assert "nothing was requested yet" in page.stdout
    history = run_ptocache("stats", "--history")
    assert (history.returncode, history.stdout) == (0, "nothing was requested in the last 90 days\n")
    assert facts()["since"] is None


def test_the_history_has_a_line_for_each_day(cache: CompileCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTOCACHE_DIR", cache.settings.dir)
    cache.local.prepare()
    now = time.time()
    for days in (3, 3, 1, 0):
        monkeypatch.setattr(counters_module.time, "time", lambda days=days: now - days * 86400)
        cache.counters.hit("hits.memory", key(1).name, 2.0)
        cache.counters.compiled(key(1).name, 2.0)
        cache.counters.flush()
    lines = run_ptocache("stats", "--history").stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        [time.strftime("%Y-%m-%d", time.localtime(now - days * 86400)), requests]
        for days, requests in ((3, "4"), (1, "2"), (0, "2"))
    ]
    assert all(len(line) <= 80 for line in lines)
    assert all(" 50%" in line for line in lines[1:])


def test_zero_sets_the_numbers_to_nought_and_keeps_what_is_stored(
    toolchain: Path, cache: CompileCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTOCACHE_DIR", cache.settings.dir)
    cache.compile(KERNEL)
    cache.compile(KERNEL)
    cache.close()
    result = run_ptocache("stats", "--zero")
    assert (result.returncode, result.stderr) == (0, "")
    numbers = facts()
    assert (numbers["requests"], numbers["entries"], numbers["seconds_saved"]) == (0, 1, 0)
    assert numbers["kernels_used"] == []
    assert abs(numbers["since"] - time.time()) < WAIT
    monkeypatch.setenv("PTOCACHE_READONLY", "1")
    refused = run_ptocache("stats", "--zero")
    assert refused.returncode == 2
    assert "PTOCACHE_READONLY" in refused.stderr


@pytest.mark.parametrize(
    "arguments",
    [["--json", "--prometheus"], ["--watch"], ["--watch", "often"], ["--zero", "--json"], ["--watch", "0"], ["-x"]],
)
def test_wrong_use_is_one_line(arguments: list[str]) -> None:
    result = run_ptocache("stats", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("ptocache: ")
    assert result.stderr.count("\n") == 1


def test_colour_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[1m" in on_terminal("stats")[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in on_terminal("stats")[1]
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in on_terminal("stats")[1]


def test_letters_that_the_stream_cannot_take_are_replaced(
    toolchain: Path, cache: CompileCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.compile(KERNEL)
    cache.compile(KERNEL)
    cache.close()
    environ = {**os.environ, "PTOCACHE_DIR": cache.settings.dir, "PYTHONIOENCODING": "ascii"}
    page = run_ptocache("stats", env=environ).stdout
    assert "##########.........." in page
    assert "\\u" not in page


def on_terminal(*arguments: str) -> tuple[int, str]:
    """Run the command with standard output on a terminal; its exit status, and what it printed."""
    leader, follower = pty.openpty()
    with subprocess.Popen([sys.executable, "-m", "ptocache", *arguments], stdout=follower, stderr=follower) as process:
        os.close(follower)
        try:
            return process.wait(WAIT), read_all(leader)
        finally:
            os.close(leader)


def read_all(fd: int) -> str:
    chunks = []
    while select.select([fd], [], [], 0)[0]:
        try:
            chunks.append(os.read(fd, 65536))
        except OSError:  # the other end is closed
            break
    return b"".join(chunks).decode()


def test_watch_shows_the_page_again_until_it_is_interrupted() -> None:
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "ptocache", "stats", "--watch", "0.1"]
    with subprocess.Popen(command, stdout=follower, stderr=subprocess.PIPE, text=True) as process:
        os.close(follower)
        shown = ""
        deadline = time.monotonic() + WAIT
        while shown.count("\x1b[H") < 3:
            assert select.select([leader], [], [], max(0, deadline - time.monotonic()))[0]
            shown += os.read(leader, 65536).decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT) == 0
        os.close(leader)
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert "nothing was requested yet" in shown


# Prometheus.


def families(text: str) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def samples(family: Any, label: str) -> dict[str, float]:
    return {sample.labels[label]: sample.value for sample in family.samples}


def test_the_metrics_are_what_the_page_says(toolchain: Path, cache: CompileCache) -> None:
    cache.compile(KERNEL)
    cache.compile(KERNEL)
    cache.counters.add_engine("redis://cache:6379/0", "hits", 3)
    numbers = collect(cache)
    found = families(exposition(numbers))
    assert samples(found["ptocache_requests"], "outcome") == numbers.outcomes()
    assert found["ptocache_entries"].samples[0].value == 1
    assert found["ptocache_size_limit_bytes"].samples[0].value == numbers.limit_bytes
    assert samples(found["ptocache_engine_hits"], "engine") == {"redis://cache:6379/0": 3}
    (row,) = found["ptocache_toolchain_entries"].samples
    assert (row.labels["arch"], row.labels["version"], row.value) == ("a5", "emulated-9.0.0", 1)
    assert found["ptocache_toolchain_stale"].samples[0].value == 0


def test_names_and_units_are_those_of_the_conventions(toolchain: Path, cache: CompileCache) -> None:
    cache.compile(KERNEL)
    cache.counters.add_engine("file:///x", "hits")
    text = exposition(collect(cache))
    types = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
    helps = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")}
    assert set(types) == helps
    for name, kind in types.items():
        assert name.startswith("ptocache_")
        assert name.endswith("_total") is (kind == "counter")
    assert text.endswith("\n")


def test_labels_are_escaped() -> None:
    label = 'a"b\\c\nd\udcff'
    numbers = Statistics(
        *["", None, 0, 0, 0, 0, dict.fromkeys(("memory", "local", "shared", "pto"), 0), *[0] * 9],
        {label: dict.fromkeys(counters_module.ENGINE_NAMES, 1.0)},
        {},
        [],
        [],
        [],
        [],
    )
    found = families(exposition(numbers))
    assert list(samples(found["ptocache_engine_hits"], "engine")) == ['a"b\\c\nd\\udcff']


def test_the_command_prints_them() -> None:
    result = run_ptocache("stats", "--prometheus")
    assert (result.returncode, result.stderr) == (0, "")
    assert "ptocache_requests" in families(result.stdout)
