"""How every command behaves on a terminal of 80 columns, in a pipe, and when it is used wrongly."""

from __future__ import annotations

import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import KERNEL, run_ptocache

from ptocache.cli import COMMANDS, EXIT_STATUSES, make_parser

WAIT = 60  # seconds after which something that was waited for will not come any more
WIDTH = 80

#: A way to use each command on a cache with one kernel in it, and how it ends.
WAYS = {
    "compile": (["kernel.py"], 0),
    "warm": (["kernel.py"], 0),
    "run": (["hello.py"], 0),
    "explain": (["kernel.py"], 0),
    "stats": ([], 0),
    "report": ([], 0),
    "ls": ([], 0),
    "show": (["KEY"], 0),
    "verify": ([], 0),
    "prune": ([], 0),
    "clear": (["-y"], 0),
    "push": ([], 0),
    "pull": ([], 0),
    "export": (["all.ptocache"], 0),
    "import": (["given.ptocache"], 0),
    "doctor": ([], 0),
    "emulator": (["cann"], 0),
    "completion": (["bash"], 0),
}


class Ended(NamedTuple):
    """How a command ended, and all that was to be seen."""

    status: int
    text: str


@pytest.fixture
def workshop(tmp_path: Path, toolchain: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with what the ways need; the cache, a shared one and an archive have one kernel."""
    folder = tmp_path / "workshop"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PTOCACHE_SHARED", f"file://{tmp_path}/share")
    (folder / "kernel.py").write_text(KERNEL)
    (folder / "hello.py").write_text("print('hello')\n")
    assert run_ptocache("compile", "kernel.py").returncode == 0
    assert run_ptocache("export", "given.ptocache").returncode == 0
    return folder


def arguments_of(command: str) -> list[str]:
    arguments, _ = WAYS[command]
    if "KEY" in arguments:
        key = run_ptocache("ls").stdout.split("\t")[0]
        return [key if word == "KEY" else word for word in arguments]
    return arguments


def on_terminal(*arguments: str) -> Ended:
    """Run a command with all its streams on a terminal."""
    leader, follower = pty.openpty()
    ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, WIDTH, 0, 0))
    shown: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(leader, 65536):
                shown.append(data)
        except OSError:  # the other end is closed
            pass

    environ = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
    command = [sys.executable, "-m", "ptocache", *arguments]
    streams = {"stdin": follower, "stdout": follower, "stderr": follower}
    with subprocess.Popen(command, env={**environ, "TERM": "xterm-256color"}, **streams) as process:
        os.close(follower)
        reader = threading.Thread(target=read)
        reader.start()
        status = process.wait(WAIT)
        reader.join(WAIT)
        os.close(leader)
    return Ended(status, b"".join(shown).decode())


def test_each_command_has_a_way() -> None:
    assert list(WAYS) == [name for name in COMMANDS if name in WAYS]
    assert set(WAYS) == set(COMMANDS)


@pytest.mark.parametrize("command", WAYS)
@pytest.mark.usefixtures("workshop")
def test_on_a_terminal_it_ends_well_and_leaves_the_terminal_as_it_was(command: str) -> None:
    status, text = on_terminal(command, *arguments_of(command))
    assert status == WAYS[command][1], text
    assert "Traceback" not in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h"), "the cursor is hidden"
    tables = {"stats", "ls"}
    if command in tables:
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
        lines = [line for line in plain.splitlines() if not line.startswith(("/", "shared: "))]  # as long as they are
        assert max(map(len, lines)) <= WIDTH


@pytest.mark.parametrize("command", WAYS)
@pytest.mark.usefixtures("workshop")
def test_in_a_pipe_it_is_plain_text(command: str) -> None:
    result = run_ptocache(command, *arguments_of(command))
    assert result.returncode == WAYS[command][1], result.stderr
    if command != "completion":  # a shell's own
        assert "\x1b" not in result.stdout
    assert "\x1b" not in result.stderr
    assert "\r" not in result.stdout


@pytest.mark.parametrize("command", WAYS)
@pytest.mark.usefixtures("workshop")
def test_a_reader_that_goes_away_is_no_error_to_talk_about(command: str) -> None:
    read, write = os.pipe()
    os.close(read)
    arguments = [sys.executable, "-m", "ptocache", command, *arguments_of(command)]
    result = subprocess.run(arguments, stdout=write, stderr=subprocess.PIPE, text=True, timeout=WAIT, check=False)
    os.close(write)
    if command != "run":  # a program of the user's own
        assert result.stderr == "" or "Broken" not in result.stderr
        assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_use_is_one_line_and_exit_2(command: str, tmp_path: Path) -> None:
    result = run_ptocache(command, "--no-such-option", cwd=tmp_path)
    if command == "run":  # it is Python's
        assert result.returncode == 2
        return
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("ptocache: ")
    assert result.stderr.count("\n") == 1
    assert "--help" in result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_says_what_it_does_with_an_example_and_fits(command: str) -> None:
    text = run_ptocache(command, "--help", env={**os.environ, "COLUMNS": str(WIDTH)}).stdout
    assert text.startswith(f"usage: ptocache {command}")
    assert f"ptocache {command}" in text.partition("\n\n")[2], "an example"
    assert "--debug" in text
    parser = make_parser(command)
    for action in parser._actions:
        assert action.help, action.dest
    assert max(map(len, text.splitlines())) <= 120


def test_the_exit_statuses_are_in_the_help() -> None:
    text = run_ptocache("--help").stdout
    for status, meaning in EXIT_STATUSES.items():
        assert f"{status}" in text
        assert meaning in text
    for name, what in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(what)}$", text, re.MULTILINE)


def test_a_fault_of_ours_is_one_line_unless_its_traceback_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import ptocache.statistics\n"
        "def broken(cache, kernels=5): raise KeyError('insides')\n"
        "ptocache.statistics.collect = broken\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = run_ptocache("stats", env=environ)
    assert (result.returncode, result.stdout) == (1, "")
    assert (
        result.stderr
        == "ptocache: a fault in ptocache, please report it with what --debug shows: KeyError: 'insides'\n"
    )
    assert "Traceback" in run_ptocache("stats", "--debug", env=environ).stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_a_shell_is_given_is_right_for_it(shell: str, tmp_path: Path) -> None:
    result = run_ptocache("completion", shell)
    assert (result.returncode, result.stderr) == (0, "")
    assert "ptocache" in result.stdout
    program = shutil.which(shell)
    if program is None:
        assert shell != "bash"
        return
    script = tmp_path / "completion"
    script.write_text(result.stdout)
    assert subprocess.run([program, "-n", str(script)], check=False).returncode == 0


def completions(line: str) -> set[str]:
    """What bash would offer, through the protocol of argcomplete's."""
    read, write = os.pipe()
    environ = {
        **os.environ,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_SHELL": "bash",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    script = f"exec 8>&{write} 9>/dev/null; exec '{sys.executable}' -m ptocache >/dev/null"
    subprocess.run(["bash", "-c", script], env=environ, pass_fds=[write], timeout=WAIT, check=True)
    os.close(write)
    with open(read, encoding="utf-8") as file:
        return set(file.read().split("\n"))


def test_what_another_programs_completion_set_is_not_meant_for_us() -> None:
    for variables in ({"_ARGCOMPLETE": ""}, {"_ARGCOMPLETE": "1", "COMP_LINE": "other x", "COMP_POINT": "7"}):
        result = run_ptocache("--version", env={**os.environ, **variables})
        assert (result.returncode, result.stdout[:8]) == (0, "ptocache")


def test_commands_options_and_keys_are_completed(workshop: Path) -> None:
    assert completions("ptocache st") == {"stats"}
    assert {"--prometheus", "--history", "--zero"} <= completions("ptocache stats --")
    assert completions("ptocache completion f") == {"fish"}
    key = run_ptocache("ls").stdout.split("\t")[0]
    assert completions(f"ptocache show {key[:2]}") == {key}
