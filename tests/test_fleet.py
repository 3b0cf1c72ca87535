"""Hosts of a fleet: processes with caches of their own that compile a kernel once between them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import KERNEL, ToolLog, numbered_kernel
from servers import WAIT, Nginx, RedisServer, S3Server, free_port, until

from ptocache import CompileCache, Settings
from ptocache.lease import fleet_lease
from ptocache.store.engines import VERSION

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("toolchain")]

KEY = "the-signing-key-of-the-team"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture(params=["file", "redis", "s3", "http"])
def shared(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an engine with nothing in it, of each kind."""
    if request.param == "file":
        yield f"file://{tmp_path}/mounted%20here"
        return
    with {"redis": RedisServer, "s3": S3Server, "http": Nginx}[request.param](tmp_path / "server") as server:
        for name, value in getattr(server, "environ", {}).items():
            monkeypatch.setenv(name, value)
        yield server.url


#: Says that it has started, waits for the starting shot, compiles standard input and prints where it came from.
WORKER = """
import hashlib, os, sys, time
from ptocache.frontend import default_cache
source = sys.stdin.read()
meeting = sys.argv[1]
open(os.path.join(meeting, str(os.getpid())), "w").close()
while not os.path.exists(os.path.join(meeting, "go")):
    time.sleep(0.005)
result = default_cache().compile(source)
print(result.origin, hashlib.sha256(result.aibin).hexdigest())
"""


class Fleet:
    """Hosts with a home and a cache directory each, and the processes on them."""

    def __init__(self, place: Path, shared: str) -> None:
        self.place = place
        self.shared = shared
        self.meeting = place / "meeting"
        self.meeting.mkdir()
        self._processes: list[subprocess.Popen[str]] = []

    def environ(self, host: int, **settings: object) -> dict[str, str]:
        home = self.place / f"host {host}"
        home.mkdir(exist_ok=True)
        environ = {**os.environ, "HOME": str(home), "PTOCACHE_SHARED": self.shared, "PTOCACHE_SHARED_TIMEOUT": "30"}
        del environ["PTOCACHE_DIR"]
        return {**environ, **{name: str(value) for name, value in settings.items()}}

    def compile(self, host: int, source: Path, **settings: object) -> tuple[str, bytes]:
        """Compile a file with the command on a host: what it says, and the device binary."""
        output = self.place / f"host {host}.aibin"
        run = subprocess.run(
            [sys.executable, "-m", "ptocache", "compile", str(source), "-o", str(output)],
            env=self.environ(host, **settings),
            capture_output=True,
            text=True,
            timeout=WAIT,
            check=False,
        )
        assert (run.returncode, run.stderr) == (0, "")
        return run.stdout, output.read_bytes()

    def start(self, host: int, source: str = KERNEL, **settings: object) -> subprocess.Popen[str]:
        """A worker on a host, that waits for `go`."""
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(self.meeting)],
            env=self.environ(host, **settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        assert process.stdin is not None
        process.stdin.write(source)
        process.stdin.close()
        process.stdin = None
        return process

    def go(self, count: int) -> None:
        """Let so many workers begin that have started."""
        until(lambda: len(list(self.meeting.iterdir())) >= count, "the workers to start")
        (self.meeting / "go").touch()

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.communicate(timeout=WAIT)


@contextlib.contextmanager
def begun(place: Path, shared: str) -> Iterator[Fleet]:
    place.mkdir()
    fleet = Fleet(place, shared)
    try:
        yield fleet
    finally:
        fleet.kill()


def result(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Where a worker's device binary came from, and its SHA-256."""
    out, err = process.communicate(timeout=WAIT)
    assert (process.returncode, err) == (0, "")
    origin, sha256 = out.split()
    return origin, sha256


def expected(tmp_path: Path, source: str = KERNEL) -> str:
    """The SHA-256 of what a source is compiled to without any cache."""
    with CompileCache(Settings.load(dir=tmp_path / "none", disable=1)) as cache:
        return hashlib.sha256(cache.compile(source).aibin).hexdigest()


# One after the other.


@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
def test_what_one_host_compiles_two_others_find_byte_for_byte(
    shared: str, signed: bool, tool_log: ToolLog, tmp_path: Path
) -> None:
    source = tmp_path / "kernel.py"
    source.write_text(KERNEL)
    settings = {"PTOCACHE_SIGNING_KEY": KEY} if signed else {}
    with begun(tmp_path / "fleet", shared) as fleet:
        said, first = fleet.compile(0, source, **settings)
        assert "compiled in" in said
        assert [tool_log.count(tool) for tool in ("frontend", "ptoas", "bisheng")] == [1, 1, 1]
        with ThreadPoolExecutor(2) as pool:
            others = list(pool.map(lambda host: fleet.compile(host, source, **settings), (1, 2)))
        for said, aibin in others:
            assert "shared hit in" in said
            assert aibin == first
        said, aibin = fleet.compile(1, source, **settings)
        assert "local hit in" in said
        assert aibin == first
        assert [tool_log.count(tool) for tool in ("frontend", "ptoas", "bisheng")] == [1, 1, 1]
        directories = {path.parent for path in fleet.place.rglob("index.lock")}
        assert len(directories) == 3


def test_both_states_of_a_helper_are_found_on_another_host(
    tool_log: ToolLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from helper import EVENT\n" + KERNEL.replace("event_id=0", "event_id=EVENT")
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.setenv("PYTHONPATH", f"{site}:{os.environ['PYTHONPATH']}")

    def compile_on(host: str, state: int) -> tuple[str, str | None, bytes]:
        (site / "helper.py").write_text(f"EVENT = {state}\n")
        with CompileCache(Settings.load(dir=tmp_path / host, shared=f"file://{tmp_path}/shared")) as cache:
            result = cache.compile(source)
            return result.origin, result.via, result.aibin

    first, second = compile_on("one", 1), compile_on("one", 2)
    assert (first[0], second[0], first[2] == second[2]) == ("compiled", "compiled", False)
    runs = [tool_log.count(tool) for tool in ("frontend", "bisheng")]
    for state, (_, _, aibin) in ((1, first), (2, second)):
        assert compile_on("other", state) == ("shared", "source", aibin)
    assert compile_on("other", 1) == ("local", "source", first[2])
    assert compile_on("third", 2) == ("shared", "source", second[2])
    assert [tool_log.count(tool) for tool in ("frontend", "bisheng")] == runs


def test_an_engine_that_is_gone_is_said_and_the_command_succeeds(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    source = tmp_path / "kernel.py"
    source.write_text(KERNEL)
    with begun(tmp_path / "fleet", f"redis://user:the-password@127.0.0.1:{free_port()}/0") as fleet:
        run = subprocess.run(
            [sys.executable, "-m", "ptocache", "compile", str(source), "-o", str(tmp_path / "out.aibin")],
            env=fleet.environ(0),
            capture_output=True,
            text=True,
            timeout=WAIT,
            check=False,
        )
    assert run.returncode == 0
    assert "compiled in" in run.stdout
    assert "kernels are compiled all the same" in run.stderr
    assert "the-password" not in run.stdout + run.stderr
    assert len(run.stderr.splitlines()) == 1
    assert hashlib.sha256((tmp_path / "out.aibin").read_bytes()).hexdigest() == expected(tmp_path)


def test_a_url_that_cannot_be_used_is_wrong_use_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL)
    with begun(tmp_path / "fleet", "memcached://host") as fleet:
        run = subprocess.run(
            [sys.executable, "-m", "ptocache", "compile", str(tmp_path / "kernel.py")],
            env=fleet.environ(0),
            capture_output=True,
            text=True,
            timeout=WAIT,
            check=False,
        )
    assert run.returncode == 2
    assert "PTOCACHE_SHARED" in run.stderr
    assert "redis://host:6379/0" in run.stderr
    assert "Traceback" not in run.stderr


# All at once.


def test_24_processes_on_three_hosts_compile_once_between_them(
    redis_server: RedisServer, tool_log: ToolLog, tmp_path: Path
) -> None:
    with begun(tmp_path / "fleet", redis_server.url) as fleet:
        processes = [fleet.start(number % 3, PTOCACHE_EMULATOR_DELAY="bisheng=0.5") for number in range(24)]
        fleet.go(24)
        results = [result(process) for process in processes]
    assert [tool_log.count(tool) for tool in ("frontend", "ptoas", "bisheng")] == [1, 1, 1]
    assert {sha256 for _, sha256 in results} == {expected(tmp_path)}
    origins = [Counter(origin for origin, _ in results[host::3]) for host in range(3)]
    assert sorted(count["compiled"] for count in origins) == [0, 0, 1]
    assert all(count["compiled"] or count["shared"] for count in origins)
    with redis_server.client() as client:
        assert list(client.scan_iter("*:lease:*")) == []


def test_when_the_compiling_process_is_killed_one_other_takes_over(
    redis_server: RedisServer, tool_log: ToolLog, tmp_path: Path
) -> None:
    lease_seconds = 2
    with begun(tmp_path / "fleet", redis_server.url) as fleet, redis_server.client() as client:
        settings = {"PTOCACHE_LEASE_SECONDS": str(lease_seconds)}
        victim = fleet.start(0, PTOCACHE_EMULATOR_FAULT="bisheng=hang", **settings)
        fleet.go(1)
        until(lambda: tool_log.count("bisheng") == 1, "the first one to compile")
        hanging = int(
            next(line for line in tool_log.path.read_text().splitlines() if line.startswith("bisheng")).split()[1]
        )
        try:
            (lease,) = client.scan_iter("*:lease:*")
            holder = client.get(lease)
            others = [fleet.start(number % 3, **settings) for number in range(23)]
            until(lambda: client.info("stats")["total_connections_received"] > 3, "other hosts to wait")
            renewed = client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]
            until(lambda: client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"] > renewed + 1)
            assert client.get(lease) == holder
            assert tool_log.count("bisheng") == 1
            assert all(process.poll() is None for process in others)
            victim.send_signal(signal.SIGKILL)
            victim.wait(WAIT)
            assert client.pttl(lease) <= lease_seconds * 1000
            results = [result(process) for process in others]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(hanging, signal.SIGKILL)
    assert [tool_log.count(tool) for tool in ("frontend", "ptoas", "bisheng")] == [2, 2, 2]
    assert {sha256 for _, sha256 in results} == {expected(tmp_path)}
    assert Counter(origin for origin, _ in results)["compiled"] == 1


def test_when_the_server_goes_away_each_host_compiles_for_itself(
    redis_server: RedisServer, tool_log: ToolLog, tmp_path: Path
) -> None:
    with begun(tmp_path / "fleet", redis_server.url) as fleet, redis_server.client() as client:
        settings = {"PTOCACHE_EMULATOR_DELAY": "bisheng=1", "PTOCACHE_LOG": "error"}
        processes = [fleet.start(number % 3, **settings) for number in range(6)]
        fleet.go(6)
        until(lambda: tool_log.count("bisheng") == 1, "the first one to compile")
        assert len(list(client.scan_iter("*:lease:*"))) == 1
        redis_server.stop()
        results = [result(process) for process in processes]
    assert tool_log.count("bisheng") == 3
    assert {sha256 for _, sha256 in results} == {expected(tmp_path)}
    assert Counter(origin for origin, _ in results) == {"compiled": 3, "local": 3}


def test_different_kernels_do_not_wait_for_each_other(
    redis_server: RedisServer, tool_log: ToolLog, tmp_path: Path
) -> None:
    with begun(tmp_path / "fleet", redis_server.url) as fleet:
        victim = fleet.start(0, PTOCACHE_EMULATOR_FAULT="bisheng=hang")
        fleet.go(1)
        until(lambda: tool_log.count("bisheng") == 1, "the first one to compile")
        hanging = int(
            next(line for line in tool_log.path.read_text().splitlines() if line.startswith("bisheng")).split()[1]
        )
        try:
            assert result(fleet.start(0, numbered_kernel(1)))[0] == "compiled"
            assert result(fleet.start(1, numbered_kernel(1)))[0] == "shared"
            assert victim.poll() is None
        finally:
            victim.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(hanging, signal.SIGKILL)


# The lease itself.


@pytest.fixture
def caches(redis_server: RedisServer, tmp_path: Path) -> Iterator[tuple[CompileCache, CompileCache]]:
    """Two hosts that share a server, with leases that last for a moment."""
    made = [
        CompileCache(
            Settings.load(
                dir=tmp_path / name, shared=redis_server.url, shared_timeout=WAIT, lease_seconds=0.4, lock_timeout=WAIT
            )
        )
        for name in ("one", "other")
    ]
    yield made[0], made[1]
    for cache in made:
        cache.close()


def lease_of(cache: CompileCache, lock_timeout: float = WAIT) -> contextlib.AbstractContextManager[bool]:
    return fleet_lease(cache.shared_tiers()[0], cache.settings._replace(lock_timeout=lock_timeout), "kernel")


LEASE = f"ptocache:{VERSION}:lease:kernel"


def test_a_lease_is_renewed_while_it_is_held_and_given_back(
    redis_server: RedisServer, caches: tuple[CompileCache, CompileCache]
) -> None:
    one, other = caches
    with redis_server.client() as client:
        with lease_of(one) as held:
            assert held
            token = client.get(LEASE)
            until(lambda: client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"] > 4, "renewals")
            assert client.get(LEASE) == token
            with lease_of(other, lock_timeout=0) as held_too:
                assert not held_too
            assert client.get(LEASE) == token
        assert client.get(LEASE) is None
    with lease_of(other) as held:
        assert held


def test_who_waits_for_a_lease_gets_it(caches: tuple[CompileCache, CompileCache]) -> None:
    one, other = caches
    order: list[str] = []

    def wait() -> None:
        with lease_of(other) as held:
            order.append("other" if held else "not held")

    waiting = threading.Thread(target=wait)
    with lease_of(one) as held:
        assert held
        waiting.start()
        order.append("one")
    waiting.join(WAIT)
    assert order == ["one", "other"]


def test_a_lease_of_a_dead_host_ends(redis_server: RedisServer, caches: tuple[CompileCache, CompileCache]) -> None:
    with redis_server.client() as client:
        client.set(LEASE, "somebody who died", px=300)
    with lease_of(caches[0]) as held:
        assert held


def test_a_lease_that_was_lost_is_left_to_who_has_it(
    redis_server: RedisServer, caches: tuple[CompileCache, CompileCache]
) -> None:
    with redis_server.client() as client:
        with lease_of(caches[0]) as held:
            assert held
            client.set(LEASE, "somebody else", px=WAIT * 1000)
        assert client.get(LEASE) == b"somebody else"
        assert client.pttl(LEASE) > 1000
    assert caches[0].shared_tiers()[0].reading.is_open()


def test_a_lease_that_ends_never_is_not_waited_for_longer_than_was_said(
    redis_server: RedisServer, caches: tuple[CompileCache, CompileCache], caplog: pytest.LogCaptureFixture
) -> None:
    with redis_server.client() as client:
        client.set(LEASE, "somebody who set no time")
    with lease_of(caches[0], lock_timeout=0.2) as held:
        assert not held
    assert "compiling it here too" in caplog.text


def test_without_a_server_there_is_no_lease_and_nobody_waits(
    redis_server: RedisServer, caches: tuple[CompileCache, CompileCache]
) -> None:
    redis_server.stop()
    for _ in range(3):
        with lease_of(caches[0]) as held:
            assert not held


def test_a_server_that_is_lost_while_a_lease_is_held_hinders_nobody(
    redis_server: RedisServer, caches: tuple[CompileCache, CompileCache]
) -> None:
    with lease_of(caches[0]) as held:
        assert held
        redis_server.stop()
    redis_server.start()
    with lease_of(caches[1]) as held:
        assert held


def test_a_server_that_is_full_gives_no_leases_and_is_read_all_the_same(
    redis_server: RedisServer, caches: tuple[CompileCache, CompileCache]
) -> None:
    with redis_server.client() as client:
        client.config_set("maxmemory", 1)
    for _ in range(3):
        with lease_of(caches[0]) as held:
            assert not held
    assert caches[0].shared_tiers()[0].reading.is_open()
