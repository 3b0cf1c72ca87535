"""The way of a request, through the real stages on the emulated install."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import KERNEL, ToolLog, numbered_kernel

import ptocache
from ptocache import CompileCache, Settings, pto_toolchain
from ptocache.emulator import write_install
from ptocache.errors import DeviceBinaryError, PtocacheError, SettingsError, SourceError, SourceImportError
from ptocache.store.upkeep import usage

pytestmark = pytest.mark.usefixtures("toolchain")


def totals(cache: CompileCache) -> dict[str, int]:
    return {name: int(count) for name, count in cache.counters.totals().items()}


def test_the_first_request_compiles_and_the_next_ones_hit(tool_log: ToolLog) -> None:
    expected = pto_toolchain.compile_ptodsl_to_aibin(KERNEL, "a5", [])
    with CompileCache() as cache:
        compiled, again = cache.compile(KERNEL), cache.compile(KERNEL)
    with CompileCache() as another:
        local = another.compile(KERNEL)
    assert [(r.origin, r.via) for r in (compiled, again, local)] == [
        ("compiled", None),
        ("memory", "source"),
        ("local", "source"),
    ]
    assert compiled.aibin == again.aibin == local.aibin == expected
    assert compiled.key == again.key == local.key
    assert compiled.sha256 == local.sha256
    assert local.kernels == ["main_kernel"]
    assert all(r.seconds > 0 for r in (compiled, again, local))
    assert tool_log.count("ptoas") == 2


def test_the_module_level_function_returns_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    aibin = ptocache.compile(KERNEL)
    assert isinstance(aibin, bytes)
    monkeypatch.setenv("PTOCACHE_DIR", str(tmp_path / "other"))
    assert ptocache.compile(KERNEL) == aibin
    assert (tmp_path / "other" / "outputs").is_dir()


def test_a_changed_comment_runs_the_frontend_alone(tool_log: ToolLog) -> None:
    with CompileCache() as cache:
        compiled = cache.compile(KERNEL)
        commented = cache.compile(KERNEL + "# a comment\n")
        again = cache.compile(KERNEL + "# a comment\n")
    assert (commented.origin, commented.via) == ("memory", "pto")
    assert (again.origin, again.via) == ("memory", "source")
    assert commented.key != compiled.key
    assert commented.aibin == compiled.aibin
    assert [tool_log.count(tool) for tool in ("frontend", "ptoas", "bisheng")] == [2, 1, 1]


def test_a_known_lowered_text_still_has_to_have_this_sources_kernels() -> None:
    """Two sources with one lowered text: a decorator in the second hides what the device calls its kernel."""
    renaming = "def rename(kernel):\n  kernel.name = 'main_kernel'\n  return kernel\n\n\n@rename\n@pto.jit"
    other = KERNEL.replace("@pto.jit", renaming).replace('name="main_kernel"', 'name="other"')
    with CompileCache() as cache:
        cache.compile(KERNEL)
        with pytest.raises(DeviceBinaryError, match="other"):
            cache.compile(other)


@pytest.mark.parametrize(
    ("changed", "arguments"),
    [
        ("source", (numbered_kernel(1), "a5", [])),
        ("arch", (KERNEL, "a3", [])),
        ("flags", (KERNEL, "a5", ["--pto-level=level3"])),
    ],
)
def test_another_request_is_another_action(changed: str, arguments: tuple[str, str, list[str]]) -> None:
    with CompileCache() as cache:
        first = cache.compile(KERNEL, "a5", [])
        other = cache.compile(*arguments)
    assert other.origin == "compiled"
    assert other.key != first.key
    assert other.aibin != first.aibin


def test_equal_options_in_other_words_are_the_same_request(monkeypatch: pytest.MonkeyPatch) -> None:
    with CompileCache() as cache:
        first = cache.compile(KERNEL)
        monkeypatch.setenv("PTO_ARCH", " A5 ")
        monkeypatch.setenv("PTO_FLAGS", "--pto-backend=vpto")
        assert cache.compile(KERNEL).key == first.key
        assert cache.compile(KERNEL, "A5", "").key == first.key


def test_another_cann_version_is_another_action(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = write_install(tmp_path / "newer", "9.1.0")
    with CompileCache() as cache:
        first = cache.compile(KERNEL)
        with monkeypatch.context() as patch:
            patch.setenv("ASCEND_HOME_PATH", str(other))
            patch.setenv("PTOAS_BIN", str(other / "bin" / "ptoas"))
            second = cache.compile(KERNEL)
        third = cache.compile(KERNEL)
    assert second.origin == "compiled"
    assert second.aibin != first.aibin
    assert (third.origin, third.key) == ("memory", first.key)


def test_a_tool_that_is_replaced_while_it_compiles_stores_nothing(
    toolchain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The assembler itself changes the linker: a replacement in the middle of the pipeline, each time."""
    home = tmp_path / "cann"
    shutil.copytree(toolchain, home, symlinks=True)
    launcher = home / "bin" / "ptoas"
    first_line, _, rest = launcher.read_text().partition("\n")
    launcher.write_text(f"{first_line}\necho '# replaced' >> {home}/bin/ld.lld\n{rest}")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(home))
    monkeypatch.setenv("PTOAS_BIN", str(launcher))
    with CompileCache() as cache:
        assert cache.compile(KERNEL).origin == "compiled"
        assert usage(cache.local).entries == 0


class TestFailures:
    @pytest.mark.parametrize(
        ("source", "error"),
        [
            ("", SourceError),
            ("def broken(:\n", SourceError),
            (f"{KERNEL}\n1 / 0\n", SourceImportError),
        ],
    )
    def test_a_failure_is_raised_counted_and_never_stored(self, source: str, error: type[PtocacheError]) -> None:
        with CompileCache() as cache:
            for _ in range(2):
                with pytest.raises(error):
                    cache.compile(source)
            assert usage(cache.local).entries == 0
            assert {name: totals(cache)[name] for name in ("misses", "failures", "compiles")} == {
                "misses": 2,
                "failures": 2,
                "compiles": 0,
            }
        assert os.listdir(os.environ["TMPDIR"]) == []

    def test_an_unknown_arch_is_wrong_use(self) -> None:
        with CompileCache() as cache, pytest.raises(SettingsError, match="a9"):
            cache.compile(KERNEL, "a9")

    def test_after_a_failure_the_next_try_compiles(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with CompileCache() as cache:
            with monkeypatch.context() as patch:
                patch.setenv("PTOCACHE_EMULATOR_FAULT", "bisheng=truncate")
                with pytest.raises(PtocacheError):
                    cache.compile(KERNEL)
            assert cache.compile(KERNEL).origin == "compiled"


class TestSettings:
    def test_disabled_it_compiles_every_time_and_touches_nothing(self, tool_log: ToolLog, tmp_path: Path) -> None:
        with CompileCache(Settings.load(disable=True)) as cache:
            assert [cache.compile(KERNEL).origin for _ in range(2)] == ["compiled", "compiled"]
        assert tool_log.count("ptoas") == 2
        assert not (tmp_path / "cache").exists()

    def test_readonly_uses_what_is_there_and_stores_nothing(self, tmp_path: Path) -> None:
        with CompileCache() as cache:
            cache.compile(KERNEL)
        before = snapshot(tmp_path / "cache")
        with CompileCache(Settings.load(readonly=True)) as cache:
            assert cache.compile(KERNEL).origin == "local"
            assert cache.compile(numbered_kernel(1)).origin == "compiled"
        assert snapshot(tmp_path / "cache") == before

    def test_settings_given_in_code_rule_the_pipeline_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("ASCEND_HOME_PATH", "PTOAS_BIN", "PYTHONPATH"):
            monkeypatch.delenv(name)
        with CompileCache(Settings.load(toolchain="emulated")) as cache:
            assert cache.compile(KERNEL).origin == "compiled"

    def test_emulated_and_used_as_installed_are_the_same_toolchain(self, monkeypatch: pytest.MonkeyPatch) -> None:
        installed = pto_toolchain.toolchain_stamp()
        monkeypatch.setenv("PTOCACHE_TOOLCHAIN", "emulated")
        assert pto_toolchain.toolchain_stamp() == installed
        assert installed.startswith("emulated-9.0.0-")


class TestTrouble:
    """Whatever happens to the cache, the compile returns what it would have without one."""

    def test_a_file_in_the_place_of_the_directory(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        (tmp_path / "cache").write_text("not a directory")
        with CompileCache() as cache:
            assert cache.compile(KERNEL).origin == "compiled"
            assert cache.compile(numbered_kernel(1)).origin == "compiled"
            assert cache.compile(KERNEL).origin == "memory"
        warnings = [record for record in caplog.records if record.levelname == "WARNING"]
        assert len(warnings) == 1
        assert "PTOCACHE_DIR" in warnings[0].getMessage()
        assert (tmp_path / "cache").read_text() == "not a directory"

    def test_a_directory_that_cannot_be_written(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with mounted(tmp_path / "readonly", "ro"), CompileCache(Settings.load(dir=tmp_path / "readonly")) as cache:
            assert cache.compile(KERNEL).origin == "compiled"
            assert cache.compile(KERNEL).origin == "memory"
        assert sum(record.levelname == "WARNING" for record in caplog.records) == 1

    def test_a_full_disk(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        small = tmp_path / "small"
        with mounted(small, "size=16k"):
            with CompileCache(Settings.load(dir=small / "cache")) as cache:
                assert cache.compile(KERNEL).origin == "compiled"
                assert cache.compile(numbered_kernel(1)).origin == "compiled"
            assert sum(record.levelname == "WARNING" for record in caplog.records) == 1
            assert not list(small.rglob("*.tmp"))

    @pytest.mark.parametrize("damage", ["empty", "truncated", "foreign", "flipped", "directory", "missing"])
    def test_damage_anywhere_in_the_directory_repairs_itself(
        self, tmp_path: Path, damage: str, tool_log: ToolLog
    ) -> None:
        directory = tmp_path / "cache"
        with CompileCache() as cache:
            expected = cache.compile(KERNEL).aibin
        files = sorted(path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
        assert len(files) >= 5
        for name in files:
            path = directory / name
            if not path.is_file():
                continue
            harm(path, damage)
            with CompileCache() as cache:
                result = cache.compile(KERNEL)
                assert result.aibin == expected, name
            with CompileCache() as cache:
                assert cache.compile(KERNEL).origin == "local", name
        with CompileCache() as cache:
            cache.compile(numbered_kernel(1))
            assert usage(cache.local).entries == 2

    def test_a_home_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("PTOCACHE_DIR")
        monkeypatch.setenv("HOME", "/proc/no/such/home")
        with CompileCache() as cache:
            assert cache.compile(KERNEL).origin == "compiled"


@contextlib.contextmanager
def mounted(directory: Path, options: str) -> Iterator[None]:
    """A file system in memory at a directory; only root may mount one."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here: that takes root")
    try:
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def harm(path: Path, damage: str) -> None:
    data = path.read_bytes()
    path.unlink()
    if damage == "directory":
        (path / "below").mkdir(parents=True)
    elif damage != "missing":
        middle = len(data) // 2
        path.write_bytes(
            {
                "empty": b"",
                "truncated": data[:middle],
                "foreign": b"something else entirely\n" * 400,
                "flipped": data[:middle] + bytes([data[middle] ^ 1 if data else 1]) + data[middle + 1 :],
            }[damage]
        )


def snapshot(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in directory.rglob("*")
    }


class TestThreads:
    def test_one_key_in_many_threads_compiles_once(self, tool_log: ToolLog) -> None:
        with CompileCache() as cache, ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda _: cache.compile(KERNEL), range(8)))
        assert tool_log.count("ptoas") == 1
        assert len({result.aibin for result in results}) == 1
        assert sum(result.origin == "compiled" for result in results) == 1

    def test_different_keys_compile_at_the_same_time(self, tmp_path: Path, toolchain: Path, tool_log: ToolLog) -> None:
        """Each ptoas waits for the other one: one after the other they would wait for ever."""
        launcher = tmp_path / "ptoas"
        meet = 'touch "$0.$$"; while [ "$(ls "$0".* | wc -l)" -lt 2 ]; do sleep 0.01; done'
        launcher.write_text(f'#!/bin/sh\n{meet}\nexec "{toolchain}/bin/ptoas" "$@"\n')
        launcher.chmod(0o755)
        os.environ["PTOAS_BIN"] = str(launcher)  # the fixture's monkeypatch restores it
        with CompileCache(Settings.load(compile_timeout=60)) as cache, ThreadPoolExecutor(2) as pool:
            results = list(pool.map(cache.compile, [numbered_kernel(1), numbered_kernel(2)]))
        assert [result.origin for result in results] == ["compiled", "compiled"]


def test_a_forked_child_uses_the_cache_on() -> None:
    with CompileCache() as cache:
        expected = cache.compile(KERNEL).aibin
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                fine = cache.compile(KERNEL).aibin == expected and cache.compile(numbered_kernel(1)).aibin != expected
                status = 0 if fine else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert cache.compile(numbered_kernel(1)).origin == "local"


def test_a_hit_imports_only_what_a_hit_needs() -> None:
    with CompileCache() as cache:
        cache.compile(KERNEL)
    code = (
        "import sys, ptocache\n"
        "ptocache.compile(sys.stdin.read())\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))\n"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], input=KERNEL, capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = {"diskcache", "sqlite3", "filelock", "elftools", "logging", "argparse", "subprocess", "tempfile", "json"}
    assert heavy & set(loaded) == set()


def test_importing_ptocache_loads_next_to_nothing() -> None:
    code = "import sys; before = set(sys.modules); import ptocache; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert set(loaded) <= {"ptocache", "__future__"}
