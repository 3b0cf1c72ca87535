"""The documented toolchain API, run against the emulated install as against a real one."""

from __future__ import annotations

import inspect
import logging
import os
import signal
import sys
from pathlib import Path

import pytest
from conftest import KERNEL, ToolLog

from ptocache import pto_toolchain
from ptocache.errors import (
    DeviceBinaryError,
    FrontendUnavailableError,
    ImageError,
    LoweringError,
    PtocacheError,
    SettingsError,
    SourceError,
    SourceImportError,
    ToolError,
    ToolNotFoundError,
    ToolTimeoutError,
)

pytestmark = pytest.mark.usefixtures("toolchain")


def lower(source: str, tmp_path: Path, names: list[str] | None = None) -> str:
    out = tmp_path / "kernel.pto"
    names = pto_toolchain.parse_pto_kernel_names(source) if names is None else names
    pto_toolchain.compile_ptodsl_to_pto(source, names, tmp_path / "kernel.py", out)
    return out.read_text()


class TestNames:
    def test_the_functions_have_the_documented_arguments(self) -> None:
        arguments = {
            name: list(inspect.signature(getattr(pto_toolchain, name)).parameters)
            for name in pto_toolchain.__all__
            if callable(getattr(pto_toolchain, name))
        }
        assert arguments == {
            "resolve_pto_options": [],
            "parse_pto_kernel_names": ["ptodsl_source"],
            "compile_ptodsl_to_pto": ["ptodsl_source", "kernel_names", "src_path", "out_path", "verbose"],
            "run_ptoas": ["pto_path", "fatobj_path", "pto_arch", "pto_flags", "verbose"],
            "bisheng_fatobj_link": ["fatobj_path", "out_so", "verbose"],
            "extract_aicore_binary": ["so_path"],
            "toolchain_stamp": [],
            "compile_ptodsl_to_aibin": ["ptodsl_source", "pto_arch", "pto_flags", "verbose"],
        }

    def test_the_attributes_are_the_documented_ones(self) -> None:
        assert pto_toolchain.BISHENG_FATOBJ_LINK_FLAGS == ("-fPIC", "-shared", "--cce-fatobj-link")
        assert isinstance(pto_toolchain.logger, logging.Logger)


class TestOptions:
    @pytest.mark.parametrize(
        ("arch", "flags", "expected"),
        [
            (None, None, ("a5", ["--pto-backend=vpto"])),
            ("", "", ("a5", ["--pto-backend=vpto"])),
            (" A3 ", "--x 'a b'", ("a3", ["--x", "a b", "--pto-backend=vpto"])),
            ("a2", "--pto-backend=emitc", ("a2", ["--pto-backend=emitc"])),
            ("a5", "--pto-backend emitc --y", ("a5", ["--pto-backend=emitc", "--y"])),
        ],
    )
    def test_options_come_from_the_environment(
        self, monkeypatch: pytest.MonkeyPatch, arch: str | None, flags: str | None, expected: tuple[str, list[str]]
    ) -> None:
        for name, value in (("PTO_ARCH", arch), ("PTO_FLAGS", flags)):
            if value is not None:
                monkeypatch.setenv(name, value)
        assert pto_toolchain.resolve_pto_options() == expected

    def test_an_unknown_arch_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PTO_ARCH", "a9")
        with pytest.raises(SettingsError, match=r"'a9'.*a5, a3, a2"):
            pto_toolchain.resolve_pto_options()

    def test_an_open_quote_in_the_flags_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PTO_FLAGS", "--x='")
        with pytest.raises(SettingsError, match="PTO_FLAGS"):
            pto_toolchain.resolve_pto_options()


class TestFrontend:
    def test_a_source_becomes_mlir_with_its_kernel(self, tmp_path: Path) -> None:
        assert "@main_kernel" in lower(KERNEL, tmp_path)

    def test_several_kernels_become_one_module(self, tmp_path: Path) -> None:
        second = KERNEL.partition("\n\n\n")[2].replace("main_kernel", "other")
        text = lower(f"{KERNEL}\n\n{second}", tmp_path)
        assert "@main_kernel" in text
        assert "@other" in text

    def test_a_source_that_raises_is_an_import_error_with_its_traceback(self, tmp_path: Path) -> None:
        with pytest.raises(SourceImportError, match="ZeroDivisionError") as caught:
            lower(f"{KERNEL}\n1 / 0\n", tmp_path)
        assert "kernel.py" in caught.value.stderr
        assert caught.value.tool == "frontend"

    def test_a_source_that_exits_is_an_import_error(self, tmp_path: Path) -> None:
        with pytest.raises(SourceImportError, match="SystemExit"):
            lower(f"{KERNEL}\nraise SystemExit(0)\n", tmp_path)

    def test_a_missing_import_of_the_source_is_an_import_error(self, tmp_path: Path) -> None:
        with pytest.raises(SourceImportError, match="no_such_module"):
            lower(f"import no_such_module\n{KERNEL}", tmp_path)

    def test_a_body_that_raises_is_a_lowering_error(self, tmp_path: Path) -> None:
        with pytest.raises(LoweringError, match="NameError"):
            lower(f"{KERNEL}  undefined_name()\n", tmp_path)

    def test_a_name_that_is_no_kernel_is_a_lowering_error(self, tmp_path: Path) -> None:
        with pytest.raises(LoweringError, match="not a kernel"):
            lower(f"{KERNEL}\nhelper = 1\n", tmp_path, ["helper"])

    def test_a_missing_frontend_is_an_error_of_its_own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONPATH", "")
        with pytest.raises(FrontendUnavailableError, match="ptodsl"):
            lower(KERNEL, tmp_path)

    @pytest.mark.parametrize("names", [[], ["not a name"], [""]])
    def test_names_that_are_none_are_refused(self, tmp_path: Path, names: list[str]) -> None:
        with pytest.raises(SourceError, match="names of the kernels"):
            lower(KERNEL, tmp_path, names)

    def test_the_working_directory_is_not_on_the_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        trap = tmp_path / "trap"
        trap.mkdir()
        for module in ("ptodsl", "json", "traceback", "tilelang", "request"):
            (trap / f"{module}.py").write_text("raise RuntimeError('imported from the working directory')\n")
        monkeypatch.chdir(trap)
        monkeypatch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}::")
        assert "@main_kernel" in lower(KERNEL, tmp_path)

    def test_modules_of_ptocache_are_not_top_level_modules(self, tmp_path: Path) -> None:
        source = "try:\n  import frontend\nexcept ModuleNotFoundError:\n  pass\nelse:\n  raise RuntimeError\n"
        lower(source + KERNEL, tmp_path)

    def test_variables_that_change_python_do_not_reach_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain = lower(KERNEL, tmp_path)
        for name, value in {
            "PYTHONOPTIMIZE": "2",
            "PYTHONWARNINGS": "error",
            "PYTHONHASHSEED": "77",
            "PYTHONSTARTUP": "/nonexistent",
            "PYTHONINSPECT": "1",
            "PYTHONVERBOSE": "1",
        }.items():
            monkeypatch.setenv(name, value)
        assert lower("import sys\nassert sys.flags.hash_randomization == 0\n" + KERNEL, tmp_path) == plain

    def test_modules_of_this_process_do_not_reach_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ptodsl", None)
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        assert "@main_kernel" in lower(KERNEL, tmp_path)

    def test_helpers_are_loaded_without_tilelang_itself(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        helpers = tmp_path / "site" / "tilelang" / "contrib" / "ptodsl"
        helpers.mkdir(parents=True)
        for package in (helpers.parent.parent, helpers.parent):
            (package / "__init__.py").write_text("raise RuntimeError('TileLang itself was imported')\n")
        (helpers / "__init__.py").write_text("from .common import EVENT\n")
        (helpers / "common.py").write_text("EVENT = 5\n")
        monkeypatch.setenv("PYTHONPATH", f"{helpers.parent.parent.parent}:{os.environ['PYTHONPATH']}")
        source = "import tilelang.contrib.ptodsl as tl\n" + KERNEL.replace("event_id=0", "event_id=tl.EVENT")
        text = lower(source, tmp_path)
        monkeypatch.undo()
        assert "5" in text

    def test_other_modules_of_tilelang_are_refused_by_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        package = tmp_path / "site" / "tilelang"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "engine.py").write_text("")
        monkeypatch.setenv("PYTHONPATH", f"{package.parent}:{os.environ['PYTHONPATH']}")
        with pytest.raises(SourceImportError, match=r"tilelang\.engine cannot be imported"):
            lower("import tilelang.engine\n" + KERNEL, tmp_path)

    def test_a_changed_source_is_never_taken_for_the_compiled_one_before(self, tmp_path: Path) -> None:
        first = lower(KERNEL, tmp_path)
        second = lower(KERNEL.replace("event_id=0", "event_id=1"), tmp_path)
        assert first != second
        assert not list(tmp_path.rglob("__pycache__/kernel*"))

    def test_a_place_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(PtocacheError, match=r"no/such/kernel\.py"):
            pto_toolchain.compile_ptodsl_to_pto(KERNEL, ["main_kernel"], "no/such/kernel.py", tmp_path / "out")


def fatobj(tmp_path: Path, flags: list[str] | str = ()) -> Path:  # type: ignore[assignment]
    lower(KERNEL, tmp_path)
    pto_toolchain.run_ptoas(tmp_path / "kernel.pto", tmp_path / "kernel.o", "a5", flags)
    return tmp_path / "kernel.o"


class TestTools:
    def test_the_stages_one_by_one_give_what_the_whole_gives(self, tmp_path: Path) -> None:
        arch, flags = pto_toolchain.resolve_pto_options()
        pto_toolchain.bisheng_fatobj_link(fatobj(tmp_path, flags), tmp_path / "lib.so")
        aibin = pto_toolchain.extract_aicore_binary(tmp_path / "lib.so")
        assert aibin == pto_toolchain.compile_ptodsl_to_aibin(KERNEL, arch, flags)
        assert aibin.startswith(b"\x7fELF")

    def test_flags_may_be_one_text(self, tmp_path: Path) -> None:
        listed = fatobj(tmp_path, ["--a=b c", "--d"]).read_bytes()
        assert fatobj(tmp_path, "--a='b c' --d").read_bytes() == listed

    def test_malformed_text_is_reported_with_the_tools_own_words(self, tmp_path: Path) -> None:
        (tmp_path / "bad.pto").write_text("module {\n  nonsense\n")
        with pytest.raises(ToolError, match="error:") as caught:
            pto_toolchain.run_ptoas(tmp_path / "bad.pto", tmp_path / "out.o", "a5", [])
        assert caught.value.returncode == 1
        assert "exit status 1" in str(caught.value)
        assert "--pto-arch=a5" in str(caught.value)
        assert "bad.pto:" in caught.value.stderr

    def test_a_fat_object_that_is_none_is_reported(self, tmp_path: Path) -> None:
        (tmp_path / "bad.o").write_bytes(b"nothing like it")
        with pytest.raises(ToolError, match="bisheng failed: exit status 1"):
            pto_toolchain.bisheng_fatobj_link(tmp_path / "bad.o", tmp_path / "lib.so")

    @pytest.mark.parametrize("tool", ["frontend", "ptoas", "bisheng"])
    @pytest.mark.parametrize(
        ("fault", "error", "message"),
        [
            ("exit:7", ToolError, "exit status 7"),
            ("signal:9", ToolError, "killed by SIGKILL"),
            ("empty", ToolError, "empty"),
        ],
    )
    def test_a_failing_tool_is_an_error_that_says_how(
        self, monkeypatch: pytest.MonkeyPatch, tool: str, fault: str, error: type[ToolError], message: str
    ) -> None:
        monkeypatch.setenv("PTOCACHE_EMULATOR_FAULT", f"{tool}={fault}")
        with pytest.raises(error, match=message) as caught:
            pto_toolchain.compile_ptodsl_to_aibin(KERNEL, "a5", [])
        assert caught.value.tool == tool
        assert os.listdir(os.environ["TMPDIR"]) == []

    @pytest.mark.parametrize(
        ("tool", "error"), [("frontend", ToolError), ("ptoas", ToolError), ("bisheng", ImageError)]
    )
    def test_half_an_output_is_an_error(
        self, monkeypatch: pytest.MonkeyPatch, tool: str, error: type[PtocacheError]
    ) -> None:
        monkeypatch.setenv("PTOCACHE_EMULATOR_FAULT", f"{tool}=truncate")
        with pytest.raises(error):
            pto_toolchain.compile_ptodsl_to_aibin(KERNEL, "a5", [])

    @pytest.mark.parametrize("tool", ["frontend", "ptoas", "bisheng", "ld.lld"])
    def test_a_tool_that_hangs_is_ended_with_all_that_it_started(
        self, monkeypatch: pytest.MonkeyPatch, tool: str
    ) -> None:
        monkeypatch.setenv("PTOCACHE_EMULATOR_FAULT", f"{tool}=hang")
        monkeypatch.setenv("PTOCACHE_COMPILE_TIMEOUT", "2")
        with pytest.raises(ToolTimeoutError, match="PTOCACHE_COMPILE_TIMEOUT"):
            pto_toolchain.compile_ptodsl_to_aibin(KERNEL, "a5", [])
        assert os.listdir(os.environ["TMPDIR"]) == []

    @pytest.mark.parametrize("tool", ["frontend", "ptoas", "bisheng"])
    def test_a_tool_that_prints_much_works(self, monkeypatch: pytest.MonkeyPatch, tool: str) -> None:
        plain = pto_toolchain.compile_ptodsl_to_aibin(KERNEL, "a5", [])
        monkeypatch.setenv("PTOCACHE_EMULATOR_FAULT", f"{tool}=noise")
        assert pto_toolchain.compile_ptodsl_to_aibin(KERNEL, "a5", []) == plain

    def test_what_an_earlier_run_left_does_not_pass_for_an_output(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fatobj(tmp_path)
        monkeypatch.setenv("PTOCACHE_EMULATOR_FAULT", "ptoas=missing")
        with pytest.raises(ToolError, match="wrote no"):
            pto_toolchain.run_ptoas(tmp_path / "kernel.pto", tmp_path / "kernel.o", "a5", [])

    @pytest.mark.parametrize("place", ["/dev/null", "."])
    def test_an_output_place_that_is_no_file_is_refused_and_left_alone(self, tmp_path: Path, place: str) -> None:
        with pytest.raises(PtocacheError, match="expected a place for a file"):
            pto_toolchain.compile_ptodsl_to_pto(KERNEL, ["main_kernel"], tmp_path / "k.py", place)
        assert not Path(place).is_file()

    @pytest.mark.parametrize("source", [None, 5, b"bytes", ["list"]])
    def test_a_source_that_is_not_text_is_refused(self, source: object) -> None:
        for function in (
            pto_toolchain.parse_pto_kernel_names,
            lambda text: pto_toolchain.compile_ptodsl_to_aibin(text, "a5", []),
        ):
            with pytest.raises(SourceError, match="as text"):
                function(source)  # type: ignore[arg-type]

    def test_a_kernel_that_the_binary_lacks_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ptocache.source._symbol", lambda *_, **__: "another_kernel")
        with pytest.raises(DeviceBinaryError, match="another_kernel"):
            pto_toolchain.compile_ptodsl_to_aibin(KERNEL, "a5", [])

    def test_a_device_name_that_differs_from_the_python_name_is_found(self) -> None:
        source = KERNEL.replace('name="main_kernel"', 'name="device_name"')
        assert b"device_name" in pto_toolchain.compile_ptodsl_to_aibin(source, "a5", [])

    def test_verbose_logs_command_time_and_output(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, "ptocache.pto_toolchain"):
            pto_toolchain.compile_ptodsl_to_aibin(KERNEL, "a5", [], verbose=True)
        for tool in ("frontend", "ptoas", "bisheng"):
            assert f"{tool} took" in caplog.text
        assert "--cce-fatobj-link" in caplog.text

    def test_without_verbose_nothing_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG):
            pto_toolchain.compile_ptodsl_to_aibin(KERNEL, "a5", [])
        assert caplog.text == ""

    def test_each_stage_runs_once(self, tool_log: ToolLog) -> None:
        pto_toolchain.compile_ptodsl_to_aibin(KERNEL, "a5", [])
        assert [tool_log.count(tool) for tool in ("frontend", "ptoas", "bisheng", "ld.lld")] == [1, 1, 1, 1]

    def test_temporary_files_can_be_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PTOCACHE_KEEP_TEMPS", "1")
        pto_toolchain.compile_ptodsl_to_aibin(KERNEL, "a5", [])
        (kept,) = Path(os.environ["TMPDIR"]).iterdir()
        assert {"kernel.ptodsl.py", "kernel.pto", "kernel.fatobj.o", "lib_kernel.so"} <= set(os.listdir(kept))

    def test_no_room_for_temporary_files_is_an_error_that_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tempfile.mkdtemp", _no_space)
        with pytest.raises(PtocacheError, match="TMPDIR"):
            pto_toolchain.compile_ptodsl_to_aibin(KERNEL, "a5", [])


def _no_space(*_: object, **__: object) -> str:
    raise OSError(28, "No space left on device")


class TestFindingTools:
    def test_all_missing_tools_are_listed_at_once(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for name in ("ASCEND_HOME_PATH", "PTOAS_BIN", "PYTHONPATH"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(ToolNotFoundError, match="--emulate") as caught:
            pto_toolchain.toolchain_stamp()
        for word in ("ptoas", "bisheng", "ptodsl", str(tmp_path)):
            assert word in str(caught.value)

    def test_a_tool_that_is_named_and_not_there_is_not_looked_for_elsewhere(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("PTOAS_BIN", str(tmp_path / "ptoas"))
        with pytest.raises(ToolNotFoundError, match=str(tmp_path / "ptoas")):
            pto_toolchain.compile_ptodsl_to_aibin(KERNEL, "a5", [])

    def test_bisheng_is_found_where_cann_has_it(
        self, toolchain: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        expected = pto_toolchain.compile_ptodsl_to_aibin(KERNEL, "a5", [])
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        monkeypatch.delenv("ASCEND_HOME_PATH")
        for variable, home in (
            ("ASCEND_HOME_PATH", toolchain),
            ("ASCEND_TOOLKIT_HOME", toolchain),
            ("BISHENG_HOME", toolchain),
        ):
            with monkeypatch.context() as patch:
                patch.setenv(variable, str(home))
                assert pto_toolchain.compile_ptodsl_to_aibin(KERNEL, "a5", []) == expected

    def test_the_compilers_own_directory_is_looked_in(
        self, toolchain: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        compiler = tmp_path / "cann" / "compiler" / "ccec_compiler"
        compiler.mkdir(parents=True)
        (compiler / "bin").symlink_to(toolchain / "bin")
        monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / "cann"))
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        assert pto_toolchain.compile_ptodsl_to_aibin(KERNEL, "a5", [])

    def test_a_tool_that_is_not_executable_is_not_one(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "ptoas").write_text("#!/bin/sh\n")
        monkeypatch.setenv("PTOAS_BIN", str(tmp_path / "ptoas"))
        with pytest.raises(ToolNotFoundError, match="ptoas"):
            pto_toolchain.run_ptoas("a", "b", "a5", [])

    def test_a_tool_that_the_system_cannot_start_is_an_error(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "ptoas").write_bytes(b"\x7fELFrubbish")
        (tmp_path / "ptoas").chmod(0o755)
        monkeypatch.setenv("PTOAS_BIN", str(tmp_path / "ptoas"))
        with pytest.raises(ToolError, match="cannot be started"):
            pto_toolchain.run_ptoas(tmp_path / "a", tmp_path / "b", "a5", [])


def test_ctrl_c_ends_the_tools_and_leaves_no_files(monkeypatch: pytest.MonkeyPatch, tool_log: ToolLog) -> None:
    """KeyboardInterrupt while a tool runs: raised here by a timer's signal, as the terminal would."""
    monkeypatch.setenv("PTOCACHE_EMULATOR_FAULT", "ptoas=hang")

    def interrupt_once_the_tool_runs(*_: object) -> None:
        if tool_log.count("ptoas"):
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt_once_the_tool_runs)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        with pytest.raises(KeyboardInterrupt):
            pto_toolchain.compile_ptodsl_to_aibin(KERNEL, "a5", [])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    pid = int(tool_log.path.read_text().splitlines()[-1].split()[1])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert os.listdir(os.environ["TMPDIR"]) == []
