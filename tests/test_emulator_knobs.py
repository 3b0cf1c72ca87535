"""The knobs of the emulated tools: the log, the delays and the faults."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from ptocache.emulator import environment, write_install

SOURCE = "from ptodsl import pto\n@pto.jit\ndef k():\n  pto.f()\n@pto.jit\ndef j():\n  pto.f()\n"
FRONTEND = "import k; text = k.k.compile().mlir_text(); k.j.compile(); open('k.pto', 'w').write(text)"
COMMANDS = {
    "frontend": [sys.executable, "-c", FRONTEND],
    "ptoas": ["ptoas", "--pto-arch=a5", "k.pto", "-o", "k.o"],
    "bisheng": ["bisheng", "-fPIC", "-shared", "--cce-fatobj-link", "k.o", "-o", "lib.so"],
    "ld.lld": ["ld.lld", "-m", "aicorelinux", "-Ttext", "0", "k.rel.o", "-o", "k.aibin"],
}
OUTPUTS = {"frontend": "k.pto", "ptoas": "k.o", "bisheng": "lib.so", "ld.lld": "k.aibin"}


class Workshop:
    """A directory with the inputs of every tool, and a way to run one."""

    def __init__(self, folder: Path, install: Path) -> None:
        self.folder = folder
        self.environ = environment(install, os.environ)
        self.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        (folder / "k.py").write_text(SOURCE)
        for tool in ("frontend", "ptoas", "bisheng"):
            assert self.run(tool).returncode == 0
        with (folder / "lib.so").open("rb") as file:
            section = ELFFile(file).get_section_by_name("__aicore_rel_binary")
            (folder / "k.rel.o").write_bytes(section.data())
        assert self.run("ld.lld").returncode == 0
        self.expected = {tool: (folder / name).read_bytes() for tool, name in OUTPUTS.items()}

    def run(self, tool: str, **knobs: str) -> subprocess.CompletedProcess[bytes]:
        environ = {**self.environ, **{f"PTOCACHE_EMULATOR_{name}": value for name, value in knobs.items()}}
        return subprocess.run(COMMANDS[tool], cwd=self.folder, env=environ, capture_output=True, check=False)

    def output(self, tool: str) -> bytes:
        return (self.folder / OUTPUTS[tool]).read_bytes()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    folder = tmp_path_factory.mktemp("knobs")
    return Workshop(folder, write_install(folder / "cann"))


@pytest.fixture
def workshop(pristine: Workshop) -> Iterator[Workshop]:
    yield pristine
    for tool, data in pristine.expected.items():
        (pristine.folder / OUTPUTS[tool]).write_bytes(data)


def test_each_run_is_a_line_of_the_log(workshop: Workshop, tmp_path: Path) -> None:
    log = tmp_path / "tools.log"
    for tool in ("frontend", "ptoas", "bisheng"):
        assert workshop.run(tool, LOG=str(log)).returncode == 0
    lines = [line.split(" ", 2) for line in log.read_text().splitlines()]
    assert [line[0] for line in lines] == ["frontend", "ptoas", "bisheng", "ld.lld"]
    assert all(line[1].isdecimal() for line in lines)
    assert lines[1][2] == "--pto-arch=a5 k.pto -o k.o"


def test_awkward_arguments_stay_on_one_line(workshop: Workshop, tmp_path: Path) -> None:
    log = tmp_path / "tools.log"
    environ = {**workshop.environ, "PTOCACHE_EMULATOR_LOG": str(log)}
    subprocess.run(["ptoas", "two words", "a\nb"], env=environ, capture_output=True, check=False)
    subprocess.run([b"ptoas", b"\xff"], env=environ, capture_output=True, check=False)
    first, second = log.read_bytes().splitlines()
    assert first.endswith(b"'two words' 'a\\nb'")
    assert second.endswith(b"'\xff'")


def test_lines_of_concurrent_runs_do_not_mix(workshop: Workshop, tmp_path: Path) -> None:
    log = tmp_path / "tools.log"
    environ = {**workshop.environ, "PTOCACHE_EMULATOR_LOG": str(log)}
    long = "x" * 3000
    runs = [subprocess.Popen(["ptoas", long], env=environ, stderr=subprocess.DEVNULL) for _ in range(8)]
    for run in runs:
        run.wait()
    lines = log.read_text().splitlines()
    assert len(lines) == 8
    assert all(line.startswith("ptoas ") and line.endswith(long) for line in lines)


@pytest.mark.parametrize("tool", COMMANDS)
def test_a_tool_is_delayed(tool: str, workshop: Workshop) -> None:
    other = "ptoas" if tool == "frontend" else "frontend"
    start = time.monotonic()
    assert workshop.run(tool, DELAY=f"{other}=9, {tool}=0.4").returncode == 0
    assert time.monotonic() - start >= 0.4
    assert workshop.output(tool) == workshop.expected[tool]


@pytest.mark.parametrize("tool", COMMANDS)
def test_a_tool_exits(tool: str, workshop: Workshop) -> None:
    (workshop.folder / OUTPUTS[tool]).unlink()
    assert workshop.run(tool, FAULT=f"{tool}=exit:7").returncode == 7
    assert not (workshop.folder / OUTPUTS[tool]).exists()


@pytest.mark.parametrize("tool", COMMANDS)
def test_a_tool_is_killed(tool: str, workshop: Workshop) -> None:
    assert workshop.run(tool, FAULT=f"{tool}=signal:11").returncode == -signal.SIGSEGV


@pytest.mark.parametrize("tool", COMMANDS)
def test_a_tool_hangs_until_it_is_ended(tool: str, workshop: Workshop) -> None:
    environ = {**workshop.environ, "PTOCACHE_EMULATOR_FAULT": f"{tool}=hang"}
    process = subprocess.Popen(COMMANDS[tool], cwd=workshop.folder, env=environ)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.terminate()
    assert process.wait(5) == -signal.SIGTERM


@pytest.mark.parametrize("tool", COMMANDS)
def test_a_tool_writes_half_or_nothing(tool: str, workshop: Workshop) -> None:
    expected = workshop.expected[tool]
    assert workshop.run(tool, FAULT=f"{tool}=truncate").returncode == 0
    assert workshop.output(tool) == expected[: len(expected) // 2]
    assert workshop.run(tool, FAULT=f"{tool}=empty").returncode == 0
    assert workshop.output(tool) == b""
    (workshop.folder / OUTPUTS[tool]).unlink()
    assert workshop.run(tool, FAULT=f"{tool}=missing").returncode == 0
    assert not (workshop.folder / OUTPUTS[tool]).exists()


@pytest.mark.parametrize("tool", COMMANDS)
def test_a_tool_is_noisy_and_works(tool: str, workshop: Workshop) -> None:
    done = workshop.run(tool, FAULT=f"{tool}=noise")
    assert done.returncode == 0
    assert min(len(done.stdout), len(done.stderr)) >= 4 << 20
    assert workshop.output(tool) == workshop.expected[tool]


def test_faults_add_up(workshop: Workshop) -> None:
    done = workshop.run("ptoas", FAULT="bisheng=exit:1,ptoas=noise,ptoas=truncate")
    assert done.returncode == 0
    assert len(done.stdout) >= 4 << 20
    assert len(workshop.output("ptoas")) == len(workshop.expected["ptoas"]) // 2


def test_bisheng_reports_a_linker_that_fails(workshop: Workshop) -> None:
    for fault, message in (
        ("exit:3", "linker command failed with exit code 3"),
        ("signal:9", "linker command failed with signal 9"),
        ("missing", "cannot open input file"),
    ):
        done = workshop.run("bisheng", FAULT=f"ld.lld={fault}")
        assert done.returncode == 1
        assert message in done.stderr.decode()


# Values that no knob takes: (the knob, the value)
MALFORMED = [
    ("DELAY", "ptoas"),
    ("DELAY", "ptoas=soon"),
    ("DELAY", "ptoas=-1"),
    ("DELAY", "ptoas=nan"),
    ("DELAY", "gcc=1"),
    ("FAULT", "ptoas"),
    ("FAULT", "ptoas=explode"),
    ("FAULT", "ptoas=exit"),
    ("FAULT", "ptoas=exit:x"),
    ("FAULT", "ptoas=hang:1"),
    ("FAULT", "gcc=hang"),
]


@pytest.mark.parametrize(("knob", "value"), MALFORMED)
@pytest.mark.parametrize("tool", ["frontend", "ptoas"])
def test_a_malformed_knob_stops_every_tool(tool: str, knob: str, value: str, workshop: Workshop) -> None:
    done = workshop.run(tool, **{knob: value})
    assert done.returncode == 2
    assert f"PTOCACHE_EMULATOR_{knob}" in done.stderr.decode()


def test_the_frontend_is_one_run_a_process(workshop: Workshop, tmp_path: Path) -> None:
    log = tmp_path / "tools.log"
    environ = {**workshop.environ, "PTOCACHE_EMULATOR_LOG": str(log)}
    subprocess.run([sys.executable, "-c", "import k, ptodsl"], cwd=workshop.folder, env=environ, check=True)
    assert not log.exists()
    script = "import k; from ptodsl import pto; print(pto.merge_jit_modules(k.k, k.j)); k.k.compile().mlir_text()"
    subprocess.run(
        [sys.executable, "-c", script], cwd=workshop.folder, env=environ, check=True, stdout=subprocess.DEVNULL
    )
    assert log.read_text().count("frontend ") == 1
