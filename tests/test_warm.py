"""`ptocache warm` fills a cache, from files and directories and from the log of what was asked for."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import KERNEL, ToolLog, run_ptocache

from ptocache import CompileCache, Settings
from ptocache import requestlog as requestlog_module
from ptocache import warm as warm_module
from ptocache.requestlog import Logged, read_log
from ptocache.warm import Wanted, distinct

pytestmark = pytest.mark.usefixtures("toolchain")

WAIT = 60  # seconds after which something that was waited for will not come any more


def kernel(number: int) -> str:
    return KERNEL.replace("main_kernel", f"kernel_{number}")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A directory with three kernels, in two directories, and with what is none."""
    folder = tmp_path / "kernels"
    (folder / "more").mkdir(parents=True)
    (folder / "a.py").write_text(kernel(1))
    (folder / "b.py").write_text(kernel(2))
    (folder / "more" / "c.py").write_text(kernel(3))
    (folder / "helper.py").write_text("def pto(): pass\n")
    (folder / "broken.py").write_text("from ptodsl import pto\ndef (")
    (folder / "latin.py").write_bytes(b"# pto \xff\n")
    (folder / "readme.txt").write_text(kernel(4))
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "d.py").write_text(kernel(5))
    return folder


def warm(*arguments: object, status: int = 0, **options: Any) -> dict[str, Any]:
    result = run_ptocache("warm", *arguments, "--json", **options)
    assert result.returncode == status, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.01)


# Files and directories.


def test_all_sources_below_a_directory_are_compiled_once(sources: Path, tool_log: ToolLog) -> None:
    first = warm(sources)
    assert {name: first[name] for name in ("hits", "compiled", "failed", "passed_over")} == {
        "hits": 0,
        "compiled": 3,
        "failed": 0,
        "passed_over": 3,
    }
    second = warm(sources)
    assert (second["hits"], second["compiled"]) == (3, 0)
    assert tool_log.count("ptoas") == 3
    for number in (1, 2, 3):
        with CompileCache() as cache:
            assert cache.compile(kernel(number)).origin == "local"


def test_it_writes_nothing_but_the_cache(sources: Path, tmp_path: Path) -> None:
    before = sorted(path for path in tmp_path.rglob("*") if "cache" not in path.parts)
    warm(sources, cwd=tmp_path)
    assert sorted(path for path in tmp_path.rglob("*") if "cache" not in path.parts) == before


def test_the_same_source_twice_is_one(sources: Path, tool_log: ToolLog) -> None:
    (sources / "z.py").write_text(kernel(1))
    assert warm(sources, sources / "a.py", "-j", 4)["compiled"] == 3
    assert tool_log.count("ptoas") == 3


def test_several_archs_are_several_kernels(sources: Path) -> None:
    assert warm(sources / "a.py", "--arch", "a5", "--arch", "a3")["compiled"] == 2
    with CompileCache() as cache:
        assert cache.compile(kernel(1), "a3").origin == "local"
        assert cache.compile(kernel(1), "a2").origin == "compiled"


def test_several_are_compiled_at_a_time(
    sources: Path, monkeypatch: pytest.MonkeyPatch, tool_log: ToolLog, tmp_path: Path
) -> None:
    """Each ptoas waits until all three have begun."""
    wrapper = tmp_path / "ptoas"
    wrapper.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec {os.environ["PTOAS_BIN"]} --version\n'
        f"touch {tmp_path}/begun.$$\n"
        f"for i in $(seq {WAIT * 20}); do [ $(ls {tmp_path} | grep -c begun) = 3 ] && break; sleep 0.05; done\n"
        f'exec {os.environ["PTOAS_BIN"]} "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("PTOAS_BIN", str(wrapper))
    assert warm(sources, "-j", 3)["compiled"] == 3
    assert len(list(tmp_path.glob("begun.*"))) == 3


def test_one_that_fails_keeps_no_other_from_being_compiled(sources: Path) -> None:
    (sources / "bad.py").write_text(kernel(9) + "  undefined_name\n")
    result = run_ptocache("warm", sources)
    assert result.returncode == 1
    assert "3 compiled, 1 failed" in result.stdout
    assert result.stdout.count("\n") == 1
    assert f"ptocache: {sources / 'bad.py'}: " in result.stderr
    assert "undefined_name" in result.stderr
    facts = warm(sources, status=1)
    assert [failure["name"] for failure in facts["failures"]] == [str(sources / "bad.py")]
    assert facts["hits"] == 3


def test_a_file_that_is_named_has_to_be_a_source(sources: Path) -> None:
    result = run_ptocache("warm", sources / "helper.py")
    assert result.returncode == 1
    assert "defines no kernel" in result.stderr


def test_what_cannot_be_read_is_a_failure_and_the_others_are_compiled(sources: Path) -> None:
    (sources / "unreadable.py").symlink_to("/proc/self/mem")  # whose first byte nobody can read, not even root
    result = run_ptocache("warm", sources)
    assert result.returncode == 1
    assert "3 compiled, 1 failed" in result.stdout
    assert result.stderr.startswith(f"ptocache: {sources / 'unreadable.py'}: it cannot be read: ")
    assert result.stderr.count("\n") == 1


def test_pipes_and_broken_links_below_a_directory_are_left_alone(sources: Path) -> None:
    os.mkfifo(sources / "pipe.py")
    (sources / "broken_link.py").symlink_to("nowhere")
    found = warm(sources)
    assert (found["compiled"], found["passed_over"]) == (3, 3)


def test_a_kernel_with_a_fault_is_not_passed_over(sources: Path) -> None:
    (sources / "twice.py").write_text(kernel(6) + kernel(6))
    found = warm(sources, status=1)
    assert [failure["name"] for failure in found["failures"]] == [str(sources / "twice.py")]
    assert (found["compiled"], found["passed_over"]) == (3, 3)


@pytest.mark.parametrize("option", ["--arch=a7", "--flag=-o"])
def test_an_option_that_no_source_can_have_is_one_line(sources: Path, option: str) -> None:
    result = run_ptocache("warm", sources, option)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1


def test_a_closed_standard_input_is_one_line() -> None:
    command = f"{sys.executable} -m ptocache warm - <&-"
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=WAIT)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "ptocache: standard input is closed: expected a source there\n"


def test_without_tools_there_is_one_error(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PTOAS_BIN", "ASCEND_HOME_PATH", "PYTHONPATH"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    result = run_ptocache("warm", sources)
    assert result.returncode == 1
    assert result.stderr.count("tools are missing") == 1
    assert run_ptocache("warm", sources, "--emulate").returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["-j", "0", "x"],
        ["-j", "many", "x"],
        ["x", "--from-log", "y"],
        ["--from-log", "y", "--arch", "a5"],
        ["nope"],
    ],
)
def test_wrong_use_is_one_line(arguments: list[str], tmp_path: Path) -> None:
    result = run_ptocache("warm", *arguments, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("ptocache: ")
    assert result.stderr.count("\n") == 1


def test_an_interrupt_ends_the_tools_and_stores_nothing_half(
    sources: Path, tmp_path: Path, tool_log: ToolLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTOCACHE_EMULATOR_DELAY", f"ptoas={10 * WAIT}")
    command = [sys.executable, "-m", "ptocache", "warm", str(sources), "-j", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: running_tools(tool_log) >= 2, "the start of two tools")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT)
    assert (process.returncode, out) == (130, "")
    assert "ended after" in err
    assert "Traceback" not in err
    wait_until(lambda: not any(map(is_running, pids(tool_log))), "the end of the tools")
    assert not list((tmp_path / "cache").glob("actions/*"))
    monkeypatch.delenv("PTOCACHE_EMULATOR_DELAY")
    assert warm(sources)["compiled"] == 3, "no failure is remembered"


def test_an_interrupt_while_they_are_handed_over_begins_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    begun: list[str] = []
    handed_over = 0
    submit = ThreadPoolExecutor.submit

    def compile_until_ended(_cache: CompileCache, source: str, *_: object) -> None:
        begun.append(source)
        assert ended.wait(WAIT)

    def submit_nine(pool: ThreadPoolExecutor, *call: Any) -> Future[Any]:
        nonlocal handed_over
        handed_over += 1
        if handed_over == 10:
            raise KeyboardInterrupt
        return submit(pool, *call)

    monkeypatch.setattr(CompileCache, "compile", compile_until_ended)
    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit_nine)
    monkeypatch.setattr(warm_module, "end_tools", ended.set)
    with CompileCache() as cache, pytest.raises(KeyboardInterrupt):
        warm_module.warm(cache, [Wanted("name", str(number), None, None) for number in range(20)], jobs=2)
    assert ended.is_set()
    assert set(begun) <= {"0", "1"}


def test_one_that_waits_for_another_process_is_interrupted_too(
    sources: Path, tool_log: ToolLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTOCACHE_EMULATOR_DELAY", f"ptoas={10 * WAIT}")
    command = [sys.executable, "-m", "ptocache", "warm", str(sources / "a.py")]
    environ = {**os.environ, "PTOCACHE_LOG": "debug"}
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as first:
        try:
            wait_until(lambda: running_tools(tool_log) >= 1, "the start of the tool")
            with subprocess.Popen(command, stderr=subprocess.PIPE, env=environ, text=True) as second:
                assert second.stderr is not None
                said = next(line for line in second.stderr if "miss " in line)  # now it asks for the lease
                second.send_signal(signal.SIGTERM)
                _, rest = second.communicate(timeout=WAIT)
            assert second.returncode == 143
            assert "compiling it here too" not in said + rest
            assert first.poll() is None
        finally:
            first.send_signal(signal.SIGTERM)
            first.wait(WAIT)
    assert tool_log.count("ptoas") == len(pids(tool_log)) == 1


def running_tools(log: ToolLog) -> int:
    return sum(map(is_running, pids(log)))


def pids(log: ToolLog) -> list[int]:
    lines = log.path.read_text().splitlines() if log.path.exists() else []
    return [int(line.split()[1]) for line in lines if line.split()[0] == "ptoas" and "--version" not in line]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_on_a_terminal_a_bar_shows_how_far_it_is(sources: Path) -> None:
    leader, follower = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(leader, 65536):
                shown.append(data)
        except OSError:  # the other end is closed
            pass

    environ = {**os.environ, "COLUMNS": "80", "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "ptocache", "warm", str(sources), "-j", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=follower, env=environ, text=True) as process:
        os.close(follower)
        reader = threading.Thread(target=read)
        reader.start()
        out, _ = process.communicate(timeout=WAIT)
        reader.join(WAIT)
        os.close(leader)
    text = b"".join(shown).decode()
    assert process.returncode == 0
    assert "3/3" in text
    assert "3 compiled" in text
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert max(map(len, re.split(r"[\r\n]+", plain))) <= 80
    assert out.startswith("3 kernel sources: 0 hits, 3 compiled, 0 failed in ")


# The log of requests.


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "requests.jsonl"
    monkeypatch.setenv("PTOCACHE_REQUEST_LOG", str(path))
    return path


def test_what_was_asked_for_is_compiled_again(log: Path, tool_log: ToolLog) -> None:
    with CompileCache() as cache:
        for _ in range(3):
            cache.compile(kernel(1), "a3", ["--pto-level=level3"])
            cache.compile(kernel(2))
    lines = [json.loads(line) for line in log.read_text().splitlines() if line]
    assert [line["origin"] for line in lines] == ["compiled", "compiled"]
    assert (lines[0]["arch"], lines[0]["flags"]) == ("a3", ["--pto-level=level3", "--pto-backend=vpto"])
    assert lines[0]["source"] == kernel(1)
    assert log.stat().st_mode & 0o777 == 0o600
    assert run_ptocache("clear", "-y").returncode == 0
    assert warm("--from-log", log)["compiled"] == 2
    with CompileCache() as cache:
        assert cache.compile(kernel(1), "a3", ["--pto-level=level3"]).origin == "local"
        assert cache.compile(kernel(2)).origin == "local"


def test_hits_are_logged_too_and_failures_are_not(log: Path) -> None:
    settings = Settings.load(request_log="")
    with CompileCache(settings) as cache:
        cache.compile(kernel(1))
    assert not log.exists()
    for source in (kernel(1), kernel(2) + "  undefined_name\n"):
        run_ptocache("compile", "-", "-o", "/dev/null", input=source)
    assert [json.loads(line)["origin"] for line in log.read_text().splitlines() if line] == ["local"]


def test_processes_and_threads_share_a_log(log: Path) -> None:
    script = """
import sys, threading
from ptocache import CompileCache
cache = CompileCache()
threads = [threading.Thread(target=cache.compile, args=(source,)) for source in sys.stdin.read().split(chr(0)) * 3]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    given = "\0".join(map(kernel, range(4)))
    with CompileCache(Settings.load(request_log="")) as cache:
        for number in range(4):
            cache.compile(kernel(number))
    processes = [subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, text=True) for _ in range(3)]
    for process in processes:
        process.communicate(given, timeout=WAIT)
    requests = list(read_log(str(log)))
    assert None not in requests
    assert sorted(request.source for request in requests if request) == sorted(map(kernel, list(range(4)) * 3))


def test_a_log_that_cannot_be_written_is_said_once_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTOCACHE_REQUEST_LOG", str(tmp_path))
    result = run_ptocache("warm", "-j", 1, "-", input=kernel(1))
    assert result.returncode == 0
    assert result.stderr.count("PTOCACHE_REQUEST_LOG") == 1
    monkeypatch.setenv("PTOCACHE_REQUEST_LOG", "/dev/full")
    result = run_ptocache("compile", "-", "-o", "/dev/null", input=kernel(2))
    assert result.returncode == 0
    assert result.stderr.count("PTOCACHE_REQUEST_LOG") == 1


def test_what_many_asked_for_is_compiled_and_held_once(tmp_path: Path, tool_log: ToolLog) -> None:
    line = json.dumps({"source": kernel(1), "arch": "a5", "flags": []})
    log = tmp_path / "log"
    log.write_text(f"{line}\n" * 20)
    assert warm("--from-log", log)["compiled"] == 1
    assert tool_log.count("ptoas") == 1
    many = (Wanted(f"request {number}", "x" * (number % 2), "a5", ()) for number in range(1000))
    assert [wanted.name for wanted in distinct(many)] == ["request 0", "request 1"]


def test_damaged_lines_are_counted_and_the_others_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = json.dumps({"source": kernel(1), "arch": "a5", "flags": []})
    bad = [
        "",
        '{"source": "x", "arch": "a5", "flags": "abc"}',
        "{",
        "[]",
        "1",
        '{"source": 1, "arch": "a5", "flags": []}',
        '{"source": "x"}',
        "[" * 100_000,
        "\x00",
    ]
    log = tmp_path / "log"
    log.write_bytes("\n".join([*bad, good, good[:50]]).encode() + b"\n\xff\xfe\n")
    result = run_ptocache("warm", "--from-log", log)
    assert result.returncode == 0
    assert result.stdout.startswith("1 kernel source: 0 hits, 1 compiled")
    assert "10 lines of the log damaged" in result.stdout
    log.write_text("nothing\n")
    result = run_ptocache("warm", "--from-log", log)
    assert (result.returncode, result.stdout) == (1, "")
    assert "there is no request in it" in result.stderr


def test_a_line_without_an_end_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requestlog_module, "LINE_LIMIT", 1000)
    log = tmp_path / "log"
    log.write_bytes(b"x" * 50_000 + b"\n" + json.dumps({"source": "s", "arch": "a5", "flags": ["f"]}).encode() + b"\n")
    assert list(read_log(str(log))) == [None, Logged("s", "a5", ("f",))]


@pytest.mark.parametrize("path", ["missing", "."])
def test_a_log_that_cannot_be_read_is_named(tmp_path: Path, path: str) -> None:
    result = run_ptocache("warm", "--from-log", tmp_path / path)
    assert result.returncode == 1
    assert str(tmp_path / path) in result.stderr
    assert result.stderr.count("\n") == 1
