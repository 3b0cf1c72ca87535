"""The commands, each in a process of its own, as people and scripts call them."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import EXAMPLES, KERNEL, ToolLog, run_ptocache
from test_concurrency import until

import ptocache
from ptocache.aibin import extract_aicore_binary


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source in the working directory."""
    place = tmp_path / "work"
    place.mkdir()
    monkeypatch.chdir(place)
    path = place / "kernel.py"
    path.write_text(KERNEL)
    return path


def facts(*arguments: object) -> dict[str, object]:
    result = run_ptocache(*arguments, "--json")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n") == 1
    value: dict[str, object] = json.loads(result.stdout)
    return value


def assert_one_line(text: str) -> None:
    assert text.startswith("ptocache")
    assert text.count("\n") == 1
    assert "Traceback" not in text


class TestHelp:
    def test_the_help_names_every_command(self) -> None:
        result = run_ptocache("--help")
        assert result.returncode == 0
        for name in ("compile", "stats", "clear", "emulator"):
            assert f"\n  {name} " in result.stdout

    @pytest.mark.parametrize("command", ["compile", "stats", "clear", "emulator"])
    def test_each_command_explains_itself(self, command: str) -> None:
        result = run_ptocache(command, "--help")
        assert result.returncode == 0
        assert result.stdout.startswith(f"usage: ptocache {command}")
        assert result.stderr == ""

    def test_the_version_is_the_packages(self) -> None:
        assert run_ptocache("--version").stdout == f"ptocache {ptocache.__version__}\n"

    @pytest.mark.parametrize(
        "arguments",
        [[], ["nonsense"], ["compile"], ["compile", "a", "b"], ["stats", "extra"], ["compile", "a", "--nonsense"]],
    )
    def test_wrong_use_is_exit_2_without_a_traceback(self, arguments: list[str]) -> None:
        result = run_ptocache(*arguments)
        assert result.returncode == 2
        assert "ptocache" in result.stderr
        assert "Traceback" not in result.stderr
        assert result.stdout == ""


class TestCompile:
    def test_the_first_compiles_and_the_second_hits(self, source: Path) -> None:
        first, second = facts("compile", source, "--emulate"), facts("compile", source, "--emulate")
        aibin = Path("kernel.aibin").read_bytes()
        expected = {
            "aibin_bytes": len(aibin),
            "aibin_sha256": hashlib.sha256(aibin).hexdigest(),
            "output": "kernel.aibin",
            "kernels": ["main_kernel"],
            "arch": "a5",
            "flags": ["--pto-backend=vpto"],
        }
        for result, origin, via in ((first, "compiled", None), (second, "local", "source")):
            assert {name: result[name] for name in expected} == expected
            assert (result["origin"], result["via"]) == (origin, via)
            assert isinstance(result["seconds"], float)
        assert first["key"] == second["key"]

    def test_people_get_a_line_that_says_what_happened(self, source: Path) -> None:
        first, second = (run_ptocache("compile", source, "--emulate").stdout for _ in range(2))
        assert "compiled in" in first
        assert "local hit in" in second
        assert "saved" in second
        source.write_text(KERNEL + "# changed\n")
        assert "local hit after lowering" in run_ptocache("compile", source, "--emulate").stdout

    def test_options_reach_the_request(self, source: Path) -> None:
        result = facts("compile", source, "--emulate", "--arch", "a3", "--flag=--x", "--flag=--y=1", "-o", "named")
        assert (result["arch"], result["flags"]) == ("a3", ["--x", "--y=1", "--pto-backend=vpto"])
        assert Path("named").is_file()

    def test_an_installed_toolchain_is_used_as_it_is(self, source: Path, toolchain: Path) -> None:
        assert facts("compile", source)["origin"] == "compiled"
        assert facts("compile", source, "--emulate")["origin"] == "local"

    def test_without_a_toolchain_one_message_says_how_to_go_on(
        self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        result = run_ptocache("compile", source)
        assert result.returncode == 1
        for word in ("ptoas", "bisheng", "ptodsl", "--emulate", str(tmp_path)):
            assert word in result.stderr
        assert "Traceback" not in result.stderr
        assert result.stdout == ""

    def test_a_missing_source_is_named(self, source: Path) -> None:
        for bad in ("missing.py", "."):
            result = run_ptocache("compile", bad, "--emulate")
            assert result.returncode == 2
            assert_one_line(result.stderr)
            assert bad in result.stderr

    def test_a_source_that_is_not_text_is_named(self, source: Path) -> None:
        source.write_bytes(b"\xff\xfe\x00")
        result = run_ptocache("compile", source, "--emulate")
        assert result.returncode == 2
        assert_one_line(result.stderr)
        assert "UTF-8" in result.stderr

    @pytest.mark.parametrize(
        ("text", "words"),
        [("def f(:\n", ("line 1",)), ("x = 1\n", ("no kernel", "@pto.jit")), ("", ("no kernel",))],
    )
    def test_a_source_that_cannot_be_compiled_is_exit_1(self, source: Path, text: str, words: tuple[str]) -> None:
        source.write_text(text)
        result = run_ptocache("compile", source, "--emulate")
        assert result.returncode == 1
        assert_one_line(result.stderr)
        assert all(word in result.stderr for word in words)
        assert not Path("kernel.aibin").exists()

    def test_a_compile_error_shows_the_tools_own_words(self, source: Path) -> None:
        source.write_text(KERNEL + "  undefined_name\n")
        result = run_ptocache("compile", source, "--emulate")
        assert result.returncode == 1
        assert "NameError: name 'undefined_name' is not defined" in result.stderr
        assert "Traceback" in run_ptocache("compile", source, "--emulate", "--debug").stderr

    def test_an_unknown_arch_is_wrong_use(self, source: Path) -> None:
        result = run_ptocache("compile", source, "--emulate", "--arch", "a9")
        assert result.returncode == 2
        assert_one_line(result.stderr)
        assert "a9" in result.stderr

    def test_a_bad_setting_is_named(self, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PTOCACHE_SIZE_LIMIT", "plenty")
        result = run_ptocache("compile", source, "--emulate")
        assert result.returncode == 2
        assert_one_line(result.stderr)
        assert "PTOCACHE_SIZE_LIMIT" in result.stderr

    @pytest.mark.parametrize("out", ["no/such/place", "kernel.py/x"])
    def test_an_output_that_cannot_be_written_is_named(self, source: Path, out: str) -> None:
        result = run_ptocache("compile", source, "--emulate", "-o", out)
        assert result.returncode == 2
        assert_one_line(result.stderr)
        assert out in result.stderr

    def test_an_output_that_is_no_file_is_written_to(self, source: Path) -> None:
        assert run_ptocache("compile", source, "--emulate", "-o", "/dev/null").returncode == 0
        assert Path("/dev/null").is_char_device()

    def test_an_output_behind_a_link_is_replaced_there(self, source: Path) -> None:
        Path("real").write_text("old")
        Path("link").symlink_to("real")
        assert run_ptocache("compile", source, "--emulate", "-o", "link").returncode == 0
        assert Path("link").is_symlink()
        assert Path("real").read_bytes().startswith(b"\x7fELF")

    def test_verbose_shows_the_commands(self, source: Path) -> None:
        result = run_ptocache("compile", source, "--emulate", "-v")
        assert "--cce-fatobj-link" in result.stderr
        assert "ptoas took" in result.stderr

    def test_an_unusable_cache_directory_is_one_warning(
        self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("PTOCACHE_DIR", str(tmp_path / "file"))
        result = run_ptocache("compile", source, "--emulate")
        assert result.returncode == 0
        assert_one_line(result.stderr)
        assert "WARNING" in result.stderr
        assert Path("kernel.aibin").is_file()

    @pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_an_interrupted_compile_leaves_nothing(
        self, source: Path, tool_log: ToolLog, monkeypatch: pytest.MonkeyPatch, end: signal.Signals
    ) -> None:
        monkeypatch.setenv("PTOCACHE_EMULATOR_FAULT", "bisheng=hang")
        process = subprocess.Popen(
            [sys.executable, "-m", "ptocache", "compile", str(source), "--emulate"],
            stderr=subprocess.PIPE,
            text=True,
            # Where the tests run under nohup the command would rightly ignore it.
            preexec_fn=lambda: signal.signal(end, signal.SIG_DFL),  # noqa: PLW1509 - no threads here
        )
        until(lambda: tool_log.count("bisheng") == 1)
        process.send_signal(end)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 128 + end
        assert "Traceback" not in err
        assert os.listdir(os.environ["TMPDIR"]) == []
        assert os.listdir(Path(os.environ["PTOCACHE_DIR"]) / "locks") == []
        assert not Path("kernel.aibin").exists()
        pid = int(tool_log.path.read_text().splitlines()[-1].split()[1])
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    @pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full"])
    @pytest.mark.parametrize("command", ["--help", "stats", "clear", "compile kernel.py --emulate"])
    def test_closed_and_full_streams_are_no_traceback(self, source: Path, command: str, closed: str) -> None:
        script = f'"{sys.executable}" -m ptocache {command} {closed}'
        result = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
        assert "Traceback" not in result.stderr
        assert "Exception ignored" not in result.stderr
        assert result.returncode == (1 if "full" in closed else 0)

    def test_letters_that_the_terminal_lacks_are_escaped(self, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONIOENCODING", "ascii")
        result = run_ptocache("compile", source, "--emulate", "-o", "\u6838.aibin")
        assert result.returncode == 0
        assert "\\u6838.aibin" in result.stdout

    def test_a_reader_that_leaves_is_no_error_message(self, source: Path) -> None:
        read, write = os.pipe()
        os.close(read)
        result = subprocess.run(
            [sys.executable, "-m", "ptocache", "stats"], stdout=write, stderr=subprocess.PIPE, check=False
        )
        os.close(write)
        assert result.stderr == b""

    @pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
    def test_the_examples_compile(self, example: Path, source: Path) -> None:
        assert facts("compile", example, "--emulate")["origin"] == "compiled"


class TestStats:
    def test_the_numbers_of_an_unused_cache_are_zero(self, tmp_path: Path) -> None:
        numbers = facts("stats")
        assert numbers["hits"] == {"memory": 0, "local": 0, "shared": 0, "pto": 0}
        for name in ("entries", "requests", "misses", "compiles", "failures", "seconds_compiling", "seconds_saved"):
            assert numbers[name] == 0
        assert numbers["limit_bytes"] == 5 << 30
        assert not (tmp_path / "cache").exists()

    def test_the_numbers_add_up(self, source: Path) -> None:
        for _ in range(3):
            run_ptocache("compile", source, "--emulate")
        source.write_text(KERNEL + "  undefined_name\n")
        run_ptocache("compile", source, "--emulate")
        numbers = facts("stats")
        assert numbers["hits"] == {"memory": 0, "local": 2, "shared": 0, "pto": 0}
        assert [numbers[name] for name in ("requests", "misses", "compiles", "failures")] == [4, 2, 1, 1]
        assert numbers["entries"] == 1
        assert isinstance(numbers["bytes"], int)
        assert numbers["bytes"] >= Path("kernel.aibin").stat().st_size
        assert isinstance(numbers["seconds_saved"], float)
        assert numbers["seconds_saved"] > 0
        page = run_ptocache("stats").stdout
        for words in (
            "50%  2 of 4 requests",
            "1 entry",
            "compiled                           1",
            "failed                             1",
        ):
            assert words in page


class TestClear:
    def test_it_removes_all_entries_and_says_so(self, source: Path) -> None:
        run_ptocache("compile", source, "--emulate")
        result = run_ptocache("clear", "-y")
        assert result.returncode == 0
        assert result.stdout.startswith("removed 1 entry, ")
        assert facts("stats")["entries"] == 0
        assert facts("compile", source, "--emulate")["origin"] == "compiled"

    def test_it_asks_on_a_terminal(self, source: Path) -> None:
        run_ptocache("compile", source, "--emulate")
        for answer, status, left in ((b"n\n", 1, 1), (b"\n", 1, 1), (b"y\n", 0, 0)):
            outer, inner = pty.openpty()
            os.write(outer, answer)
            result = run_ptocache("clear", stdin=inner)
            os.close(outer)
            os.close(inner)
            assert result.returncode == status
            assert "Remove 1 entry" in result.stderr
            assert facts("stats")["entries"] == left

    def test_a_readonly_cache_is_not_cleared(self, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run_ptocache("compile", source, "--emulate")
        monkeypatch.setenv("PTOCACHE_READONLY", "1")
        result = run_ptocache("clear", "-y")
        assert result.returncode == 2
        assert_one_line(result.stderr)
        assert facts("stats")["entries"] == 1

    def test_it_leaves_a_foreign_directory_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        foreign = tmp_path / "foreign"
        (foreign / "outputs").mkdir(parents=True)
        (foreign / "thesis.tex").write_text("years of work")
        monkeypatch.setenv("PTOCACHE_DIR", str(foreign))
        result = run_ptocache("clear", "-y")
        assert result.returncode == 1
        assert_one_line(result.stderr)
        assert sorted(path.name for path in foreign.iterdir()) == ["outputs", "thesis.tex"]

    def test_nothing_to_clear_is_fine(self) -> None:
        assert run_ptocache("clear", "-y").stdout.startswith("removed 0 entries")


class TestEmulator:
    def test_what_it_writes_can_be_sourced_and_used(self, source: Path) -> None:
        result = run_ptocache("emulator", "cann", "--cann-version", "8.5.0")
        assert result.returncode == 0
        script = f'. ./cann/set_env.sh && "{sys.executable}" -m ptocache compile kernel.py --json'
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["origin"] == "compiled"

    def test_a_directory_with_other_things_in_it_is_refused(self, source: Path) -> None:
        result = run_ptocache("emulator", ".")
        assert result.returncode == 2
        assert_one_line(result.stderr)
        assert os.listdir() == ["kernel.py"]


class TestSeveralSources:
    def test_each_is_compiled_and_has_a_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        for number in range(3):
            Path(f"k{number}.py").write_text(KERNEL.replace("main_kernel", f"k{number}"))
        result = run_ptocache("compile", "k0.py", "k1.py", "k2.py", "--emulate")
        assert [line.partition(":")[0] for line in result.stdout.splitlines()] == ["k0.aibin", "k1.aibin", "k2.aibin"]
        Path("out").mkdir()
        result = run_ptocache("compile", "k0.py", "k1.py", "-o", "out", "--emulate", "--json")
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        assert [(line["file"], line["output"], line["origin"]) for line in lines] == [
            ("k0.py", "out/k0.aibin", "local"),
            ("k1.py", "out/k1.aibin", "local"),
        ]
        assert Path("out/k1.aibin").read_bytes() == Path("k1.aibin").read_bytes()

    def test_one_that_fails_keeps_no_other_from_being_compiled(self, source: Path) -> None:
        Path("bad.py").write_text("def (\n")
        result = run_ptocache("compile", "bad.py", source, "--emulate")
        assert result.returncode == 1
        assert result.stderr.startswith("ptocache: bad.py: ")
        assert result.stderr.count("\n") == 1
        assert result.stdout.startswith("kernel.aibin: ")

    def test_an_output_that_cannot_be_written_keeps_no_other_from_being_compiled(self, source: Path) -> None:
        Path("other.py").write_text(KERNEL)
        Path("other.aibin").mkdir()
        result = run_ptocache("compile", "other.py", source, "--emulate")
        assert result.returncode == 1
        assert result.stderr.startswith("ptocache: other.py: other.aibin: the device binary cannot be written")
        assert result.stderr.count("\n") == 1
        assert result.stdout.startswith("kernel.aibin: ")

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["kernel.py", "missing.py"], "missing.py"),
            (["kernel.py", "more/other.py", "-o", "nowhere/"], "there is no such directory"),
            (["kernel.py", "more/kernel.py"], "both be written to"),
            (["kernel.py", "kernel.py"], "both be written to"),
            (["kernel.py", "more/other.py", "-o", "one.aibin"], "expected a directory"),
            (["kernel.py", "more/other.py", "-o", "-"], "expected a directory"),
            (["kernel.py", "-o", "kernel.py"], "over a source"),
            (["kernel.py", "-o", "more/../kernel.py"], "over a source"),
            (["-"], "standard input has no name"),
            (["-", "-o", "more"], "standard input has no name"),
            (["-", "--print-command"], "standard input has no name"),
            (["kernel.py", "--print-pto", "--json"], "leave -o and --json out"),
            (["kernel.py", "--print-pto", "--print-command"], "not allowed with"),
        ],
    )
    def test_what_cannot_work_is_refused_before_anything_is_compiled(
        self, source: Path, tmp_path: Path, arguments: list[str], words: str
    ) -> None:
        Path("more").mkdir()
        for name in ("kernel.py", "other.py"):
            (Path("more") / name).write_text(KERNEL)
        result = run_ptocache("compile", *arguments, "--emulate", input="")
        assert (result.returncode, result.stdout) == (2, "")
        assert words in result.stderr
        assert result.stderr.count("\n") == 1
        assert not (tmp_path / "cache").exists()


class TestStreams:
    def test_a_source_comes_from_a_pipe_and_the_binary_goes_into_one(self, source: Path) -> None:
        run_ptocache("compile", source, "--emulate")
        command = [sys.executable, "-m", "ptocache", "compile", "-", "-o", "-", "--emulate"]
        result = subprocess.run(command, input=KERNEL.encode(), capture_output=True, check=True)
        assert result.stdout == Path("kernel.aibin").read_bytes()
        assert result.stderr.startswith(b"-: ")
        assert b"local hit" in result.stderr
        assert not Path("-").exists()

    def test_a_reader_that_goes_away_is_no_traceback(self, source: Path) -> None:
        read, write = os.pipe()
        os.close(read)
        command = [sys.executable, "-m", "ptocache", "compile", source, "-o", "-", "--emulate"]
        result = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
        os.close(write)
        assert result.returncode == 1
        assert "Traceback" not in result.stderr

    def test_what_is_no_text_is_refused(self) -> None:
        command = [sys.executable, "-m", "ptocache", "compile", "-", "-o", "x"]
        result = subprocess.run(command, input=b"\xff", capture_output=True, check=False)
        assert (result.returncode, result.stderr[:32]) == (2, b"ptocache: -: the source is not U")


class TestBetween:
    def test_the_lowered_text_is_printed_and_nothing_is_written(self, source: Path) -> None:
        before = set(Path().iterdir())
        result = run_ptocache("compile", source, "--print-pto", "--emulate")
        assert result.returncode == 0
        assert result.stdout.startswith("module attributes")
        assert "@main_kernel" in result.stdout
        assert {path.name for path in set(Path().iterdir()) - before} <= {"cache"}

    def test_the_commands_that_are_printed_make_the_same_binary(self, source: Path, tmp_path: Path) -> None:
        run_ptocache("compile", source, "--emulate", "--arch", "a3", "--flag=--x=a b")
        result = run_ptocache("compile", source, "--emulate", "--arch", "a3", "--flag=--x=a b", "--print-command")
        assert result.stdout.count("\n") == 3
        work = tmp_path / "by hand"
        work.mkdir()
        lines = run_ptocache(
            "compile", source.resolve(), "--emulate", "--arch", "a3", "--flag=--x=a b", "--print-command", cwd=work
        ).stdout
        subprocess.run(["sh", "-e"], input=lines, text=True, cwd=work, check=True)
        assert extract_aicore_binary(work / "lib_kernel.so") == Path("kernel.aibin").read_bytes()

    def test_the_files_between_are_kept_and_said_where(self, source: Path) -> None:
        result = run_ptocache("compile", source, "--emulate", "--keep-temps")
        work = Path(result.stderr.strip().rpartition(" ")[2])
        assert {"kernel.pto", "kernel.fatobj.o", "lib_kernel.so"} <= {path.name for path in work.iterdir()}
        shutil.rmtree(work)
        assert "a hit" in run_ptocache("compile", source, "--emulate", "--keep-temps").stderr
