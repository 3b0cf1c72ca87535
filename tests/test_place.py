"""The cache is where nobody else could have written to, on a file system of this host; else it is not used."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import xxhash
from conftest import KERNEL, ToolLog, run_ptocache
from test_sharing import ANN, EVE, TEAM, User, as_user, command, filled, key, needs_root, public_directory

from ptocache import CompileCache, Settings
from ptocache.errors import RefusedDirectoryError, SourceImportError, ToolError
from ptocache.frontend import CompileResult
from ptocache.request import Key
from ptocache.store import place as place_module
from ptocache.store.entry import Entry, make_entry
from ptocache.store.place import filesystem_of, find_place, is_network


@pytest.fixture
def public() -> Iterator[Path]:
    with public_directory() as place:
        yield place


@contextlib.contextmanager
def mounted(target: Path, *words: str) -> Iterator[None]:
    """Something that is mounted while the block runs; `words` are a command without the directory."""
    target.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([*words, str(target)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this cannot be mounted here: {' '.join(words)}: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(target)], check=True)


#: Where caches go outside of the tests.
LOCAL_DIRECTORIES = place_module._LOCAL_DIRECTORIES

TMPFS = ("mount", "-t", "tmpfs", "-o", "size=8m", "none")


def from_df(path: Path) -> str:
    """What coreutils say that a path is on."""
    done = subprocess.run(["df", "--output=fstype", str(path)], capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]


# File systems, as the kernel names them.


def test_the_file_system_is_the_one_that_df_finds(tmp_path: Path) -> None:
    for path in (tmp_path, Path("/"), Path("/tmp"), Path("/proc/self"), Path("/dev/shm"), Path("/sys")):
        if path.is_dir():
            assert filesystem_of(str(path)) == from_df(path), path


def test_a_path_that_does_not_exist_yet_is_on_that_of_what_does(tmp_path: Path) -> None:
    assert filesystem_of(str(tmp_path / "no" / "such" / "path")) == from_df(tmp_path)
    (tmp_path / "file").touch()
    assert filesystem_of(str(tmp_path / "file" / "below")) == from_df(tmp_path)
    assert filesystem_of("/proc/nowhere") == "proc"


@needs_root
@pytest.mark.parametrize(
    "name", ["plain", "with a space", " ", "tab\there", "line\nbreak", "back\\slash", r"written\040out", "#", "é\udcff"]
)
def test_a_mount_point_of_any_name_is_found(tmp_path: Path, name: str) -> None:
    with mounted(tmp_path / name, *TMPFS):
        (tmp_path / name / "sub").mkdir()
        for below in ("", "sub", "sub/not yet/there", "not yet"):
            assert filesystem_of(str(tmp_path / name / below)) == "tmpfs"
        assert filesystem_of(str(tmp_path)) == filesystem_of(str(tmp_path / f"{name}er")) == from_df(tmp_path)
    assert filesystem_of(str(tmp_path / name)) == from_df(tmp_path)


@needs_root
def test_what_is_mounted_last_in_a_place_counts(tmp_path: Path) -> None:
    place = tmp_path / "place"
    with mounted(place, *TMPFS):
        with mounted(place, "mount", "-t", "ramfs", "none"):
            assert filesystem_of(str(place)) == filesystem_of(str(place / "new")) == "ramfs"
        assert filesystem_of(str(place)) == "tmpfs"


@needs_root
def test_a_bind_mount_is_what_it_is_bound_to(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    with mounted(tmp_path / "memory", *TMPFS):
        (tmp_path / "memory" / "sub").mkdir()
        with mounted(tmp_path / "here", "mount", "--bind", str(tmp_path / "memory" / "sub")):
            assert filesystem_of(str(tmp_path / "here" / "new")) == "tmpfs"
        with mounted(tmp_path / "memory" / "there", "mount", "--bind", str(tmp_path / "disk")):
            assert filesystem_of(str(tmp_path / "memory" / "there" / "new")) == from_df(tmp_path)


@needs_root
def test_a_link_is_followed_to_where_it_leads(tmp_path: Path) -> None:
    with mounted(tmp_path / "memory", *TMPFS):
        (tmp_path / "link").symlink_to(tmp_path / "memory")
        (tmp_path / "memory" / "back").symlink_to(tmp_path)
        assert filesystem_of(str(tmp_path / "link")) == filesystem_of(str(tmp_path / "link" / "new")) == "tmpfs"
        assert filesystem_of(str(tmp_path / "link" / "back")) == from_df(tmp_path)
        assert filesystem_of(str(tmp_path / "memory" / "back" / "new")) == from_df(tmp_path)


@needs_root
def test_an_overlay_is_one(tmp_path: Path) -> None:
    """As the root of most containers is."""
    memory = tmp_path / "memory"
    with mounted(memory, *TMPFS):
        for name in ("lower", "upper", "work"):
            (memory / name).mkdir()
        options = f"lowerdir={memory}/lower,upperdir={memory}/upper,workdir={memory}/work"
        with mounted(tmp_path / "merged", "mount", "-t", "overlay", "overlay", "-o", options):
            (tmp_path / "merged" / "file").touch()
            for name in ("", "new", "file"):
                assert filesystem_of(str(tmp_path / "merged" / name)) == "overlay"


@needs_root
def test_a_subvolume_of_btrfs_is_btrfs(tmp_path: Path) -> None:
    """Its device number is in no list of mounts."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(128 << 20)
    if shutil.which("mkfs.btrfs") is None:
        pytest.skip("there is no mkfs.btrfs (Debian's package btrfs-progs)")
    subprocess.run(["mkfs.btrfs", "-q", str(image)], check=True, stderr=subprocess.DEVNULL)
    with mounted(tmp_path / "disk", "mount", "-o", "loop", str(image)):
        volume = tmp_path / "disk" / "volume"
        subprocess.run(["btrfs", "-q", "subvolume", "create", str(volume)], check=True)
        assert volume.stat().st_dev != volume.parent.stat().st_dev
        for path in (volume.parent, volume, volume / "new"):
            assert filesystem_of(str(path)) == "btrfs"
        with mounted(volume / "memory", *TMPFS):
            assert filesystem_of(str(volume / "memory")) == "tmpfs"


NETWORKS = [
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs"),
    *("gfs2", "ocfs2", "panfs", "wekafs", "orangefs", "vboxsf", "vmhgfs", "ncpfs", "coda"),
    *(
        "fuse",
        "fuse.sshfs",
        "fuse.s3fs",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.juicefs",
        "fuse.rclone",
        "fuse.bindfs",
    ),
]
LOCALS = [
    *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay", "bcachefs", "jfs", ""),
    *("fuse.fuse-overlayfs", "fuseblk"),
]


@pytest.mark.parametrize(("kinds", "expected"), [(NETWORKS, True), (place_module._NETWORK, True), (LOCALS, False)])
def test_which_file_systems_are_on_a_network(kinds: list[str], expected: bool) -> None:
    assert {kind: is_network(kind) for kind in kinds} == dict.fromkeys(kinds, expected)


# A network file system: a real one of FUSE.


@contextlib.contextmanager
def fuse(backing: Path, target: Path, *options: str) -> Iterator[None]:
    if shutil.which("bindfs") is None or not os.path.exists("/dev/fuse"):
        pytest.skip("there is no bindfs (Debian's package bindfs), or no /dev/fuse")
    backing.mkdir()
    with mounted(target, "bindfs", *options, str(backing)):
        yield


class Network(NamedTuple):
    """A cache directory on a network, and where the cache then is."""

    directory: Path
    backing: Path
    moved: Path

    def assert_untouched(self) -> None:
        assert list(self.backing.iterdir()) == []

    def assert_only_shared(self) -> None:
        """Nothing is there but objects."""
        names = [str(path.relative_to(self.backing)) for path in self.backing.rglob("*") if not path.is_dir()]
        assert names
        for name in names:
            assert re.fullmatch(r"cache/v1/[0-9a-f]{2}/[0-9a-f]{32}", name)


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for everybody, as /var/tmp is, that is the test's own."""
    base = tmp_path / "var"
    base.mkdir()
    base.chmod(0o1777)
    monkeypatch.setattr(place_module, "_LOCAL_DIRECTORIES", (str(base),))
    return base


@pytest.fixture
def network(tmp_path: Path, base: Path, toolchain: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    directory = tmp_path / "net" / "cache"
    with fuse(tmp_path / "backing", tmp_path / "net"):
        monkeypatch.setenv("PTOCACHE_DIR", str(directory))
        yield Network(directory, tmp_path / "backing", Path(find_place(str(directory)).directory))


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source in the working directory."""
    place = tmp_path / "work"
    place.mkdir()
    monkeypatch.chdir(place)
    path = place / "kernel.py"
    path.write_text(KERNEL)
    return path


def facts(*arguments: object) -> dict[str, Any]:
    status, out, err = as_user(None, lambda: command(*map(str, arguments), "--json"))
    assert status == 0, err
    value: dict[str, Any] = json.loads(out)
    return value


@needs_root
class TestNetwork:
    def test_a_local_directory_is_used_in_its_place(
        self, network: Network, kernel: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The real one, which may be somebody's: nothing but what is made here is removed."""
        monkeypatch.setattr(place_module, "_LOCAL_DIRECTORIES", LOCAL_DIRECTORIES)
        moved = Path(find_place(str(network.directory)).directory)
        assert moved.parent in {Path(f"{place}/ptocache-{os.getuid()}") for place in ("/var/tmp", "/tmp")}
        is_new = not moved.parent.exists()
        try:
            results = [run_ptocache("compile", kernel, "--json", "-o", "/dev/null") for _ in range(2)]
            assert [json.loads(result.stdout)["origin"] for result in results] == ["compiled", "local"]
            for result in results:
                assert result.stderr.count("\n") == 1
                for word in ("WARNING", str(network.directory), str(moved), "(fuse)", "PTOCACHE_DIR"):
                    assert word in result.stderr
            assert stat.S_IMODE(moved.stat().st_mode) == 0o700
            assert not moved.parent.stat().st_mode & 0o022
            assert len(list((moved / "outputs").iterdir())) == 1
        finally:
            shutil.rmtree(moved, ignore_errors=True)
            if is_new:
                with contextlib.suppress(OSError):
                    moved.parent.rmdir()
        network.assert_only_shared()

    def test_it_is_said_once_in_a_process(self, network: Network, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG, "ptocache"):
            for _ in range(3):
                with CompileCache() as cache:
                    cache.compile(KERNEL)
                    cache.compile(KERNEL)
        said = [record for record in caplog.records if str(network.moved) in record.getMessage()]
        assert [record.levelno for record in said] == [logging.WARNING]

    def test_the_commands_act_on_the_local_directory(self, network: Network, kernel: Path) -> None:
        facts("compile", kernel, "-o", "/dev/null")
        for name in ("stats", "prune", "verify"):
            assert facts(name)["directory"] == str(network.moved)
        assert facts("stats")["entries"] == 1
        assert facts("explain", kernel)["hit"] == "local"
        (output,) = (network.moved / "outputs").iterdir()
        os.truncate(output, 10)
        status, out, _ = as_user(None, lambda: command("verify", "--json"))
        assert status == 1
        assert str(output) in {item["path"] for item in json.loads(out)["bad"]}
        assert facts("verify", "--repair")["repaired"] is True
        assert facts("compile", kernel, "-o", "/dev/null")["origin"] == "shared"
        cleared = facts("clear", "-y")
        assert (cleared["directory"], cleared["entries"]) == (str(network.moved), 1)
        assert not (network.moved / "outputs").exists()
        network.assert_only_shared()

    def test_the_doctor_shows_it(self, network: Network, kernel: Path) -> None:
        facts("compile", kernel, "-o", "/dev/null")
        report = facts("doctor", "--emulate")
        assert report["ok"] is True
        first = report["findings"][0]
        assert (first["name"], first["state"]) == ("directory", "warning")
        for word in (str(network.directory), str(network.moved), "fuse", "PTOCACHE_DIR"):
            assert word in first["text"]
        assert {finding["state"] for finding in report["findings"][1:]} == {"ok"}
        network.assert_only_shared()

    def test_leases_are_local_too(self, network: Network, tool_log: ToolLog) -> None:
        with CompileCache() as cache:
            cache.compile(KERNEL)
        assert list((network.moved / "locks").iterdir()) == []
        network.assert_only_shared()

    def test_a_directory_that_is_there_already_is_not_used_either(self, network: Network) -> None:
        network.directory.mkdir()
        network.directory.chmod(0o777)  # which would be a reason for another refusal
        with CompileCache() as cache:
            assert (cache.place.refused, cache.place.moved_from) == ("", str(network.directory))
            cache.compile(KERNEL)
        assert list(network.directory.iterdir()) == []

    def test_two_network_directories_have_two_caches(self, network: Network) -> None:
        other = find_place(str(network.directory.parent / "other"))
        assert Path(other.directory) != network.moved
        assert Path(other.directory).parent == network.moved.parent

    @pytest.mark.parametrize("umask", ["002", "022", "000"])
    def test_it_is_private_there_whatever_the_umask_says(
        self, network: Network, kernel: Path, umask: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody shares what every user has a directory of their own for."""
        monkeypatch.setenv("PTOCACHE_UMASK", umask)
        assert [facts("compile", kernel, "-o", "/dev/null")["origin"] for _ in range(2)] == ["compiled", "local"]
        for path in (network.moved, network.moved.parent, network.moved / "outputs"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700

    def test_a_copy_in_another_process_is_in_the_same_place(self, network: Network) -> None:
        with CompileCache() as cache:
            cache.compile(KERNEL)
            copy = pickle.loads(pickle.dumps(cache))
        assert copy.settings.dir == str(network.moved)
        assert copy.place.refused == ""
        assert copy.compile(KERNEL).origin == "local"
        copy.close()

    def test_somebody_elses_directory_in_that_place_is_not_used(self, network: Network, base: Path) -> None:
        with CompileCache() as cache:  # it goes there if nobody was there first
            assert cache.place.refused == ""
            assert cache.compile(KERNEL).origin == "compiled"
            moved = cache.settings.dir
        assert os.path.dirname(os.path.dirname(moved)) == str(base)
        os.chown(base / f"ptocache-{os.getuid()}", EVE.uid, EVE.gid)
        with CompileCache() as cache:
            assert f"the user with number {EVE.uid}" in cache.place.refused
            assert cache.compile(KERNEL).origin == "shared"
            with pytest.raises(RefusedDirectoryError):
                cache.require_directory()
        network.assert_only_shared()

    def test_the_next_local_directory_is_taken_where_the_first_is_missing(
        self, network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "second").mkdir()
        remote = network.directory.parent
        bases = (str(tmp_path / "missing"), str(remote), str(tmp_path / "second"))
        monkeypatch.setattr(place_module, "_LOCAL_DIRECTORIES", bases)
        assert find_place(str(network.directory)).directory.startswith(f"{tmp_path}/second/")

    def test_without_any_local_directory_the_cache_is_not_used(
        self, network: Network, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(place_module, "_LOCAL_DIRECTORIES", ())
        with caplog.at_level(logging.WARNING, "ptocache"), CompileCache() as cache:
            assert cache.compile(KERNEL).origin == "compiled"
        assert "network file system" in caplog.text
        assert "there is no local directory" in caplog.text
        network.assert_untouched()


@needs_root
@pytest.mark.parametrize(
    ("subtype", "moves"), [("sshfs", True), ("rclone", True), ("fuse-overlayfs", False), ("ntfs-3g", False)]
)
def test_a_fuse_file_system_counts_by_the_name_that_it_has(
    tmp_path: Path, base: Path, toolchain: Path, subtype: str, moves: bool
) -> None:
    directory = tmp_path / "mount" / "cache"
    with fuse(tmp_path / "backing", tmp_path / "mount", "-o", f"subtype={subtype}"):
        assert filesystem_of(str(directory)) == f"fuse.{subtype}" == from_df(tmp_path / "mount")
        for origin in ("compiled", "local"):
            with CompileCache(Settings.load({}, dir=directory)) as cache:
                assert bool(cache.place.moved_from) is moves
                assert cache.compile(KERNEL).origin == origin
        assert (tmp_path / "backing" / "cache" / "outputs").exists() is not moves
        assert (tmp_path / "backing" / "cache" / "v1").exists() is moves


# Private, unless it is said to be shared.


def test_a_new_directory_is_private_whatever_the_processs_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with CompileCache(Settings.load({}, dir=tmp_path / "some" / "where" / "cache")) as cache:
            cache.local.put([key(1)], filled(1), b"source")
            cache.counters.add("misses")
    finally:
        os.umask(before)
    top = tmp_path / "some"
    for path in (top, *top.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("umask", ["002", "022", "000"])
def test_only_the_cache_itself_is_shared_and_not_what_was_made_on_the_way_to_it(tmp_path: Path, umask: str) -> None:
    """`~/.cache` is for other programs too: whoever can write there can replace what they keep."""
    with CompileCache(Settings.load({}, dir=tmp_path / "user" / ".cache" / "ptocache", umask=umask)) as cache:
        cache.local.put([key(1)], filled(1))
    shared = 0o777 & ~int(umask, 8)
    assert (tmp_path / "user" / ".cache" / "ptocache").stat().st_mode & 0o777 == shared
    for path in (tmp_path / "user", tmp_path / "user" / ".cache"):
        assert not path.stat().st_mode & 0o022


@contextlib.contextmanager
def installed(cann: Path) -> Iterator[None]:
    """The emulated install as the fixture `toolchain` has it, for what is made once for many tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("PTOCACHE_", "PTO_", "PTOAS", "ASCEND_", "BISHENG_", "XDG_")):
                patch.delenv(name)
        patch.setenv("ASCEND_HOME_PATH", str(cann))
        patch.setenv("PTOAS_BIN", str(cann / "bin" / "ptoas"))
        patch.setenv("PATH", f"{cann / 'bin'}:{os.environ['PATH']}")
        patch.setenv("PYTHONPATH", str(cann / "python"))
        yield


class Right(NamedTuple):
    """What a cache that can be trusted makes of the kernel."""

    result: CompileResult
    key: Key
    digests: bytes


@pytest.fixture(scope="module")
def right(cann: Path, tmp_path_factory: pytest.TempPathFactory) -> Right:
    directory = tmp_path_factory.mktemp("right")
    with installed(cann), CompileCache(Settings.load({}, dir=directory)) as cache:
        result = cache.compile(KERNEL, "a5", [])
        cache.prepare(KERNEL, "a5", [])
        return Right(result, cache.prepare(KERNEL, "a5", []).key, (directory / "digests").read_bytes())


class Trap(NamedTuple):
    """A cache directory with something in it that would do harm, if it were read."""

    directory: Path
    right: Right

    def plant(self, kind: str) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        digests = self.right.digests
        with CompileCache(Settings.load({}, dir=self.directory)) as cache:
            cache.local.put([key(1)], filled(1))
            action = self.right.result.action
            if kind == "action":
                poison = make_entry(b"\x7fELF poison" * 100, seconds=1, created=1, facts=action.details())
                cache.local.put(
                    [self.right.key], Entry(poison.action._replace(inputs=action.inputs), poison.aibin), b""
                )
            elif kind == "failure":
                error = SourceImportError("poison", tool="frontend", command=["x"], returncode=1, stderr="poison")
                cache.failures.put(self.right.key, error, action.inputs)
            elif kind == "digests":
                digests = b"".join(map(poisoned, digests.splitlines()))
        (self.directory / "digests").write_bytes(digests)

    def deceives(self) -> bool:
        """Whether a cache that uses the directory is taken in."""
        with CompileCache(Settings.load({}, dir=self.directory)) as cache:
            if cache.prepare(KERNEL, "a5", []).key != self.right.key:
                return True
            try:
                return cache.compile(KERNEL, "a5", []).aibin != self.right.result.aibin
            except ToolError:
                return True

    def assert_right(self, result: CompileResult) -> None:
        assert (result.key, result.origin) == (self.right.key.name, "compiled")
        assert result.aibin == self.right.result.aibin


def poisoned(line: bytes) -> bytes:
    """A remembered digest, well made, that is not the file's."""
    body = b"0" * 32 + line.split(b" ", 1)[1][32:]
    return b"%s %s\n" % (xxhash.xxh3_64_hexdigest(body).encode(), body)


def snapshot(directory: Path) -> dict[Path, tuple[int, ...]]:
    """All that is below a directory, as it shows whether it was read or written: read once, it has another time."""
    paths = [directory, *sorted(directory.rglob("*"))]
    for path in paths:
        os.utime(path, (1, path.stat().st_mtime))
    return look(paths)


def look(paths: list[Path]) -> dict[Path, tuple[int, ...]]:
    seen = {}
    for path in paths:
        status = path.lstat()
        times = (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)
        seen[path] = (status.st_mode, status.st_uid, status.st_ino, status.st_size, *times)
    return seen


@contextlib.contextmanager
def untouched(directory: Path) -> Iterator[None]:
    """See that the block neither reads nor writes anything in a directory."""
    before = snapshot(directory)
    yield
    assert look(list(before)) == before
    assert {directory, *directory.rglob("*")} == set(before)


@pytest.fixture
def trap(tmp_path: Path, toolchain: Path, right: Right) -> Trap:
    return Trap(tmp_path / "trap", right)


SPOILED = {
    "somebody else's": (f"belongs to the user with number {EVE.uid}", "PTOCACHE_DIR to another directory"),
    "its group's": ("can be written to by its group", "chmod go-w"),
    "everybody's": ("can be written to by everybody", "chmod go-w"),
    "everybody's, sticky": ("can be written to by everybody", "chmod go-w"),
}


def spoil(directory: Path, how: str) -> None:
    if how == "somebody else's":
        if os.geteuid() != 0:
            pytest.skip("only root can give a directory away")
        for path in (directory, *directory.rglob("*")):
            os.chown(path, EVE.uid, EVE.gid)
        directory.chmod(0o755)
    else:
        directory.chmod({"its group's": 0o770, "everybody's": 0o777, "everybody's, sticky": 0o1777}[how])


@pytest.mark.parametrize("kind", ["action", "failure", "digests"])
def test_what_is_planted_in_these_tests_would_do_harm(trap: Trap, kind: str) -> None:
    """Were it not so, they would show nothing."""
    trap.plant("nothing")
    assert not trap.deceives()
    trap.plant(kind)
    assert trap.deceives()


@pytest.mark.parametrize(
    ("how", "kind"), [*((how, "action") for how in SPOILED), ("everybody's", "failure"), ("everybody's", "digests")]
)
def test_nothing_in_a_directory_that_others_can_write_to_is_believed(
    trap: Trap, how: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    trap.plant(kind)
    spoil(trap.directory, how)
    settings = Settings.load({}, dir=trap.directory)
    with untouched(trap.directory), caplog.at_level(logging.INFO, "ptocache"):
        with CompileCache(settings) as cache:
            trap.assert_right(cache.compile(KERNEL, "a5", []))
            assert cache.compile(KERNEL, "a5", []).origin == "memory"
        with CompileCache(settings) as cache:
            assert cache.prepare(KERNEL, "a5", []).key == trap.right.key
            assert cache.local.readonly
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 1
    for words in (*SPOILED[how], str(trap.directory), "PTOCACHE_UMASK", "every kernel is compiled"):
        assert words in said[0]


@pytest.mark.parametrize("switch", ["readonly", "recompile", "verify", "disable"])
def test_no_other_setting_makes_it_believed(trap: Trap, switch: str) -> None:
    trap.plant("action")
    trap.directory.chmod(0o777)
    with untouched(trap.directory), CompileCache(Settings.load({}, dir=trap.directory, **{switch: True})) as cache:
        trap.assert_right(cache.compile(KERNEL, "a5", []))


def test_not_even_the_log_of_a_miss_reads_it(trap: Trap, caplog: pytest.LogCaptureFixture) -> None:
    trap.plant("action")
    trap.directory.chmod(0o777)
    settings = Settings.load({}, dir=trap.directory)
    with untouched(trap.directory), caplog.at_level(logging.DEBUG, "ptocache"), CompileCache(settings) as cache:
        cache.compile(KERNEL.replace("event_id=0", "event_id=1"), "a5", [])
    assert trap.right.key.name not in caplog.text


@pytest.mark.parametrize("how", ["somebody else's", "everybody's"])
def test_the_command_compiles_and_says_once_why_the_cache_is_not_used(
    trap: Trap, how: str, kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTOCACHE_DIR", str(trap.directory))
    trap.plant("action")
    spoil(trap.directory, how)
    with untouched(trap.directory):
        result = run_ptocache("compile", kernel, "--json")
    assert result.returncode == 0
    assert json.loads(result.stdout)["origin"] == "compiled"
    assert (kernel.parent / "kernel.aibin").read_bytes() == trap.right.result.aibin
    assert result.stderr.count("\n") == 1
    for words in ("WARNING", *SPOILED[how]):
        assert words in result.stderr


COMMANDS = [["stats"], ["clear", "-y"], ["prune"], ["verify"], ["verify", "--repair"], ["explain", "KERNEL"]]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_the_commands_refuse_it_with_the_reason(
    trap: Trap, kernel: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setenv("PTOCACHE_DIR", str(trap.directory))
    trap.plant("action")
    trap.directory.chmod(0o777)
    words = [str(kernel) if word == "KERNEL" else word for word in arguments]
    with untouched(trap.directory):
        answers = [as_user(None, lambda more=more: command(*words, *more)) for more in ([], ["--json"])]
    for status, out, err in answers:
        assert (status, out) == (1, "")
        assert "Traceback" not in err
        for text in SPOILED["everybody's"]:
            assert text in err.splitlines()[-1]


def test_the_commands_say_the_reason_once(trap: Trap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTOCACHE_DIR", str(trap.directory))
    trap.plant("action")
    trap.directory.chmod(0o777)
    for name in ("stats", "doctor"):
        result = run_ptocache(name)
        assert result.returncode == 1
        assert (result.stdout + result.stderr).count(SPOILED["everybody's"][0]) == 1


@pytest.mark.parametrize("how", SPOILED)
def test_the_doctor_names_the_reason(trap: Trap, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTOCACHE_DIR", str(trap.directory))
    trap.plant("action")
    spoil(trap.directory, how)
    with untouched(trap.directory):
        status, out, _ = as_user(None, lambda: command("doctor", "--json"))
    assert status == 1
    report = json.loads(out)
    assert report["ok"] is False
    finding = report["findings"][0]
    assert (finding["name"], finding["state"]) == ("directory", "error")
    assert not {"permissions", "locks", "index", "space"} & {other["name"] for other in report["findings"]}
    for words in SPOILED[how]:
        assert words in finding["text"]


def test_a_directory_whose_permission_was_taken_away_is_used_again(tmp_path: Path) -> None:
    """The next step that the message gives is one that helps."""
    directory = tmp_path / "cache"
    directory.mkdir()
    directory.chmod(0o777)
    (advice,) = [word for word in find_place(str(directory)).refused.split(": ") if word.startswith("chmod")]
    subprocess.run(["sh", "-c", advice], check=True)
    assert find_place(str(directory)).refused == ""


@pytest.mark.parametrize("mode", [0o500, 0o555, 0o100])
def test_a_directory_without_a_permission_breaks_no_compilation(
    tmp_path: Path, toolchain: Path, right: Right, mode: int
) -> None:
    """Root may write all the same, and others may not; whatever comes of it, the kernel is compiled."""
    directory = tmp_path / "cache"

    def compile_it() -> bytes:
        with CompileCache(Settings.load({}, dir=directory)) as cache:
            return cache.compile(KERNEL, "a5", []).aibin

    with CompileCache(Settings.load({}, dir=directory)) as cache:
        cache.compile(KERNEL.replace("event_id=0", "event_id=1"), "a5", [])  # with all directories that there are
    directory.chmod(mode)
    try:
        assert as_user(None, compile_it) == right.result.aibin
    finally:
        directory.chmod(0o700)


# What PTOCACHE_UMASK allows is what it says.

MINE, OTHERS = "mine", "somebody else's"
ALLOWED: list[tuple[str, int, str, bool]] = [
    # PTOCACHE_UMASK, the directory's mode, whose it is, whether it is used
    ("", 0o700, MINE, True),
    ("", 0o755, MINE, True),
    ("", 0o2750, MINE, True),
    ("", 0o770, MINE, False),
    ("", 0o2775, MINE, False),
    ("", 0o702, MINE, False),
    ("", 0o1777, MINE, False),
    ("", 0o755, OTHERS, False),
    ("", 0o775, OTHERS, False),
    ("022", 0o700, MINE, True),
    ("022", 0o755, MINE, True),
    ("022", 0o755, OTHERS, True),
    ("022", 0o775, OTHERS, False),
    ("022", 0o757, OTHERS, False),
    ("027", 0o750, OTHERS, True),
    ("002", 0o775, MINE, True),
    ("002", 0o2775, OTHERS, True),
    ("007", 0o2770, OTHERS, True),
    ("002", 0o777, MINE, False),
    ("002", 0o1777, OTHERS, False),
    ("007", 0o772, MINE, False),
    ("020", 0o757, MINE, True),
    ("020", 0o777, MINE, False),
    ("077", 0o755, MINE, True),
    ("077", 0o770, MINE, False),
    ("000", 0o777, MINE, True),
    ("000", 0o777, OTHERS, True),
    ("000", 0o1777, OTHERS, True),
]


@pytest.mark.parametrize(("umask", "mode", "owner", "used"), ALLOWED)
def test_a_directory_is_used_exactly_as_the_umask_allows(
    tmp_path: Path, umask: str, mode: int, owner: str, used: bool
) -> None:
    directory = tmp_path / "cache"
    directory.mkdir()
    if owner == OTHERS:
        if os.geteuid() != 0:
            pytest.skip("only root can give a directory away")
        os.chown(directory, EVE.uid, EVE.gid)
    directory.chmod(mode)
    settings = Settings.load({}, dir=directory, umask=umask)
    assert (find_place(settings.dir, settings.umask).refused == "") is used
    with CompileCache(settings) as cache:
        cache.local.put([key(1)], filled(1))
        assert (cache.local.get(key(1)) is not None) is used
    assert any(directory.iterdir()) is used


@needs_root
def test_somebody_elses_cache_gives_hits_where_the_umask_says_that_it_is_shared(public: Path) -> None:
    """A directory that one user fills, and all others read."""
    directory = public / "cache"
    directory.mkdir()
    os.chown(directory, ANN.uid, ANN.gid)
    directory.chmod(0o755)

    def put() -> None:
        with CompileCache(Settings.load({"HOME": "/nonexistent"}, dir=directory, umask="022")) as cache:
            cache.local.put([key(1)], filled(1))

    def read() -> tuple[str, bool]:
        with CompileCache(Settings.load({"HOME": "/nonexistent"}, dir=directory, umask=umask)) as cache:
            return cache.place.refused, cache.local.get(key(1)) is not None

    as_user(ANN, put)
    umask = "022"
    assert as_user(EVE, read) == ("", True)
    umask = ""
    refused, _ = as_user(EVE, read)
    assert f"the user with number {ANN.uid}" in refused


@needs_root
def test_a_directory_of_roots_is_read_by_everybody(public: Path) -> None:
    """As an image of a container has it, or an administrator's directory; root could do anything anyhow."""
    directory = public / "cache"
    directory.mkdir(mode=0o755)
    with CompileCache(Settings.load({}, dir=directory)) as cache:
        cache.local.put([key(1)], filled(1))

    def read() -> tuple[str, bool]:
        with CompileCache(Settings.load({"HOME": "/nonexistent"}, dir=directory)) as cache:
            with pytest.raises(PermissionError):
                cache.local.put([key(2)], filled(2))
            return cache.place.refused, cache.local.get(key(1)) is not None

    assert as_user(EVE, read) == ("", True)
    directory.chmod(0o775)
    assert "its group" in as_user(EVE, lambda: find_place(str(directory)).refused)


# Without a home.


@pytest.fixture
def homeless() -> Iterator[User]:
    """A user as a container gives one a number: without an entry in the password file, and without a home."""
    uid = 20_000 + os.getpid() % 40_000
    while any(os.path.lexists(f"{base}/ptocache-{uid}") for base in ("/tmp", "/var/tmp")):
        uid += 1
    try:
        yield User(uid, uid)
    finally:
        place = Path(f"/tmp/ptocache-{uid}")
        if place.is_symlink():
            place.unlink()
        shutil.rmtree(place, ignore_errors=True)


def without_home(**settings: object) -> Settings:
    os.environ.pop("HOME", None)
    return Settings.load({}, **settings)


@needs_root
@pytest.mark.parametrize("umask", ["", "002", "022"])
def test_without_a_home_the_cache_is_in_a_private_directory(homeless: User, umask: str) -> None:
    def use() -> tuple[str, str, bool]:
        with CompileCache(without_home(umask=umask)) as cache:
            found = cache.local.get(key(1)) is not None
            cache.local.put([key(1)], filled(1))
            return cache.place.refused, cache.settings.dir, found

    own = f"/tmp/ptocache-{homeless.uid}"
    for found in (False, True):
        assert as_user(homeless, use) == ("", f"{own}/.cache/ptocache", found)
    assert stat.S_IMODE(os.stat(own).st_mode) & 0o022 == 0


@needs_root
@pytest.mark.parametrize("mode", [0o755, 0o777, 0o1777])
def test_a_home_that_somebody_else_made_is_not_used(homeless: User, mode: int) -> None:
    own = Path(f"/tmp/ptocache-{homeless.uid}")
    with CompileCache(Settings.load({}, dir=own / ".cache" / "ptocache")) as cache:
        cache.local.put([key(1)], filled(666))
    for path in (own, *own.rglob("*")):
        os.chown(path, EVE.uid, EVE.gid)
        path.chmod(0o777 if path.is_dir() else 0o666)
    # What a process left that came between.
    os.chown(own / ".cache" / "ptocache", homeless.uid, homeless.gid)
    (own / ".cache" / "ptocache").chmod(0o755)
    own.chmod(mode)

    def refused() -> str:
        with CompileCache(without_home()) as cache:
            return cache.place.refused

    with untouched(own):
        assert f"{own} belongs to the user with number {EVE.uid}" in as_user(homeless, refused)


@needs_root
def test_a_home_that_somebody_else_put_a_link_to_is_not_used(homeless: User, public: Path) -> None:
    """The link leads to what is this user's own now; another moment it leads elsewhere."""
    mine = public / "mine"
    mine.mkdir(mode=0o700)
    os.chown(mine, homeless.uid, homeless.gid)
    own = Path(f"/tmp/ptocache-{homeless.uid}")
    own.symlink_to(mine)
    os.chown(own, EVE.uid, EVE.gid, follow_symlinks=False)

    def use() -> str:
        with CompileCache(without_home()) as cache:
            return cache.place.refused

    assert str(own) in as_user(homeless, use)


@needs_root
def test_a_configuration_that_somebody_else_planted_is_not_obeyed(homeless: User, public: Path) -> None:
    """It could name another directory, and say that this one is shared."""
    own = Path(f"/tmp/ptocache-{homeless.uid}")
    (own / ".config" / "ptocache").mkdir(parents=True)
    (own / ".config" / "ptocache" / "config.toml").write_text(f'dir = "{public}/evil"\numask = "000"\n')
    for path in (own, *own.rglob("*")):
        os.chown(path, EVE.uid, EVE.gid)

    def settings() -> tuple[str, int | None]:
        loaded = without_home()
        return loaded.dir, loaded.umask

    assert as_user(homeless, settings) == (f"{own}/.cache/ptocache", None)


@needs_root
def test_below_a_directory_for_all_the_first_one_on_the_way_counts(base: Path) -> None:
    first = base / f"ptocache-{os.getuid()}"
    directory = first / "deep" / "cache"
    assert find_place(str(directory)).refused == ""  # it is still to be made
    directory.mkdir(parents=True)
    for path in (first, directory.parent, directory):
        path.chmod(0o700)
    assert find_place(str(directory)).refused == ""
    first.chmod(0o770)
    assert "its group" in find_place(str(directory)).refused
    first.chmod(0o700)
    os.chown(first, EVE.uid, TEAM)
    assert f"the user with number {EVE.uid}" in find_place(str(directory)).refused
