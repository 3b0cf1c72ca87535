"""What the tests share: an emulated CANN install, an environment of their own, and a way to count tool runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import Nginx, RedisServer

from ptocache.emulator import write_install

EXAMPLES = Path(__file__).parent.parent / "examples"

KERNEL = """\
from ptodsl import pto


@pto.jit(name="main_kernel", kernel_kind="vector", target="a5", mode="explicit")
def main_kernel(A: pto.ptr(pto.f32, "gm"), O: pto.ptr(pto.f32, "gm")):
  pto.init_core()
  buf = pto.castptr(pto.const(0, dtype=pto.i64), pto.ptr(pto.f32, "ub"))
  pto.mte_gm_ub(A, buf, 0, 1024, nburst=(1, 1024, 1024))
  pto.set_flag("MTE2", "MTE3", event_id=0)
  pto.wait_flag("MTE2", "MTE3", event_id=0)
  pto.mte_ub_gm(buf, O, 1024, nburst=(1, 1024, 1024))
"""


def numbered_kernel(number: int) -> str:
    """A source whose device binary differs from that of every other number."""
    return KERNEL.replace("event_id=0", f"event_id={number}")


@pytest.fixture(scope="session")
def cann(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An emulated CANN install."""
    return write_install(tmp_path_factory.mktemp("toolchain") / "cann")


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A home, a cache directory and a temporary directory of the test's own, and nobody's settings."""
    for name in list(os.environ):
        if name.startswith(("PTOCACHE_", "PTO_", "PTOAS", "ASCEND_", "BISHENG_", "XDG_")):
            monkeypatch.delenv(name)
    for name in ("home", "temp"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("PTOCACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def toolchain(cann: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The emulated install, used as a real one is: through its variables."""
    monkeypatch.setenv("ASCEND_HOME_PATH", str(cann))
    monkeypatch.setenv("PTOAS_BIN", str(cann / "bin" / "ptoas"))
    monkeypatch.setenv("PATH", f"{cann / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(cann / "python"))
    return cann


class ToolLog:
    """The runs of the emulated tools, as they themselves report them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def count(self, tool: str) -> int:
        if not self.path.exists():
            return 0
        return sum(line.split()[0] == tool for line in self.path.read_text().splitlines())


@pytest.fixture
def tool_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToolLog:
    path = tmp_path / "tools.log"
    monkeypatch.setenv("PTOCACHE_EMULATOR_LOG", str(path))
    return ToolLog(path)


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis server for the tests of a module, which do not stop it."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    """A web server for the tests of a module, which do not stop it."""
    with Nginx(tmp_path_factory.mktemp("nginx")) as server:
        yield server


def run_ptocache(*arguments: object, timeout: float = 120, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the `ptocache` command in a process of its own."""
    command = [sys.executable, "-m", "ptocache", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **options)
