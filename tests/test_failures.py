"""Remembered failures: what will fail again is answered at once, and whatever might not fail again is tried."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
from conftest import KERNEL, ToolLog, run_ptocache

from ptocache import CompileCache, Settings
from ptocache.errors import (
    FrontendUnavailableError,
    LoweringError,
    PtocacheError,
    SourceImportError,
    ToolError,
    ToolNotFoundError,
    ToolTimeoutError,
)
from ptocache.request import Key
from ptocache.store.failures import FOLDERS, Failures, will_repeat
from ptocache.store.layout import Layout, blocks

pytestmark = pytest.mark.usefixtures("toolchain")

NOT_IMPORTED = f"{KERNEL}\n1 / 0\n"
NOT_LOWERED = f"{KERNEL}  undefined_name\n"
#: The emulated ptoas has no such back end, and says so.
REFUSED_FLAGS = ["--pto-backend=emitc"]
HELPED = f"import tiles\n{KERNEL}"


def fail(cache: CompileCache, source: str = NOT_IMPORTED, **arguments: object) -> ToolError:
    with pytest.raises(ToolError) as caught:
        cache.compile(source, **arguments)  # type: ignore[arg-type]
    return caught.value


def fail_anew(source: str = NOT_IMPORTED, **arguments: object) -> ToolError:
    """In a cache that looks at everything anew."""
    with CompileCache() as cache:
        return fail(cache, source, **arguments)


def failure_files(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache" / "failures").rglob("*") if path.is_file()]


@pytest.fixture(scope="module")
def known(cann: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The digests of the install, so that not every test asks its ptoas for the version."""
    directory = tmp_path_factory.mktemp("known")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASCEND_HOME_PATH", str(cann))
        patch.setenv("PTOAS_BIN", str(cann / "bin" / "ptoas"))
        patch.setenv("PYTHONPATH", str(cann / "python"))
        with CompileCache(Settings.load({}, dir=directory)) as cache:
            cache.prepare(KERNEL, "a5", [])
    return (directory / "digests").read_bytes()


@pytest.fixture(autouse=True)
def cache_directory(known: bytes, tmp_path: Path) -> Path:
    """A cache directory with nothing but digests in it."""
    directory = tmp_path / "cache"
    directory.mkdir()
    (directory / "digests").write_bytes(known)
    return directory


@pytest.fixture
def install(toolchain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An install of the test's own, which it may change."""
    home = Path(shutil.copytree(toolchain, tmp_path / "cann", symlinks=True))
    monkeypatch.setenv("ASCEND_HOME_PATH", str(home))
    monkeypatch.setenv("PTOAS_BIN", str(home / "bin" / "ptoas"))
    monkeypatch.setenv("PYTHONPATH", str(home / "python"))
    return home


@pytest.fixture
def helper(toolchain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A helper module that `HELPED` imports, and that cannot be imported."""
    path = tmp_path / "lib" / "tiles.py"
    path.parent.mkdir()
    path.write_text("raise ValueError('no such tile')\n")
    monkeypatch.setenv("PYTHONPATH", f"{toolchain / 'python'}:{path.parent}")
    return path


class TestAnswers:
    @pytest.mark.parametrize(
        ("source", "flags", "kind", "tools"),
        [
            (NOT_IMPORTED, [], SourceImportError, (0, 0)),
            (NOT_LOWERED, [], LoweringError, (1, 0)),
            (KERNEL, REFUSED_FLAGS, ToolError, (1, 1)),
        ],
        ids=["import", "lowering", "ptoas"],
    )
    def test_the_second_try_is_answered_with_the_same_and_runs_no_tool(
        self, source: str, flags: list[str], kind: type[ToolError], tools: tuple[int, int], tool_log: ToolLog
    ) -> None:
        with CompileCache() as cache:
            first = fail(cache, source, flags=flags)
            counts = (tool_log.count("frontend"), tool_log.count("ptoas"))
            assert counts == tools
            second = fail(cache, source, flags=flags)
        third = fail_anew(source, flags=flags)
        assert (tool_log.count("frontend"), tool_log.count("ptoas")) == counts
        assert [error.remembered for error in (first, second, third)] == [False, True, True]
        for error in (second, third):
            assert type(error) is type(first) is kind
            for name in ("tool", "command", "returncode", "stdout", "stderr"):
                assert getattr(error, name) == getattr(first, name)
            assert first.stderr.strip()
            assert first.stderr.rstrip() in str(error)
            assert error.summary.startswith(f"{first.summary}\n(remembered: the same compilation failed ")
            assert "PTOCACHE_FAILURE_TTL=0 compiles it again" in error.summary

    def test_the_frontend_is_not_even_started(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What does not import is not in the log of the tools: the emulated frontend begins with a kernel."""
        fail_anew()
        monkeypatch.setattr("sys.executable", "/nonexistent")
        assert fail_anew().remembered

    def test_diagnostics_of_any_bytes_come_back_as_they_were(self) -> None:
        source = f"{KERNEL}\nimport sys\nsys.stderr.buffer.write(b'\\xff\\0\\x1b')\nraise ValueError('größe')\n"
        first, second = fail_anew(source), fail_anew(source)
        assert second.remembered
        assert second.stderr == first.stderr
        assert "größe" in second.stderr

    def test_failures_count_as_misses_and_apart(self) -> None:
        with CompileCache() as cache:
            for _ in range(3):
                fail(cache)
            cache.compile(KERNEL)
            cache.compile(KERNEL)
            totals = {name: int(count) for name, count in cache.counters.totals().items()}
        wanted = {"hits.memory": 1, "misses": 4, "compiles": 1, "failures": 3, "failures_remembered": 2, "errors": 0}
        assert {name: totals[name] for name in wanted} == wanted

    def test_through_the_command(self, tmp_path: Path, tool_log: ToolLog) -> None:
        (tmp_path / "kernel.py").write_text(NOT_LOWERED)
        first, second = (run_ptocache("compile", tmp_path / "kernel.py", "-o", tmp_path / "out") for _ in range(2))
        for result in (first, second):
            assert (result.returncode, result.stdout) == (1, "")
            assert "NameError: name 'undefined_name' is not defined" in result.stderr
        assert "remembered" not in first.stderr
        assert "(remembered: " in second.stderr
        assert "PTOCACHE_FAILURE_TTL=0" in second.stderr
        assert tool_log.count("frontend") == 1
        statistics = json.loads(run_ptocache("stats", "--json").stdout)
        assert [statistics[name] for name in ("requests", "misses", "failures", "failures_remembered")] == [2, 2, 2, 1]

    def test_eight_processes_on_one_key_run_the_frontend_once(self, tmp_path: Path, tool_log: ToolLog) -> None:
        code = """
import sys, ptocache
try:
    ptocache.compile(sys.stdin.read())
except ptocache.LoweringError as error:
    print(error.remembered, "undefined_name" in error.stderr)
"""
        (tmp_path / "source").write_text(NOT_LOWERED)
        processes = []
        for _ in range(8):
            with (tmp_path / "source").open() as source:
                processes.append(subprocess.Popen([sys.executable, "-c", code], stdin=source, stdout=subprocess.PIPE))
        answers = sorted(process.communicate(timeout=100)[0].decode().strip() for process in processes)
        assert answers == ["False True", *["True True"] * 7]
        assert tool_log.count("frontend") == 1


class TestForgetting:
    def test_a_changed_source(self) -> None:
        fail_anew()
        assert not fail_anew(f"{NOT_IMPORTED}#\n").remembered
        assert fail_anew().remembered

    def test_another_arch(self) -> None:
        fail_anew()
        assert not fail_anew(arch="a3").remembered
        assert fail_anew(arch="a3").remembered

    def test_another_flag(self) -> None:
        fail_anew()
        assert not fail_anew(flags=["--x"]).remembered
        assert fail_anew(flags=["-v"]).remembered, "a flag that only prints changes nothing"

    @pytest.mark.parametrize("tool", ["bin/ptoas", "bin/bisheng", "bin/ld.lld", "python/ptodsl/scalar.py"])
    def test_a_replaced_tool(self, install: Path, tool: str) -> None:
        fail_anew()
        with (install / tool).open("a") as file:
            file.write("\n# changed\n")
        assert not fail_anew().remembered
        assert fail_anew().remembered

    def test_a_changed_helper(self, helper: Path) -> None:
        assert not fail_anew(HELPED).remembered
        assert fail_anew(HELPED).remembered
        helper.write_text("raise ValueError('another reason')\n")
        changed = fail_anew(HELPED)
        assert not changed.remembered
        assert "another reason" in changed.stderr
        helper.write_text("")
        with CompileCache() as cache:
            assert cache.compile(HELPED).origin == "compiled"

    def test_a_variable_that_the_source_reads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        source = f"import os\n{KERNEL}\nif not os.environ.get('TILES'):\n  raise ValueError\n"
        fail_anew(source)
        assert fail_anew(source).remembered
        monkeypatch.setenv("TILES", "4")
        with CompileCache() as cache:
            assert cache.compile(source).origin == "compiled"

    def test_after_its_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fail_anew()
        (path,) = failure_files(tmp_path)
        for seconds, remembered in ((590, True), (610, False)):
            os.utime(path, (time.time() - seconds,) * 2)
            assert fail_anew().remembered == remembered
        assert fail_anew().remembered
        monkeypatch.setenv("PTOCACHE_FAILURE_TTL", "1h")
        os.utime(path, (time.time() - 3000,) * 2)
        error = fail_anew()
        assert error.remembered
        assert "failed 3000 s ago" in error.summary

    def test_a_time_in_the_future_is_not_believed(self, tmp_path: Path) -> None:
        fail_anew()
        os.utime(failure_files(tmp_path)[0], (time.time() + 3600,) * 2)
        assert not fail_anew().remembered

    def test_a_time_of_zero_turns_it_off(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fail_anew()
        (path,) = failure_files(tmp_path)
        monkeypatch.setenv("PTOCACHE_FAILURE_TTL", "0")
        path.unlink()
        for _ in range(2):
            assert not fail_anew().remembered
        assert failure_files(tmp_path) == []

    def test_recompiling_ignores_it(self, monkeypatch: pytest.MonkeyPatch, tool_log: ToolLog) -> None:
        fail_anew(NOT_LOWERED)
        with CompileCache(Settings.load(recompile=True)) as cache:
            assert not fail(cache, NOT_LOWERED).remembered
        assert tool_log.count("frontend") == 2
        assert fail_anew(NOT_LOWERED).remembered

    def test_what_was_stored_meanwhile_is_the_answer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, helper: Path
    ) -> None:
        fail_anew(HELPED)
        helper.write_text("")
        with CompileCache() as cache:
            cache.compile(HELPED)
        helper.write_text("raise ValueError('no such tile')\n")
        assert fail_anew(HELPED).remembered
        helper.write_text("")
        with CompileCache() as cache:
            assert cache.compile(HELPED).origin == "local"

    def test_clearing_the_cache(self, tmp_path: Path) -> None:
        fail_anew()
        assert run_ptocache("clear", "-y").returncode == 0
        assert failure_files(tmp_path) == []
        assert not fail_anew().remembered

    @pytest.mark.parametrize("setting", ["readonly", "disable"])
    def test_a_cache_that_is_not_written_remembers_nothing(self, setting: str, tmp_path: Path) -> None:
        with CompileCache(Settings.load(**{setting: True})) as cache:  # type: ignore[arg-type]
            for _ in range(2):
                assert not fail(cache).remembered
        assert failure_files(tmp_path) == []

    def test_a_readonly_cache_uses_what_is_there_and_leaves_it(self, tmp_path: Path) -> None:
        fail_anew()
        (path,) = failure_files(tmp_path)
        with CompileCache(Settings.load(readonly=True)) as cache:
            assert fail(cache).remembered
            os.utime(path, (1e9, 1e9))
            assert not fail(cache).remembered
        assert path.exists()
        with CompileCache(Settings.load(disable=True)) as cache:
            os.utime(path)
            assert not fail(cache).remembered

    def test_damaged_files_are_no_answer(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        fail_anew()
        (path,) = failure_files(tmp_path)
        good = path.read_bytes()
        (tmp_path / "elsewhere").write_bytes(good)
        flipped = good[:99] + bytes([good[99] ^ 1]) + good[100:]
        makers: list[Callable[[], object]] = [
            lambda data=data: path.write_bytes(data)  # type: ignore[misc]
            for data in (b"", good[:16], good[:-1], flipped, b"foreign\n" * 99)
        ]
        makers += [path.mkdir, lambda: path.symlink_to(tmp_path / "elsewhere"), lambda: os.mkfifo(path)]
        for make in makers:
            path.unlink()
            make()
            assert not fail_anew().remembered
            assert fail_anew().remembered
        assert caplog.records == []


def error_of(tool: str, returncode: int | None, stderr: str, kind: type[ToolError] = ToolError) -> ToolError:
    return kind("it failed", tool=tool, command=[tool], returncode=returncode, stderr=stderr)


class TestNotRemembered:
    """Where the machine and not the source is at fault, or may be, the next try compiles."""

    @pytest.mark.parametrize(
        ("fault", "kind"),
        [
            ("ptoas=signal:9", ToolError),
            ("ptoas=exit:1", ToolError),
            ("ptoas=empty", ToolError),
            ("ptoas=truncate", ToolError),
            ("frontend=exit:3", LoweringError),
            ("frontend=exit:4", SourceImportError),
            ("frontend=empty", ToolError),
            ("bisheng=exit:1", ToolError),
            ("ld.lld=truncate", PtocacheError),
        ],
    )
    def test_a_fault_of_a_tool(
        self, fault: str, kind: type[PtocacheError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PTOCACHE_EMULATOR_FAULT", fault)
        with CompileCache() as cache, pytest.raises(kind):
            cache.compile(KERNEL)
        assert failure_files(tmp_path) == []

    def test_after_a_fault_the_next_try_compiles(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with CompileCache() as cache:
            for fault in ("ptoas=signal:9", "bisheng=exit:1"):
                monkeypatch.setenv("PTOCACHE_EMULATOR_FAULT", fault)
                assert not fail(cache, KERNEL).remembered
            monkeypatch.delenv("PTOCACHE_EMULATOR_FAULT")
            assert cache.compile(KERNEL).origin == "compiled"
            assert int(cache.counters.totals()["failures_remembered"]) == 0

    def test_a_timeout(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PTOCACHE_EMULATOR_FAULT", "ptoas=hang")
        with CompileCache(Settings.load(compile_timeout=1)) as cache, pytest.raises(ToolTimeoutError):
            cache.compile(KERNEL)
        monkeypatch.delenv("PTOCACHE_EMULATOR_FAULT")
        with CompileCache() as cache:
            assert cache.compile(KERNEL).origin == "compiled"

    @pytest.mark.parametrize(
        "script",
        [
            "echo 'ptoas: not executable' >&2; exit 126",
            "echo 'ptoas: inner tool not found' >&2; exit 127",
            "echo 'k.pto:1:1: error: No space left on device' >&2; exit 1",
            "echo 'LLVM ERROR: IO failure: Disk quota exceeded'; echo failed >&2; exit 1",
            "echo 'clang: error: unable to execute command: Killed' >&2; exit 1",
            "echo 'error: rejected' >&2; exit 2",
        ],
    )
    def test_what_ptoas_says_of_the_machine(self, script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        launcher = tmp_path / "ptoas"
        launcher.write_text(f"#!/bin/sh\n{script}\n")
        launcher.chmod(0o755)
        monkeypatch.setenv("PTOAS_BIN", str(launcher))
        fail_anew(KERNEL)
        assert failure_files(tmp_path) == []

    def test_what_the_same_launcher_says_of_the_source_is(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        launcher = tmp_path / "ptoas"
        launcher.write_text("#!/bin/sh\necho 'k.pto:1:1: error: rejected' >&2; exit 1\n")
        launcher.chmod(0o755)
        monkeypatch.setenv("PTOAS_BIN", str(launcher))
        assert [fail_anew(KERNEL).remembered for _ in range(2)] == [False, True]

    def test_a_tool_that_is_missing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with CompileCache() as cache:
            with monkeypatch.context() as patch:
                patch.setenv("PTOAS_BIN", str(tmp_path / "missing"))
                with pytest.raises(ToolNotFoundError):
                    cache.compile(KERNEL)
            assert cache.compile(KERNEL).origin == "compiled"

    def test_a_module_that_is_missing(self, tmp_path: Path, helper: Path) -> None:
        source = f"import later\n{KERNEL}"
        error = fail_anew(source)
        assert "ModuleNotFoundError" in error.stderr
        assert not fail_anew(source).remembered
        (helper.parent / "later.py").touch()
        with CompileCache() as cache:
            assert cache.compile(source).origin == "compiled"

    def test_a_frontend_that_is_missing(self, install: Path) -> None:
        (install / "python" / "ptodsl" / "pto.py").write_text("raise RuntimeError('broken')\n")
        with CompileCache() as cache:
            for _ in range(2):
                error = fail(cache, KERNEL)
                assert isinstance(error, FrontendUnavailableError)
                assert not error.remembered

    def test_a_file_outside_the_import_roots_that_the_source_read(self, tmp_path: Path) -> None:
        """It has no name that another process could look for, so nobody could tell whether it changed."""
        (tmp_path / "sizes").write_text("4")
        source = f"open({str(tmp_path / 'sizes')!r}).read()\n{NOT_IMPORTED}"
        assert [fail_anew(source).remembered for _ in range(2)] == [False, False]

    @pytest.mark.parametrize(
        "error",
        [
            error_of("bisheng", 1, "error: undefined symbol"),
            error_of("ptoas", -11, "error: bad"),
            error_of("ptoas", None, "error: bad"),
            error_of("ptoas", 1, " \n"),
            error_of("frontend", 1, "Traceback"),
            error_of("ptoas", 1, "error: bad", ToolTimeoutError),
            error_of("frontend", 2, "error: bad", FrontendUnavailableError),
            error_of("frontend", 4, "KeyboardInterrupt", SourceImportError),
            error_of("frontend", 3, "MemoryError", LoweringError),
            error_of("frontend", 4, "OSError: [Errno 28] No space left on device", SourceImportError),
            error_of("frontend", 4, "ImportError: cannot import name 'x'", SourceImportError),
            error_of("ptoas", 1, "sh: bisheng: command not found"),
            error_of("ptoas", 1, "PLEASE submit a bug report and include the crash backtrace."),
        ],
        ids=lambda error: f"{error.tool} {error.returncode} {error.stderr.strip()}",
    )
    def test_by_rule(self, error: ToolError) -> None:
        assert not will_repeat(error)

    @pytest.mark.parametrize(
        "error",
        [
            error_of("ptoas", 1, "k.pto:3:1: error: unregistered operation"),
            error_of("frontend", 3, "TypeError: bad tile", LoweringError),
            error_of("frontend", 4, "ValueError: bad tile", SourceImportError),
        ],
        ids=lambda error: error.tool,
    )
    def test_what_is_the_sources_fault_is_by_the_same_rule(self, error: ToolError) -> None:
        assert will_repeat(error)


class TestSize:
    """The directory does not grow without bound."""

    LIMIT = 16 << 20
    FOLDER_LIMIT = LIMIT // FOLDERS

    def key(self, number: int, folder: str | None = None) -> Key:
        name = xxhash.xxh3_128_hexdigest(str(number).encode())
        return Key((folder or name[0]) + name[1:], bytes(32))

    def error(self, size: int) -> ToolError:
        return error_of("ptoas", 1, "x" * size)

    def failures(self, directory: Path, limit: int = LIMIT) -> Failures:
        return Failures(Layout(str(directory)), 600, limit)

    def total(self, directory: Path) -> int:
        """What the files take on disk."""
        return sum(path.stat().st_blocks * 512 for path in (directory / "failures").rglob("*") if path.is_file())

    def test_it_is_bounded_in_bytes_and_the_newest_are_kept(self, tmp_path: Path) -> None:
        failures = self.failures(tmp_path)
        keys = [self.key(number, "a") for number in range(40)]
        now = time.time()
        for age, key in enumerate(reversed(keys)):
            failures.put(key, self.error(self.FOLDER_LIMIT // 10), b"")
            os.utime(tmp_path / "failures" / "a" / key.name[1:], (now - 100 + age,) * 2)
            assert self.total(tmp_path) <= self.FOLDER_LIMIT
        found = [failures.get(key, self.accept) is not None for key in reversed(keys)]
        assert 8 <= sum(found) <= 10
        assert found == sorted(found)

    def test_many_failures_stay_within_the_bound(self, tmp_path: Path) -> None:
        failures = self.failures(tmp_path)
        sizes = random.Random(1)
        for number in range(200):
            failures.put(self.key(number, "a"), self.error(sizes.randrange(self.FOLDER_LIMIT // 4)), b"")
        assert self.FOLDER_LIMIT // 2 < self.total(tmp_path) <= self.FOLDER_LIMIT

    def test_many_failures_in_all_folders_stay_within_the_bound(self, tmp_path: Path) -> None:
        """A small one takes a block on disk, whatever its size."""
        limit = FOLDERS * 5 * blocks(1)
        failures = self.failures(tmp_path, limit)
        for number in range(400):
            failures.put(self.key(number), self.error(number % 100), b"")
        assert limit // 2 < self.total(tmp_path) <= limit
        assert {path.name for path in (tmp_path / "failures").iterdir()} == set("0123456789abcdef")

    def test_a_small_limit_remembers_small_failures_only(self, tmp_path: Path) -> None:
        failures = self.failures(tmp_path, FOLDERS * blocks(1))
        for number, (size, remembered) in enumerate([(10, True), (blocks(1), False), (1000, True)]):
            failures.put(self.key(number), self.error(size), b"")
            assert (failures.get(self.key(number), self.accept) is not None) == remembered

    def test_where_there_is_no_room_nothing_is_remembered(self, tmp_path: Path) -> None:
        failures = self.failures(tmp_path, FOLDERS * blocks(1) - 1)
        failures.put(self.key(1), self.error(10), b"")
        assert failures.get(self.key(1), self.accept) is None
        assert list(tmp_path.glob("failures*")) == []

    def test_what_is_too_old_goes_with_the_next_one(self, tmp_path: Path) -> None:
        failures = self.failures(tmp_path)
        failures.put(self.key(1, "a"), self.error(10), b"")
        folder = tmp_path / "failures" / "a"
        (folder / "x.123.tmp").write_text("left by a process that was killed")
        for path in folder.iterdir():
            os.utime(path, (time.time() - 700,) * 2)
        failures.put(self.key(2, "a"), self.error(10), b"")
        assert [path.name for path in folder.iterdir()] == [self.key(2, "a").name[1:]]
        assert list((tmp_path / "temp").iterdir()) == []

    def test_diagnostics_that_are_too_long_are_not_remembered(self, tmp_path: Path) -> None:
        failures = self.failures(tmp_path)
        failures.put(self.key(1), self.error(1 << 20), b"")
        assert not (tmp_path / "failures").exists()

    def test_a_directory_that_cannot_be_written_is_no_error(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        shutil.rmtree(tmp_path / "cache")
        (tmp_path / "cache").write_text("a file")
        for _ in range(2):
            assert isinstance(fail_anew(), SourceImportError)

    @pytest.mark.parametrize(
        "change",
        [
            {"check": "00"},
            {"kind": "ToolTimeoutError"},
            {"kind": "explained"},
            {"kind": "NotACacheError"},
            {"kind": ["ToolError"]},
            {"inputs": "xyz"},
            {"command": 3},
            {"command": [3]},
            {"stderr": None},
            {"summary": {}},
            {"tool": None},
            None,
        ],
    )
    def test_a_well_made_file_with_other_content_is_no_answer(
        self, change: dict[str, object] | None, tmp_path: Path
    ) -> None:
        failures, key = self.failures(tmp_path), self.key(1)
        failures.put(key, self.error(10), b"")
        assert failures.get(key, bool) is None, "its inputs are not accepted"
        assert failures.get(key, self.accept) is not None
        (path,) = (path for path in (tmp_path / "failures").rglob("*") if path.is_file())
        body = json.dumps([] if change is None else {**json.loads(path.read_bytes()[16:]), **change}).encode()
        path.write_bytes(xxhash.xxh3_128_digest(body) + body)
        assert failures.get(key, self.accept) is None
        assert not path.exists()

    def accept(self, inputs: bytes) -> bool:
        return True
