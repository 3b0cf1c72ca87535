"""What the engines of the shared tier do with names and bytes, and which URL names which."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest
from servers import WAIT, Nginx, Proxy, RedisServer, S3Server, black_hole, is_free_of, request, until

from ptocache import CompileCache, Settings
from ptocache.errors import SettingsError
from ptocache.store import engines
from ptocache.store.engines import Engine, EngineUrl, describe, make_engine, parse_urls, redact
from ptocache.store.engines.file import FileEngine

pytestmark = pytest.mark.server

NAME, OTHER = "ab" * 16, "cd" * 16
LIMIT = 1 << 20
SECRET = "hunter2-the-password"  # is to be found nowhere


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(params=["file", "redis", "http", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An engine of each kind, with nothing in it."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    if request.param == "file":
        return f"file://{tmp_path}/shared"
    if request.param == "redis":
        return f"{request.getfixturevalue('redis_server').url}?prefix={tmp_path.name}"
    if request.param == "http":
        return f"{request.getfixturevalue('nginx').url}/{tmp_path.name}"
    server = request.getfixturevalue("s3")
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    return f"{server.url}/{tmp_path.name}"


def engine_at(url: str, timeout: float = WAIT) -> Engine:
    return make_engine(parse_urls(url)[0], timeout)


@pytest.fixture
def engine(url: str) -> Engine:
    return engine_at(url)


class TestEveryEngine:
    def test_what_is_stored_is_what_is_there(self, engine: Engine, url: str) -> None:
        data = os.urandom(3 << 20)
        assert engine.get(NAME, LIMIT) is None
        assert engine.put(NAME, data, replace=False)
        assert engine.get(NAME, 4 << 20) == data
        assert engine_at(url).get(NAME, 4 << 20) == data
        assert engine.get(OTHER, LIMIT) is None

    def test_what_is_there_is_replaced_only_when_that_is_asked_for(self, engine: Engine) -> None:
        assert engine.put(NAME, b"first", replace=False)
        assert not engine.put(NAME, b"second", replace=False)
        assert engine.get(NAME, LIMIT) == b"first"
        assert engine.put(NAME, b"third", replace=True)
        assert engine.get(NAME, LIMIT) == b"third"
        assert engine.put(OTHER, b"new", replace=True)
        assert engine.get(OTHER, LIMIT) == b"new"

    def test_what_is_removed_is_gone_and_may_be_removed_again(self, engine: Engine) -> None:
        engine.delete(NAME)
        engine.put(NAME, b"data", replace=False)
        engine.delete(NAME)
        assert engine.get(NAME, LIMIT) is None
        engine.delete(NAME)
        assert engine.put(NAME, b"data again", replace=False)

    def test_what_is_too_large_is_something_and_not_all_of_it(self, engine: Engine) -> None:
        engine.put(NAME, bytes(5000), replace=False)
        assert engine.get(NAME, 5000) == bytes(5000)
        found = engine.get(NAME, 4999)
        assert found is not None
        assert len(found) <= 5000
        assert engine.get(NAME, 100) in {b"", bytes(101)}

    def test_all_that_is_stored_is_listed_with_its_size_and_age(self, engine: Engine, url: str) -> None:
        assert list(engine.list()) == []
        engine.put(NAME, bytes(10), replace=False)
        engine.put(OTHER, bytes(2000), replace=False)
        engine.put("ab" + "0" * 30, bytes(3), replace=False)
        found = {stored.name: stored for stored in engine.list()}
        sizes = {NAME: 10, OTHER: 2000, "ab" + "0" * 30: 3}
        if url.startswith("redis"):  # which counts what they take in its memory
            assert all(sizes[name] <= stored.size < sizes[name] + 500 for name, stored in found.items())
            sizes = {name: stored.size for name, stored in found.items()}
        assert {name: stored.size for name, stored in found.items()} == sizes
        assert all(-2 < stored.age < WAIT for stored in found.values())

    def test_asking_for_the_time_leaves_nothing_behind(self, engine: Engine, url: str, tmp_path: Path) -> None:
        engine.put(NAME, b"data", replace=False)
        now = engine.clock()
        assert now is not None
        assert abs(now - time.time()) < WAIT
        assert [stored.name for stored in engine.list()] == [NAME]
        if url.startswith("file"):
            assert os.listdir(tmp_path / "shared" / engines.VERSION / "temp") == []

    # Not on moto, which fails when one replaces what another one reads.
    @pytest.mark.parametrize("url", ["file", "redis", "http"], indirect=True)
    def test_of_many_that_store_at_once_readers_see_one_whole(self, engine: Engine, url: str) -> None:
        values = [bytes([number]) * 50_000 for number in range(4)]
        stop = threading.Event()

        def read() -> set[bytes]:
            mine, seen = engine_at(url), set()
            while not stop.is_set():
                seen.add(mine.get(NAME, LIMIT) or b"")
            return seen

        with ThreadPoolExecutor(6) as pool:
            try:
                readers = [pool.submit(read) for _ in range(2)]
                writers = [
                    pool.submit(engine_at(url).put, NAME, value, replace)
                    for replace in (False, True)
                    for value in values
                ]
                stored = [writer.result(WAIT) for writer in writers]
            finally:
                stop.set()
            seen = set.union(*(reader.result(WAIT) for reader in readers))
        assert any(stored)
        assert seen <= {b"", *values}
        assert engine.get(NAME, LIMIT) in values


# What only one kind has to see to.


class TestFiles:
    def test_the_directory_is_private_or_as_the_umask_says(self, tmp_path: Path) -> None:
        for name, umask, directories, files in (("private", None, 0o700, 0o600), ("team", 0o007, 0o770, 0o660)):
            engine = FileEngine(str(tmp_path / name), umask)
            engine.put(NAME, b"data", replace=False)
            for path in (tmp_path / name).rglob("*"):
                expected = directories if path.is_dir() else files
                assert oct(stat.S_IMODE(path.stat().st_mode) & 0o777) == oct(expected), path

    def test_a_directory_that_is_not_there_is_made_with_the_first_object_and_not_before(self, tmp_path: Path) -> None:
        engine = FileEngine(str(tmp_path / "shared"))
        assert engine.get(NAME, LIMIT) is None
        assert engine.clock() is None
        assert list(engine.list()) == []
        engine.delete(NAME)
        assert not (tmp_path / "shared").exists()
        assert engine.put(NAME, b"data", replace=False)

    def test_without_links_a_file_is_renamed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_link(*arguments: object, **options: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr("os.link", no_link)
        engine = FileEngine(str(tmp_path / "shared"))
        assert engine.put(NAME, b"first", replace=False)
        assert not engine.put(NAME, b"second", replace=False)
        assert engine.get(NAME, LIMIT) == b"first"
        assert engine.put(NAME, b"third", replace=True)
        assert engine.get(NAME, LIMIT) == b"third"
        assert os.listdir(tmp_path / "shared" / engines.VERSION / "temp") == []

    def test_what_a_file_system_says_that_has_changed_meanwhile_is_asked_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = FileEngine(str(tmp_path / "shared"))
        engine.put(NAME, b"data", replace=False)
        real, failures = os.open, [116, 16]  # ESTALE, EBUSY

        def stale(path: str, *arguments: int) -> int:
            if failures and path.endswith(NAME):
                raise OSError(failures.pop(), "stale")
            return real(path, *arguments)

        monkeypatch.setattr("os.open", stale)
        assert engine.get(NAME, LIMIT) == b"data"
        assert failures == []

    @pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
    def test_what_is_no_file_is_no_object_and_can_be_replaced(self, tmp_path: Path, kind: str) -> None:
        engine = FileEngine(str(tmp_path / "shared"))
        engine.put(OTHER, b"other", replace=False)
        path = tmp_path / "shared" / engines.VERSION / "ab" / NAME
        path.parent.mkdir()
        if kind == "link":
            path.symlink_to(tmp_path / "shared" / engines.VERSION / "cd" / OTHER)
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.mkdir()
        assert engine.get(NAME, LIMIT) == b""
        assert not engine.put(NAME, b"data", replace=False)
        assert engine.put(NAME, b"data", replace=True)
        assert engine.get(NAME, LIMIT) == b"data"
        assert engine.get(OTHER, LIMIT) == b"other"

    def test_a_writer_that_dies_leaves_no_object_and_what_it_left_is_swept(self, tmp_path: Path) -> None:
        shared = tmp_path / "shared"
        engine = FileEngine(str(shared))
        engine.put(OTHER, b"other", replace=False)
        temporary = shared / engines.VERSION / "temp"
        (temporary / "old").write_bytes(b"half")
        os.utime(temporary / "old", (1, 1))
        (temporary / "new").write_bytes(b"half")
        assert [stored.name for stored in engine.list()] == [OTHER]
        assert engine.sweep() == 1
        assert os.listdir(temporary) == ["new"]


class TestRedis:
    def test_a_prefix_keeps_apart_what_shares_a_server(self, redis_server: RedisServer) -> None:
        one, other = (engine_at(f"{redis_server.url}?prefix={name}") for name in ("one", "other"))
        one.put(NAME, b"one", replace=False)
        assert other.get(NAME, LIMIT) is None
        other.put(NAME, b"other", replace=False)
        assert (one.get(NAME, LIMIT), other.get(NAME, LIMIT)) == (b"one", b"other")
        assert [stored.name for stored in one.list()] == [NAME]
        with redis_server.client() as client:
            assert {key.partition(b":")[0] for key in client.scan_iter(f"*{NAME}")} >= {b"one", b"other"}

    def test_who_waits_learns_that_there_will_be_no_result(self, redis_server: RedisServer) -> None:
        """Or all hosts of a fleet would fail at the same kernel one after the other."""
        from ptocache.store.engines.redis import RedisEngine

        engine = RedisEngine(redis_server.url, WAIT)
        holder, other = engine.lease("vain", WAIT), engine.lease("vain", WAIT)
        assert holder.acquire() is True
        assert other.acquire() is False
        assert other.release(in_vain=True) is False
        assert other.acquire() is False
        assert holder.release(in_vain=True) is True
        assert other.acquire() is None
        assert holder.acquire() is None
        with redis_server.client() as client:
            assert 0 < client.pttl("ptocache:v1:lease:vain") <= WAIT * 1000

    def test_to_list_what_is_there_is_no_use_of_it(self, redis_server: RedisServer) -> None:
        """Or the age would be nought, and an LRU policy would see all as used."""
        engine = engine_at(f"{redis_server.url}?prefix=idle")
        engine.put(NAME, b"data", replace=False)
        deadline = time.monotonic() + WAIT
        while next(iter(engine.list())).age < 1:
            assert time.monotonic() < deadline

    def test_a_prefix_is_no_pattern_and_foreign_values_end_no_listing(self, redis_server: RedisServer) -> None:
        engine = engine_at(f"{redis_server.url}?prefix=te[am]*?")
        engine.put(NAME, b"data", replace=False)
        with redis_server.client() as client:
            client.lpush(f"te[am]*?:v1:object:{OTHER}", "x")
        assert {stored.name for stored in engine.list()} == {NAME, OTHER}
        assert list(engine_at(f"{redis_server.url}?prefix=te").list()) == []

    def test_a_value_that_is_no_text_is_no_object_and_can_be_replaced(self, redis_server: RedisServer) -> None:
        engine = engine_at(f"{redis_server.url}?prefix=types")
        with redis_server.client() as client:
            client.rpush(f"types:{engines.VERSION}:object:{NAME}", "a", "list")
        assert engine.get(NAME, LIMIT) == b""
        assert not engine.put(NAME, b"data", replace=False)
        assert engine.put(NAME, b"data", replace=True)
        assert engine.get(NAME, LIMIT) == b"data"

    def test_a_lease_is_one_holders_until_it_is_given_back_or_ends(self, redis_server: RedisServer) -> None:
        from ptocache.store.engines.redis import RedisEngine

        engine = RedisEngine(redis_server.url, WAIT)
        first, second = engine.lease("kernel", 60), engine.lease("kernel", 60)
        assert first.acquire()
        assert not second.acquire()
        assert engine.lease("other kernel", 60).acquire()
        assert first.renew()
        assert first.release()
        assert not first.renew()
        assert second.acquire()
        assert not first.release()
        assert second.renew()
        with redis_server.client() as client:
            assert 0 < client.pttl(f"ptocache:{engines.VERSION}:lease:kernel") <= 60_000
            client.pexpire(f"ptocache:{engines.VERSION}:lease:kernel", 1)
        until(lambda: engine.lease("kernel", 60).acquire(), "the lease to end")
        assert not second.renew()
        assert list(engine_at(f"{redis_server.url}?prefix=nothing").list()) == []

    def test_a_password_is_used(self, tmp_path: Path) -> None:
        with RedisServer(tmp_path / "redis") as server:
            with server.client() as client:
                client.config_set("requirepass", SECRET)
            engine = engine_at(f"redis://:{SECRET}@{server.address}/0")
            assert engine.put(NAME, b"data", replace=False)
            assert engine.get(NAME, LIMIT) == b"data"
            with pytest.raises(Exception, match=r"(?i)auth|password") as raised:
                engine_at(f"redis://:{SECRET}-not@{server.address}/0").get(NAME, LIMIT)
            assert is_free_of(str(raised.value), SECRET)


class TestObjectStores:
    def test_a_forked_child_is_refused_at_once(self, nginx: Nginx) -> None:
        from ptocache.store.engines.objectstore import ForkedError

        engine = engine_at(f"{nginx.url}/forked")
        engine.put(NAME, b"data", replace=False)
        child = os.fork()
        if child == 0:
            signal.alarm(WAIT)
            status = 1
            try:
                engine.get(NAME, LIMIT)
            except ForkedError as error:
                status = 0 if "spawn" in str(error) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert engine.get(NAME, LIMIT) == b"data"

    @pytest.mark.parametrize("place", ["full", "broken", "forbidden"])
    def test_a_server_that_does_not_store_is_an_error(self, nginx: Nginx, place: str) -> None:
        engine = engine_at(f"{nginx.url}/{place}")
        with pytest.raises(Exception, match=r"507|500|403"):
            engine.put(NAME, b"data", replace=True)

    def test_a_user_and_a_password_are_used(self, nginx: Nginx) -> None:
        from urllib.parse import quote

        user = f"http://user:{quote(nginx.password, safe='')}@{nginx.address}/private"
        assert engine_at(user).put(NAME, b"data", replace=False)
        assert engine_at(user).get(NAME, LIMIT) == b"data"
        for url in (user.replace("user:", "user:x"), f"{nginx.url}/private"):
            with pytest.raises(Exception, match="401"):
                engine_at(url).get(NAME, LIMIT)

    def test_a_server_on_which_nothing_is_at_first_gets_the_directories_made(self, nginx: Nginx) -> None:
        engine = engine_at(f"{nginx.url}/deep/below")
        assert engine.put(NAME, b"data", replace=False)
        assert request(f"{nginx.url}/deep/below/{engines.VERSION}/ab/{NAME}") == (200, b"data")


@pytest.mark.parametrize("kind", ["redis", "http"])
def test_an_engine_that_swallows_everything_is_given_up(kind: str) -> None:
    pytest.importorskip("redis" if kind == "redis" else "obstore")
    with black_hole() as port, pytest.raises(Exception, match=r"(?i)time|error sending"):
        engine_at(f"{kind}://127.0.0.1:{port}/0", timeout=0.2).get(NAME, LIMIT)


# URLs.

GOOD = [
    "file:///mnt/nfs/ptocache",
    "file://localhost/mnt/nfs/ptocache",
    "redis://host",
    "redis://host:6379/0?prefix=team",
    "rediss://user:password@host:6379/0",
    "s3://bucket",
    "s3://bucket/prefix",
    "gs://bucket/prefix",
    "az://container/prefix",
    "http://host/path",
    "https://host:8443/path?signature=x",
    "redis://[::1]:6379/0",
]


@pytest.mark.parametrize("url", GOOD)
def test_a_url_is_read(url: str) -> None:
    settings = Settings.load(shared=f"  {url}  {url}#readonly ")
    assert settings.shared == (EngineUrl(url), EngineUrl(url, readonly=True))
    assert settings == Settings.load(shared=settings.shared)
    assert settings.shared[0].scheme == url.partition(":")[0]


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "/mnt/nfs/ptocache",
        "host:6379",
        "ftp://host/path",
        "memcached://host",
        "file://mnt/nfs",
        "file:///",
        "file://",
        "redis://",
        "redis://:6379",
        "redis://host:port/0",
        "redis://host:99999/0",
        "redis://[::1/0",
        "s3:///prefix",
        "s3:bucket",
        "https://",
        "https:///path",
        "redis://user:7/hunter2@host/0",
        "https://user:8/hunter2@host/x",
        "file:///a%00b",
        "redis://host/zero",
        "redis://host/0/1",
        "file:///a?b",
        "redis://host/0#readwrite",
        "redis://host/0#readonly#readonly",
        "#readonly",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_with_what_can(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTOCACHE_SHARED", f"file:///mnt/ptocache {url}")
    with pytest.raises(SettingsError, match="PTOCACHE_SHARED") as raised:
        Settings.load()
    message = str(raised.value)
    if "#" in url.removesuffix("#readonly"):
        assert "#readonly" in message
    elif url.startswith("file:") and "%00" not in url:
        assert "file:///mnt/nfs/ptocache" in message
    elif "hunter2" in url:
        assert "%2F" in message
    elif "%00" in url:
        assert "%00" in message
    elif url.startswith("redis://host/"):
        assert "redis://host:6379/0" in message
    elif "99999" not in url and "port" not in url and "[" not in url:
        for scheme in ("file://", "redis://", "rediss://", "s3://", "gs://", "az://", "https://"):
            assert scheme in message
    assert "\n" not in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    "url", ["REDIS://127.0.0.1/0", "S3://bucket/prefix", "File:///mnt/ptocache", "HTTP://host/path"]
)
def test_a_scheme_may_be_in_capitals(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    for library in ("redis", "obstore"):
        pytest.importorskip(library)
    make_engine(parse_urls(url)[0], 1)  # asks nobody yet


@pytest.mark.parametrize(
    ("url", "library", "extra"),
    [
        ("redis://host/0", "redis", "redis"),
        ("rediss://host/0", "redis", "redis"),
        ("s3://bucket", "obstore", "s3"),
        ("gs://bucket", "obstore", "gs"),
        ("az://container", "obstore", "az"),
        ("http://host/path", "obstore", "http"),
        ("https://host/path", "obstore", "http"),
    ],
)
def test_a_library_that_is_missing_is_named_with_what_installs_it(
    url: str, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None if name == library else find_spec(name))
    with pytest.raises(SettingsError) as raised:
        Settings.load(shared=url)
    assert f"needs the library {library}: pip install 'ptocache[{extra}]'" in str(raised.value)


# What is secret.

WITH_SECRETS = [
    f"redis://:{SECRET}@host:6379/0",
    f"rediss://user:{SECRET}@host/0",
    f"redis://user:p@ss{SECRET}@host/0",
    f"redis://host/0?password={SECRET}",
    f"https://user:{SECRET}@host/path",
    f"https://host/path?sig={SECRET}&x=1",
    f"https://user:{SECRET}@host/path?sig={SECRET}#readonly",
]


@pytest.mark.parametrize("url", WITH_SECRETS)
def test_a_secret_in_a_url_is_not_shown(url: str) -> None:
    settings = Settings.load(shared=url)
    cache = CompileCache(settings)
    (tier,) = cache.shared_tiers()
    shown = [repr(settings), str(settings), repr(settings.shared), str(settings.shared[0]), f"{settings.shared[0]}"]
    shown += [repr(cache), tier.label, repr(tier), redact(f"an error at {url}, and so on")]
    assert [text for text in shown if not is_free_of(text, SECRET)] == []
    assert "host" in tier.label
    assert SECRET in settings.shared[0].url


@pytest.mark.parametrize(
    "url",
    [
        f"ftp://user:{SECRET}@host/path",
        f"redis://user:{SECRET}@host:port/0",
        f"redis://user:{SECRET}@host/0#wrong",
        f"redis://:{SECRET}@:6379",
        f"redis://:{SECRET}/x@host:6379/0",
        f"redis://:x/{SECRET}@host:6379/0",
        f"redis://user:6379/{SECRET}@host/0#wrong",
        f"redis:/:{SECRET}@host/0",
        f"redis:user:{SECRET}@host",
        f"user:{SECRET}@host:6379",
        f"file://user:{SECRET}@host/path",
        f"https://host?sig={SECRET}#x",
        f"https://:80/path?sig={SECRET}",
    ],
)
def test_a_secret_in_a_url_that_cannot_be_used_is_not_in_the_message(url: str) -> None:
    with pytest.raises(SettingsError) as raised:
        Settings.load(shared=url)
    assert is_free_of(str(raised.value), SECRET), str(raised.value)


@pytest.mark.parametrize("length", range(330, 450, 7))
def test_what_is_said_of_an_error_has_no_part_of_a_secret(length: int) -> None:
    text = describe(ValueError(f"{'x' * length} https://user:{SECRET}@host/path?sig={SECRET} and so on\nand so on"))
    assert is_free_of(text, SECRET[:3])


# What a hit does not load.

#: Compiles a kernel, and prints where it came from and which of some modules are loaded.
HIT = """
import sys
import ptocache
with ptocache.CompileCache() as cache:
    result = cache.compile(sys.stdin.read())
names = ["redis", "obstore", "zstandard", "ptocache.store.shared", "ptocache.store.uploads", "ptocache.store.objects"]
print(result.origin, *[name for name in names if name in sys.modules])
"""


@pytest.mark.usefixtures("toolchain")
def test_a_local_hit_loads_no_engine_and_connects_to_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from conftest import KERNEL

    for library in ("redis", "obstore"):
        pytest.importorskip(library)
    with CompileCache() as cache:
        cache.compile(KERNEL)

    def run() -> str:
        command = [sys.executable, "-c", HIT]
        return subprocess.run(command, input=KERNEL, capture_output=True, text=True, timeout=WAIT, check=True).stdout

    without = run()
    assert without.split()[0] == "local"
    with Proxy() as one, Proxy() as other:
        monkeypatch.setenv("PTOCACHE_SHARED", f"redis://{one.address}/0 http://{other.address}/x s3://bucket file:///x")
        assert run() == without == "local\n"
        assert one.connections + other.connections == 0


def test_an_engine_is_not_asked_before_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("redis")
    made: list[EngineUrl] = []
    real: Callable[..., Engine] = make_engine

    def counted(url: EngineUrl, *arguments: object) -> Engine:
        made.append(url)
        return real(url, *arguments)

    monkeypatch.setattr("ptocache.store.shared.make_engine", counted)
    with Proxy() as proxy:
        with CompileCache(Settings.load(shared=f"redis://{proxy.address}/0")) as cache:
            assert len(cache.shared_tiers()) == 1
        assert made == []
        assert proxy.connections == 0
