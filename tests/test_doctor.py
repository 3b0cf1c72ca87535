"""The doctor finds what is wrong, each thing made to happen, and says what to do; it changes nothing."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import KERNEL, run_ptocache
from test_place import TMPFS, look, mounted, snapshot, untouched
from test_sharing import EVE, as_user, command, filled, key, needs_root

from ptocache import CompileCache, Settings
from ptocache.store import index as index_module

QUESTIONS = ["directory", "permissions", "locks", "index", "space"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The cache directory that the settings name; it is still to be made."""
    return tmp_path / "cache"


@pytest.fixture
def cache(directory: Path) -> Path:
    """A cache directory with something in it."""
    put(directory, 1)
    return directory


def put(directory: Path, *numbers: int) -> None:
    with CompileCache(Settings.load({}, dir=directory)) as cache:
        for number in numbers:
            cache.local.put([key(number)], filled(number), b"")


def drop_privileges() -> None:
    """Let permissions count for root too, as they do for everybody else."""
    if os.geteuid() == 0:
        header = struct.pack("<II", 0x20080522, 0)
        data = (ctypes.c_uint32 * 6)(0, 0, 0, 0, 0, 0)
        assert ctypes.CDLL(None, use_errno=True).capset(header, data) == 0


def examine(*, privileged: bool = True) -> tuple[int, dict[str, tuple[str, str]]]:
    """What the command says of the cache that the settings name: its exit status, and each finding by its name."""

    def work() -> tuple[int, str, str]:
        if not privileged:
            drop_privileges()
        return command("doctor", "--json")

    status, out, _ = as_user(None, work)
    report = json.loads(out)
    assert list(report) == ["ok", "findings"]
    assert report["ok"] is (status == 0)
    for finding in report["findings"]:
        assert list(finding) == ["name", "state", "text"]
        assert finding["state"] in {"ok", "warning", "error"}
        assert finding["text"]
    names = [finding["name"] for finding in report["findings"]]
    assert names == QUESTIONS[: len(names)]
    states = [finding["state"] for finding in report["findings"]]
    assert "error" not in states[:-1]
    assert (status == 0) is (states[-1] != "error")
    assert status or names == QUESTIONS
    return status, {finding["name"]: (finding["state"], finding["text"]) for finding in report["findings"]}


def states(findings: dict[str, tuple[str, str]]) -> list[str]:
    return [state for state, _ in findings.values()]


# All is well.


def test_where_there_is_no_directory_yet_all_is_well_and_none_is_made(directory: Path) -> None:
    status, findings = examine()
    assert (status, states(findings)) == (0, ["ok"] * 5)
    assert str(directory) in findings["directory"][1]
    assert "which the first compilation makes" in findings["directory"][1]
    assert "0 entries" in findings["space"][1]
    assert not directory.exists()


def test_a_cache_in_use_is_well(directory: Path, toolchain: Path) -> None:
    with CompileCache() as cache:
        cache.compile(KERNEL)
        status, findings = examine()  # while it is open
    assert (status, states(findings)) == (0, ["ok"] * 5)
    assert "mode 0700" in findings["permissions"][1]
    assert f"user {os.geteuid()}" in findings["permissions"][1]
    assert "1 entry" in findings["space"][1]
    assert "of 5.0 GiB" in findings["space"][1]
    assert findings["locks"][1] == "one lock keeps another out"
    assert "sound" in findings["index"][1]


def test_people_read_a_line_for_each_question_with_the_state_first(cache: Path) -> None:
    result = run_ptocache("doctor")
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [["ok", name] for name in QUESTIONS]
    assert "\x1b" not in result.stdout
    as_json = json.loads(run_ptocache("doctor", "--json").stdout)
    assert [line.split(maxsplit=2)[2] for line in lines[:2]] == [item["text"] for item in as_json["findings"][:2]]


def test_it_explains_itself() -> None:
    result = run_ptocache("doctor", "--help")
    assert result.returncode == 0
    assert result.stdout.startswith("usage: ptocache doctor")
    assert run_ptocache("doctor", "extra").returncode == 2


def test_nothing_that_is_stored_is_changed(cache: Path) -> None:
    kept = [path for path in snapshot(cache) if path.parent.name in {"actions", "outputs", "sources"}]
    before = look(kept)
    assert examine()[0] == 0
    assert look(kept) == before
    assert list((cache / "temp").iterdir()) == []


# The directory and who may use it.


@pytest.mark.parametrize("kind", ["file", "below a file", "dangling link", "fifo"])
def test_what_cannot_be_a_directory_is_an_error(
    tmp_path: Path, directory: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "fifo":
        os.mkfifo(directory)
    elif kind == "dangling link":
        directory.symlink_to(tmp_path / "no" / "where")
    else:
        directory.write_text("data")
    if kind == "below a file":
        monkeypatch.setenv("PTOCACHE_DIR", str(directory / "cache"))
    status, findings = examine()
    assert status == 1
    assert str(directory) in list(findings.values())[-1][1]


@pytest.mark.parametrize("mode", [0o500, 0o300, 0o600, 0])
def test_a_directory_that_may_not_be_written_is_an_error(cache: Path, mode: int) -> None:
    cache.chmod(mode)
    try:
        status, findings = examine(privileged=False)
    finally:
        cache.chmod(0o700)
    assert (status, states(findings)[-1]) == (1, "error")
    state, text = findings["permissions"]
    assert state == "error"
    for words in (str(cache), f"mode {mode:04o}", "cannot be written to", "PTOCACHE_DIR", "PTOCACHE_READONLY=1"):
        assert words in text


def test_a_place_where_no_directory_can_be_made_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    above = tmp_path / "above"
    above.mkdir(mode=0o500)
    monkeypatch.setenv("PTOCACHE_DIR", str(above / "some" / "cache"))
    status, findings = examine(privileged=False)
    assert (status, findings["permissions"][0]) == (1, "error")
    assert str(above) in findings["permissions"][1]


@pytest.mark.parametrize("name", ["actions", "outputs", "index", "temp", "locks"])
def test_a_part_of_it_that_belongs_to_somebody_else_is_an_error(cache: Path, name: str) -> None:
    """As after a `sudo` with the user's home: nothing can be stored."""
    (cache / name).mkdir(exist_ok=True)
    (cache / name).chmod(0o500)
    status, findings = examine(privileged=False)
    (cache / name).chmod(0o700)
    assert status == 1
    assert str(cache / name) in list(findings.values())[-1][1]


@pytest.mark.parametrize("mode", [0o770, 0o777])
def test_a_directory_that_is_refused_is_an_error_and_is_not_looked_into(cache: Path, mode: int) -> None:
    cache.chmod(mode)
    with untouched(cache):
        status, findings = examine()
    assert (status, list(findings), states(findings)) == (1, ["directory"], ["error"])
    assert f"chmod go-w {cache}" in findings["directory"][1]
    result = run_ptocache("doctor")
    assert result.returncode == 1
    assert [line.split()[:2] for line in result.stdout.splitlines()] == [["error", "directory"]]


@needs_root
def test_a_directory_of_somebody_elses_is_an_error_unless_it_is_said_to_be_shared(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(cache, EVE.uid, EVE.gid)
    status, findings = examine()
    assert (status, list(findings)) == (1, ["directory"])
    assert f"the user with number {EVE.uid}" in findings["directory"][1]
    monkeypatch.setenv("PTOCACHE_UMASK", "022")
    status, findings = examine()
    assert (status, states(findings)) == (0, ["ok"] * 5)


def test_readonly_is_well_and_leaves_everything_as_it_is(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTOCACHE_READONLY", "1")
    cache.chmod(0o500)
    before = look([cache, *sorted(cache.rglob("*"))])
    status, findings = examine(privileged=False)
    assert (status, states(findings)) == (0, ["ok"] * 5)
    assert "PTOCACHE_READONLY is set: nothing is stored" in findings["permissions"][1]
    assert look(list(before)) == before
    assert {cache, *cache.rglob("*")} == set(before)
    cache.chmod(0o700)


def test_readonly_makes_no_directory(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTOCACHE_READONLY", "1")
    assert examine()[0] == 0
    assert not directory.exists()


def test_a_setting_that_cannot_be_used_is_wrong_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTOCACHE_UMASK", "rwx")
    result = run_ptocache("doctor")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("ptocache: PTOCACHE_UMASK: expected")


# Space.


@needs_root
@pytest.mark.parametrize(
    ("size", "limit", "state", "words"),
    [
        ("8m", "5GiB", "warning", "too few to store much"),
        ("8m", "0", "warning", "too few to store much"),
        ("300m", "5GiB", "warning", "less than the limit allows: lower PTOCACHE_SIZE_LIMIT"),
        ("300m", "100MiB", "ok", "are free"),
        ("300m", "0", "ok", "are free"),
    ],
)
def test_little_space_is_a_warning(
    tmp_path: Path, size: str, limit: str, state: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk"
    monkeypatch.setenv("PTOCACHE_DIR", str(disk / "cache"))
    monkeypatch.setenv("PTOCACHE_SIZE_LIMIT", limit)
    with mounted(disk, "mount", "-t", "tmpfs", "-o", f"size={size}", "none"):
        for entries in ("0 entries", "1 entry"):
            status, findings = examine()
            assert status == 0
            assert findings["space"][0] == state
            assert words in findings["space"][1]
            assert entries in findings["space"][1]
            assert "tmpfs" in findings["directory"][1]
            put(disk / "cache", 1)


@needs_root
def test_a_full_disk_is_a_warning_or_an_error_and_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = tmp_path / "disk"
    monkeypatch.setenv("PTOCACHE_DIR", str(disk / "cache"))
    with mounted(disk, *TMPFS):
        put(disk / "cache", 1)
        with contextlib.suppress(OSError), open(disk / "filler", "wb", buffering=0) as file:
            while file.write(bytes(1 << 16)):
                pass
        _, findings = examine()
        assert findings["space"][0] == "warning"
        assert "0 B are free" in findings["space"][1]


# Locks.


def test_without_a_directory_locks_are_not_tried(directory: Path) -> None:
    assert examine()[1]["locks"] == ("ok", "not tried: there is no directory yet")


# The index.


def zero_the_rows(path: Path) -> None:
    """Damage that is found by whoever reads the rows, and not by whoever opens the database."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        ((page,),) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'Cache'")
        ((size,),) = database.execute("PRAGMA page_size")
    with open(path, "r+b") as file:
        file.seek((page - 1) * size)
        file.write(bytes(size))


def cut_it(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4096)


def to_garbage(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)


def to_nothing(path: Path) -> None:
    path.write_bytes(b"")


def to_another_schema(path: Path) -> None:
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE Cache (x)")
        database.commit()


Damage = Callable[[Path], None]


@pytest.mark.parametrize("damage", [zero_the_rows, cut_it, to_garbage, to_another_schema])
def test_a_damaged_index_is_a_warning_until_it_is_repaired(cache: Path, damage: Damage) -> None:
    put(cache, *range(2, 40))
    path = cache / "index" / "cache.db"
    damage(path)
    for _ in range(2):
        status, findings = examine()
        assert (status, findings["index"][0]) == (0, "warning"), findings
        assert "ptocache verify --repair" in findings["index"][1]
        assert not (path.parent / "cache.db.broken").exists()
    status, _, _ = as_user(None, lambda: command("verify", "--repair"))
    assert status == 0
    status, findings = examine()
    assert (status, states(findings)) == (0, ["ok"] * 5)
    with CompileCache() as again:
        assert all(again.local.get(key(number)) for number in range(1, 40))
        with again.local.index.transaction() as rows:
            assert rows.count() == 39


def test_an_index_that_is_gone_is_no_reason_to_worry(cache: Path) -> None:
    (cache / "index" / "cache.db").unlink()
    assert examine()[0] == 0


def test_an_index_that_somebody_has_locked_is_waited_for_a_bounded_time(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "TIMEOUT", 0.2)
    with contextlib.closing(sqlite3.connect(cache / "index" / "cache.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        status, findings = examine()
        other.execute("ROLLBACK")
    # Where it cannot be read meanwhile, that is what is said.
    assert status == (1 if findings["index"][0] == "error" else 0)
    assert findings["index"][0] == "ok" or "locked" in findings["index"][1]
    assert examine()[0] == 0
