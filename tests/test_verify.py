"""`PTOCACHE_VERIFY` compiles on a hit too and compares; `PTOCACHE_RECOMPILE` replaces what is stored."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import KERNEL, ToolLog, numbered_kernel, run_ptocache

from ptocache import CompileCache, Settings
from ptocache.errors import ToolError
from ptocache.request import Key
from ptocache.store.entry import make_entry

pytestmark = pytest.mark.usefixtures("toolchain")

COMMENTED = f"{KERNEL}# a comment\n"


@pytest.fixture(scope="module")
def compiled(cann: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A cache directory with `KERNEL` and another kernel, for being copied, and the other one's binary."""
    directory = tmp_path_factory.mktemp("compiled") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASCEND_HOME_PATH", str(cann))
        patch.setenv("PTOAS_BIN", str(cann / "bin" / "ptoas"))
        patch.setenv("PYTHONPATH", str(cann / "python"))
        with CompileCache(Settings.load({}, dir=directory)) as cache:
            cache.compile(KERNEL, "a5", [])
            return directory, cache.compile(numbered_kernel(5), "a5", []).aibin


@pytest.fixture(autouse=True)
def kernel_stored(compiled: tuple[Path, bytes], tmp_path: Path) -> None:
    """`KERNEL` has been compiled, and another one."""
    shutil.copytree(compiled[0], tmp_path / "cache")


@pytest.fixture
def plant(compiled: tuple[Path, bytes]) -> Callable[..., tuple[bytes, bytes]]:
    """Stores another kernel's binary under a key of `KERNEL`, and returns the right and the planted one."""

    def store(pto: bool = False) -> tuple[bytes, bytes]:
        with CompileCache() as cache:
            right, wrong = cache.compile(KERNEL), compiled[1]
            assert right.origin == "local"
            for name, action in list(cache.local.all_actions()):
                if action.sha256 == right.action.sha256 and ("pto" in action.details()) == pto:
                    entry = make_entry(
                        wrong,
                        seconds=action.seconds,
                        created=action.created,
                        facts=action.details(),
                        inputs=action.inputs,
                    )
                    cache.local.put([Key(name, action.check)], entry)
        return right.aibin, wrong

    return store


Plant = Callable[..., tuple[bytes, bytes]]


def sha256(aibin: bytes) -> str:
    return make_entry(aibin, seconds=0, created=0, facts={}).action.sha256.hex()


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def verifying() -> CompileCache:
    return CompileCache(Settings.load(verify=True))


class TestVerify:
    def test_what_is_equal_is_the_hit_and_nothing_is_said(
        self, tool_log: ToolLog, caplog: pytest.LogCaptureFixture
    ) -> None:
        with CompileCache() as cache:
            plain = cache.compile(KERNEL)
        with verifying() as cache:
            local, memory = cache.compile(KERNEL), cache.compile(KERNEL)
        assert [(r.origin, r.via) for r in (local, memory)] == [("local", "source"), ("memory", "source")]
        assert local.aibin == memory.aibin == plain.aibin
        assert [tool_log.count(tool) for tool in ("frontend", "ptoas", "bisheng")] == [2, 2, 2]
        assert caplog.records == []

    def test_a_miss_is_compiled_once(self, tool_log: ToolLog) -> None:
        with verifying() as cache:
            assert cache.compile(numbered_kernel(1)).origin == "compiled"
        assert tool_log.count("ptoas") == 1

    def test_what_differs_is_reported_and_replaced(self, plant: Plant, caplog: pytest.LogCaptureFixture) -> None:
        right, wrong = plant()
        with CompileCache() as cache:
            planted = cache.compile(KERNEL)
            assert (planted.origin, planted.aibin) == ("local", wrong), "nothing was planted"
        caplog.clear()
        with verifying() as cache:
            result = cache.compile(KERNEL)
            assert (result.origin, result.via, result.aibin) == ("compiled", None, right)
            assert cache.compile(KERNEL).origin == "memory"
            assert cache.counters.totals()["errors"] == 1
        (message,) = errors(caplog)
        for word in (sha256(right), sha256(wrong), result.key, "local", "arch: a5", "version=9.0.0", "bisheng: "):
            assert word in message
        assert message.count("\n") == 0
        with CompileCache() as cache:
            again = cache.compile(KERNEL)
        assert (again.origin, again.aibin) == ("local", right)

    def test_what_differs_in_memory_is_replaced_there(self, plant: Plant, caplog: pytest.LogCaptureFixture) -> None:
        right, wrong = plant()
        with CompileCache() as cache:
            assert cache.compile(KERNEL).aibin == wrong
            cache.settings = Settings.load(verify=True)
            assert cache.compile(KERNEL).aibin == right
            cache.settings = Settings.load()
            again = cache.compile(KERNEL)
            assert (again.origin, again.aibin) == ("memory", right)
        assert len(errors(caplog)) == 1
        assert "the memory cache" in errors(caplog)[0]

    def test_a_hit_of_the_lowered_text_is_verified_too(
        self, plant: Plant, tool_log: ToolLog, caplog: pytest.LogCaptureFixture
    ) -> None:
        right, wrong = plant(pto=True)
        with verifying() as cache:
            result = cache.compile(COMMENTED)
            assert (result.origin, result.via, result.aibin) == ("compiled", None, right)
        (message,) = errors(caplog)
        assert sha256(right) in message
        assert sha256(wrong) in message
        runs = tool_log.count("ptoas")
        with verifying() as cache:
            result = cache.compile(f"{COMMENTED}#\n")
        assert (result.origin, result.via, result.aibin) == ("local", "pto", right)
        assert tool_log.count("ptoas") == runs + 1
        assert len(errors(caplog)) == 1

    def test_requests_still_add_up(self, plant: Plant) -> None:
        plant()
        with CompileCache() as cache:
            before = cache.counters.totals()
        with verifying() as cache:
            for source in (KERNEL, KERNEL, COMMENTED, numbered_kernel(1)):
                cache.compile(source)
            after = cache.counters.totals()
        new = {name: int(after[name] - before[name]) for name in after}
        assert sum(new[name] for name in ("hits.local", "hits.memory", "hits.pto", "misses")) == 4
        assert new["misses"] == new["compiles"] == 1

    def test_a_tool_that_fails_is_an_error_as_without_a_cache(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with CompileCache() as cache:
            cache.compile(KERNEL)
        monkeypatch.setenv("PTOCACHE_EMULATOR_FAULT", "bisheng=exit:1")
        with verifying() as cache, pytest.raises(ToolError, match="bisheng"):
            cache.compile(KERNEL)

    def test_readonly_reports_and_replaces_nothing(self, plant: Plant, caplog: pytest.LogCaptureFixture) -> None:
        right, wrong = plant()
        with CompileCache(Settings.load(verify=True, readonly=True)) as cache:
            assert cache.compile(KERNEL).aibin == right
        assert len(errors(caplog)) == 1
        with CompileCache() as cache:
            assert cache.compile(KERNEL).aibin == wrong

    def test_the_command_reports_it_too(self, plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        right, _ = plant()
        (tmp_path / "kernel.py").write_text(KERNEL)
        monkeypatch.setenv("PTOCACHE_VERIFY", "1")
        result = run_ptocache("compile", tmp_path / "kernel.py", "-o", tmp_path / "out")
        assert result.returncode == 0
        assert result.stderr.startswith("ptocache: ERROR: PTOCACHE_VERIFY: ")
        assert (tmp_path / "out").read_bytes() == right


class TestRecompile:
    def recompiling(self) -> CompileCache:
        return CompileCache(Settings.load(recompile=True))

    @pytest.mark.parametrize("pto", [False, True])
    def test_nothing_that_is_stored_is_used_and_all_of_it_is_replaced(
        self, plant: Plant, pto: bool, tool_log: ToolLog
    ) -> None:
        right, _ = plant(pto)
        runs = tool_log.count("ptoas")
        with self.recompiling() as cache:
            result = cache.compile(KERNEL)
        assert (result.origin, result.via, result.aibin) == ("compiled", None, right)
        assert tool_log.count("ptoas") == runs + 1
        with CompileCache() as cache:
            results = [cache.compile(source) for source in (KERNEL, COMMENTED)]
        assert [(r.origin, r.via, r.aibin) for r in results] == [("local", "source", right), ("local", "pto", right)]

    def test_memory_is_replaced_too(self, plant: Plant) -> None:
        right, wrong = plant()
        with CompileCache() as cache:
            assert cache.compile(KERNEL).aibin == wrong
            cache.settings = Settings.load(recompile=True)
            assert cache.compile(KERNEL).origin == "compiled"
            cache.settings = Settings.load()
            again = cache.compile(KERNEL)
        assert (again.origin, again.aibin) == ("memory", right)

    def test_it_compiles_each_time(self, tool_log: ToolLog) -> None:
        with self.recompiling() as cache:
            before = cache.counters.totals()
            assert [cache.compile(KERNEL).origin for _ in range(2)] == ["compiled", "compiled"]
            after = cache.counters.totals()
        assert [after[name] - before[name] for name in ("misses", "compiles", "hits.local")] == [2, 2, 0]
        assert tool_log.count("ptoas") == 2

    def test_through_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        code = "import sys, ptocache; r = ptocache.CompileCache().compile(sys.stdin.read()); print(r.origin)"
        origins = []
        for value in ("0", "1", "0"):
            monkeypatch.setenv("PTOCACHE_RECOMPILE", value)
            command = [sys.executable, "-c", code]
            done = subprocess.run(command, input=KERNEL, capture_output=True, text=True, check=True)
            origins.append(done.stdout.strip())
        assert origins == ["local", "compiled", "local"]


def test_tools_that_are_gone_when_it_is_done_do_not_fail_the_compile(
    toolchain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool_log: ToolLog
) -> None:
    """The linker's own launcher removes ptoas: the binary is made, and cannot be stored under any identity."""
    place = tmp_path / "bin"
    place.mkdir()
    for name in ("ptoas", "bisheng"):
        removing = f"rm {place}/ptoas\n" if name == "bisheng" else ""
        (place / name).write_text(f'#!/bin/sh\n{removing}exec "{toolchain}/bin/{name}" "$@"\n')
        (place / name).chmod(0o755)
    monkeypatch.setenv("PTOAS_BIN", str(place / "ptoas"))
    monkeypatch.setenv("BISHENG_HOME", str(tmp_path))
    with CompileCache() as cache:
        result = cache.compile(KERNEL)
        assert result.origin == "compiled"
        assert cache.local.actions(result.key) == []
    assert not (place / "ptoas").exists()
    assert tool_log.count("bisheng") == 1


def test_a_frontend_that_is_replaced_while_it_lowers_stores_nothing(
    toolchain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it where the lowered text is known: what the new frontend wrote has no place under the old one's key."""
    python = Path(shutil.copytree(toolchain, tmp_path / "cann", symlinks=True)) / "python"
    # The helper is what replaces it, each time it is imported.
    (tmp_path / "replacing.py").write_text(
        f"with open({str(python / 'ptodsl' / 'scalar.py')!r}, 'a') as file:\n  file.write('#\\n')\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{python}:{tmp_path}")
    source = f"import replacing\n{KERNEL}"
    with CompileCache() as cache:
        result = cache.compile(source)
        assert result.via == "pto", "the lowered text is another one, so this test would prove nothing"
        assert cache.local.actions(result.key) == []
