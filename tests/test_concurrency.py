"""Many processes at once, as ranks of a job and workers of a CI host start; counted by the tools themselves."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import KERNEL, ToolLog, numbered_kernel, run_ptocache

pytestmark = pytest.mark.usefixtures("toolchain")

#: Starts, says so, waits for the starting shot, compiles standard input and prints where it came from.
WORKER = """
import os, sys, time, hashlib
import ptocache
source = sys.stdin.read()
open(os.path.join(sys.argv[1], str(os.getpid())), "w").close()
while not os.path.exists(os.path.join(sys.argv[1], "go")):
    time.sleep(0.005)
with ptocache.CompileCache() as cache:
    result = cache.compile(source)
print(result.origin, hashlib.sha256(result.aibin).hexdigest())
"""


@contextlib.contextmanager
def workers(sources: list[str], meeting: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that all stand at the start; none is left at the end."""
    meeting.mkdir()
    processes = []
    try:
        for source in sources:
            process = subprocess.Popen(
                [sys.executable, "-c", WORKER, str(meeting)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            processes.append(process)
            assert process.stdin is not None
            process.stdin.write(source)
            process.stdin.close()
            process.stdin = None
        until(lambda: len(os.listdir(meeting)) == len(sources))
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def until(condition: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "this never came true"
        time.sleep(0.01)


def outcomes(processes: list[subprocess.Popen[str]]) -> list[tuple[str, str]]:
    results = []
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        origin, digest = out.split()
        results.append((origin, digest))
    return results


def statistics() -> dict[str, int]:
    facts = json.loads(run_ptocache("stats", "--json").stdout)
    assert facts["requests"] == sum(facts["hits"].values()) + facts["misses"]
    return facts


def test_32_processes_on_one_missing_key_run_the_pipeline_once(tmp_path: Path, tool_log: ToolLog) -> None:
    with workers([KERNEL] * 32, tmp_path / "meeting") as processes:
        (tmp_path / "meeting" / "go").touch()
        results = outcomes(processes)
    assert [tool_log.count(tool) for tool in ("frontend", "ptoas", "bisheng")] == [1, 1, 1]
    assert sorted(origin for origin, _ in results) == ["compiled"] + ["local"] * 31
    assert len({digest for _, digest in results}) == 1
    facts = statistics()
    assert (facts["requests"], facts["hits"]["local"], facts["compiles"]) == (32, 31, 1)
    assert os.listdir(tmp_path / "cache" / "locks") == []


def test_32_different_keys_at_once_all_succeed(tmp_path: Path, tool_log: ToolLog) -> None:
    with workers([numbered_kernel(number) for number in range(32)], tmp_path / "meeting") as processes:
        (tmp_path / "meeting" / "go").touch()
        results = outcomes(processes)
    assert [origin for origin, _ in results] == ["compiled"] * 32
    assert len({digest for _, digest in results}) == 32
    assert tool_log.count("ptoas") == 32
    facts = statistics()
    assert (facts["requests"], facts["compiles"], facts["entries"]) == (32, 32, 32)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_when_the_compiler_is_killed_another_takes_over(
    tmp_path: Path, tool_log: ToolLog, monkeypatch: pytest.MonkeyPatch, end: signal.Signals
) -> None:
    monkeypatch.setenv("PTOCACHE_EMULATOR_FAULT", "ptoas=hang")
    with workers([KERNEL], tmp_path / "first") as (compiling,):
        (tmp_path / "first" / "go").touch()
        until(lambda: tool_log.count("ptoas") == 1)
        monkeypatch.delenv("PTOCACHE_EMULATOR_FAULT")
        with workers([KERNEL] * 3, tmp_path / "second") as waiting:
            (tmp_path / "second" / "go").touch()
            time.sleep(0.2)  # long enough for them to wait; were it not, the test would still hold
            assert all(process.poll() is None for process in waiting)
            compiling.send_signal(end)
            results = outcomes(waiting)
    for line in tool_log.path.read_text().splitlines():  # the hanging tool of a killed parent is ours to end
        tool, pid = line.split()[:2]
        if tool == "ptoas":
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    assert sorted(origin for origin, _ in results) == ["compiled", "local", "local"]
    assert tool_log.count("ptoas") == 2


def test_who_waits_too_long_compiles_without_the_lease(
    tmp_path: Path, tool_log: ToolLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTOCACHE_EMULATOR_FAULT", "ptoas=hang")
    with workers([KERNEL], tmp_path / "first") as (compiling,):
        (tmp_path / "first" / "go").touch()
        until(lambda: tool_log.count("ptoas") == 1)
        monkeypatch.delenv("PTOCACHE_EMULATOR_FAULT")
        monkeypatch.setenv("PTOCACHE_LOCK_TIMEOUT", "0.2")
        result = run_ptocache("compile", "-o", tmp_path / "out", write(tmp_path / "k.py", KERNEL), "--json")
        assert json.loads(result.stdout)["origin"] == "compiled"
        assert "waited 0 s" in result.stderr
        assert compiling.poll() is None
        compiling.send_signal(signal.SIGINT)
        compiling.communicate(timeout=60)
    assert (tmp_path / "out").stat().st_size > 0


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
