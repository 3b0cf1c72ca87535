"""ptocache below TileLang, with the emulated CANN: real lowering, real processes, real files.

Importing the released TileLang takes seconds, so one process does it once and forks one child for each process of a
test. A child has the environment, the directory and the caches of a process of its own. The PTO path, which no
released TileLang has, is shown on the stand-in in `standin`, in processes that are started one by one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import EXAMPLES, ToolLog, run_ptocache

from ptocache import emulator
from ptocache.emulator import write_install

TILELANG = importlib.util.find_spec("tilelang")
needs_tilelang = pytest.mark.skipif(TILELANG is None, reason="TileLang is not installed")

KERNELS = """
import tilelang
import tilelang.ascend.language as T
import tilelang.language as common

def vector_add(tile=1024, n=1 << 14):
    @T.prim_func
    def add(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32"), C: T.Tensor((n,), "float32")):
        with T.Kernel(n // tile) as block:
            a = T.alloc_shared((tile,), "float32")
            b = T.alloc_shared((tile,), "float32")
            c = T.alloc_shared((tile,), "float32")
            T.copy(A[block * tile : (block + 1) * tile], a)
            T.copy(B[block * tile : (block + 1) * tile], b)
            with T.SimtVF(threads=tile):
                for i in T.Parallel(tile):
                    c[i] = a[i] + b[i]
            T.copy(c, C[block * tile : (block + 1) * tile])
    return add

def simd_double(tile=1024, n=1 << 14):
    @T.prim_func
    def double(A: T.Tensor((n,), "float32"), C: T.Tensor((n,), "float32")):
        with T.Kernel(n // tile) as block:
            a = T.alloc_shared((tile,), "float32")
            c = T.alloc_shared((tile,), "float32")
            T.copy(A[block * tile], a)
            with T.SimdVF():
                for i in T.serial(tile // 64):
                    x = T.simd.vld(a[i * 64])
                    T.simd.vsts(c[i * 64], T.simd.vadd(x, x))
            T.copy(c, C[block * tile])
    return double

def gemm(M=128, N=128, K=128):
    @T.prim_func
    def matmul(A: T.Tensor((M, K), T.bfloat16), B: T.Tensor((N, K), T.bfloat16), C: T.Tensor((M, N), T.float32)):
        with T.Kernel(1) as block:
            A_l1 = T.alloc_l1((M, K), T.bfloat16)
            B_l1 = T.alloc_l1((N, K), T.bfloat16)
            C_l0c = T.alloc_l0c((M, N), T.float32)
            T.copy(A[0, 0], A_l1)
            T.copy(B[0, 0], B_l1)
            T.gemm(A_l1, B_l1, C_l0c, transpose_B=True, clear_accum=True)
            T.copy(C_l0c, C[0, 0])
    return matmul

def on_the_host():
    @common.prim_func
    def add_one(A: common.Tensor((64,), "float32"), B: common.Tensor((64,), "float32")):
        with common.Kernel(1) as block:
            for i in common.serial(64):
                B[i] = A[i] + 1.0
    return add_one
"""

#: Reads lists of jobs, and runs each job of a list in a fork of itself, all at the same time.
SERVER = """
import atexit, gc, json, os, sys, tempfile, traceback
import kernels, torch, tilelang.autotuner, tilelang.cache.ascend_binary_cache, tilelang.ascend.backend

def become(job):
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(job[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
    os.environ.clear()
    os.environ.update(job["env"])
    os.chdir(job["directory"])
    tempfile.tempdir = None
    sys.argv = ["test"]
    status = 0
    try:
        exec(compile(job["code"], "<test>", "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
        status = 1
    # As Python does at the end, but for taking all of TileLang apart, which takes longer than the test.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

gc.collect()
gc.freeze()
print("ready", flush=True)
for line in sys.stdin:
    children = []
    for job in json.loads(line):
        child = os.fork()
        if not child:
            become(job)
        children.append(child)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)
"""

#: What the code of a test has at hand. `binaries` are the device binaries that TileLang was given, as their SHA-256.
PRELUDE = """
import hashlib, json, os, sys, threading, time
import tvm_ffi, tilelang
from kernels import *
from tilelang.ascend import backend
from tilelang.ascend.callback import register_ascend_postproc
from tilelang.contrib import bisheng
from tilelang.cache import _ascend_dispatch_map
from tilelang.cache.ascend_binary_cache import AscendBinaryCache

binaries = []

def record(code, target, pass_config=None):
    binary = backend.tilelang_callback_ascend_compile(code, target, pass_config)
    binaries.append(hashlib.sha256(bytes(binary)).hexdigest())
    return binary

tvm_ffi.register_global_func("tilelang_callback_ascend_compile", record, override=True)

def build(*functions, **options):
    return [tilelang.compile(function, target="ascend", out_idx=-1, **options) for function in functions]

def failure(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except Exception as error:
        return [type(error).__name__, [kind.__name__ for kind in type(error).__mro__], str(error)]

def tell(**facts):
    print(json.dumps(facts))
"""


class Outcome(NamedTuple):
    """How a process ended, and what it told."""

    status: int
    facts: dict[str, Any]
    out: str
    err: str


class Server:
    """The process that has imported TileLang."""

    def __init__(self, folder: Path, templates: Path) -> None:
        (folder / "kernels.py").write_text(KERNELS)
        self._errors = (folder / "errors").open("w+")
        path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH", "")])])
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith("PTOCACHE")},
                "PYTHONPATH": path,
                "HOME": str(folder),
                "TILELANG_CACHE_DIR": str(folder / "unused"),
                "TL_TEMPLATE_PATH": str(templates),
            },
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._answer()

    def run(self, jobs: list[dict[str, Any]]) -> list[int]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(jobs) + "\n")
        self._process.stdin.flush()
        statuses: list[int] = json.loads(self._answer())
        return statuses

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            self._errors.seek(0)
            raise AssertionError(f"the process with TileLang has ended: {self._errors.read()}")
        return answer


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the headers that TileLang's generated texts include, for tests to change."""
    if TILELANG is None or TILELANG.origin is None:
        pytest.skip("TileLang is not installed")
    place = tmp_path_factory.mktemp("templates")
    shutil.copytree(Path(TILELANG.origin).parent / "src/tl_templates", place / "tl_templates")
    return place


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, templates: Path) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"), templates)
    yield server
    server.stop()


class World:
    """Processes with TileLang, on a host with an emulated CANN.

    Attributes:
        cann: the install.
        log: the runs of its tools.
        tilelang: the directory of TileLang's own caches.
        caching: whether TileLang uses them. Otherwise every compilation comes to ptocache, and takes a third of the
            time, as TileLang links a library for each kernel that it caches.
    """

    def __init__(self, server: Server, templates: Path, folder: Path, cann: Path, log: ToolLog) -> None:
        self._server = server
        self._templates = templates
        self._folder = folder
        self._counted = 0
        self._number = 0
        self.cann = cann
        self.log = log
        self.tilelang = folder / "tilelang"
        self.caching = False

    def forget(self) -> None:
        """Have TileLang's own caches be empty from now on."""
        self._number += 1
        self.tilelang = self._folder / f"tilelang{self._number}"

    def compiled(self) -> int:
        """How often bisheng has run since this was asked."""
        before, self._counted = self._counted, self.log.count("bisheng")
        return self._counted - before

    def environ(self, **variables: str) -> dict[str, str]:
        environ = emulator.environment(self.cann, os.environ)
        environ.update(TILELANG_CACHE_DIR=str(self.tilelang), TILELANG_PRINT_ON_COMPILATION="0")
        environ["TILELANG_DISABLE_CACHE"] = str(int(not self.caching))
        environ["TL_TEMPLATE_PATH"] = str(self._templates)
        environ.pop("PYTHONPATH", None)
        return {**environ, **variables}

    def all(self, codes: list[str], *, installed: bool = True, **variables: str) -> list[Outcome]:
        """Run processes at the same time, each with its own piece of code."""
        first = "import ptocache; ptocache.install()" if installed else ""
        jobs = []
        for code in codes:
            self._number += 1
            files = {name: str(self._folder / f"{name}{self._number}") for name in ("out", "err")}
            text = f"{first}\n{PRELUDE}\n{textwrap.dedent(code)}"
            environ = self.environ(**variables)
            jobs.append({"code": text, "env": environ, "directory": str(self._folder), **files})
        outcomes = []
        for job, status in zip(jobs, self._server.run(jobs), strict=True):
            out, err = (Path(job[name]).read_text() for name in ("out", "err"))
            told = out.splitlines()
            outcomes.append(Outcome(status, json.loads(told[-1]) if told and not status else {}, out, err))
        return outcomes

    def run(self, code: str, *, installed: bool = True, **variables: str) -> Outcome:
        """Run one process."""
        return self.all([code], installed=installed, **variables)[0]

    def facts(self, code: str, *, installed: bool = True, **variables: str) -> dict[str, Any]:
        """What a process tells that succeeds."""
        outcome = self.run(code, installed=installed, **variables)
        assert outcome.status == 0, outcome.err
        return outcome.facts

    def build(self, functions: str, *, installed: bool = True, options: str = "", **variables: str) -> list[str]:
        """The device binaries that TileLang gets for some kernels, in a process of their own."""
        code = f"build({functions}, {options})\ntell(binaries=binaries)"
        outcome = self.run(code, installed=installed, **variables)
        assert (outcome.status, outcome.err) == (0, ""), outcome.err
        binaries: list[str] = outcome.facts["binaries"]
        return binaries

    def plain(self, functions: str, options: str = "", **variables: str) -> list[str]:
        """The same without ptocache and without TileLang's own caches; these runs of bisheng are not counted."""
        before = self.compiled()
        variables = {**variables, "TILELANG_DISABLE_CACHE": "1"}
        binaries = self.build(functions, installed=False, options=options, **variables)
        self._counted = self.log.count("bisheng") - before
        return binaries


@pytest.fixture
def world(server: Server, templates: Path, tmp_path: Path, cann: Path, tool_log: ToolLog) -> World:
    return World(server, templates, tmp_path, cann, tool_log)


def entries(world: World, kind: str) -> list[Path]:
    """The entries of one of TileLang's own caches."""
    return sorted(path for path in world.tilelang.glob(f"*/{kind}/*") if not path.name.startswith("."))


def kernel_entries(world: World) -> list[Path]:
    return sorted(world.tilelang.glob("*/*/kernels/*"))


def stats() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(run_ptocache("stats", "--json").stdout)
    return facts


ALL = "vector_add(), simd_double(), gemm()"
TWO = "vector_add(), gemm()"


class TestReuse:
    def test_the_second_process_compiles_nothing_and_gets_the_same(self, world: World) -> None:
        plain = world.plain(ALL)
        assert len(set(plain)) == 3
        assert world.build(ALL) == plain
        assert world.compiled() == 3
        assert world.build(ALL) == plain
        assert world.compiled() == 0
        facts = stats()
        assert (facts["compiles"], facts["hits"]["local"], facts["entries"]) == (3, 3, 3)

    @needs_tilelang
    def test_the_example_is_ready_at_once_the_second_time(self, tmp_path: Path, tool_log: ToolLog) -> None:
        """As the README has it: a script of its own, in the wheel as it is installed."""
        for number in range(2):
            environ = {**os.environ, "TILELANG_CACHE_DIR": str(tmp_path / f"tilelang{number}")}
            environ["TILELANG_PRINT_ON_COMPILATION"] = "0"
            result = run_ptocache("run", "--emulate", EXAMPLES / "tilelang/vector_add.py", env=environ)
            assert (result.returncode, result.stderr) == (0, "")
            assert result.stdout.startswith("vector_add is ready after ")
            assert tool_log.count("bisheng") == tool_log.count("ld.lld") == 1
        kernels = [(tmp_path / f"tilelang{number}").glob("*/ascend-binaries/*/kernel.aibin") for number in range(2)]
        assert len({path.read_bytes() for paths in kernels for path in paths}) == 1

    def test_two_hosts_with_their_tools_in_two_places_share(
        self, world: World, tmp_path: Path, templates: Path
    ) -> None:
        here = world.build(ALL)
        assert world.compiled() == 3
        world.cann = write_install(tmp_path / "another_host/cann")
        shutil.copytree(templates, tmp_path / "another_host/templates")
        elsewhere = f"backend.TILELANG_TEMPLATE_PATH = {str(tmp_path / 'another_host/templates')!r}\n"
        code = f"{elsewhere}build({ALL})\ntell(binaries=binaries)"
        assert world.facts(code)["binaries"] == here
        assert world.compiled() == 0

    def test_a_memory_hit_needs_no_file(self, world: World) -> None:
        code = """
build(vector_add())
text = build(vector_add())[0].get_kernel_source()
import shutil, ptocache
shutil.rmtree(os.environ["PTOCACHE_DIR"])
first = bisheng.compile_ascend(text, "aibin", options=["-I" + backend.TILELANG_TEMPLATE_PATH])
tell(same=hashlib.sha256(first).hexdigest() in binaries, kind=type(first).__name__)
"""
        assert world.facts(code) == {"same": True, "kind": "bytearray"}
        assert world.compiled() == 1

    def test_20_variants_at_once(self, world: World) -> None:
        code = """
functions = [vector_add(32 * number, 1 << 15) for number in range(1, 21)]
kernels = tilelang.par_compile(functions, target="ascend", out_idx=-1, num_workers=4)
tell(binaries=sorted(binaries), kernels=len(set(map(id, kernels))))
"""
        plain = world.facts(code, installed=False)
        assert (len(set(plain["binaries"])), plain["kernels"], world.compiled()) == (20, 20, 20)
        assert world.facts(code) == plain
        assert world.compiled() == 20
        assert world.facts(code) == plain
        assert world.compiled() == 0

    def test_an_autotuner_compiles_its_variants_once(self, world: World) -> None:
        """Without a device nothing can be measured, so the measuring is left out."""
        code = """
from tilelang.autotuner import AutoTuner
times = iter(range(10, 0, -1))
AutoTuner._benchmark_target = lambda self, jit_kernel=None, **more: (float(next(times)), None)
tuner = AutoTuner(vector_add, [{"tile": 64 * number} for number in range(1, 7)])
tuner.set_compile_args(target="ascend", out_idx=-1).set_profile_args(skip_check=True)
result = tuner.run()
tell(binaries=sorted(set(binaries)), source=len(result.libcode) > 0)
"""
        plain = world.facts(code, installed=False)
        assert (len(plain["binaries"]), world.compiled()) == (6, 6)
        assert world.facts(code) == plain
        assert world.compiled() == 6
        assert world.facts(code) == plain
        assert world.compiled() == 0

    def test_the_arch_and_the_options_count(self, world: World) -> None:
        code = """
for flags in (None, ["-DX=1"], ["-DX=2"], ["-DX=2", "-DY"], ["-DY", "-DX=2"]):
    build(vector_add(), compile_flags=flags)
os.environ["ASCEND_NPU_ARCH"] = "dav-2201"
build(vector_add())
tell(binaries=binaries)
"""
        plain = world.facts(code, installed=False)
        assert world.compiled() == 6
        assert world.facts(code) == plain
        assert world.compiled() == len(set(plain["binaries"])) == 6
        assert world.facts(code) == plain
        assert world.compiled() == 0

    @pytest.mark.parametrize(
        "options",
        [
            "-DTEXT='a b'",
            ["-DTEXT='a b'", "-DMORE=1"],
            [r"-DTEXT=\'quoted\'"],
            ["-D 'A=1' -DB='$HOME `pwd` #'"],
        ],
    )
    def test_options_with_quotes_are_read_once(self, world: World, options: object) -> None:
        """TileLang reads them as a shell does; what it has read must not be read again."""
        code = f"""
text = 'extern "C" __global__ __vector__ void k() {{}}'
results = [hashlib.sha256(bisheng.compile_ascend(text, "aibin", options={options!r})).hexdigest() for _ in range(2)]
tell(results=results, options=bisheng.normalize_options({options!r}))
"""
        plain = world.facts(code, installed=False)
        assert world.compiled() == 2
        assert world.facts(code) == plain
        assert world.compiled() == 1

    def test_a_temporary_directory_with_a_space_in_its_name(self, world: World, tmp_path: Path) -> None:
        (tmp_path / "two words").mkdir()
        environ = {"TMPDIR": str(tmp_path / "two words")}
        plain = world.plain("vector_add()", **environ)
        for _ in range(2):
            assert world.build("vector_add()", **environ) == plain
        assert world.compiled() == 1

    def test_options_that_read_or_write_more_are_never_answered(self, world: World, tmp_path: Path) -> None:
        code = f"""
text = 'extern "C" __global__ __vector__ void k() {{}}'
for option in ("-MD -MF {tmp_path}/own.d", "-save-temps=obj"):
    for _ in range(2):
        bisheng.compile_ascend(text, "aibin", options=option)
tell()
"""
        world.facts(code)
        assert world.compiled() == 4
        assert (tmp_path / "own.d").exists()


class TestUpgrades:
    """Another CANN at the same place: neither ptocache nor TileLang's own caches answer with what the old one made."""

    @pytest.fixture
    def world(self, world: World, tmp_path: Path) -> World:
        world.cann = write_install(tmp_path / "cann", "9.0.0")
        world.caching = True
        return world

    def test_everything_is_compiled_again_and_hits_after_the_way_back(self, world: World) -> None:
        old = world.build(TWO)
        assert world.compiled() == 2
        assert world.build(TWO) == []  # TileLang's cache of whole kernels has them
        write_install(world.cann, "9.1.0")
        new = world.build(TWO)
        assert (world.compiled(), len(set(old) & set(new))) == (2, 0)
        assert world.build(TWO) == []
        write_install(world.cann, "9.0.0")
        assert world.build(TWO) == []
        assert world.compiled() == 0
        world.forget()
        assert world.build(TWO) == old
        write_install(world.cann, "9.1.0")
        world.forget()
        assert world.build(TWO) == new
        assert world.compiled() == 0
        assert world.plain(TWO) == new

    def test_tilelangs_cache_of_binaries_knows_its_compiler(self, world: World) -> None:
        old = world.build("vector_add()")
        shutil.rmtree(kernel_entries(world)[0].parent)
        assert world.build("vector_add()", PTOCACHE_DIR="/proc/nowhere/but/unused") == old
        assert world.compiled() == 1
        write_install(world.cann, "9.1.0")
        assert world.build("vector_add()") != old
        assert world.compiled() == 1
        assert len(entries(world, "ascend-binaries")) == 2

    @pytest.mark.parametrize("name", ["common.h", "gemm.h"])
    def test_another_template_is_another_kernel(self, world: World, templates: Path, name: str) -> None:
        before = world.build("vector_add()")
        with edited(templates / "tl_templates/ascend" / name, lambda text: f"{text}\n// changed\n"):
            plain = world.plain("vector_add()")
            assert world.build("vector_add()") == plain
            assert world.build("vector_add()") == []
        assert (plain == before) == (name == "gemm.h")  # which this kernel does not include
        assert world.build("vector_add()") == []

    def test_another_arch_in_the_environment_is_another_kernel(self, world: World) -> None:
        default = world.build("vector_add()")
        other = world.build("vector_add()", ASCEND_NPU_ARCH="dav-2201")
        assert default != other == world.plain("vector_add()", ASCEND_NPU_ARCH="dav-2201")
        for arch in ("dav-2201", "dav-3510"):  # the second one is the default
            assert world.build("vector_add()", ASCEND_NPU_ARCH=arch) == []

    def test_an_editors_lock_among_the_templates_hides_no_upgrade(self, world: World, templates: Path) -> None:
        """A link that leads nowhere, as some editors make it beside a file that is being edited."""
        lock = templates / "tl_templates/ascend/.#common.h"
        lock.symlink_to("somebody@somewhere.1234")
        try:
            old = world.build("vector_add()")
            write_install(world.cann, "9.1.0")
            new = world.build("vector_add()")
        finally:
            lock.unlink()
        assert new == world.plain("vector_add()") != old

    def test_a_process_notices_it_while_it_runs(self, world: World) -> None:
        code = f"""
import time
from ptocache.emulator import write_install
first = build(vector_add())[0]
same = build(vector_add())[0] is first
write_install({str(world.cann)!r}, "9.1.0")
time.sleep(1.1)
second = build(vector_add())[0]
tell(binaries=len(set(binaries)), same=same, other=second is not first)
"""
        assert world.facts(code) == {"binaries": 2, "same": True, "other": True}
        assert world.compiled() == 2

    def test_a_tuning_result_is_for_its_compiler(self, world: World) -> None:
        code = """
from tilelang.autotuner import AutoTuner
AutoTuner._benchmark_target = lambda self, jit_kernel=None, **more: (1.0, None)
def key(target):
    tuner = AutoTuner(vector_add, [{"tile": 64}]).set_compile_args(target=target, out_idx=-1)
    tuner.set_profile_args(skip_check=True)
    tuner.compile_args.__class__.__hash__ = lambda self: 0      # it is another one in every process
    tuner.profile_args.__class__.__hash__ = lambda self: 0
    return tuner.generate_cache_key({}, {})
tell(ascend=key("ascend"), host=key("c"))
"""
        plain = world.facts(code, installed=False)
        old = world.facts(code)
        assert old["host"] == plain["host"]
        assert old["ascend"] != plain["ascend"]
        assert world.facts(code) == old
        write_install(world.cann, "9.1.0")
        new = world.facts(code)
        assert (new["host"], new["ascend"] != old["ascend"]) == (old["host"], True)


class TestTogether:
    def test_8_processes_with_empty_caches_compile_each_kernel_once(self, world: World) -> None:
        plain = world.plain("vector_add(), simd_double()")
        code = "build(vector_add(), simd_double())\ntell(binaries=binaries)"
        outcomes = world.all([code] * 8, PTOCACHE_EMULATOR_DELAY="bisheng=0.5")
        assert [(o.status, o.err) for o in outcomes] == [(0, "")] * 8
        assert {tuple(o.facts["binaries"]) for o in outcomes} == {tuple(plain)}
        assert world.compiled() == 2

    def test_8_processes_share_tilelangs_caches_too(self, world: World) -> None:
        world.caching = True
        code = "build(vector_add())\nbuild(vector_add())\ntell()"
        outcomes = world.all([code] * 8)
        assert [(o.status, o.err) for o in outcomes] == [(0, "")] * 8
        assert world.compiled() == 1
        assert len(kernel_entries(world)) == len(entries(world, "ascend-binaries")) == 1

    def test_threads_compile_equal_kernels_once(self, world: World) -> None:
        world.caching = True
        code = """
kernels = tilelang.par_compile([vector_add()] * 6, target="ascend", out_idx=-1, num_workers=6)
tell(binaries=sorted(set(binaries)), objects=len(set(map(id, kernels))))
"""
        plain = world.plain("vector_add()")
        assert world.facts(code, PTOCACHE_EMULATOR_DELAY="bisheng=0.5") == {"binaries": plain, "objects": 1}
        assert world.compiled() == 1

    def test_threads_compile_different_kernels_at_the_same_time(self, world: World, tmp_path: Path) -> None:
        """Each compiler waits until there are three."""
        (tmp_path / "meeting").mkdir()
        home = wrapped_bisheng(
            world,
            tmp_path,
            f"""
            echo > {tmp_path}/meeting/$$
            for i in $(seq 300); do
              [ "$(ls {tmp_path}/meeting | wc -l)" -ge 3 ] && exec {world.cann}/bin/bisheng "$@"
              sleep 0.1
            done
            echo nobody else came >&2
            exit 1
            """,
        )
        code = f"""
kernels = tilelang.par_compile([{ALL}], target="ascend", out_idx=-1, num_workers=3)
tell(binaries=len(set(binaries)))
"""
        assert world.facts(code, BISHENG_HOME=str(home)) == {"binaries": 3}
        assert world.compiled() == 3

    def test_it_can_be_had_for_a_block(self, world: World) -> None:
        code = """
import ptocache
with ptocache.installed():
    build(vector_add())
build(vector_add())
with ptocache.installed():
    build(vector_add())
tell(binaries=len(set(binaries)), count=len(binaries))
"""
        assert world.facts(code, installed=False) == {"binaries": 1, "count": 3}
        assert world.compiled() == 2

    def test_a_block_finds_tilelangs_kernels_of_an_earlier_one(self, world: World) -> None:
        world.caching = True
        code = """
import ptocache
kernels = []
for _ in range(3):
    with ptocache.installed():
        kernels += build(vector_add())
tell(objects=len(set(map(id, kernels))), count=len(binaries))
"""
        assert world.facts(code, installed=False) == {"objects": 1, "count": 1}

    def test_a_forked_child_answers_from_the_same_cache(self, world: World) -> None:
        code = """
build(vector_add())
pid = os.fork()
if not pid:
    build(vector_add(), simd_double())
    os._exit(len(set(binaries)))
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
build(simd_double())
tell(status=status)
"""
        assert world.facts(code) == {"status": 2}
        assert world.compiled() == 2


def wrapped_bisheng(world: World, folder: Path, script: str) -> Path:
    """A `BISHENG_HOME` with another bisheng, a shell script."""
    binary = folder / "wrapped/bin/bisheng"
    binary.parent.mkdir(parents=True)
    binary.write_text("#!/bin/sh\n" + textwrap.dedent(script))
    binary.chmod(0o755)
    (binary.parent / "ld.lld").symlink_to(world.cann / "bin/ld.lld")
    return folder / "wrapped"


def without_random_names(text: str) -> str:
    """An error's text, but for the names of TileLang's temporary directories."""
    return re.sub(r"/tmp[a-z0-9_]{8}/", "/temporary/", text)


#: A text that the compiler rejects. (A whole kernel takes longer: TVM looks for the lines of its own C++ code.)
REJECTED = """
text = '#include <tl_templates/ascend/common.h>\\nextern "C" __global__ __vector__ void k() {{}}\\n#error on purpose\\n'
tell(failures=[failure(bisheng.compile_ascend, text, "aibin", options=["-I" + backend.TILELANG_TEMPLATE_PATH])
               for _ in range({times})])
"""
REJECTED_KERNEL = """
register_ascend_postproc(lambda code, target: code + "\\n#error on purpose\\n")
tell(failures=[failure(build, vector_add()) for _ in range({times})])
"""


class TestFailures:
    @pytest.mark.parametrize("code", [REJECTED, REJECTED_KERNEL])
    def test_the_first_time_it_is_tilelangs_own_error(self, world: World, code: str) -> None:
        plain, cached = (world.run(code.format(times=1), installed=installed) for installed in (False, True))
        assert (cached.status, cached.err) == (plain.status, plain.err) == (0, "")
        ((kind, _, text),) = plain.facts["failures"]
        assert (kind, "on purpose" in text) == ("RuntimeError", True)
        assert without_random_names(cached.out) == without_random_names(plain.out)

    def test_a_direct_callers_too(self, world: World) -> None:
        code = """
text = 'extern "C" __global__ __vector__ void k() {\\n#include "missing.h"\\n}'
tell(failures=[failure(bisheng.compile_ascend, text, "aibin", options=option)
               for option in (None, "-DX", ["-DX", "-DY"])],
     link=failure(bisheng.compile_ascend, text.replace("missing.h", "stdio.h"), "aibin"))
"""
        environ = {"PTOCACHE_EMULATOR_FAULT": "ld.lld=exit:1"}
        plain, cached = (world.facts(code, installed=installed, **environ) for installed in (False, True))
        normal = without_random_names(json.dumps(cached))
        assert normal == without_random_names(json.dumps(plain))
        assert "device compilation failed" in normal
        assert "device link failed" in normal

    @pytest.mark.parametrize("code", [REJECTED, REJECTED_KERNEL])
    def test_the_second_time_it_is_remembered(self, world: World, code: str) -> None:
        first, second = world.facts(code.format(times=2))["failures"]
        assert world.compiled() == 1
        assert "RuntimeError" in second[1]
        assert second[2].startswith(first[2].partition("\n")[0])
        assert "error: on purpose" in second[2]
        assert "remembered" in second[2]
        assert "command: \n" not in second[2]  # there is none to show
        (another,) = world.facts(code.format(times=1))["failures"]
        assert world.compiled() == 0
        assert (another[0], "error: on purpose" in another[2]) == (second[0], True)

    def test_but_not_if_nothing_is_to_be_remembered(self, world: World) -> None:
        for _ in range(2):
            world.facts(REJECTED.format(times=2), PTOCACHE_FAILURE_TTL="0")
            assert world.compiled() == 2

    def test_a_changed_header_is_another_chance(self, world: World, templates: Path) -> None:
        world.facts(REJECTED.format(times=1))
        with edited(templates / "tl_templates/ascend/common.h", lambda text: f"// changed\n{text}"):
            world.facts(REJECTED.format(times=2))
        assert world.compiled() == 2
        world.facts(REJECTED.format(times=1))
        assert world.compiled() <= 1

    def test_another_compiler_is_another_chance(self, world: World, tmp_path: Path) -> None:
        world.cann = write_install(tmp_path / "cann", "9.0.0")
        world.facts(REJECTED.format(times=2))
        write_install(world.cann, "9.1.0")
        world.facts(REJECTED.format(times=2))
        assert world.compiled() == 2

    def test_the_words_of_the_source_do_not_matter(self, world: World) -> None:
        """TileLang's message has the whole text in it: what that says is no sign of a crash."""
        code = """
text = '''extern "C" __global__ __vector__ void k() {
  // wait for the signal, exit code -1, timeout
#error broken on purpose
}'''
tell(failures=[failure(bisheng.compile_ascend, text, "aibin") for _ in range(2)])
"""
        facts = world.facts(code)
        assert [len(entry) for entry in facts["failures"]] == [3, 3]
        assert world.compiled() == 1

    @pytest.mark.parametrize("fault", ["exit:1", "exit:139", "signal:11", "missing", "empty"])
    def test_a_compiler_that_breaks_down_is_asked_again(self, world: World, fault: str) -> None:
        code = """
text = 'extern "C" __global__ __vector__ void k() {}'
failures = [failure(bisheng.compile_ascend, text, "aibin") for _ in range(2)]
del os.environ["PTOCACHE_EMULATOR_FAULT"]
tell(failures=failures, then=hashlib.sha256(bisheng.compile_ascend(text, "aibin")).hexdigest())
"""
        environ = {"PTOCACHE_EMULATOR_FAULT": f"bisheng={fault}"}
        plain = world.facts(code, installed=False, **environ)
        assert (None in plain["failures"], world.compiled()) == (False, 3)
        cached = world.facts(code, **environ)
        assert world.compiled() == 3
        assert without_random_names(json.dumps(cached)) == without_random_names(json.dumps(plain))

    def test_a_compiler_that_is_missing_is_told_of_by_tilelang(self, world: World) -> None:
        code = "tell(failure=failure(bisheng.compile_ascend, 'text', 'aibin'))"
        environ = {"PATH": "/usr/bin:/bin"}
        plain = world.facts(code, installed=False, **environ)
        cached = world.run(code, **environ)
        assert cached.facts == plain
        assert "Cannot find the bisheng compiler" in plain["failure"][2]
        assert cached.err.count("\n") == 1

    def test_what_no_runtime_would_load_is_returned_and_not_stored(self, world: World) -> None:
        environ = {"PTOCACHE_EMULATOR_FAULT": "ld.lld=truncate"}
        plain = world.plain("vector_add()", **environ)
        outcome = world.run("build(vector_add())\ntell(binaries=binaries)", **environ)
        assert (outcome.status, outcome.facts["binaries"]) == (0, plain)
        assert (outcome.err.count("\n"), "is not stored" in outcome.err) == (1, True)
        assert world.build("vector_add()") != plain
        assert world.compiled() == 2


@contextlib.contextmanager
def edited(path: Path, edit: Any) -> Iterator[None]:
    """Change a file for a while; what it is after that is what it was before."""
    before = path.read_text()
    path.write_text(edit(before))
    try:
        yield
    finally:
        path.write_text(before)


@contextlib.contextmanager
def added(path: Path, text: str) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    try:
        yield
    finally:
        path.unlink()


class TestHeaders:
    """TileLang's templates are inputs of every compilation, and its text does not show what is in them."""

    def test_a_changed_template_is_noticed_and_changed_back_it_hits(self, world: World, templates: Path) -> None:
        before = world.build("vector_add(), gemm()")
        with edited(templates / "tl_templates/ascend/common.h", lambda text: f"{text}\n// changed\n"):
            changed = world.build("vector_add(), gemm()")
            assert world.compiled() == 4
            assert changed == world.plain("vector_add(), gemm()")
            assert not set(changed) & set(before)
        assert world.build("vector_add(), gemm()") == before
        assert world.compiled() == 0

    def test_only_kernels_that_include_it_are_compiled_again(self, world: World, templates: Path) -> None:
        vector, cube = world.build("vector_add(), gemm()")
        world.compiled()
        with edited(templates / "tl_templates/ascend/gemm.h", lambda text: f"{text}\n// changed\n"):
            assert world.build("vector_add()") == [vector]
            assert world.compiled() == 0
            assert world.build("gemm()") != [cube]
            assert world.compiled() == 1

    def test_a_header_that_hides_another_one_is_noticed(self, world: World, templates: Path) -> None:
        """The templates ask for CANN's headers in quotes: one beside them, or at their top, comes first."""
        before = world.build("vector_add()")
        for place in ("acl/acl.h", "tl_templates/ascend/acl/acl.h"):
            with added(templates / place, "// another one\n"):
                plain = world.plain("vector_add()")
                assert plain != before
                assert world.build("vector_add()") == plain
        assert world.build("vector_add()") == before

    def test_a_header_of_cann_is_an_input_too(self, world: World, tmp_path: Path) -> None:
        world.cann = write_install(tmp_path / "cann")
        before = world.build("vector_add()")
        world.compiled()
        with edited(world.cann / "include/acl/acl.h", lambda text: f"{text}\n// changed\n"):
            assert world.build("vector_add()") == world.plain("vector_add()") != before
        assert world.build("vector_add()") == before

    def test_a_directory_that_a_variable_names_is_searched_too(self, world: World, tmp_path: Path) -> None:
        (tmp_path / "own").mkdir()
        options = "compile_flags=['-include', 'own.h']"
        for variable in ("CPATH", "CPLUS_INCLUDE_PATH"):
            environ = {variable: str(tmp_path / "own")}
            results = []
            for text in ("int a;\n", "int b;\n", "int a;\n"):
                (tmp_path / "own/own.h").write_text(text)
                results += world.build("vector_add()", options=options, **environ)
            assert (results[0], world.compiled()) == (results[2], 2)
            assert results[0] != results[1]

    @pytest.fixture
    def old_bisheng(self, world: World, tmp_path: Path) -> dict[str, str]:
        """One that cannot list what it read."""
        home = wrapped_bisheng(
            world,
            tmp_path,
            f"""
            for word; do
              case $word in -MD) echo "bisheng: error: unknown argument: '-MD'" >&2; exit 1;; esac
            done
            exec {world.cann}/bin/bisheng "$@"
            """,
        )
        return {"BISHENG_HOME": str(home)}

    def test_where_the_compiler_does_not_tell_what_the_text_leads_to_counts(
        self, world: World, templates: Path, old_bisheng: dict[str, str]
    ) -> None:
        before = world.build("vector_add()", **old_bisheng)
        assert world.build("vector_add()", **old_bisheng) == before
        assert world.compiled() == 1
        with edited(templates / "tl_templates/ascend/common.h", lambda text: f"{text}\n// changed\n"):
            assert world.build("vector_add()", **old_bisheng) == world.plain("vector_add()") != before
        with edited(templates / "tl_templates/ascend/gemm.h", lambda text: f"{text}\n// changed\n"):
            world.compiled()
            assert world.build("vector_add()", **old_bisheng) == before
            assert world.compiled() == 0

    def test_and_what_it_rejects_is_rejected_as_ever(self, world: World, old_bisheng: dict[str, str]) -> None:
        code = REJECTED.format(times=1)
        plain, cached = (world.facts(code, installed=installed, **old_bisheng) for installed in (False, True))
        assert without_random_names(json.dumps(cached)) == without_random_names(json.dumps(plain))


#: What is compiled, with which options, what is there at first, and what then: always what it is without ptocache.
READ: dict[str, tuple[str, list[str], dict[str, str], dict[str, str | None]]] = {
    "a text that asks for a header of CANN, which another one hides": (
        '#include "kernel_operator.h"',
        ["-I{top}/inc"],
        {"inc/other.h": ""},
        {"inc/kernel_operator.h": "int mine;\n"},
    ),
    "a directory in a directory": (
        "#include <x.h>",
        ["-I{top}/inc", "-I{top}/inc/sub"],
        {"inc/sub/x.h": "int a;\n"},
        {"inc/x.h": "int b;\n"},
    ),
    "a header that may be there": (
        "#if __has_include(<opt.h>)\n#include <opt.h>\n#endif",
        ["-I{top}/inc"],
        {"inc/other.h": ""},
        {"inc/opt.h": "int b;\n"},
    ),
    "one beside the one that asks": (
        "#include <x.h>",
        ["-I{top}/b", "-I{top}/a"],
        {"a/x.h": '#include "y.h"\n', "b/y.h": "int b;\n"},
        {"a/y.h": "int a;\n"},
    ),
    "one behind the first of its name": (
        "#include <x.h>",
        ["-I{top}/a", "-I{top}/b"],
        {"a/x.h": "#include_next <x.h>\n", "b/x.h": "int b;\n"},
        {"b/x.h": "int changed;\n"},
    ),
    "one that was missing": ("#include <late.h>", ["-I{top}/inc"], {"inc/other.h": ""}, {"inc/late.h": "int a;\n"}),
    "one that was wrong": ("", ["-include", "{top}/bad.h"], {"bad.h": "#error bad\n"}, {"bad.h": "int good;\n"}),
    "one that a wrong one asked for": (
        "#include <x.h>",
        ["-I{top}/inc"],
        {"inc/x.h": '#include "sub/y.h"\n', "inc/sub/y.h": "#error bad\n"},
        {"inc/sub/y.h": "int good;\n"},
    ),
    "one that is gone": ("#include <x.h>", ["-I{top}/inc"], {"inc/x.h": "int a;\n"}, {"inc/x.h": None}),
    "a file that an option names": (
        "",
        ["-fsanitize-ignorelist={top}/list"],
        {"list": "one\n"},
        {"list": "two\n"},
    ),
}


@needs_tilelang
class TestWhatIsRead:
    """A header may come from anywhere that clang looks, and another one may come before it."""

    def compile(self, world: World, text: str, options: list[str], directory: Path, **variables: str) -> list[str]:
        code = f"""
        os.chdir({str(directory)!r})
        kernel = {text!r} + '\\nextern "C" __global__ __aicore__ void k(__gm__ float* a) {{ int x = 1; }}\\n'
        try:
            made = bisheng.compile_ascend(kernel, target_format="aibin", options={options!r})
            tell(said=[hashlib.sha256(made).hexdigest()])
        except RuntimeError as error:
            tell(said=[type(error).__name__, str(error)])
        """
        plain = world.facts(code, installed=False, **variables)["said"]
        world.compiled()
        said = world.facts(code, **variables)["said"]
        if len(plain) == 1:
            assert said == plain
        else:
            expected, found = (without_random_names(text) for text in (plain[1], said[1]))
            assert found.startswith(expected.rstrip())
        return said

    @pytest.mark.parametrize("what", READ)
    def test_a_change_is_noticed_and_a_change_back_is_a_hit(self, world: World, tmp_path: Path, what: str) -> None:
        text, options, before, after = READ[what]
        options = [option.format(top=tmp_path) for option in options]

        def put(files: Mapping[str, str | None]) -> None:
            for name, content in files.items():
                path = tmp_path / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if content is None:
                    path.unlink()
                else:
                    path.write_text(content)

        put(before)
        self.compile(world, text, options, tmp_path)
        put(after)
        changed = self.compile(world, text, options, tmp_path)
        assert world.compiled() == 1
        self.compile(world, text, options, tmp_path)
        assert world.compiled() == (1 if "option" in what else 0)
        assert len(changed) == (2 if "gone" in what else 1)

    @pytest.mark.parametrize("how", ["-include", "CPATH"])
    def test_a_name_that_is_relative_is_one_of_the_working_directory(
        self, world: World, tmp_path: Path, how: str
    ) -> None:
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "c.h").write_text(f"int {name};\n")
        text, options, variables = (
            ("", ["-include", "c.h"], {}) if how != "CPATH" else ("#include <c.h>", [], {how: "."})
        )
        for name in ("a", "b"):
            self.compile(world, text, options, tmp_path / name, **variables)
            assert world.compiled() == 1
        for name in ("a", "b"):
            self.compile(world, text, options, tmp_path / name, **variables)
            assert world.compiled() == 0

    def test_an_install_behind_a_link_is_the_one_that_the_link_leads_to(self, world: World, tmp_path: Path) -> None:
        for name in ("one", "two"):
            write_install(tmp_path / name)
        with (tmp_path / "two/include/kernel_operator.h").open("a") as file:
            file.write("// changed\n")
        world.cann = tmp_path / "latest"
        for name in ("one", "two"):
            world.cann.unlink(missing_ok=True)
            world.cann.symlink_to(tmp_path / name)
            self.compile(world, "#include <kernel_operator.h>", [], tmp_path)
            assert world.compiled() == 1
        shutil.rmtree(tmp_path / "one")
        self.compile(world, "#include <kernel_operator.h>", [], tmp_path)
        assert world.compiled() == 0

    def test_a_time_in_the_future_is_no_change(self, world: World, tmp_path: Path) -> None:
        (tmp_path / "x.h").write_text("int a;\n")
        os.utime(tmp_path / "x.h", (2e9 * 2, 2e9 * 2))
        for count in (1, 0):
            self.compile(world, "#include <x.h>", [f"-I{tmp_path}"], tmp_path)
            assert world.compiled() == count

    def test_a_diagnostic_that_names_the_option_changes_nothing(self, world: World, tmp_path: Path) -> None:
        (tmp_path / "m.h").write_text("int a;\n")
        code = f"""
        kernel = 'extern "C" __global__ __aicore__ void k(__gm__ float* a) {{ int x = 1; }}\\n'
        found = []
        try:
            bisheng.compile_ascend("#error use -MD here\\n" + kernel, target_format="aibin")
        except RuntimeError as error:
            found.append("-MD here" in str(error) and "-MF" not in str(error))
        header = {str(tmp_path / "m.h")!r}
        for text in ("int a;", "int b;"):
            open(header, "w").write(text)
            made = bisheng.compile_ascend(kernel, target_format="aibin", options=["-include", header])
            found.append(hashlib.sha256(made).hexdigest())
        tell(found=found)
        """
        found = world.facts(code)["found"]
        assert found[0] is True
        assert found[1] != found[2]

    def test_what_lies_in_a_directory_by_chance_is_not_read(self, world: World, tmp_path: Path) -> None:
        """A kernel that fails is remembered with what it asked for, and not with all that could have been."""
        with (tmp_path / "checkpoint.bin").open("wb") as file:
            file.truncate(1 << 40)
        self.compile(world, "#error no", [f"-I{tmp_path}"], tmp_path)
        self.compile(world, "#error no", [f"-I{tmp_path}"], tmp_path)
        assert world.compiled() == 0


class TestSettings:
    def test_disabled_it_compiles_every_time_and_writes_nothing(self, world: World, tmp_path: Path) -> None:
        plain = world.plain("vector_add()")
        for _ in range(2):
            assert world.build("vector_add()", PTOCACHE_DISABLE="1") == plain
            assert world.compiled() == 1
        assert not (tmp_path / "cache").exists()
        world.build("vector_add()", TILELANG_DISABLE_CACHE="1")
        assert world.compiled() == 1
        assert world.build("vector_add()", PTOCACHE_DISABLE="1") == plain
        assert world.compiled() == 1

    def test_recompile_replaces_what_is_stored(self, world: World) -> None:
        plain = world.build("vector_add()")
        assert world.build("vector_add()", PTOCACHE_RECOMPILE="1") == plain
        assert world.compiled() == 2
        assert world.build("vector_add()") == plain
        assert world.compiled() == 0

    def test_verify_compiles_on_a_hit_and_finds_the_same(self, world: World) -> None:
        plain = world.build("vector_add(), gemm()")
        assert world.build("vector_add(), gemm()", PTOCACHE_VERIFY="1") == plain
        assert world.compiled() == 4

    def test_readonly_stores_nothing(self, world: World) -> None:
        for _ in range(2):
            world.build("vector_add()", PTOCACHE_READONLY="1")
        assert world.compiled() == 2

    def test_with_the_emulated_tools_no_other_variable_is_needed(self, world: World, tmp_path: Path) -> None:
        code = "build(vector_add())\ntell(binaries=binaries, home=os.environ['ASCEND_HOME_PATH'])"
        environ = dict(world.environ(), PTOCACHE_TOOLCHAIN="emulated", PATH="/usr/bin:/bin", ASCEND_HOME_PATH="")
        facts = world.facts(code, **environ)
        assert facts["binaries"] == world.plain("vector_add()")
        assert facts["home"].startswith(str(tmp_path / "home"))

    def test_with_the_emulated_tools_no_other_ones_are_used(self, world: World, tmp_path: Path) -> None:
        home = wrapped_bisheng(world, tmp_path, "echo the installed one >&2; exit 1")
        assert world.build("vector_add()", BISHENG_HOME=str(home), PTOCACHE_TOOLCHAIN="emulated") == world.plain(
            "vector_add()"
        )

    def test_a_cache_that_is_damaged_is_as_good_as_none(self, world: World, tmp_path: Path) -> None:
        plain = world.build("vector_add()")
        for path in (tmp_path / "cache").rglob("*"):
            if path.is_file():
                path.write_bytes(b"damaged")
        outcome = world.run("build(vector_add())\ntell(binaries=binaries)")
        assert (outcome.status, outcome.facts["binaries"]) == (0, plain)
        assert world.compiled() == 2
        assert world.build("vector_add()") == plain
        assert world.compiled() == 0


class TestWhatItSays:
    CODE = "build(vector_add(), simd_double())\ntell()"

    def test_nothing_by_default(self, world: World) -> None:
        plain = world.run(self.CODE, installed=False)
        for _ in range(2):
            cached = world.run(self.CODE)
            assert (cached.out, cached.err) == (plain.out, plain.err)

    def test_one_line_a_kernel_if_the_program_wants_them(self, world: World) -> None:
        code = f"""
import logging
lines = []
class Handler(logging.Handler):
    def emit(self, record):
        lines.append([record.name.partition(".")[0], record.levelname, record.getMessage()])
logging.getLogger("ptocache").addHandler(Handler())
logging.getLogger("ptocache").setLevel("INFO")
{self.CODE.replace("tell()", "tell(lines=lines)")}
"""
        patterns = [r"{}_kernel: compiled in .*", r"{}_kernel: local hit in .*, saved .*"]
        for pattern in patterns:
            lines = world.facts(code)["lines"]
            assert [line[:2] for line in lines] == [["ptocache", "INFO"]] * 2
            for name, line in zip(("add", "double"), lines, strict=True):
                assert re.fullmatch(pattern.format(name), line[2]), line

    def test_one_line_a_kernel_if_the_user_wants_them(self, world: World) -> None:
        lines = world.run(self.CODE, PTOCACHE_LOG="info").err.splitlines()
        assert len(lines) == 2
        assert all(re.fullmatch(r"ptocache: INFO: \w+_kernel: compiled in .*", line) for line in lines)

    def test_a_summary_at_the_end(self, world: World) -> None:
        first = world.run(self.CODE, PTOCACHE_SUMMARY="1")
        assert re.fullmatch(r"ptocache: INFO: 2 kernels: 2 compiled in [^,]*\n", first.err)
        second = world.run(self.CODE, PTOCACHE_SUMMARY="1")
        assert re.fullmatch(r"ptocache: INFO: 2 kernels: 2 local hits, saved .*\n", second.err)
        assert world.run("tell()", PTOCACHE_SUMMARY="1").err == ""

    def test_one_summary_for_all_threads(self, world: World) -> None:
        code = f"""
tilelang.par_compile([{ALL}], target="ascend", out_idx=-1, num_workers=3)
tell()
"""
        outcome = world.run(code, PTOCACHE_SUMMARY="1")
        lines = [line for line in outcome.err.splitlines() if line.startswith("ptocache")]
        assert len(lines) == 1
        assert lines[0].startswith("ptocache: INFO: 3 kernels: 3 compiled in ")


class TestUntouched:
    """What is not a device binary for Ascend is TileLang's business alone."""

    #: Makes of everything that is no device binary a file with its options, like a compiler for the host.
    HOST_BISHENG = """
    case "$*" in *--cce-aicore-only*) exec {cann}/bin/bisheng "$@";; esac
    echo "host" >> {log}
    out=
    for word; do [ "$last" = -o ] && out=$word; last=$word; done
    echo "made with $1 $2 $3" > "$out"
    """

    @pytest.mark.parametrize("target_format", ["o", "so"])
    def test_objects_and_libraries_for_the_host(self, world: World, tmp_path: Path, target_format: str) -> None:
        script = self.HOST_BISHENG.format(cann=world.cann, log=tmp_path / "host.log")
        home = wrapped_bisheng(world, tmp_path, script)
        code = f"""
results = []
for _ in range(2):
    results.append(bisheng.compile_ascend("text", "{target_format}", options="-DX").decode())
    path = os.path.join({str(tmp_path)!r}, "made", "it.{target_format}")
    results.append(bisheng.compile_ascend("text", target_format="{target_format}", path_target=path).decode())
    results.append(open(path).read())
    os.unlink(path)
tell(results=results, unsupported=failure(bisheng.compile_ascend, "text", "exe"),
     default=bisheng.compile_ascend("text").decode())
"""
        plain = world.facts(code, installed=False, BISHENG_HOME=str(home))
        assert world.facts(code, BISHENG_HOME=str(home)) == plain
        assert len((tmp_path / "host.log").read_text().splitlines()) == 10
        assert plain["unsupported"][0] == "ValueError"
        assert not (tmp_path / "cache/actions").exists()

    def test_a_path_for_the_device_binary(self, world: World, tmp_path: Path) -> None:
        path = tmp_path / "deep/er/k.aibin"
        code = f"""
text = 'extern "C" __global__ __vector__ void k() {{}}'
import pathlib
results = []
for place in (pathlib.Path({str(path)!r}), {str(path)!r}, "k.aibin", None):
    result = bisheng.compile_ascend(text, "aibin", path_target=place)
    results.append([hashlib.sha256(result).hexdigest(), type(result).__name__])
    if place:
        results.append([hashlib.sha256(open(place, "rb").read()).hexdigest(), "bytearray"])
        os.unlink(place)
tell(results=results)
"""
        plain = world.facts(code, installed=False)
        assert len({tuple(result) for result in plain["results"]}) == 1
        assert world.compiled() == 4
        assert world.facts(code) == plain
        assert world.compiled() == 1

    def test_keys_for_other_targets(self, world: World) -> None:
        code = """
from tvm.target import Target
from tilelang.cache.kernel_cache import KernelCache
from tilelang.cache.cuda_binary_cache import CUDABinaryCache
cache = KernelCache()
def key(target, function=on_the_host()):
    return cache._generate_key(function, [-1], args=(), target=target)
targets = [Target("c"), Target({"kind": "cuda", "arch": "sm_90"}), "llvm", "auto", {"kind": "hip"}]
tell(others=[key(target) for target in targets],
     cuda=CUDABinaryCache.make_key(code="c", target_kind="cuda", target_arch="sm_90", target_code=["sm_90"],
                                 compile_format="cubin"),
     ascend=[key(Target("ascend"), vector_add()), key("ascend", vector_add())])
"""
        plain, cached = (world.facts(code, installed=installed) for installed in (False, True))
        assert cached["others"] == plain["others"]
        assert len(set(plain["others"])) == 5
        assert cached["cuda"] == plain["cuda"]
        assert not set(cached["ascend"]) & set(plain["ascend"])

    @pytest.mark.skipif(shutil.which("g++") is None, reason="there is no compiler for the host")
    def test_a_kernel_for_the_host(self, world: World, tmp_path: Path) -> None:
        world.caching = True
        code = """
import torch
kernel = tilelang.compile(on_the_host(), target="c", out_idx=-1, execution_backend="cython")
tell(result=kernel(torch.ones(64)).tolist(), key=kernel._tilelang_cache_key)
"""
        plain = world.facts(code, installed=False)
        world.forget()
        assert world.facts(code) == plain
        assert plain["result"] == [2.0] * 64
        assert not (tmp_path / "cache/actions").exists()

    def test_keys_for_ascend_where_there_are_no_tools(self, world: World) -> None:
        code = """
from tvm.target import Target
from tilelang.cache.kernel_cache import KernelCache
tell(key=KernelCache()._generate_key(vector_add(), [-1], args=(), target=Target("ascend")))
"""
        environ = {"PATH": "/usr/bin:/bin", "ASCEND_HOME_PATH": "", "ASCEND_TOOLKIT_HOME": ""}
        plain, cached = (world.facts(code, installed=installed, **environ) for installed in (False, True))
        assert cached == plain


class TestTileLangsOwnCaches:
    """They work as they do without ptocache."""

    @pytest.fixture
    def world(self, world: World) -> World:
        world.caching = True
        return world

    def test_memory_gives_the_same_object(self, world: World) -> None:
        code = """
first, second, other = build(vector_add(), vector_add(), simd_double())
third, = build(vector_add(), pass_configs={"tl.disable_data_race_check": True})
tell(same=first is second, other=other is not first, third=third is not first)
"""
        assert world.facts(code) == {"same": True, "other": True, "third": True}
        assert world.compiled() == 2

    def test_the_disk_gives_the_kernel_to_a_new_process(self, world: World) -> None:
        code = """
kernel, = build(vector_add())
tell(key=kernel._tilelang_cache_key, path=kernel._tilelang_cache_path, source=kernel.get_kernel_source(),
     host=kernel.get_host_source(), count=len(binaries))
"""
        first, second = world.facts(code), world.facts(code, PTOCACHE_DIR="/proc/nowhere/but/unused")
        assert (first.pop("count"), second.pop("count")) == (1, 0)
        assert first == second
        assert [str(path) for path in kernel_entries(world)] == [first["path"]]
        assert Path(first["path"]).name == first["key"]

    @pytest.mark.parametrize("name", ["executable.so", "manifest.json", "params.json"])
    def test_a_damaged_entry_is_made_again(self, world: World, name: str) -> None:
        world.build("vector_add()")
        (entry,) = kernel_entries(world)
        good = (entry / name).read_bytes()
        (entry / name).write_bytes(good[: len(good) // 2])
        outcome = world.run("build(vector_add())\ntell(count=len(binaries))")
        assert (outcome.status, outcome.facts) == (0, {"count": 1})
        assert kernel_entries(world) == [entry]
        assert len((entry / name).read_bytes()) == len(good)
        assert world.build("vector_add()") == []
        assert world.compiled() == 1

    def test_disabled_they_are_not_used_and_ptocache_is(self, world: World) -> None:
        code = """
first, second = build(vector_add(), vector_add())
tell(other=first is not second, count=len(binaries))
"""
        assert world.facts(code, TILELANG_DISABLE_CACHE="1") == {"other": True, "count": 2}
        assert world.compiled() == 1
        assert kernel_entries(world) == entries(world, "ascend-binaries") == []

    def test_cleared_they_are_empty_and_ptocache_is_not(self, world: World) -> None:
        code = """
first, = build(vector_add())
for cache in set(_ascend_dispatch_map.values()):
    cache.clear_cache()
second, = build(vector_add())
tell(other=first is not second, count=len(binaries))
"""
        assert world.facts(code) == {"other": True, "count": 2}
        assert world.compiled() == 1
        assert len(kernel_entries(world)) == 1

    def test_entries_of_binaries_are_never_changed(self, world: World) -> None:
        (digest,) = world.build("vector_add()")
        (entry,) = entries(world, "ascend-binaries")
        binary = entry / "kernel.aibin"
        before = {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in entry.iterdir()}
        code = """
key = %r
good = AscendBinaryCache.load(key, "aibin")
AscendBinaryCache.save(key, "aibin", b"another")
tell(same=AscendBinaryCache.load(key, "aibin") == good, digest=hashlib.sha256(good).hexdigest())
"""
        assert world.facts(code % entry.name) == {"same": True, "digest": digest}
        assert {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in entry.iterdir()} == before
        # One that is damaged is a miss, and stays where it is: another process may be reading it.
        good = binary.read_bytes()
        binary.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        shutil.rmtree(kernel_entries(world)[0])
        assert world.build("vector_add()") == [digest]
        assert world.compiled() == 1
        assert binary.read_bytes() != good

    def test_their_keys_tell_what_they_told(self, world: World) -> None:
        code = """
def key(**changes):
    parts = dict(code="c", target_kind="ascend", target_arch="dav-3510", compile_format="aibin",
                 options=["-O2"], linker_options=["-m"])
    return AscendBinaryCache.make_key(**{**parts, **changes})
keys = [key(), key(code="d"), key(target_arch="dav-2201"), key(options=["-O3"]), key(options=["-O2", "-g"]),
        key(linker_options=[]), key(compile_format="o")]
import tilelang.cache.ascend_binary_cache as module
module.__version__ = "other"
keys.append(key())
module.__version__ = tilelang.__version__
tell(count=len(set(keys)), expected=len(keys), again=key() == keys[0], shape=[len(k) for k in keys])
"""
        facts = world.facts(code)
        assert (facts["count"], facts["again"]) == (facts["expected"], True)
        assert set(facts["shape"]) == {64}

    def test_kernel_keys_tell_what_they_told(self, world: World) -> None:
        code = """
from tvm.target import Target
from tilelang.cache.kernel_cache import KernelCache
function = vector_add()
def key(function=function, out_idx=(-1,), **changes):
    parts = dict(args=(), target=Target("ascend"), execution_backend="tvm_ffi")
    return KernelCache()._generate_key(function, list(out_idx), **{**parts, **changes})
keys = [key(), key(simd_double()), key(vector_add(512)), key(out_idx=(2, 1)), key(compile_flags=["-DX"]),
        key(pass_configs={"a": 1}), key(execution_backend="cython"), key(target_host="c"), key(args=(1,)),
        key(target=Target({"kind": "ascend", "arch": "dav-2201"}))]
tell(count=len(set(keys)), expected=len(keys), again=key(vector_add()) == keys[0])
"""
        facts = world.facts(code)
        assert (facts["count"], facts["again"]) == (facts["expected"], True)


#: A PTODSL source as TileLang generates them.
PTODSL = """\
from ptodsl import pto
import tilelang.contrib.ptodsl as tl


@pto.jit(name="main_kernel", kernel_kind="vector", target="a5", mode="explicit")
def main_kernel(A: pto.ptr(pto.f32, "gm"), O: pto.ptr(pto.f32, "gm")):
  pto.init_core()
  buf = pto.castptr(pto.const(0, dtype=pto.i64), pto.ptr(pto.f32, "ub"))
  pto.mte_gm_ub(A, buf, 0, 1024, nburst=(1, 1024, 1024))
  tl.hand_over(pto, "MTE2", "MTE3", event_id=1)
  pto.mte_ub_gm(buf, O, 1024, nburst=(1, 1024, 1024))
"""

STAGES = [
    "parse_pto_kernel_names",
    "compile_ptodsl_to_pto",
    "run_ptoas",
    "bisheng_fatobj_link",
    "extract_aicore_binary",
]

PTO_PRELUDE = """
import hashlib, json, os, sys
import tilelang.contrib.pto_toolchain as toolchain

def make(source=None, arch="a5", flags=("--pto-backend=vpto",), **more):
    source = open("source.py").read() if source is None else source
    return hashlib.sha256(toolchain.compile_ptodsl_to_aibin(source, arch, flags, **more)).hexdigest()

def failure(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except Exception as error:
        return [type(error).__name__, isinstance(error, RuntimeError), str(error)]

def tell(**facts):
    print(json.dumps(facts))
"""


class PtoWorld:
    """Processes with a TileLang that has a PTO target, which is a copy of the stand-in and may be edited."""

    def __init__(self, folder: Path, cann: Path, log: ToolLog) -> None:
        self._folder = folder
        self._counted = dict.fromkeys(("frontend", "ptoas", "bisheng"), 0)
        self.cann = cann
        self.log = log
        self.tilelang = folder / "site/tilelang"
        shutil.copytree(
            Path(__file__).parent / "standin/tilelang", self.tilelang, ignore=shutil.ignore_patterns("__pycache__")
        )
        self.source(PTODSL)

    def source(self, text: str) -> None:
        (self._folder / "source.py").write_text(text)

    def edit(self, name: str, old: str, new: str) -> None:
        """Change a file of this TileLang; no process sees one that is half written, or younger than its start."""
        path = self.tilelang / "contrib" / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        time.sleep(0.03)

    def ran(self) -> list[int]:
        """How often the frontend, ptoas and bisheng have run since this was asked."""
        counts = {tool: self.log.count(tool) for tool in self._counted}
        before, self._counted = self._counted, counts
        return [counts[tool] - before[tool] for tool in counts]

    def start(self, code: str, *, installed: bool = True, **variables: str) -> subprocess.Popen[str]:
        first = "import ptocache; ptocache.install()\n" if installed else ""
        environ = {**emulator.environment(self.cann, os.environ), "PYTHONDONTWRITEBYTECODE": "1", **variables}
        environ["PYTHONPATH"] = os.pathsep.join([str(self.tilelang.parent), environ["PYTHONPATH"]])
        return subprocess.Popen(
            [sys.executable, "-c", f"{first}{PTO_PRELUDE}\n{textwrap.dedent(code)}"],
            env=environ,
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str, *, installed: bool = True, **variables: str) -> Outcome:
        process = self.start(code, installed=installed, **variables)
        out, err = process.communicate(timeout=120)
        told = out.splitlines()
        return Outcome(process.returncode, json.loads(told[-1]) if told else {}, out, err)

    def facts(self, code: str, *, installed: bool = True, **variables: str) -> dict[str, Any]:
        """What a process tells that succeeds and says nothing else."""
        outcome = self.run(code, installed=installed, **variables)
        assert (outcome.status, outcome.err) == (0, ""), outcome.err
        return outcome.facts

    def make(self, arguments: str = "", *, installed: bool = True, **variables: str) -> str:
        """The device binary of the source, made in a process of its own, as its SHA-256."""
        digest = self.facts(f"tell(digest=make({arguments}))", installed=installed, **variables)["digest"]
        assert isinstance(digest, str)
        return digest

    def plain(self, arguments: str = "", **variables: str) -> str:
        """The same without ptocache; these runs of the tools are not counted."""
        before = self.ran()
        digest = self.make(arguments, installed=False, **variables)
        counts = self.ran()
        assert counts == [1, 1, 1]
        self._counted = {tool: self._counted[tool] - missed for tool, missed in zip(self._counted, before, strict=True)}
        return digest


class TestPto:
    """A newer TileLang's path, from PTODSL to a device binary."""

    @pytest.fixture
    def world(self, tmp_path: Path, cann: Path, tool_log: ToolLog) -> PtoWorld:
        return PtoWorld(tmp_path, cann, tool_log)

    def test_the_second_process_compiles_nothing_and_gets_the_same(self, world: PtoWorld) -> None:
        plain = world.plain()
        code = """
digests = [make(), make()]
tell(digests=digests, calls=[name for name in toolchain.calls if name != "toolchain_stamp"],
     kind=type(toolchain.compile_ptodsl_to_aibin(open("source.py").read(), "a5", ["--pto-backend=vpto"])).__name__)
"""
        first = world.facts(code)
        assert first == {"digests": [plain, plain], "calls": STAGES, "kind": "bytes"}
        assert world.ran() == [1, 1, 1]
        assert world.facts(code) == {**first, "calls": []}
        assert world.ran() == [0, 0, 0]

    def test_of_a_new_comment_only_the_lowering_runs(self, world: PtoWorld) -> None:
        before = world.make()
        world.ran()
        world.source(f"# another comment\n{PTODSL}")
        assert world.make() == before
        assert world.ran() == [1, 0, 0]
        assert world.make() == before
        assert world.ran() == [0, 0, 0]

    def test_another_kernel_arch_or_flag_is_another_binary(self, world: PtoWorld) -> None:
        arguments = ["", "arch='a3'", "flags=['--pto-backend=vpto', '-O3']", "flags=['-O3', '--pto-backend=vpto']"]
        plain = [world.plain(argument) for argument in arguments]
        assert [world.make(argument) for argument in arguments] == plain
        assert world.ran()[1] == len(set(plain)) == 4
        world.source(PTODSL.replace("1024, nburst", "2048, nburst"))
        assert world.make() == world.plain() != plain[0]

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("flags=[]", "flags=['--pto-backend=vpto']"),
            ("flags=['--pto-backend=vpto']", "flags=()"),
            ("flags=['-a b']", "flags=['-a', 'b']"),
            ("flags=['-a', '-b']", "flags='-a -b'"),
            ("flags=['--pto-backend', 'vpto']", "flags=['--pto-backend=vpto']"),
        ],
    )
    def test_options_go_to_ptoas_as_they_are(self, world: PtoWorld, one: str, other: str) -> None:
        """What this TileLang makes of them is its own business, also where ptocache itself adds a default."""
        expected = []
        for argument in (one, other):
            outcome = world.run(f"tell(digest=make({argument}))", installed=False)
            expected.append(outcome.facts)
        found = [world.run(f"tell(digest=make({argument}))").facts for argument in (one, other)]
        assert found == expected

    def test_an_arch_that_ptoas_refuses_is_refused_after_one_that_it_takes(self, world: PtoWorld) -> None:
        world.make()
        code = "tell(failure=failure(make, arch='A5 '))"
        plain, cached = (world.run(code, installed=installed).facts for installed in (False, True))
        assert without_names(cached) == without_names(plain)
        assert plain["failure"] is not None

    def test_tilelangs_own_stamp_is_a_part_of_the_key(self, world: PtoWorld) -> None:
        before = world.make()
        world.ran()
        world.edit("pto_toolchain.py", "PTOAS_ABI = 33", "PTOAS_ABI = 34")
        assert world.make() == before
        assert world.ran() == [1, 1, 1]
        world.edit("pto_toolchain.py", "PTOAS_ABI = 34", "PTOAS_ABI = 33")
        assert world.make() == before
        assert world.ran() == [0, 0, 0]

    def test_another_cann_is_another_binary(self, world: PtoWorld, tmp_path: Path) -> None:
        world.cann = write_install(tmp_path / "cann", "9.0.0")
        old = world.make()
        write_install(world.cann, "9.1.0")
        assert world.make() == world.plain() != old
        write_install(world.cann, "9.0.0")
        world.ran()
        assert world.make() == old
        assert world.ran() == [0, 0, 0]

    @pytest.mark.parametrize(
        ("name", "old", "new"),
        [
            ("ptodsl/__init__.py", "FACTOR = 1", "FACTOR = 2"),
            ("ptodsl/events.py", "event_id=event_id)", "event_id=event_id + 3)"),
        ],
    )
    def test_a_changed_helper_is_noticed_and_changed_back_it_hits(
        self, world: PtoWorld, name: str, old: str, new: str
    ) -> None:
        before = world.make()
        world.edit(name, old, new)
        changed = world.make()
        assert changed == world.plain() != before
        assert world.ran() == [2, 2, 2]
        world.edit(name, new, old)
        assert world.make() == before
        assert world.ran() == [0, 0, 0]

    def test_a_helpers_comment_costs_a_lowering(self, world: PtoWorld) -> None:
        before = world.make()
        world.ran()
        world.edit("ptodsl/events.py", "def notify", "# a comment\ndef notify")
        assert world.make() == before
        assert world.ran() == [1, 0, 0]
        assert world.make() == before
        assert world.ran() == [0, 0, 0]

    def test_a_helper_that_is_gone_is_noticed(self, world: PtoWorld) -> None:
        (world.tilelang / "contrib/ptodsl/unused.py").write_text("")
        world.make()
        world.ran()
        (world.tilelang / "contrib/ptodsl/unused.py").unlink()
        world.make()
        assert world.ran() == [1, 0, 0]

    def test_a_source_that_reads_more_is_lowered_each_time(self, world: PtoWorld, tmp_path: Path) -> None:
        """TileLang's own lowering does not tell what it read, so nothing is stored under the source."""
        (tmp_path / "own.py").write_text("EVENT = 1\n")
        environ = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(world.cann / "python"), *inherited()])}
        code = """
seen = {}
for more in (
    "import own",
    "from own import EVENT",
    "import os",
    "EVENT = int(open('event').read()) if False else 1",
    "exec('EVENT = 1')",
    "EVENT = __import__('own').EVENT",
    "import importlib; own = importlib.import_module('own')",
    "import tilelang.contrib.ptodsl, own",
):
    source = open("source.py").read().replace("\\n\\n\\n@pto", f"\\n{more}\\n\\n@pto")
    assert more in source
    for _ in range(2):
        toolchain.calls.clear()
        make(source)
        seen.setdefault(more, []).append([name for name in toolchain.calls if name != "toolchain_stamp"])
tell(seen=list(seen.values()))
"""
        seen = world.facts(code, **environ)["seen"]
        assert seen[0] == [STAGES, STAGES[:2]]
        assert seen[1:] == [[STAGES[:2], STAGES[:2]]] * 7
        assert world.ran() == [16, 1, 1]

    def test_what_such_a_source_reads_is_noticed(self, world: PtoWorld, tmp_path: Path) -> None:
        environ = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(world.cann / "python"), *inherited()])}
        world.source(PTODSL.replace("import tilelang", "import own\nimport tilelang").replace("=1)", "=own.EVENT)"))
        results = []
        for event in (1, 2, 1):
            (tmp_path / "own.py").write_text(f"EVENT = {event}\n")
            results.append(world.make(**environ))
            assert results[-1] == world.plain(**environ)
        assert results[0] == results[2] != results[1]
        assert world.ran() == [3, 2, 2]

    @pytest.mark.parametrize(
        ("old", "new", "tools"),
        [
            ("pto.init_core()", "pto.init_core(]", [0, 0, 0]),
            ("@pto.jit", "#", [0, 0, 0]),
            ("pto.init_core()", "raise ValueError('while it is lowered')", [1, 0, 0]),
            ("import tilelang", "raise ValueError('while it is imported')\nimport tilelang", [0, 0, 0]),
        ],
    )
    def test_what_is_wrong_with_a_source_is_told_as_tilelang_tells_it(
        self, world: PtoWorld, old: str, new: str, tools: list[int]
    ) -> None:
        world.source(PTODSL.replace(old, new, 1))
        code = "tell(failure=failure(make))"
        plain = world.run(code, installed=False)
        assert world.ran() == tools
        cached = world.run(code)
        assert without_names(cached.facts) == without_names(plain.facts)
        assert (plain.status, plain.err, cached.err) == (0, "", "")
        assert plain.facts["failure"]
        assert world.ran() == tools

    REJECTED = "tell(failures=[failure(make, flags=['--pto-backend=other']) for _ in range(2)])"

    def test_what_ptoas_rejects_is_remembered(self, world: PtoWorld) -> None:
        plain = world.facts(self.REJECTED, installed=False)["failures"]
        assert world.ran() == [2, 2, 0]
        first, second = world.facts(self.REJECTED)["failures"]
        assert world.ran() == [1, 1, 0]
        assert without_names(first) == without_names(plain[0])
        assert (second[1], "back end 'other' is not emulated" in second[2]) == (True, True)
        assert world.facts(self.REJECTED)["failures"][0] != first
        assert world.ran() == [0, 0, 0]
        world.facts(self.REJECTED, PTOCACHE_FAILURE_TTL="0")
        assert world.ran() == [2, 2, 0]

    def test_what_the_frontend_rejects_is_remembered(self, world: PtoWorld) -> None:
        world.source(PTODSL.replace("pto.init_core()", "raise ValueError('while it is lowered')"))
        code = "tell(failures=[failure(make) for _ in range(2)])"
        facts = world.facts(code)
        assert all("while it is lowered" in error[2] for error in facts["failures"])
        assert world.ran() == [1, 0, 0]
        world.facts(code)
        assert world.ran() == [0, 0, 0]
        world.edit("ptodsl/events.py", "def notify", "# a comment\ndef notify")
        world.facts(code)
        assert world.ran() == [1, 0, 0]

    @pytest.mark.parametrize("fault", ["ptoas=signal:11", "ptoas=exit:1", "bisheng=exit:1", "bisheng=truncate"])
    def test_what_breaks_down_is_tried_again(self, world: PtoWorld, fault: str) -> None:
        code = "tell(failures=[failure(make) for _ in range(2)])"
        plain = world.facts(code, installed=False, PTOCACHE_EMULATOR_FAULT=fault)
        expected = world.ran()
        cached = world.run(code, PTOCACHE_EMULATOR_FAULT=fault)
        assert cached.status == 0
        assert world.ran()[1] == expected[1]
        assert without_names(cached.facts) == without_names(plain)
        assert world.make() == world.plain()

    def test_a_tool_that_is_missing_is_told_of_by_tilelang(self, world: PtoWorld, tmp_path: Path) -> None:
        (tmp_path / "nothing").mkdir()
        environ = {"PTOAS_BIN": "", "PATH": str(tmp_path / "nothing")}
        code = "tell(failure=failure(make))"
        plain, cached = (world.run(code, installed=installed, **environ) for installed in (False, True))
        assert cached.facts == plain.facts
        assert "Cannot find ptoas" in plain.facts["failure"][2]
        assert cached.err.count("compiled without ptocache") == 1

    def test_who_has_bound_the_function_by_name_is_answered_too(self, world: PtoWorld) -> None:
        code = """
from tilelang.contrib.pto_toolchain import compile_ptodsl_to_aibin
import ptocache
with ptocache.installed():
    for _ in range(2):
        compile_ptodsl_to_aibin(ptodsl_source=open("source.py").read(), pto_arch="a5", pto_flags=[], verbose=False)
tell(module=compile_ptodsl_to_aibin.__code__.co_filename.endswith("pto_toolchain.py"))
"""
        assert world.facts(code, installed=False) == {"module": True}
        assert world.ran() == [1, 1, 1]

    def test_many_processes_at_once_run_each_tool_once(self, world: PtoWorld) -> None:
        processes = [world.start("tell(digest=make())", PTOCACHE_EMULATOR_DELAY="ptoas=0.5") for _ in range(6)]
        results = [process.communicate(timeout=120) for process in processes]
        assert {err for _, err in results} == {""}
        assert len({out for out, _ in results}) == 1
        assert world.ran() == [1, 1, 1]

    @pytest.mark.parametrize("name", ["run_ptoas", "parse_pto_kernel_names", "toolchain_stamp"])
    def test_a_tilelang_with_other_stages_compiles_as_ever(self, world: PtoWorld, name: str) -> None:
        path = world.tilelang / "contrib/pto_toolchain.py"
        path.write_text(path.read_text().replace(f"{name}(", f"_{name}("))
        plain = world.plain()
        outcome = world.run("tell(digests=[make(), make()])")
        assert (outcome.status, outcome.facts) == (0, {"digests": [plain, plain]})
        assert (outcome.err.count("\n"), name in outcome.err) == (1, True)
        assert world.ran() == [2, 2, 2]

    @pytest.mark.parametrize(
        ("signature", "call"),
        [
            ("ptodsl_source, pto_arch, pto_flags, verbose=False, *, level=2", "(source, 'a5', [], level=3)"),
            ("ptodsl_source, pto_arch, pto_flags, verbose=False, level=2", "(source, 'a5', [], False, 3)"),
            ("source, pto_arch, pto_flags, verbose=False", "(source=source, pto_arch='a5', pto_flags=[])"),
        ],
    )
    def test_a_tilelang_with_other_arguments_compiles_as_ever(self, world: PtoWorld, signature: str, call: str) -> None:
        path = world.tilelang / "contrib/pto_toolchain.py"
        head, found, tail = path.read_text().partition("def compile_ptodsl_to_aibin(")
        _, _, body = tail.partition("):")
        first = "" if "ptodsl_source" in signature else "    ptodsl_source = source\n"
        path.write_text(f"{head}{found}{signature}):\n{first}{body}")
        code = f"""
source = open("source.py").read()
tell(digest=hashlib.sha256(toolchain.compile_ptodsl_to_aibin{call}).hexdigest())
"""
        plain = world.facts(code, installed=False)
        cached = world.run(code)
        assert (cached.status, cached.facts) == (0, plain), cached.err
        assert cached.err.count("\n") <= 1

    def test_it_says_one_line_a_kernel(self, world: PtoWorld) -> None:
        first = world.run("make()", PTOCACHE_LOG="info")
        second = world.run("make()", PTOCACHE_LOG="info")
        assert re.fullmatch(r"ptocache: INFO: main_kernel: compiled in .*\n", first.err)
        assert re.fullmatch(r"ptocache: INFO: main_kernel: local hit in .*\n", second.err)

    def test_disabled_it_compiles_every_time(self, world: PtoWorld) -> None:
        assert world.make(PTOCACHE_DISABLE="1") == world.make(PTOCACHE_DISABLE="1") == world.plain()
        assert world.ran() == [2, 2, 2]


def inherited() -> list[str]:
    """What `PYTHONPATH` leads to already."""
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def without_names(facts: object) -> str:
    """What a process told, but for the names of temporary directories and the files in them."""
    text = re.sub(r"/[^ \"']*/(?:tilelang-pto-|ptocache-)[a-z0-9_]{8}/", "/temporary/", json.dumps(facts))
    return re.sub(r"/temporary/[\w.]+\.(py|pto|o|so)", r"/temporary/file.\1", text)
