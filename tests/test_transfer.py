"""Entries that are brought from one cache to another: by an engine, and by a file."""

from __future__ import annotations

import hashlib
import io
import json
import os
import resource
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from conftest import numbered_kernel, run_ptocache

from ptocache import CompileCache
from ptocache.request import Key
from ptocache.store.catalog import Selection
from ptocache.store.entry import make_entry
from ptocache.store.objects import Signer, encode_object

SECRET = "s" * 32


@pytest.fixture
def share(tmp_path: Path) -> str:
    return f"file://{tmp_path}/share"


@pytest.fixture
def filled(toolchain: Path) -> Iterator[CompileCache]:
    """A cache of three kernels, each under two keys."""
    with CompileCache() as cache:
        for number in range(3):
            cache.compile(numbered_kernel(number))
        yield cache


def at(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTOCACHE_DIR", str(directory))


def facts(*arguments: object, status: int = 0) -> dict[str, Any]:
    result = run_ptocache(*arguments, "--json")
    assert (result.returncode, result.stderr) == (status, "")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def origins() -> list[str]:
    with CompileCache() as cache:
        return [cache.compile(numbered_kernel(number)).origin for number in range(3)]


class TestPushAndPull:
    def test_what_was_pushed_is_found_by_another_host(
        self, filled: CompileCache, share: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PTOCACHE_SHARED", share)
        pushed = facts("push")[share]
        assert (pushed["moved"], pushed["present"], pushed["failed"], pushed["problem"]) == (6, 0, 0, "")
        assert facts("push")[share]["present"] == 6
        at(tmp_path / "other", monkeypatch)
        assert origins() == ["shared"] * 3

    def test_what_was_pulled_is_there_without_the_engine(
        self, filled: CompileCache, share: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PTOCACHE_SHARED", share)
        facts("push")
        at(tmp_path / "other", monkeypatch)
        pulled = facts("pull")[share]
        assert (pulled["moved"], pulled["present"], pulled["rejected"]) == (6, 0, 0)
        assert facts("pull")[share]["present"] == 6
        monkeypatch.delenv("PTOCACHE_SHARED")
        assert origins() == ["local"] * 3
        assert run_ptocache("verify").returncode == 0

    @pytest.mark.parametrize(
        ("choice", "count"),
        [
            (("--kernel", "main_*"), 6),
            (("--kernel", "other_*"), 0),
            (("--newer-than", "1h"), 6),
            (("--toolchain", "emulated-"), 6),
            (("--toolchain", "9"), 0),
            (("--kernel", "main_kernel", "--newer-than", "1d", "--toolchain", "emulated"), 6),
        ],
    )
    def test_some_can_be_chosen(
        self, filled: CompileCache, share: str, monkeypatch: pytest.MonkeyPatch, choice: tuple[str, ...], count: int
    ) -> None:
        monkeypatch.setenv("PTOCACHE_SHARED", share)
        assert facts("push", *choice)[share]["moved"] == count

    def test_an_old_one_is_not_newer(self, filled: CompileCache) -> None:
        (action, *_) = (action for _, action in filled.local.all_actions())
        old = action._replace(created=action.created - 7200)
        assert Selection(newer_than=3600).matches(action)
        assert not Selection(newer_than=3600).matches(old)

    def test_what_is_damaged_on_the_engine_is_not_used_and_said(
        self, filled: CompileCache, share: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PTOCACHE_SHARED", share)
        facts("push")
        (first, *_) = (tmp_path / "share").rglob("?" * 32)
        os.truncate(first, 100)
        at(tmp_path / "other", monkeypatch)
        result = run_ptocache("pull")
        assert result.returncode == 1
        assert "5 entries received" in result.stdout
        assert f"1 not used ({first.name}: " in result.stdout

    def test_an_engine_that_is_not_there_is_said_and_nothing_hangs(
        self, filled: CompileCache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("PTOCACHE_SHARED", f"file://{tmp_path}/file/share")
        result = run_ptocache("push")
        assert result.returncode == 1
        assert "6 failed (" in result.stdout
        assert "Traceback" not in result.stderr

    @pytest.mark.parametrize(
        ("command", "variables", "said"),
        [
            ("push", {}, "set PTOCACHE_SHARED"),
            ("pull", {}, "set PTOCACHE_SHARED"),
            ("push", {"PTOCACHE_SHARED": "file:///x#readonly"}, "not #readonly"),
            ("push", {"PTOCACHE_SHARED": "file:///x", "PTOCACHE_READONLY": "1"}, "PTOCACHE_READONLY"),
            ("pull", {"PTOCACHE_SHARED": "file:///x", "PTOCACHE_READONLY": "1"}, "PTOCACHE_READONLY"),
            ("prune --shared", {"PTOCACHE_SHARED": "file:///x"}, "--older-than"),
            ("prune --shared --size 1x", {"PTOCACHE_SHARED": "file:///x"}, "expected a size"),
            ("prune --shared --size 1GiB", {}, "set PTOCACHE_SHARED"),
            ("prune --size 1GiB", {}, "--shared"),
            ("pull --newer-than soon", {"PTOCACHE_SHARED": "file:///x"}, "--newer-than: expected a time"),
        ],
    )
    def test_wrong_use_is_one_line(
        self, command: str, variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        result = run_ptocache(*command.split())
        assert (result.returncode, result.stdout) == (2, "")
        assert said in result.stderr
        assert result.stderr.count("\n") == 1

    def test_every_state_of_the_files_that_were_read_is_pulled(
        self, toolchain: Path, share: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PTOCACHE_SHARED", share)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'lib'}:{os.environ['PYTHONPATH']}")
        (tmp_path / "lib").mkdir()
        source = f"import sizes\n{numbered_kernel(0)}".replace("1024", "sizes.SIZE")
        made = {}
        for size in (512, 1024, 2048, 4096, 8192):
            (tmp_path / "lib" / "sizes.py").write_text(f"SIZE = {size}\n")
            at(tmp_path / f"host{size}", monkeypatch)
            with CompileCache() as cache:
                made[size] = cache.compile(source).aibin
            facts("push")
        assert len(set(made.values())) == 5
        pulled = facts("pull")[share]  # into the last one's, which has one state already
        assert (pulled["moved"] + pulled["present"], pulled["failed"]) == (10, 0)
        at(tmp_path / "fresh", monkeypatch)
        pulled = facts("pull")[share]
        assert (pulled["moved"], pulled["present"]) == (10, 0)
        assert facts("pull")[share]["present"] == 10
        monkeypatch.delenv("PTOCACHE_SHARED")
        for size, aibin in made.items():
            (tmp_path / "lib" / "sizes.py").write_text(f"SIZE = {size}\n")
            with CompileCache() as cache:
                found = cache.compile(source)
            assert (found.origin, found.aibin) == ("local", aibin)

    def test_what_does_not_fit_was_not_received(
        self, filled: CompileCache, share: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PTOCACHE_SHARED", share)
        facts("push")
        at(tmp_path / "small", monkeypatch)
        monkeypatch.setenv("PTOCACHE_SIZE_LIMIT", "20KB")
        result = run_ptocache("pull", "--json")
        assert result.returncode == 1
        pulled = json.loads(result.stdout)[share]
        assert (pulled["moved"], pulled["failed"]) == (0, 6)
        assert "PTOCACHE_SIZE_LIMIT" in pulled["problem"]

    def test_one_engine_that_fails_keeps_no_other_from_its_work(
        self, filled: CompileCache, share: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").touch()
        bad = f"file://{tmp_path}/file/x"
        monkeypatch.setenv("PTOCACHE_SHARED", f"{bad} {share} {share}#readonly")
        results = facts("push", status=1)
        assert {label: found["moved"] for label, found in results.items()} == {bad: 0, share: 6}
        at(tmp_path / "other", monkeypatch)
        results = facts("pull")
        assert {label: found["moved"] for label, found in results.items()} == {bad: 0, share: 6, f"{share} (2)": 0}
        pruned = facts("prune", "--shared", "--size", "0")
        assert pruned[share]["removed"] == 6

    def test_a_new_signing_key_signs_what_the_old_one_had_signed(
        self, filled: CompileCache, share: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PTOCACHE_SHARED", share)
        monkeypatch.setenv("PTOCACHE_SIGNING_KEY", SECRET)
        facts("push")
        monkeypatch.setenv("PTOCACHE_SIGNING_KEY", f"{SECRET[::-1]}-new {SECRET}")
        assert facts("push")[share]["moved"] == 6
        assert facts("push")[share]["present"] == 6
        at(tmp_path / "other", monkeypatch)
        monkeypatch.setenv("PTOCACHE_SIGNING_KEY", f"{SECRET[::-1]}-new")
        assert facts("pull")[share]["moved"] == 6


class TestArchives:
    def test_it_is_written_to_a_file_and_nothing_else(self, filled: CompileCache, tmp_path: Path) -> None:
        real, link, pipe = tmp_path / "real", tmp_path / "link", tmp_path / "pipe"
        real.write_text("old")
        link.symlink_to(real)
        os.mkfifo(pipe)
        assert run_ptocache("export", link).returncode == 0
        assert link.is_symlink()
        assert real.read_bytes()[:4] == b"\x28\xb5\x2f\xfd"
        for other in (pipe, tmp_path, "/dev/null"):
            result = run_ptocache("export", other)
            assert result.returncode == 1
            assert "expected the name of a file" in result.stderr
        assert Path("/dev/null").is_char_device()
        assert pipe.is_fifo()

    def test_an_entry_that_is_there_twice_ends_the_import(self, tmp_path: Path) -> None:
        key = Key("a" * 32, bytes(32))
        entry = make_entry(b"x", seconds=1.0, created=1.0, facts={"kernels": []})
        data = encode_object(key.name, key, entry._replace(action=entry.action._replace(check=key.check)), Signer())
        archive = tmp_path / "twice"
        with zstandard.open(archive, "wb") as stream, tarfile.open(fileobj=stream, mode="w|") as tar:
            for _ in range(2):
                member = tarfile.TarInfo(f"objects/{key.name}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        result = run_ptocache("import", archive)
        assert result.returncode == 1
        assert "is in it twice" in result.stderr

    def test_what_was_exported_is_imported(
        self, filled: CompileCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        archive = tmp_path / "kernels.ptocache"
        assert facts("export", archive)["moved"] == 6
        at(tmp_path / "other", monkeypatch)
        assert facts("import", archive)["moved"] == 6
        assert facts("import", archive)["present"] == 6
        assert origins() == ["local"] * 3
        assert not list(tmp_path.glob("*.tmp"))

    def test_every_state_of_the_files_that_were_read_is_in_it(
        self, toolchain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        helpers = tmp_path / "helpers"
        helpers.mkdir()
        monkeypatch.setenv("PYTHONPATH", f"{helpers}:{os.environ['PYTHONPATH']}")
        source = "import the_helper\n" + numbered_kernel(0).replace("1024, nburst", "the_helper.SIZE, nburst")

        def compile_both() -> list[str]:
            found = []
            for size in (1024, 2048):
                (helpers / "the_helper.py").write_text(f"SIZE = {size}\n")
                with CompileCache() as cache:
                    result = cache.compile(source)
                    found.append(f"{result.origin} {result.via}")
            return found

        for path in (*compile_both(), *compile_both()):  # a file that was just written is not believed at once
            assert path
        with CompileCache() as cache:
            variants = sum(len(cache.local.actions(name)) for name in {name for name, _ in cache.local.all_actions()})
        archive = tmp_path / "kernels.ptocache"
        assert facts("export", archive)["moved"] == variants
        at(tmp_path / "other", monkeypatch)
        assert facts("import", archive)["moved"] == variants

    def test_signed_ones_only_where_there_is_a_key(
        self, filled: CompileCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain, signed = tmp_path / "plain", tmp_path / "signed"
        facts("export", plain)
        monkeypatch.setenv("PTOCACHE_SIGNING_KEY", SECRET)
        facts("export", signed)
        at(tmp_path / "other", monkeypatch)
        assert facts("import", plain, status=1)["rejected"] == 6
        assert facts("stats")["entries"] == 0
        assert facts("import", signed)["moved"] == 6
        monkeypatch.setenv("PTOCACHE_SIGNING_KEY", "o" * 32)
        assert facts("import", signed, status=1)["rejected"] == 6

    def test_an_archive_that_is_cut_short_says_so_and_keeps_what_was_whole(
        self, filled: CompileCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        archive = tmp_path / "kernels.ptocache"
        facts("export", archive)
        whole = archive.read_bytes()
        at(tmp_path / "other", monkeypatch)
        for length in (0, 10, len(whole) // 2, len(whole) - 1):
            archive.write_bytes(whole[:length])
            result = run_ptocache("import", archive)
            assert (result.returncode, result.stdout) == (1, "")
            assert str(archive) in result.stderr
            assert result.stderr.count("\n") == 1
        assert run_ptocache("verify").returncode == 0

    def test_one_without_its_end_or_with_more_than_its_manifest_lists_says_so(self, tmp_path: Path) -> None:
        content = member()
        archive = tmp_path / "archive"
        for members, said in (
            ([content], "no end"),
            ([content, manifest()], "manifest lists"),
            ([manifest(content)], "manifest lists"),
        ):
            write_archive(archive, members)
            result = run_ptocache("import", archive)
            assert result.returncode == 1
            assert said in result.stderr

    @pytest.mark.parametrize(
        "name",
        ["../../evil", "/etc/evil", "objects/../../evil", "objects/" + "0" * 31, "objects/" + "0" * 32 + "/x", "x"],
    )
    def test_nothing_is_unpacked_to_a_name_of_the_archives(
        self, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_archive(tmp_path / "archive", [(name, member()[1]), manifest()])
        before = sorted(path for path in tmp_path.rglob("*") if "cache" not in path.parts)
        result = run_ptocache("import", tmp_path / "archive")
        assert result.returncode == 1
        assert "is nothing that ptocache export writes" in result.stderr
        assert sorted(path for path in tmp_path.rglob("*") if "cache" not in path.parts) == before

    @pytest.mark.parametrize(
        "kind",
        [
            tarfile.SYMTYPE,
            tarfile.LNKTYPE,
            tarfile.DIRTYPE,
            tarfile.FIFOTYPE,
            tarfile.XHDTYPE,
            tarfile.GNUTYPE_LONGNAME,
        ],
    )
    def test_what_is_no_plain_file_ends_the_import(self, tmp_path: Path, kind: bytes) -> None:
        write_archive(tmp_path / "archive", [member(), manifest(member())], first=kind)
        result = run_ptocache("import", tmp_path / "archive")
        assert result.returncode == 1
        assert "not an archive of ptocache export" in result.stderr

    @pytest.mark.parametrize("name", ["objects/" + "0" * 32, "manifest.json"])
    def test_a_bomb_takes_no_memory(self, tmp_path: Path, name: str) -> None:
        info = tarfile.TarInfo(name)
        info.size = 6 << 30
        header = info.tobuf(tarfile.USTAR_FORMAT)
        compressor = zstandard.ZstdCompressor().compressobj()
        zeros = bytes(16 << 20)
        chunks = [compressor.compress(header), *(compressor.compress(zeros) for _ in range(32)), compressor.flush()]
        (tmp_path / "archive").write_bytes(b"".join(chunks))

        def limited() -> None:
            resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))

        result = subprocess.run(
            [sys.executable, "-m", "ptocache", "import", tmp_path / "archive"],
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=limited,
        )
        assert result.returncode == 1
        assert "is not a file of a size that can be" in result.stderr

    def test_an_object_under_another_name_is_not_used(self, tmp_path: Path) -> None:
        moved = ("objects/" + "f" * 32, member()[1])
        write_archive(tmp_path / "archive", [moved, manifest(moved)])
        assert facts("import", tmp_path / "archive", status=1)["rejected"] == 1

    def test_where_nothing_can_be_written_it_says_so(self, filled: CompileCache, tmp_path: Path) -> None:
        for path in (tmp_path / "missing" / "archive", tmp_path):
            result = run_ptocache("export", path)
            assert (result.returncode, result.stdout) == (1, "")
            assert str(path) in result.stderr
            assert result.stderr.count("\n") == 1
        assert run_ptocache("import", tmp_path / "missing").returncode == 1


class TestPruning:
    def test_old_objects_go_and_new_ones_stay(
        self, filled: CompileCache, share: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PTOCACHE_SHARED", share)
        facts("push")
        objects = sorted((tmp_path / "share").rglob("?" * 32))
        for path in objects[:2]:
            os.utime(path, (0, 0))
        pruned = facts("prune", "--shared", "--older-than", "30d")[share]
        assert (pruned["removed"], pruned["kept"]) == (2, 4)
        assert sorted((tmp_path / "share").rglob("?" * 32)) == objects[2:]

    def test_the_newest_of_a_size_stay(
        self, filled: CompileCache, share: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PTOCACHE_SHARED", share)
        facts("push")
        objects = sorted((tmp_path / "share").rglob("?" * 32))
        for hours, path in enumerate(objects):
            os.utime(path, (1e9 - 3600 * hours,) * 2)
        size = sum(path.stat().st_size for path in objects[:3])
        pruned = facts("prune", "--shared", "--size", size)[share]
        assert (pruned["removed"], pruned["kept"], pruned["bytes_kept"]) == (3, 3, size)
        assert sorted((tmp_path / "share").rglob("?" * 32)) == objects[:3]
        assert facts("stats")["entries"] == 3, "the local cache is another matter"


class TestReports:
    def test_stats_tell_of_each_engine(
        self, filled: CompileCache, share: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PTOCACHE_SHARED", share)
        facts("push")
        at(tmp_path / "other", monkeypatch)
        assert origins() == ["shared"] * 3
        with CompileCache() as cache:
            cache.compile(numbered_kernel(9))
        found = facts("stats")
        assert found["hits"] == {"memory": 0, "local": 0, "shared": 3, "pto": 0}
        counts = found["engines"][share]
        assert (counts["hits"], counts["misses"], counts["stores"], counts["errors"]) == (3, 2, 2, 0)
        assert counts["bytes_read"] > 0
        page = run_ptocache("stats").stdout
        assert f"shared: {share}" in page
        assert "3 hits, 2 misses" in page

    def test_the_doctor_tries_each_engine_and_leaves_nothing(
        self, share: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").touch()
        bad = f"file://{tmp_path}/file/x"
        monkeypatch.setenv("PTOCACHE_SHARED", f"{share} {share}2#readonly {bad}")
        monkeypatch.setenv("PTOCACHE_SIGNING_KEY", SECRET)
        findings = [finding for finding in facts("doctor", "--emulate")["findings"] if finding["name"] == "shared"]
        assert [finding["state"] for finding in findings] == ["ok", "ok", "warning"]
        for word in ("answers in", "stores in", "gives that back", "removes it", "clock", "signed"):
            assert word in findings[0]["text"]
        assert "only read" in findings[1]["text"]
        assert bad in findings[2]["text"]
        assert not [path for path in (tmp_path / "share").rglob("*") if path.is_file()]

    def test_explain_finds_what_is_shared(
        self, filled: CompileCache, share: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PTOCACHE_SHARED", share)
        facts("push")
        at(tmp_path / "other", monkeypatch)
        (tmp_path / "kernel.py").write_text(numbered_kernel(1))
        assert facts("explain", tmp_path / "kernel.py")["hit"] == "shared"


def member(number: int = 1) -> tuple[str, bytes]:
    """An object as it is in an archive."""
    key = Key(f"{number:032x}", bytes(32))
    entry = make_entry(b"aibin", seconds=1, created=1, facts={"kernels": ["main"], "toolchain": "t"})
    return f"objects/{key.name}", encode_object(key.name, key, entry, Signer())


def manifest(*members: tuple[str, bytes]) -> tuple[str, bytes]:
    digests = {name.removeprefix("objects/"): hashlib.sha256(data).hexdigest() for name, data in members}
    return "manifest.json", json.dumps({"schema": 1, "created": 0, "objects": digests}).encode()


def write_archive(path: Path, members: list[tuple[str, bytes]], first: bytes | None = None) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for position, (name, data) in enumerate(members):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            if first is not None and position == 0:
                info.type = first
                info.linkname = "/etc/passwd"
            archive.addfile(info, io.BytesIO(data))
    path.write_bytes(zstandard.ZstdCompressor().compress(buffer.getvalue()))
