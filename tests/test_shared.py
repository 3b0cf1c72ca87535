"""What hosts share is right whatever happens to the engine, and costs no more than was said."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import multiprocessing
import os
import random
import subprocess
import sys
import threading
import traceback
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import xxhash
import zstandard
from servers import WAIT, Nginx, Proxy, RedisServer, black_hole, free_port, is_free_of, until

from ptocache import CompileCache, Settings
from ptocache.cli import main
from ptocache.digests import Digests
from ptocache.frontend import CompileResult
from ptocache.inputs import ABSENT, FILE, Checker, Input, Inputs
from ptocache.recipe import Identity, Recipe
from ptocache.request import CompileRequest, Key, make_key, make_request
from ptocache.stamp import Stamp
from ptocache.store import objects, uploads
from ptocache.store.engines import Engine, make_engine
from ptocache.store.entry import Entry, json_bytes, make_entry
from ptocache.store.guard import Guard
from ptocache.store.objects import RejectedError, Signer, decode_object, encode_object
from ptocache.store.shared import VARIANTS, SharedTier
from ptocache.store.uploads import Uploads

pytestmark = pytest.mark.server

FORK = multiprocessing.get_context("fork")
SECRET = "hunter2-the-password"  # is to be found nowhere
KEY, OTHER_KEY = "the-signing-key-of-the-team", "another-key-of-somebody"

#: A timeout for an engine that will not answer: each wait for it costs so much, in seconds.
SHORT = 0.25


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture(params=["redis", "http"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer | Nginx]:
    """A server of the test's own, that it may stop."""
    with (RedisServer if request.param == "redis" else Nginx)(tmp_path / "server") as server:
        yield server


class Tools:
    """Stand for a toolchain: they compile at once, and count.

    A source is lines. `read NAME` reads a file below the import root, and what is in it is read as the source is;
    `try NAME` does if it is there. The output is made of all that was read.
    """

    def __init__(self, site: Path) -> None:
        self.site = site
        self.built: list[str] = []
        checker = Checker(Digests(), [str(site)], os.environ.get)
        self._identity = Identity(Stamp((), (), "1", "1-front-back"), checker)

    def recipe(self) -> Recipe:
        return Recipe("test", (), lambda: self._identity, lambda request, work, verbose: Compilation(self, request))


class Compilation:
    kernels: Sequence[str] = ("main_kernel",)

    def __init__(self, tools: Tools, request: CompileRequest) -> None:
        self._tools = tools
        self._inputs: set[Input] = set()
        self.text = self._read(request.source)

    def lower(self) -> str | None:
        return self.text

    def build(self) -> bytes:
        self._tools.built.append(self.text)
        return made(self.text)

    def inputs(self) -> Inputs:
        return tuple(sorted(self._inputs))

    def stamp(self) -> Stamp:
        return self._tools._identity.stamp

    def check(self, aibin: bytes) -> None:
        assert aibin == made(self.text)

    def _read(self, text: str) -> str:
        lines = []
        for line in text.splitlines():
            word, _, name = line.partition(" ")
            path = self._tools.site / name
            if word == "read" or (word == "try" and path.exists()):
                content = path.read_bytes()
                self._inputs.add(Input(FILE, name, xxhash.xxh3_128_hexdigest(content)))
                lines.append(self._read(content.decode()))
                continue
            if word == "try":
                self._inputs.add(Input(ABSENT, name, ""))
            lines.append(line)
        return "\n".join(lines)


def made(text: str) -> bytes:
    """The output for a lowered text."""
    return random.Random(text).randbytes(60_000 if text.startswith("big") else 4000)


class Host:
    """A cache directory, with tools and files of its own."""

    def __init__(self, place: Path, shared: str, **more: object) -> None:
        self.site = place / "site"
        self.site.mkdir(parents=True, exist_ok=True)
        self.tools = Tools(self.site)
        more = {"shared_timeout": WAIT, **more}
        self.settings = Settings.load(None, dir=place / "cache", shared=shared, **more)
        self.cache = CompileCache(self.settings)

    def compile(self, source: str) -> CompileResult:
        """Compile; the bytes are right."""
        request = make_request(source, "a5", "")
        result = self.cache.run(self.cache.job(request, self.tools.recipe()))
        assert result.aibin == made(Compilation(self.tools, request).text)
        return result

    def origin(self, source: str) -> str:
        return self.compile(source).origin

    def key(self, source: str) -> Key:
        return self.cache.job(make_request(source, "a5", ""), self.tools.recipe()).key

    def files(self, **contents: str) -> None:
        """Write files of the import root: of these names, with `.py` after them."""
        for name, content in contents.items():
            (self.site / f"{name}.py").write_text(content)

    def sent(self) -> Host:
        """Wait until all is stored that is to be."""
        self.cache.close()
        assert all(tier.uploads.flush(WAIT) for tier in self.cache.shared_tiers())
        return self

    @property
    def tier(self) -> SharedTier:
        return self.cache.shared_tiers()[0]

    def counted(self, number: int = 0) -> dict[str, float]:
        """What was counted of an engine."""
        return self.cache.counters.engines().get(self.cache.shared_tiers()[number].label, {})


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    """Makes hosts. They share a directory unless something else is said."""
    begun: list[Host] = []

    def begin(name: str, shared: str = f"file://{tmp_path}/shared", **more: object) -> Host:
        begun.append(Host(tmp_path / name, shared, **more))
        return begun[-1]

    yield begin
    for host in begun:
        host.cache.close()


Hosts = Callable[..., Host]


def engine_of(host: Host, number: int = 0) -> Engine:
    return make_engine(host.settings.shared[number], WAIT)


def names(engine: Engine) -> set[str]:
    return {stored.name for stored in engine.list()}


# What is shared.


def test_one_compiles_and_the_others_find_it_and_keep_it(hosts: Hosts) -> None:
    one, other = hosts("one"), hosts("other")
    first = one.compile("kernel")
    assert (first.origin, one.origin("kernel")) == ("compiled", "memory")
    one.sent()
    result = other.compile("kernel")
    assert (result.origin, result.via, result.kernels, result.key) == ("shared", "source", ["main_kernel"], first.key)
    assert result.aibin == first.aibin
    assert result.action.seconds == first.action.seconds
    assert other.origin("kernel") == "memory"
    assert hosts("other").origin("kernel") == "local"
    assert other.tools.built == []
    assert other.cache.counters.totals()["hits.shared"] == 1
    assert (one.counted()["stores"], one.counted()["hits"], one.counted()["misses"]) == (2, 0, 2)
    assert (other.counted()["stores"], other.counted()["hits"], other.counted()["misses"]) == (0, 1, 0)
    assert other.counted()["bytes_read"] * 2 < one.counted()["bytes_written"] * 1.2
    assert one.counted()["errors"] == other.counted()["errors"] == 0


def test_what_is_lowered_to_the_same_text_is_compiled_once(hosts: Hosts) -> None:
    one, other = hosts("one"), hosts("other")
    one.files(helper="text")
    assert one.origin("read helper.py") == "compiled"
    one.sent()
    result = other.compile("text")
    assert (result.origin, result.via) == ("shared", "pto")
    assert other.tools.built == []
    other.sent()
    assert hosts("third").compile("text").via == "source"


def test_threads_share_what_is_compiled(hosts: Hosts) -> None:
    one, other = hosts("one"), hosts("other")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one.compile, [f"kernel {number % 10}" for number in range(80)], timeout=WAIT))
        one.sent()
        origins = list(pool.map(other.origin, [f"kernel {number % 10}" for number in range(80)], timeout=WAIT))
    assert len(one.tools.built) == 10
    assert set(origins) <= {"shared", "memory", "local"}
    assert other.tools.built == []
    assert one.counted()["errors"] == other.counted()["errors"] == 0


@pytest.mark.parametrize("setting", ["readonly", "disable"])
def test_who_is_to_store_nothing_stores_nothing(hosts: Hosts, setting: str, tmp_path: Path) -> None:
    one = hosts("one")
    one.compile("first")
    one.sent()
    before = sorted((tmp_path / "shared").rglob("*"))
    other = hosts("other", **{setting: 1})
    assert other.origin("second") == "compiled"
    assert other.origin("first") == ("shared" if setting == "readonly" else "compiled")
    other.sent()
    assert sorted((tmp_path / "shared").rglob("*")) == before


def test_what_is_compiled_again_takes_the_place_of_what_was_stored(hosts: Hosts) -> None:
    one = hosts("one")
    one.compile("kernel")
    one.sent()
    before = engine_of(one).get(one.key("kernel").name, 1 << 20)
    other = hosts("other", recompile=1)
    assert other.origin("kernel") == "compiled"
    other.sent()
    after = engine_of(one).get(one.key("kernel").name, 1 << 20)
    assert after is not None
    assert after != before
    assert hosts("third").origin("kernel") == "shared"


# More than one engine.


def test_engines_are_asked_in_order_and_the_first_gets_what_the_second_had(hosts: Hosts, tmp_path: Path) -> None:
    near, far = f"file://{tmp_path}/near", f"file://{tmp_path}/far"
    one = hosts("one", far)
    one.compile("kernel")
    one.sent()
    other = hosts("other", f"{near} {far}")
    assert other.origin("kernel") == "shared"
    assert (other.counted(0)["hits"], other.counted(1)["hits"]) == (0, 1)
    other.sent()
    assert other.key("kernel").name in names(engine_of(other, 0))
    assert other.counted(1)["stores"] == 0
    third = hosts("third", f"{near} {far}")
    assert third.origin("kernel") == "shared"
    assert third.counted(0)["hits"] == 1
    assert not third.counted(1)
    assert third.origin("new") == "compiled"
    third.sent()
    assert third.key("new").name in names(engine_of(third, 0)) & names(engine_of(third, 1))


def test_an_engine_that_is_marked_is_never_written_to(hosts: Hosts, tmp_path: Path) -> None:
    first, second, third = (f"file://{tmp_path}/{name}" for name in ("first", "second", "third"))
    one = hosts("one", third)
    one.compile("kernel")
    one.sent()
    other = hosts("other", f"{first}#readonly {second} {third}#readonly", recompile=0)
    assert other.origin("kernel") == "shared"
    assert other.origin("new") == "compiled"
    other.sent()
    assert not (tmp_path / "first").exists()
    assert {other.key("kernel").name, other.key("new").name} <= names(engine_of(other, 1))
    assert other.key("new").name not in names(engine_of(other, 2))
    again = hosts("again", f"{third}#readonly", recompile=1)
    before = engine_of(one).get(one.key("kernel").name, 1 << 20)
    again.compile("kernel")
    again.sent()
    assert engine_of(one).get(one.key("kernel").name, 1 << 20) == before


def test_a_redis_that_is_marked_is_never_written_to_not_even_for_a_lease(
    hosts: Hosts, redis_server: RedisServer, tmp_path: Path
) -> None:
    url = f"{redis_server.url}?prefix={tmp_path.name}"
    one = hosts("one", url)
    one.compile("kernel")
    one.sent()
    with redis_server.client() as client:
        before = sorted(client.scan_iter(f"{tmp_path.name}*"))
        commands = client.info("commandstats")
    other = hosts("other", f"{url}#readonly")
    assert other.origin("kernel") == "shared"
    assert other.origin("new") == "compiled"
    other.sent()
    with redis_server.client() as client:
        assert sorted(client.scan_iter(f"{tmp_path.name}*")) == before
        assert client.info("commandstats")["cmdstat_set"] == commands["cmdstat_set"]


# Variants: sources that read files.


def test_both_states_of_a_helper_are_found_and_so_is_the_first_again(hosts: Hosts) -> None:
    source = "kernel\nread helper.py"
    one, other = hosts("one"), hosts("other")
    for state in ("first", "second"):
        one.files(helper=state)
        assert one.origin(source) == "compiled"
    one.sent()
    for state in ("second", "first", "second"):
        other.files(helper=state)
        assert other.compile(source).via == "source"
    assert other.tools.built == []
    for state in ("first", "second"):
        fresh = hosts(f"fresh {state}")
        fresh.files(helper=state)
        assert (fresh.origin(source), fresh.counted()["hits"], fresh.counted()["misses"]) == ("shared", 1, 0)
    other.files(helper="third")
    assert other.origin(source) == "compiled"
    assert other.counted()["errors"] == 0


def test_states_that_are_stored_by_two_hosts_at_once_are_both_found(hosts: Hosts) -> None:
    sources = [f"kernel {number}\nread helper.py" for number in range(20)]
    one, other = hosts("one"), hosts("other")
    one.files(helper="first")
    other.files(helper="second")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda host: [host.compile(source) for source in sources], (one, other), timeout=WAIT))
    one.sent()
    other.sent()
    for state in ("first", "second"):
        fresh = hosts(f"fresh {state}")
        fresh.files(helper=state)
        assert [fresh.compile(source).origin for source in sources] == ["shared"] * 20


def test_a_state_that_reads_less_is_found_where_what_it_does_not_read_is_there(hosts: Hosts) -> None:
    """One branch's helper imports a module, the other's does not any more, and the module is in both."""
    source = "kernel\nread helper.py"
    one = hosts("one")
    one.files(helper="read more.py", more="more")
    one.compile(source)
    one.files(helper="nothing more")
    assert one.origin(source) == "compiled"
    one.sent()
    other = hosts("other")
    other.files(helper="nothing more", more="more")
    assert other.compile(source).via == "source"


def test_a_state_that_reads_more_is_found(hosts: Hosts) -> None:
    source = "kernel\nread helper.py"
    one = hosts("one")
    one.files(helper="nothing more", more="more")
    one.compile(source)
    one.files(helper="read more.py")
    one.compile(source)
    one.sent()
    other = hosts("other")
    other.files(helper="read more.py", more="more")
    assert other.compile(source).via == "source"
    other.files(more="even more")
    assert other.origin(source) == "compiled"


def test_a_file_that_is_looked_for_makes_a_state_where_it_is_and_where_it_is_not(hosts: Hosts) -> None:
    source = "kernel\ntry tuned.py"
    one, other = hosts("one"), hosts("other")
    one.compile(source)
    other.files(tuned="tuned")
    assert other.origin(source) == "compiled"
    one.sent()
    other.sent()
    with_it, without = hosts("with"), hosts("without")
    with_it.files(tuned="tuned")
    assert (with_it.compile(source).via, without.compile(source).via) == ("source", "source")
    assert with_it.origin(source) == without.origin(source) == "memory"


def test_many_states_of_the_same_files_are_all_found(hosts: Hosts) -> None:
    source = "kernel\nread helper.py"
    one, other = hosts("one"), hosts("other")
    for number in range(VARIANTS + 3):
        one.files(helper=f"state {number}")
        one.compile(source)
    one.sent()
    for number in range(VARIANTS + 3):
        other.files(helper=f"state {number}")
        assert other.compile(source).via == "source"
    assert other.counted()["misses"] == 0


def test_more_states_than_are_looked_for_are_compiled_and_right(hosts: Hosts) -> None:
    """Each state reads one file more than the last one, and shares the others with it."""

    def write(host: Host, number: int) -> None:
        host.files(**{f"file{before}": f"read file{before + 1}.py" for before in range(number)})
        host.files(**{f"file{number}": f"end {number}"})

    one = hosts("one")
    for number in range(VARIANTS + 3):
        write(one, number)
        assert one.compile("read file0.py").via is None
    one.sent()
    vias = []
    for number in range(VARIANTS + 3):
        other = hosts(f"other {number}")
        write(other, number)
        vias.append(other.compile("read file0.py").via)
    assert vias == ["source"] * VARIANTS + ["pto"] * 3
    assert one.counted()["errors"] == 0


# An engine that fails while a program runs.


def compile_through(host: Host, fail: Callable[[], object], recover: Callable[[], object]) -> None:
    """Compile before, while and after something fails; each result is right, and all are compiled."""
    for number in range(4):
        assert host.origin(f"before {number}") == "compiled"
    fail()
    for number in range(8):
        assert host.origin(f"meanwhile {number}") == "compiled"
    recover()
    for number in range(4):
        assert host.origin(f"after {number}") == "compiled"


def recovered(host: Host) -> None:
    """Have the engine tried again now, instead of in half a minute, until it is used again."""

    def is_open(guard: Guard) -> bool:
        guard._try_at = 0.0
        return guard.is_open()

    for guard in (host.tier.reading, host.tier._writing):
        until(lambda guard=guard: is_open(guard), "the engine to be used again")  # type: ignore[misc]
    host.tier.timeout = WAIT  # what is expected of it now is to succeed, however long that takes
    host.tier._lazy_engine = None


@pytest.mark.parametrize("mode", Proxy.modes)
def test_an_engine_that_goes_wrong_costs_only_misses(
    server: RedisServer | Nginx, mode: str, hosts: Hosts, tmp_path: Path
) -> None:
    with Proxy(server.port) as proxy:
        host = hosts("one", server.url.replace(server.address, proxy.address), shared_timeout=SHORT)
        compile_through(host, lambda: setattr(proxy, "mode", mode), lambda: setattr(proxy, "mode", "through"))
        assert host.counted()["errors"] + host.counted()["rejected"] > 0
        recovered(host)
        assert host.origin("new") == "compiled"
        host.sent()
    assert hosts("other", server.url).origin("new") == "shared"


def test_a_server_that_is_stopped_and_started_again_is_used_again(server: RedisServer | Nginx, hosts: Hosts) -> None:
    host = hosts("one", server.url, shared_timeout=SHORT)
    compile_through(host, server.stop, server.start)
    recovered(host)
    assert host.origin("new") == "compiled"
    host.sent()
    assert hosts("other", server.url).origin("new") == "shared"


def test_a_server_that_is_paused_is_used_again(server: RedisServer | Nginx, hosts: Hosts) -> None:
    host = hosts("one", server.url, shared_timeout=SHORT)
    with contextlib.ExitStack() as stack:
        compile_through(host, lambda: stack.enter_context(server.paused()), stack.close)
    recovered(host)
    assert host.origin("new") == "compiled"
    host.sent()
    assert hosts("other", server.url).origin("new") == "shared"


@pytest.mark.parametrize("place", ["full", "broken", "forbidden", "page"])
def test_a_web_server_that_fails_costs_only_misses(nginx: Nginx, place: str, hosts: Hosts) -> None:
    host = hosts("one", f"{nginx.url}/{place}")
    assert [host.origin(f"kernel {number}") for number in range(6)] == ["compiled"] * 6
    host.sent()
    counted = host.counted()
    assert counted["stores"] == 0 or place == "page"
    assert counted["hits"] == 0
    if place == "full":  # reading goes on where writing fails
        assert host.tier.reading.is_open()
        assert (counted["misses"], counted["errors"]) == (12, 2)
        assert not host.tier._writing.is_open()
    elif place == "page":
        assert counted["rejected"] == counted["misses"] == 12
    else:
        assert not host.tier.reading.is_open()


def test_a_redis_that_is_full_still_answers(tmp_path: Path, hosts: Hosts) -> None:
    with RedisServer(tmp_path / "server", "--maxmemory-policy", "noeviction") as server:
        one = hosts("one", server.url)
        for number in range(3):
            one.compile(f"kernel {number}")
        one.sent()
        with server.client() as client:
            client.config_set("maxmemory", 1 << 20)
            assert client.info("memory")["used_memory"] > 1 << 20
        other = hosts("other", server.url)
        for number in range(6):
            assert other.origin(f"new {number}") == "compiled"
            assert other.origin(f"kernel {number % 3}") in {"shared", "memory"}
        other.sent()
        assert other.cache.counters.totals()["hits.shared"] == 3
        assert other.tier.reading.is_open()
        assert not other.tier._writing.is_open()
        with server.client() as client:
            client.config_set("maxmemory", 0)
        recovered(other)
        other.compile("again")
        other.sent()
        assert hosts("third", server.url).origin("again") == "shared"


def test_a_redis_that_evicts_costs_only_misses(tmp_path: Path, hosts: Hosts) -> None:
    with RedisServer(tmp_path / "server", "--maxmemory-policy", "allkeys-lru") as server:
        with server.client() as client:
            client.config_set("maxmemory", client.info("memory")["used_memory"] + (1 << 20))
        for number in range(3):
            host = hosts(f"host {number}", server.url)
            for kernel in range(30):
                host.compile(f"big kernel {kernel}")
            host.sent()
            assert host.counted()["errors"] == 0
            assert host.cache.counters.totals()["errors"] == 0
        with server.client() as client:
            assert client.info("stats")["evicted_keys"] > 0


def test_a_file_system_that_fails_costs_only_misses(hosts: Hosts, tmp_path: Path) -> None:
    host = hosts("one")
    shared = tmp_path / "shared"

    def fail() -> None:
        host.sent()
        shared.rename(tmp_path / "away")
        shared.symlink_to(shared)  # whoever opens anything below it is told that there are too many links

    def recover() -> None:
        shared.unlink()
        (tmp_path / "away").rename(shared)

    compile_through(host, fail, recover)
    recovered(host)
    host.compile("new")
    host.sent()
    assert hosts("other").origin("new") == "shared"


class Waits:
    """What is asked of engines, and what is waited for in vain."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, float]] = []
        self.late = 0.0  # how long was waited for uploads that were not done then
        wait_for, flush = Guard._wait_for, Uploads.flush

        def counted_wait(guard: Guard, function: Callable[[], Any], seconds: float) -> Any:
            self.calls.append((guard._label.partition(" ")[0], seconds))
            return wait_for(guard, function, seconds)

        def counted_flush(uploads: Uploads, seconds: float | None = None) -> bool:
            is_done = flush(uploads, seconds)
            if not is_done:
                self.late += uploads._flush_seconds if seconds is None else seconds
            return is_done

        monkeypatch.setattr(Guard, "_wait_for", counted_wait)
        monkeypatch.setattr(Uploads, "flush", counted_flush)

    def of(self, what: str) -> list[float]:
        return [seconds for doing, seconds in self.calls if doing == what]


@pytest.mark.parametrize("kind", ["redis", "http"])
@pytest.mark.parametrize("hole", ["listens and accepts nothing", "accepts and swallows"])
def test_a_black_hole_costs_a_process_two_timeouts_however_many_kernels(
    kind: str, hole: str, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("redis" if kind == "redis" else "obstore")
    waits = Waits(monkeypatch)
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(Proxy())
        port = proxy.port if hole.startswith("accepts") else stack.enter_context(black_hole())
        host = hosts("one", f"{kind}://127.0.0.1:{port}/0", shared_timeout=SHORT)
        for number in range(12):
            assert host.origin(f"kernel {number}") == "compiled"
        host.cache.close()
        assert len(waits.of("reading")) == 2
        assert sum(waits.of("reading")) <= 2 * SHORT
        assert waits.of("writing") == []
        assert waits.late == 0
        assert proxy.connections <= 2
        assert not host.tier.reading.is_open()
        assert host.counted()["skipped"] >= 4 * 10


@pytest.mark.parametrize("kind", ["redis", "http"])
def test_an_engine_that_swallows_only_what_is_stored_costs_two_timeouts(
    kind: str, hosts: Hosts, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """As behind a network that loses large packets: reading works, and each write hangs."""
    server = request.getfixturevalue("redis_server" if kind == "redis" else "nginx")
    waits = Waits(monkeypatch)
    timeout = 1.0
    with Proxy(server.port) as proxy:
        proxy.mode = "small"
        host = hosts("one", server.url.replace(server.address, proxy.address), shared_timeout=timeout)
        for number in range(12):
            assert host.origin(f"swallowed {number}") == "compiled"
        host.sent()
        assert len(waits.of("writing")) == 2
        assert waits.late <= 2 * timeout
        assert host.tier.reading.is_open()
        assert host.counted()["stores"] == 0


def test_two_black_holes_cost_two_timeouts_each(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    waits = Waits(monkeypatch)
    with black_hole() as one, black_hole() as other:
        shared = f"http://127.0.0.1:{one}/x http://127.0.0.1:{other}/x file://{hosts('one').site}/shared"
        host = hosts("two", shared, shared_timeout=SHORT)
        for number in range(10):
            assert host.origin(f"kernel {number}") == "compiled"
        assert len(waits.of("reading")) - host.counted(2)["misses"] == 4
        assert sum(host.counted(number)["errors"] for number in range(2)) == 4
        assert host.counted(2)["errors"] == 0


def test_an_engine_that_answers_slowly_stays_within_its_time_whatever_it_sends(hosts: Hosts) -> None:
    """Each byte comes soon enough for a socket's timeout; all of them do not."""
    pytest.importorskip("redis")
    with Proxy() as proxy:
        stop = threading.Event()

        def trickle(client: Any) -> None:
            with client, contextlib.suppress(OSError):
                client.recv(1 << 16)
                while not stop.is_set():
                    client.sendall(b"$")
                    stop.wait(0.02)

        proxy._serve = trickle  # type: ignore[method-assign]
        host = hosts("one", f"redis://{proxy.address}/0", shared_timeout=SHORT)
        for number in range(10):
            assert host.origin(f"kernel {number}") == "compiled"
        assert not host.tier.reading.is_open()
        stop.set()


# What a server says that is none, or not one of ours.

RESP = {
    "an error": b"-ERR no\r\n",
    "it is loading": b"-LOADING Redis is loading the dataset in memory\r\n",
    "it is a replica": b"-READONLY You can't write against a read only replica.\r\n",
    "it is full": b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    "a number": b":5\r\n",
    "a list": b"*2\r\n:1\r\n:2\r\n",
    "another text": b"+OK\r\n",
    "a text that is shorter than it says": b"$100\r\nshort\r\n",
    "a text of 8 EiB": b"$9223372036854775807\r\nshort\r\n",
    "a negative length": b"$-5\r\n\r\n",
    "nested lists": b"*1\r\n" * 5000,
    "zeros": bytes(4096),
    "a web page": b"HTTP/1.1 400 Bad Request\r\n\r\n",
}
HTTP = {
    "nothing": b"",
    "no header": b"hello\r\n\r\n",
    "a huge length": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\nshort",
    "no length": b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nsome text",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nsome text",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\nshort",
    "a page": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nLast-Modified: Tue, 01 Dec 2026 09:00:00 GMT\r\n\r\npage",
    "a redirection to itself": b"HTTP/1.1 302 Found\r\nLocation: /0\r\nContent-Length: 0\r\n\r\n",
    "a login": b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n",
    "too many requests": b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n",
    "an error": b"HTTP/1.1 500 Oh\r\nContent-Length: 3\r\n\r\nbad",
    "not modified": b"HTTP/1.1 304 Not Modified\r\n\r\n",
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "a header without end": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 5000,
}
ANSWERS = [("redis", what) for what in RESP] + [("http", what) for what in HTTP]


@pytest.mark.parametrize(("kind", "what"), ANSWERS, ids=[f"{kind}, {what}" for kind, what in ANSWERS])
def test_whatever_a_server_answers_is_a_miss(
    kind: str, what: str, hosts: Hosts, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("redis" if kind == "redis" else "obstore")
    answer = (RESP if kind == "redis" else HTTP)[what]

    def say(client: Any) -> None:
        with client, contextlib.suppress(OSError):
            while client.recv(1 << 16):
                client.sendall(answer)
                if kind == "http":
                    return

    with Proxy() as proxy:
        proxy._serve = say  # type: ignore[method-assign]
        host = hosts("one", f"{kind}://{proxy.address}/0", shared_timeout=SHORT, lock_timeout=1)
        for number in range(3):
            assert host.origin(f"kernel {number}") == "compiled"
        assert host.counted()["hits"] == 0
        assert "waited" not in caplog.text, "as if another host compiled it"


# Somebody who writes what is not right.

SOURCE, OTHER_SOURCE = "kernel", "other kernel"


def body(name: str, key: Key, entry: Entry, /, **changes: Any) -> bytes:
    """The body of an object with something changed in it: a field's value, or `inputs`, `facts` or `output` bytes."""
    output = changes.pop("output", zstandard.compress(entry.aibin))
    action = entry.action
    inputs, facts = changes.pop("inputs", action.inputs), changes.pop("facts", action.facts)
    fields = {
        "name": bytes.fromhex(name),
        "key": bytes.fromhex(key.name),
        "check": key.check,
        "sha256": action.sha256,
        "xxh3": action.xxh3,
        "size": action.size,
        "seconds": action.seconds,
        "created": action.created,
        "inputs_length": len(inputs),
        "facts_length": len(facts),
        "output_length": len(output),
    }
    assert not set(changes) - set(fields)
    return b"".join((objects._FIXED.pack(*{**fields, **changes}.values()), inputs, facts, output))


def no_size(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


BOMB = zstandard.compress(bytes(200 << 20))

#: What is wrong with an object, as changes of its body.
CHANGES: dict[str, dict[str, Any]] = {
    "another name": {"name": bytes(16)},
    "another key": {"key": bytes(16)},
    "another key of the same name": {"check": bytes(32)},
    "another output": {"output": zstandard.compress(bytes(4000))},
    "an output of another size": {"size": 3999},
    "a huge size": {"size": 2**63},
    "a size above the limit": {"size": objects.OUTPUT_LIMIT + 1},
    "huge inputs": {"inputs_length": 2**32 - 1},
    "huge facts": {"facts_length": 2**32 - 1},
    "a huge output": {"output_length": 2**63},
    "no output": {"output": b""},
    "half an output": {"output": zstandard.compress(made(SOURCE))[:2000]},
    "an output and more": {"output": zstandard.compress(made(SOURCE)) + b"more"},
    "two outputs": {"output": zstandard.compress(made(SOURCE)[:2000]) + zstandard.compress(made(SOURCE)[2000:])},
    "an output of unknown size": {"output": no_size(made(SOURCE))},
    "a bomb": {"output": BOMB},
    "a bomb of unknown size": {"output": no_size(bytes(200 << 20))},
    "an output that is not compressed": {"output": made(SOURCE)},
    "a wrong digest": {"sha256": bytes(32)},
    "another wrong digest": {"xxh3": bytes(16)},
    "no facts": {"facts": b""},
    "facts that are none": {"facts": b"{"},
    "facts of another kind": {"facts": b"[]"},
    "facts without kernels": {"facts": b"{}"},
    "facts with other kernels": {"facts": json_bytes({"kernels": [1]})},
    "facts with a text for kernels": {"facts": json_bytes({"kernels": "main_kernel"})},
    "deep facts": {"facts": b"[" * 100_000},
    "facts in no encoding": {"facts": b'{"kernels": ["\xff"]}'},
    "inputs that are none": {"inputs": b"nonsense"},
    "inputs of another kind": {"inputs": b"link\0name\0digest\0"},
    "no time": {"seconds": float("nan")},
    "an endless time": {"seconds": float("inf")},
    "a negative time": {"seconds": -1.0},
    "no date": {"created": float("nan")},
}


@pytest.mark.parametrize("what", CHANGES)
def test_an_object_with_something_wrong_in_it_is_not_used_and_replaced(what: str, hosts: Hosts) -> None:
    one = hosts("one")
    key, engine = one.key(SOURCE), engine_of(one)
    facts = {"kernels": ["main_kernel"]}
    entry = make_entry(made(SOURCE), seconds=1.0, created=1.7e9, facts=facts)
    wrong = body(key.name, key, entry, **CHANGES[what])
    engine.put(key.name, Signer().sign(wrong) + wrong, replace=False)
    assert one.origin(SOURCE) == "compiled"
    assert one.counted()["rejected"] >= 1
    assert one.counted()["errors"] == 0
    assert one.tier.reading.is_open()
    one.sent()
    assert hosts("other").compile(SOURCE).via == "source"


def test_an_object_as_it_should_be_is_used(hosts: Hosts) -> None:
    """The forger of the other tests makes what would be used if nothing were wrong with it."""
    one = hosts("one")
    key, engine = one.key(SOURCE), engine_of(one)
    entry = make_entry(made(SOURCE), seconds=1.0, created=1.7e9, facts={"kernels": ["main_kernel"]})
    right = body(key.name, key, entry)
    engine.put(key.name, Signer().sign(right) + right, replace=False)
    assert one.compile(SOURCE).via == "source"


def test_a_bomb_takes_no_more_memory_than_it_says() -> None:
    key = make_key([("test", b"")])
    entry = make_entry(made(SOURCE), seconds=1.0, created=1.7e9, facts={"kernels": []})
    for output in (BOMB, no_size(bytes(200 << 20))):
        wrong = body(key.name, key, entry, output=output)
        data = Signer().sign(wrong) + wrong
        tracemalloc.start()
        try:
            with pytest.raises(RejectedError):
                decode_object(data, key.name, Signer())
            assert tracemalloc.get_traced_memory()[1] < 10 << 20
        finally:
            tracemalloc.stop()


def test_bytes_that_were_damaged_anywhere_are_no_object() -> None:
    key = make_key([("test", b"")])
    entry = make_entry(made(SOURCE)[:300], seconds=1.0, created=1.7e9, facts={"kernels": []})
    for signer in (Signer(), Signer([KEY.encode()])):
        data = encode_object(key.name, key, entry, signer)
        assert decode_object(data, key.name, signer).entry.aibin == entry.aibin
        for place in range(len(data)):
            if not signer.signs and 8 <= place < 48:  # who signed it, which nobody asks
                continue
            wrong = bytearray(data)
            wrong[place] ^= 1
            with pytest.raises(RejectedError):
                decode_object(bytes(wrong), key.name, signer)
        for length in range(len(data)):
            with pytest.raises(RejectedError):
                decode_object(data[:length], key.name, signer)
        with pytest.raises(RejectedError):
            decode_object(data + b"\0", key.name, signer)


def spoil(engine: Engine, name: str, how: str, sources: dict[str, bytes]) -> None:
    data = engine.get(name, 1 << 20)
    assert data is not None
    wrong = {
        "empty": b" ",
        "text": b"<html>Please log in</html>",
        "cut short": data[:-1],
        "longer": data + b"\0",
        "the object of another kernel": sources["other"],
        "too large": data + bytes(1 << 20),
    }[how]
    engine.put(name, wrong, replace=True)


@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
@pytest.mark.parametrize("how", ["empty", "text", "cut short", "longer", "the object of another kernel", "too large"])
@pytest.mark.parametrize("kind", ["file", "redis"])
def test_what_was_spoiled_is_not_used_and_replaced_where_that_is_allowed(
    kind: str,
    how: str,
    signed: bool,
    hosts: Hosts,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ptocache.store.shared.OBJECT_LIMIT", 1 << 20)
    url = f"file://{tmp_path}/shared"
    if kind == "redis":
        url = f"{request.getfixturevalue('redis_server').url}?prefix={tmp_path.name}"
    more = {"signing_key": KEY} if signed else {}
    one = hosts("one", url, **more)
    one.compile(SOURCE)
    one.compile(OTHER_SOURCE)
    one.sent()
    engine = engine_of(one)
    other = engine.get(one.key(OTHER_SOURCE).name, 1 << 20)
    assert other is not None
    for name in names(engine):
        spoil(engine, name, how, {"other": other})
    reader = hosts("reader", f"{url}#readonly", **more)
    assert reader.origin(SOURCE) == "compiled"
    assert reader.counted()["rejected"] == 2  # under the source's key and under the text's
    reader.sent()
    spoiled = {name: engine.get(name, 1 << 20) for name in names(engine)}
    writer = hosts("writer", url, **more)
    assert writer.origin(SOURCE) == "compiled"
    writer.sent()
    assert writer.counted()["stores"] == 2
    assert writer.counted()["errors"] == 0
    assert hosts("third", url, **more).origin(SOURCE) == "shared"
    assert sum(engine.get(name, 1 << 20) != data for name, data in spoiled.items()) == 2


@pytest.mark.parametrize("whose", ["nobody's", "a stranger's"])
def test_what_is_not_signed_with_our_key_is_not_used_and_replaced(whose: str, hosts: Hosts) -> None:
    stranger = hosts("stranger", **({} if whose == "nobody's" else {"signing_key": OTHER_KEY}))
    stranger.compile(SOURCE)
    stranger.sent()
    ours = hosts("ours", signing_key=KEY)
    assert ours.origin(SOURCE) == "compiled"
    assert (ours.counted()["rejected"], ours.counted()["hits"]) == (2, 0)
    ours.sent()
    assert hosts("other", signing_key=KEY).origin(SOURCE) == "shared"
    assert hosts("trusting").origin(SOURCE) == "shared"


def test_a_key_is_changed_by_having_both_for_a_while(hosts: Hosts, tmp_path: Path) -> None:
    old = hosts("old", signing_key=KEY)
    old.compile(SOURCE)
    old.sent()
    (tmp_path / "keys").write_text(f"{OTHER_KEY}\n{KEY}\n")
    both = hosts("both", signing_key_file=tmp_path / "keys")
    assert both.origin(SOURCE) == "shared"
    assert both.origin("new") == "compiled"
    both.sent()
    new = hosts("new", signing_key=OTHER_KEY)
    assert new.origin("new") == "shared"
    assert new.origin(SOURCE) == "compiled"
    assert old.origin("new") == "compiled"


def test_a_signature_is_over_the_name_and_all_the_rest(hosts: Hosts) -> None:
    """Who can write and has no key can neither move what was signed, nor say that another key signed it."""
    one = hosts("one", signing_key=KEY)
    one.compile(SOURCE)
    one.sent()
    engine, key, wanted = engine_of(one), one.key(SOURCE), one.key(OTHER_SOURCE)
    data = engine.get(key.name, 1 << 20)
    assert data is not None
    head, rest = data[: objects._HEAD.size], data[objects._HEAD.size :]
    moved = bytes.fromhex(wanted.name) + bytes.fromhex(wanted.name) + wanted.check + rest[64:]
    magic, number, code, _ = objects._HEAD.unpack(head)
    forged = objects._HEAD.pack(magic, number, code, xxhash.xxh3_128_digest(moved)) + moved
    wrongs = (forged, Signer().sign(moved) + moved, Signer([OTHER_KEY.encode()]).sign(moved) + moved)
    for number, wrong in enumerate(wrongs):
        engine.put(wanted.name, wrong, replace=True)
        reader = hosts(f"reader {number}", f"{one.settings.shared[0].url}#readonly", signing_key=KEY)
        assert reader.origin(OTHER_SOURCE) == "compiled"
        assert reader.counted()["rejected"] >= 1


# Forks.


def in_child(work: Callable[[], object]) -> None:
    """Do something in a forked child, and fail if it does."""
    process = FORK.Process(target=work)
    process.start()
    process.join(WAIT)
    alive = process.is_alive()
    process.kill()
    process.join()
    assert (alive, process.exitcode) == (False, 0)


@pytest.mark.parametrize("kind", ["file", "redis"])
def test_a_child_of_a_process_that_has_shared_goes_on_sharing(
    kind: str, hosts: Hosts, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/shared"
    if kind == "redis":
        url = f"{request.getfixturevalue('redis_server').url}?prefix={tmp_path.name}"
    one = hosts("one", url)
    for number in range(3):
        one.compile(f"kernel {number}")
    one.sent()
    parent = hosts("parent", url)
    assert parent.origin("kernel 0") == "shared"

    def work() -> None:
        assert parent.origin("kernel 1") == "shared"
        assert parent.origin("from the child") == "compiled"
        in_child(lambda: parent.compile("from the grandchild"))

    in_child(work)
    assert parent.origin("kernel 2") == "shared"
    third = hosts("third", url)
    assert [third.origin(f"from the {who}") for who in ("child", "grandchild")] == ["shared", "shared"]
    assert parent.counted()["errors"] == 0


def test_a_child_of_a_process_that_has_used_a_web_server_compiles(hosts: Hosts, nginx: Nginx, tmp_path: Path) -> None:
    url = f"{nginx.url}/{tmp_path.name}"
    one = hosts("one", url)
    one.compile("kernel 0")
    one.compile("kernel 1")
    one.sent()
    parent = hosts("parent", url)
    assert parent.origin("kernel 0") == "shared"

    def work() -> None:
        assert parent.origin("kernel 1") == "compiled"
        assert parent.origin("kernel 2") == "compiled"

    in_child(work)
    assert parent.tier.reading.is_open()
    parent.compile("kernel 3")
    parent.sent()
    assert hosts("third", url).origin("kernel 3") == "shared"


@pytest.mark.parametrize("kind", ["file", "redis", "http"])
def test_children_that_are_forked_while_threads_share_compile(
    kind: str, hosts: Hosts, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/shared"
    if kind == "redis":
        url = f"{request.getfixturevalue('redis_server').url}?prefix={tmp_path.name}"
    elif kind == "http":
        url = f"{request.getfixturevalue('nginx').url}/{tmp_path.name}"
    host = hosts("one", url, shared_timeout=5)
    stop = threading.Event()

    def work(number: int) -> None:
        for count in range(1000):
            if stop.is_set():
                return
            host.compile(f"kernel {number} {count}")

    with ThreadPoolExecutor(3) as pool:
        threads = [pool.submit(work, number) for number in range(3)]
        try:
            until(lambda: len(host.tools.built) > 3)
            for number in range(6):
                in_child(lambda: host.compile(f"in child {number}"))  # noqa: B023 - it is called at once
        finally:
            stop.set()
        for thread in threads:
            thread.result(WAIT)
    assert host.counted()["errors"] == 0 or kind == "http"


def test_a_child_sends_what_is_its_own_and_nothing_of_its_parents(hosts: Hosts, tmp_path: Path) -> None:
    parent = hosts("parent")
    parent.compile("first")
    parent.sent()
    queue = parent.cache._lazy_shared[""][0].uploads
    released = threading.Event()
    try:
        assert queue.add(lambda: released.wait(WAIT), 1)
        until(lambda: queue._is_sending and not queue._waiting)
        parent.compile("the parent's")
        before = names(engine_of(parent))

        def work() -> None:
            assert queue.flush(0)
            parent.compile("the child's")
            assert queue.flush(WAIT)

        in_child(work)
        assert len(names(engine_of(parent)) - before) == 2
    finally:
        released.set()
    parent.sent()
    other = hosts("other")
    assert [other.origin(f"the {who}'s") for who in ("child", "parent")] == ["shared", "shared"]


# Secrets.


def described(function: Callable[..., object], *arguments: object) -> str:
    """The traceback of what a function raises."""
    try:
        function(*arguments)
    except Exception:  # noqa: BLE001 - it is what is looked at
        return traceback.format_exc()
    return ""


@pytest.fixture
def own_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The log as a program has it: commands that run in this process write it to standard error."""
    monkeypatch.setattr("ptocache.log._wanted", "")
    yield
    top = logging.getLogger("ptocache")
    top.handlers.clear()
    top.propagate = True
    top.setLevel(logging.NOTSET)


@pytest.mark.usefixtures("own_log")
@pytest.mark.parametrize("kind", ["redis", "http", "http, forbidden", "http, broken", "redis, wrong password"])
def test_no_secret_is_logged_counted_or_printed(
    kind: str,
    hosts: Hosts,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    caplog.set_level(logging.DEBUG)
    address = f"127.0.0.1:{free_port()}"
    if "," in kind:
        running = request.getfixturevalue("redis_server" if kind.startswith("redis") else "nginx")
        address = running.address
    place = kind.partition(", ")[2] or "path"
    if kind.startswith("redis"):
        pytest.importorskip("redis")
        url = f"redis://user:{SECRET}@{address}/0"
    else:
        pytest.importorskip("obstore")
        url = f"http://user:{SECRET}@{address}/{place}/?sig={SECRET}"
    monkeypatch.setenv("PTOCACHE_SHARED", url)
    monkeypatch.setenv("PTOCACHE_SHARED_TIMEOUT", "5")
    monkeypatch.setenv("PTOCACHE_DIR", str(tmp_path / "one" / "cache"))
    host = hosts("one", url, shared_timeout=5, signing_key=KEY)
    for number in range(4):
        assert host.origin(f"kernel {number}") == "compiled"
    host.sent()
    assert host.counted()["errors"] >= 1
    fresh = hosts("fresh", url, shared_timeout=5).tier
    entry = make_entry(b"x", seconds=1.0, created=1.7e9, facts={"kernels": []})
    said = [described(fresh.fetch, "ab" * 16), described(fresh.store, host.key("kernel 0"), entry)]
    assert [text for text in said if not is_free_of(text, SECRET, KEY)] == [], "a traceback shows it"
    for command in (["stats"], ["stats", "--json"], ["doctor"], ["push"], ["pull"]):
        main(command)
    written = capfd.readouterr()
    for text in (caplog.text, written.out, written.err):
        assert is_free_of(text, SECRET, KEY)
    assert address in caplog.text
    for path in (tmp_path / "one").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert SECRET.encode() not in data, path
            assert KEY.encode() not in data, path


def test_an_error_is_said_once_and_counted(hosts: Hosts, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("redis")
    host = hosts("one", f"redis://127.0.0.1:{free_port()}/0")
    for number in range(5):
        host.compile(f"kernel {number}")
    host.sent()
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "kernels are compiled all the same" in warnings[0].getMessage()
    assert host.cache.counters.totals()["errors"] == host.counted()["errors"] >= 1


# Uploads.

#: Compiles without closing the cache, and ends, or has a child do so.
PROGRAM = """
import multiprocessing, os, sys
import ptocache
from ptocache.store.shared import SharedTier

def work(number):
    ptocache.compile(sources[number])

sources = eval(sys.argv[1])
if __name__ == "__main__":
    method = sys.argv[2]
    if method == "plain":
        for number in range(len(sources)):
            work(number)
    else:
        context = multiprocessing.get_context(method)
        children = [context.Process(target=work, args=(number,)) for number in range(len(sources))]
        for child in children:
            child.start()
        for child in children:
            child.join()
        sys.exit(max(child.exitcode for child in children))
"""


@pytest.mark.usefixtures("toolchain")
@pytest.mark.parametrize("method", ["plain", "fork", "spawn"])
def test_what_is_compiled_is_sent_before_a_process_ends(
    method: str, hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from conftest import numbered_kernel

    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setenv("PTOCACHE_SHARED", f"file://{tmp_path}/shared")
    monkeypatch.setenv("PTOCACHE_DIR", str(tmp_path / "one"))
    sources = [numbered_kernel(number) for number in range(2)]
    command = [sys.executable, str(tmp_path / "program.py"), repr(sources), method]
    run = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    with CompileCache(Settings.load(dir=tmp_path / "other")) as other:
        assert [other.compile(source).origin for source in sources] == ["shared", "shared"]


#: Has something sent that takes a while, by calls in threads of their own, and ends.
SLOW = """
import sys, time
from ptocache.store.guard import Guard
from ptocache.store.uploads import Uploads

uploads, guard = Uploads(60), Guard("", lambda: None)
for number in range(3):
    uploads.add(lambda number=number: (time.sleep(0.2), guard.call(lambda: print(number, flush=True), 60)), 1)
"""


def test_what_waits_when_a_process_ends_is_sent() -> None:
    run = subprocess.run([sys.executable, "-c", SLOW], capture_output=True, text=True, timeout=WAIT, check=False)
    assert (run.returncode, run.stdout.split(), run.stderr) == (0, ["0", "1", "2"], "")


def test_the_end_of_a_process_waits_for_so_long_and_says_what_was_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    released, begun = threading.Event(), threading.Event()
    queue = Uploads(0.1)

    def hang() -> None:
        begun.set()
        released.wait(WAIT)

    try:
        for _ in range(3):
            assert queue.add(hang, 1)
        assert begun.wait(WAIT)
        queue.finish()
        assert "3 objects not sent" in caplog.text
        assert not queue.flush(0)
    finally:
        released.set()
    assert queue.flush(WAIT)


def test_what_waits_is_bounded_and_what_comes_then_is_counted(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "_MOST_ITEMS", 4)
    host = hosts("one")
    host.compile("first")
    host.sent()
    released = threading.Event()
    queue = host.cache._lazy_shared[""][0].uploads
    try:
        assert queue.add(lambda: released.wait(WAIT), 1)
        until(lambda: queue._is_sending and not queue._waiting)
        for number in range(6):
            assert host.origin(f"kernel {number}") == "compiled"
        assert host.counted()["dropped"] == 8
    finally:
        released.set()
    host.sent()
    assert host.counted()["stores"] == 2 + 4
    assert not queue.add(lambda: None, uploads._MOST_BYTES + 1)


def test_an_upload_that_fails_does_not_stop_the_next(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    host = hosts("one")
    real, failures = SharedTier.store, [MemoryError("no"), TypeError("no")]

    def store(tier: SharedTier, *arguments: Any) -> bool:
        if failures:
            raise failures.pop()
        return real(tier, *arguments)

    monkeypatch.setattr(SharedTier, "store", store)
    for number in range(4):
        host.compile(f"kernel {number}")
    host.sent()
    assert host.counted()["stores"] == 6
    assert host.counted()["errors"] == 2


def test_hashes_are_those_of_the_output(hosts: Hosts) -> None:
    one, other = hosts("one"), hosts("other")
    one.compile(SOURCE)
    one.sent()
    result = other.compile(SOURCE)
    assert result.sha256 == hashlib.sha256(result.aibin).hexdigest()
