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


@pytest.fixture(autouse=True)
def tools(toolchain: Path) -> None:
    """Tools that are well; what is wrong is the directory."""


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
    assert (status == 0) is ("error" not in {finding["state"] for finding in report["findings"]})
    about_directory = [finding for finding in report["findings"] if finding["name"] in QUESTIONS]
    names = [finding["name"] for finding in about_directory]
    assert names == QUESTIONS[: len(names)]
    states = [finding["state"] for finding in about_directory]
    assert "error" not in states[:-1]
    assert status or names == QUESTIONS
    return status, {finding["name"]: (finding["state"], finding["text"]) for finding in about_directory}


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
    assert [line.split()[:2] for line in lines[:5]] == [["ok", name] for name in QUESTIONS]
    assert {line.split()[0] for line in lines} == {"ok"}
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
    assert [line.split()[1] for line in result.stdout.splitlines() if line.startswith("error")] == ["directory"]


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


# The tools, the settings and TileLang.


def others() -> tuple[int, list[dict[str, str]]]:
    """The exit status, and the findings that are not about the directory."""
    result = run_ptocache("doctor", "--json")
    return result.returncode, [
        finding for finding in json.loads(result.stdout)["findings"] if finding["name"] not in QUESTIONS
    ]


def texts(findings: list[dict[str, str]], name: str) -> list[str]:
    return [finding["text"] for finding in findings if finding["name"] == name]


def test_the_tools_are_named_and_what_of_them_is_in_a_key(toolchain: Path) -> None:
    status, findings = others()
    assert status == 0
    (tools,) = texts(findings, "tools")
    for name in ("ptoas", "bisheng", "ptodsl"):
        assert f"{name} {toolchain}" in tools
    stamp = texts(findings, "stamp")
    with CompileCache() as cache:
        assert stamp[0] == cache.stamp().name
    assert any(text.startswith("ptoas --version: ptoas 0.") for text in stamp)
    assert any(text.startswith("cann: package_name=Ascend-cann-toolkit, version=") for text in stamp)


def test_missing_tools_are_an_error_that_says_how_to_get_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PTOAS_BIN", "ASCEND_HOME_PATH", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    status, findings = others()
    assert status == 1
    (tools,) = texts(findings, "tools")
    for words in ("ptoas: looked for", "set PTOAS_BIN", "bisheng: looked for", "install CANN", "--emulate"):
        assert words in tools
    assert not texts(findings, "stamp")


def test_a_tool_that_does_not_answer_is_an_error(
    toolchain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "bin"
    broken.mkdir()
    (broken / "ptoas").mkdir()
    monkeypatch.setenv("PTOAS_BIN", str(broken / "ptoas"))
    status, findings = others()
    assert status == 1
    assert any(finding["state"] == "error" and "ptoas" in finding["text"] for finding in findings)


def test_emulated_tools_are_called_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_ptocache("doctor", "--emulate", "--json")
    assert result.returncode == 0
    findings = json.loads(result.stdout)["findings"]
    assert texts(findings, "tools")[0].startswith("emulated: what they make runs on no NPU; CANN ")
    assert texts(findings, "stamp")[0].startswith("emulated-")


def test_settings_that_are_no_defaults_are_shown_with_where_they_come_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "config" / "ptocache" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('failure_ttl = "5m"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PTOCACHE_SIZE_LIMIT", "1GiB")
    monkeypatch.setenv("PTOCACHE_SIGNING_KEY", "a-secret-of-enough-letters")
    _, findings = others()
    found = texts(findings, "settings")
    assert "PTOCACHE_SIZE_LIMIT is 1GiB (from the environment)" in found
    assert f"PTOCACHE_FAILURE_TTL is 5m (from failure_ttl in {config})" in found
    assert "PTOCACHE_SIGNING_KEY is <1 secret> (from the environment)" in found
    assert "a-secret" not in json.dumps(findings)


def test_a_cache_that_is_turned_off_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTOCACHE_DISABLE", "1")
    status, findings = others()
    assert status == 1
    assert any(finding["state"] == "error" and "PTOCACHE_DISABLE" in finding["text"] for finding in findings)


def test_it_says_whether_tilelang_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tilelang-9.9.dist-info").mkdir()
    (tmp_path / "tilelang-9.9.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: tilelang\nVersion: 9.9\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ['PYTHONPATH']}")
    assert texts(others()[1], "tilelang")[0].startswith("TileLang 9.9; call ptocache.install(), or use")
    monkeypatch.setenv("PTOCACHE_INSTALL", "1")
    assert texts(others()[1], "tilelang") == ["TileLang 9.9; PTOCACHE_INSTALL is set: ptocache is below it"]
