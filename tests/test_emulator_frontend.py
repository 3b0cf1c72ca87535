"""The tracing frontend: what it accepts, what it writes, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ptocache.emulator import write_install
from ptocache.emulator.payload.lib.emulated_cann import mlir

EXAMPLES = {
    "vector_add": ["vector_add"],
    "vecscope_loop": ["scale_shift"],
    "simt_saxpy": ["saxpy"],
    "reduction": ["row_sum"],
    "cube_vector_mix": ["gemm_bias"],
    "three_kernels": ["fill", "copy", "clamp"],
    "handwritten_softmax": ["softmax"],
}
EXAMPLES_AT = Path(__file__).parent.parent / "examples"

# Traces one source a line of input, as the pipeline's child does for one source a process.
WORKER = """
import importlib.util, json, sys
for line in sys.stdin:
    job = json.loads(line)
    try:
        with open(job["path"], "w", encoding="utf-8") as file:
            file.write(job["source"])
        spec = importlib.util.spec_from_file_location("_source", job["path"])
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        kernels = [getattr(module, name) for name in job["names"]]
        if len(kernels) == 1:
            reply = {"text": kernels[0].compile(**job["constants"]).mlir_text()}
        else:
            import ptodsl
            reply = {"text": str(ptodsl.pto.merge_jit_modules(*kernels))}
    except Exception as error:
        reply = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(reply), flush=True)
"""


class Refused(Exception):
    """The frontend raised."""


@pytest.fixture(scope="module")
def install(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_install(tmp_path_factory.mktemp("frontend") / "cann")


@pytest.fixture(scope="module")
def trace(install: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Traces a source: `trace(source, *names, **constants)`."""
    folder = tmp_path_factory.mktemp("sources")
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(install / "python")},
    )
    count = 0

    def run(source: str, *names: str, **constants: object) -> str:
        nonlocal count
        count += 1
        assert worker.stdin
        assert worker.stdout
        path = str(folder / f"source_{count}.py")
        job = {"source": source, "names": names or ["k"], "constants": constants, "path": path}
        worker.stdin.write(json.dumps(job) + "\n")
        worker.stdin.flush()
        reply = json.loads(worker.stdout.readline())
        if "error" in reply:
            raise Refused(reply["error"])
        return str(reply["text"])

    yield run
    assert worker.stdin
    worker.stdin.close()
    worker.wait(10)


def kernel(body: str, parameters: str = 'A: pto.ptr(pto.f32, "gm"), n: pto.i32', head: str = "") -> str:
    """A source with one kernel `k`."""
    lines = "\n".join(f"  {line}" for line in body.strip("\n").splitlines())
    imports = "from ptodsl import pto, scalar\nimport tilelang.contrib.ptodsl as tl\n"
    return f'{imports}{head}\n@pto.jit(name="k", target="a5")\ndef k({parameters}):\n{lines}\n'


def assemble(install: Path, text: str, folder: Path) -> None:
    """What the frontend writes, the assembler must take."""
    (folder / "k.pto").write_text(text)
    command = [install / "bin" / "ptoas", "--pto-arch=a5", "k.pto", "-o", "k.o"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + text


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_traced_and_assembled(name: str, trace: Callable[..., str], install: Path, tmp_path: Path) -> None:
    text = trace((EXAMPLES_AT / f"{name}.py").read_text(), *EXAMPLES[name])
    assert text.count("attributes {pto.aicore") == len(EXAMPLES[name])
    assemble(install, text, tmp_path)


# Constructs: (what it is, the body of a kernel, lines that the text has in this order)
CONSTRUCTS: list[tuple[str, str, list[str]]] = [
    ("any operation", "pto.brand_new_op(A, n)", ['"pto.brand_new_op"(%arg0, %arg1)']),
    ("nested name space", "pto.vmi.create_mask(n)", ['"pto.vmi.create_mask"(%arg1)']),
    ("helper operation", "tl.some_helper(n, mode=2)", ['"tl.some_helper"(%arg1) {mode = 2}']),
    ("scalar operation", "pto.use(scalar.muli(n, n))", ['%0 = "scalar.muli"(%arg1, %arg1)', '"pto.use"(%0)']),
    ("strings by position", 'pto.set_flag("V", "MTE3", event_id=3)', ['arg0 = "V", arg1 = "MTE3", event_id = 3']),
    ("tuple of numbers", "pto.f(A, nburst=(1, 64, 128))", ["nburst = [1, 64, 128]"]),
    ("tuple with a value", "pto.f(A, nburst=(1, n))", ['"pto.f"(%arg0, %arg1) {nburst = [1, #pto.operand<1>]}']),
    ("keyword value", "pto.f(A, event_id=n)", ["{event_id = #pto.operand<1>}"]),
    ("dictionary", 'pto.f(x={"a": 1, "b c": [2]})', ['x = {a = 1, "b c" = [2]}']),
    ("None and booleans", "pto.f(a=None, b=True, c=False)", ["{a, b = true, c = false}"]),
    ("awkward string", r"pto.f(x='a\"b\\c\nd é')", [r'x = "a\22b\5Cc\0Ad \C3\A9"']),
    ("enumeration", "pto.pipe_barrier(pto.Pipe.ALL)", ["arg0 = #pto.Pipe.ALL"]),
    ("float from hex", "pto.f(float.fromhex('0x1.4p+0'))", ["arith.constant 1.25 : f32"]),
    ("infinity", "pto.f(x=float('-inf'))", ["x = 0xFFF0000000000000"]),
    ("small float", "pto.f(x=1e-7)", ["x = 1.0e-07"]),
    ("big integer", "pto.f(x=2**70)", ["x = 1180591620717411303424"]),
    ("constant", "pto.f(pto.const(7, dtype=pto.ui8))", ["arith.constant 7 : ui8"]),
    ("index constant", "pto.f(pto.const(7))", ["arith.constant 7 : index"]),
    ("boolean as a number", "pto.f(pto.const(True, dtype=pto.i32))", ["arith.constant 1 : i32"]),
    ("cast", "pto.f(pto.cast(n, pto.f32))", ['"pto.cast"(%arg1) {arg1 = f32} : (i32) -> f32']),
    ("type as a function", "pto.f(pto.f16(1.5))", ["arith.constant 1.5 : f16"]),
    ("pointer cast", 'pto.f(pto.castptr(A, pto.ptr(pto.ui8, "gm")))', ["-> !pto.ptr<ui8, gm>"]),
    ("space by member", "pto.f(pto.castptr(A, pto.ptr(pto.f16, pto.MemorySpace.UB)))", ["!pto.ptr<f16, ub>"]),
    ("load", "pto.f(pto.load(A, n))", ['"pto.load"(%arg0, %arg1) : (!pto.ptr<f32, gm>, i32) -> f32']),
    ("vector register", "pto.f(pto.vlds(A, 0, pto.vreg_type(64, pto.f32)))", ["-> !pto.vreg<64xf32>"]),
    ("short vector", "pto.f(pto.Vec(pto.f32, 2, init=1.0))", ["-> vector<2xf32>"]),
    ("mask", 'pto.f(pto.pset_b16("PAT_ALL"))', ["-> !pto.mask<b16>"]),
    ("two results", "m, left = pto.make_mask(pto.f32, n)\npto.f(m, left)", ["%0:2 =", '"pto.f"(%0#0, %0#1)']),
    ("three results", "a, b, c = pto.split3(n)\npto.f(c)", ["%0:3 =", '"pto.f"(%0#2)']),
    ("elements per register", "pto.f(x=(pto.elements_per_vreg(pto.f16), pto.bytewidth(pto.f32)))", ["x = [128, 4]"]),
    ("arithmetic", "pto.f((n * 64 + 256) // 3 % 5 - 1)", ["muli", "addi", "floordivsi", "remsi", "subi"]),
    ("reflected", "pto.f(1 - n, 2 ** n, 7 >> n)", ["arith.subi", "math.ipowi", "arith.shrsi"]),
    ("bits", "pto.f(n << 1 | n & 3 ^ ~n)", ["arith.shli", "arith.andi", "arith.xori", "arith.xori", "arith.ori"]),
    ("unsigned", "u = pto.cast(n, pto.ui32)\npto.f(u / 2, u < 3)", ["arith.divui", 'predicate = "ult"']),
    ("floats", "x = pto.load(A, n)\npto.f(-x, abs(x), x / 2)", ["arith.negf", "math.absf", "arith.divf"]),
    ("mixed types", "pto.f(pto.load(A, n) + n)", ['"arith.sitofp"(%arg1)', "arith.addf"]),
    ("comparison", "pto.f(n <= 3, 4 == n)", ['predicate = "sle"', 'predicate = "eq"']),
    ("subscript", "t = pto.alloc_tile(shape=[1, 64], dtype=pto.f32)\npto.f(t[0, n:])", ["arg1 = [0, #pto.slice<["]),
    ("static shape", "t = pto.alloc_tile(shape=[4, 64], dtype=pto.f32)\npto.f(x=t.shape[1] * 2)", ["x = 128"]),
    ("attribute", "v = pto.view(A)\npto.f(v.strides[0])", ['"pto.get"(%0) {name = "strides"}', "-> index"]),
    ("method", "t = pto.alloc_tile(shape=[8], dtype=pto.f32)\nt.fill(0.0)", ['"pto.value.fill"(%0, %1)']),
    ("object with methods", "p = pto.pipe.c2v(id=0)\np.push(p.pop(split=1))", ["pto.value.pop", "pto.value.push"]),
    ("item assignment", "b = pto.alloc_buffer((4,), pto.f32)\nb[n] = 1.0", ['"pto.assign"(%0, %arg1, %1)']),
    ("buffer element", "b = pto.alloc_buffer((4,), pto.f32)\npto.f(b[n] + 1)", ["-> f32", "arith.addf"]),
    ("scope", "with pto.vecscope():\n  pto.f()", ['"pto.vecscope"() ({', '  "pto.f"()', "}) :"]),
    ("scope with arguments", "with pto.simt(128, 1, 1):\n  pto.f()", ["constant 128", '"pto.simt"(%0, %1, %2) ({']),
    ("two scopes", "with pto.a(), pto.b():\n  pto.f()", ['"pto.a"() ({', '"pto.b"() ({', '"pto.f"']),
    ("section", 'with pto.section("cube"):\n  pto.f()', ['"pto.section"() ({', '{arg0 = "cube"}']),
    ("device loop", "for i in range(0, 4, 1):\n  pto.f(i)", ["scf.for %arg2 = %0 to %1 step %2 : index {", "(%arg2)"]),
    ("loop to a value", "for i in range(n):\n  pto.f(i)", ['"arith.index_cast"(%arg1)', "scf.for"]),
    ("carried value", "t = n\nfor i in range(4):\n  t = t + i\npto.f(t)", ["iter_args(%arg3 = %arg1)", "scf.yield"]),
    ("carried number", "t = 0\nfor i in range(4):\n  t += pto.load(A, i)\npto.f(t)", ["-> (f32)", "addf"]),
    (
        "loop downwards",
        "for i in range(9, 0, -2):\n  pto.f(i)",
        ["arith.constant 5 : index", "arith.muli", "arith.addi"],
    ),
    (
        "temporary twice",
        "for i in range(2):\n  t = i\nfor i in range(2):\n  t = i",
        ["scf.for %arg2 = %0 to %1 step %2 : "],
    ),
    ("unrolled", "for i in pto.static_range(3):\n  pto.f(x=i)", ["x = 0", "x = 1", "x = 2"]),
    ("loop over a list", "for name in ['a', 'b']:\n  pto.f(x=name)", ['x = "a"', 'x = "b"']),
    ("break on Python", "for i in range(9):\n  if i == 2:\n    break\n  pto.f(x=i)", ["x = 0", "x = 1"]),
    ("device branch", "if n > 1:\n  pto.a()\nelse:\n  pto.b()", ["scf.if %1 {", '"pto.a"', "} else {", '"pto.b"']),
    ("elif", "if n > 1:\n  pto.a()\nelif n > 0:\n  pto.b()\nelse:\n  pto.c()", ["scf.if", "else", "scf.if", "else"]),
    (
        "merged value",
        "t = n\nif n > 1:\n  t = n * 2\npto.f(t)",
        ["%2 = scf.if %1 -> (i32)", "scf.yield", "scf.yield %arg1"],
    ),
    ("merged numbers", "if n > 1:\n  t = 1\nelse:\n  t = 2\npto.f(t)", ["-> (i64)", "constant 1", "constant 2"]),
    ("equal numbers", "if n > 1:\n  t = 1\nelse:\n  t = 1\npto.f(x=t)", ["x = 1"]),
    ("branch on Python", "if 1 > 2:\n  pto.a()\nelse:\n  pto.b()", ['"pto.b"']),
    ("i8 condition", "if pto.cast(n, pto.i8):\n  pto.a()", ['predicate = "ne"', "scf.if"]),
    (
        "branch in a loop",
        "t = 0\nfor i in range(4):\n  if n > i:\n    t = t + n\npto.f(t)",
        ["scf.for", "scf.if", "-> (i32)"],
    ),
    ("and", "pto.f(n > 1 and n < 5)", ["arith.cmpi", "arith.cmpi", "arith.andi"]),
    ("or, not", "pto.f(not (n > 1 or n < 0))", ["arith.ori", "arith.xori"]),
    ("and with Python", "pto.f(1 and n > 1, x=0 and n > 1)", ["arith.cmpi", "x = 0"]),
    ("chain", "pto.f(0 < n <= 5)", ['predicate = "sgt"', 'predicate = "sle"', "arith.andi"]),
    ("conditional expression", "pto.f(n if n > 0 else -n)", ["scf.if", "scf.yield %arg1", "arith.subi"]),
    ("select", "pto.f(pto.select(n > 0, n, 7))", ['"pto.select"', "-> i32"]),
    ("explicit loop", "with pto.for_(0, n, step=2) as i:\n  pto.f(i)", ["scf.for", '"pto.f"(%arg2)']),
    (
        "explicit carry",
        "l = pto.for_(0, 4).carry(t=n)\nwith l:\n  l.update(t=l.t + l.iv)\npto.f(l.final('t'))",
        ["iter_args(%arg3 = %arg1)", "arith.addi", '"pto.f"(%3)'],
    ),
    (
        "explicit branch",
        "with pto.if_(n > 0) as b:\n  with b.then_:\n    b.assign(v=n)\n  with b.else_:\n    b.assign(v=1)\npto.f(b.v)",
        ["scf.if", "scf.yield %arg1 : i32", "} else {", "scf.yield"],
    ),
    ("explicit branch without sides", "with pto.if_(n > 0):\n  pto.a()", ["scf.if", '"pto.a"']),
    ("logical bool", "if tl.as_logical_bool(n):\n  pto.a()", ["arith.constant 0 : i32", "scf.if"]),
    ("lazy choice", "pto.f(tl.if_then_else(n > 0, lambda: n, lambda: n + 1))", ["scf.if", "addi"]),
    (
        "function argument",
        "tl.vectorize(lambda x: x + 1, n)",
        ["^bb0(%arg2: !pto.value):", "pto.yield", "#pto.region<0>"],
    ),
    ("operation as argument", "tl.apply(pto.exp, n)", ["arg0 = #pto.exp"]),
    (
        "lanes to a list",
        "b = [0, 0]\ntl.store_vector_to_list(b, 0, pto.Vec(pto.f32, 2, init=n))\npto.f(b[1])",
        ["subscript"],
    ),
    ("nested helper", "def g(x):\n  if x > 1:\n    pto.a()\ng(n)", ["scf.if", '"pto.a"']),
    ("closure", "m = n + 1\ndef g(x):\n  return x + m\nfor i in range(2):\n  pto.f(g(i))", ["addi", "scf.for", "addi"]),
    ("comprehension", "ts = [pto.alloc_tile(shape=[i + 1], dtype=pto.f16) for i in range(2)]", ["<1xf16>", "<2xf16>"]),
    (
        "item in a loop of the device",
        "ts = [n, n + 1]\nfor i in range(2):\n  pto.f(ts[1], i)",
        ["scf.for", '"pto.f"(%1, %arg2)'],
    ),
]


@pytest.mark.parametrize(("body", "lines"), [row[1:] for row in CONSTRUCTS], ids=[row[0] for row in CONSTRUCTS])
def test_construct_is_traced(body: str, lines: list[str], trace: Callable[..., str]) -> None:
    text = trace(kernel(body))
    at = 0
    for line in lines:
        found = text.find(line, at)
        assert found >= 0, f"{line!r} is not in\n{text}"
        at = found + len(line)
    mlir.parse(text)


# Programs: (what it is, a whole source, kernel names, patterns that the text has)
PTO = "from __future__ import annotations\nfrom ptodsl import pto\n"

SUB_KERNELS = """
@pto.{role}
def helper(x, count: pto.i32):
  return x + count

@pto.jit(target="a5")
def k(n: pto.i64):
  pto.f(helper(n, 3), helper(n, 3))
"""

PROGRAMS: list[tuple[str, str, list[str], list[str]]] = [
    ("bare jit", "@pto.jit\ndef k():\n  pto.f()", ["k"], [r"func\.func @k\(\)"]),
    (
        "another name, options",
        """
@pto.jit(name="other", kernel_kind="vector", mode="explicit", insert_sync=False)
def k():
  pto.f()
""",
        ["k"],
        [r"@other\(", r"kernel_kind<vector>", r'pto\.mode = "explicit"', r"pto\.insert_sync = false"],
    ),
    (
        "decorators around",
        """
def plain(function):
  return function

@plain
@pto.jit(
  target="a5",
)
@plain
def k(n: pto.i32):
  "Says something."
  if n > 0:
    pto.f()
""",
        ["k"],
        [r"scf\.if"],
    ),
    (
        "string annotations",
        """
@pto.jit
def k(A: "pto.ptr(pto.f32, 'gm')", n: "pto.i32", m, *, B: "pto.constexpr" = 4):
  pto.f(A, n, m, x=B)
""",
        ["k"],
        [r"%arg0: !pto\.ptr<f32, gm>, %arg1: i32, %arg2: !pto\.value", r"x = 4"],
    ),
    (
        "nested in a factory",
        """
def make(rows):
  @pto.jit(name=f"k{rows}")
  def kernel(n: pto.i32):
    for i in range(rows):
      pto.f(i, x=rows)
  return kernel
k = make(5)
""",
        ["k"],
        [r"@k5\(", r"x = 5", r"constant 5 : index"],
    ),
    *[
        (
            f"sub-kernel {role}",
            SUB_KERNELS.replace("{role}", role),
            ["k"],
            [r"func private @helper\(", r"callee = @helper"],
        )
        for role in ("simt", "tileop", "func", "cube", "simd", "func(noinline=True)", "simt(128, 1, 1)")
    ],
    ("inline sub-kernel", SUB_KERNELS.replace("{role}", "inline_proc"), ["k"], [r"arith\.addi"]),
    (
        "sub-kernel of two types",
        """
@pto.func
def g(x):
  pto.f(x)

@pto.jit
def k(a: pto.i32, b: pto.f32):
  g(a)
  g(b)
""",
        ["k"],
        [r"@g\(%arg0: i32\)", r"@g_1\(%arg0: f32\)"],
    ),
    (
        "several results",
        """
@pto.func
def g(x):
  return x + 1, (x, 5)

@pto.jit
def k(a: pto.i32):
  b, (c, five) = g(a)
  pto.f(b, c, x=five)
""",
        ["k"],
        [r"-> \(i32, i32\)", r"return %1, %arg0 : i32, i32", r"x = 5"],
    ),
    (
        "kernel module",
        """
@pto.jit(entry=False, mode="explicit")
def part(A: pto.ptr(pto.f32, "gm"), n: pto.i32):
  pto.g(A, n)

@pto.jit
def k(A: pto.ptr(pto.f32, "gm"), n: pto.i64):
  part(A, n)
  part(A, 3)
""",
        ["k"],
        [r"func private @part\(", r"arith\.trunci", r"func\.call.*callee = @part"],
    ),
    (
        "plain helper",
        """
def g(x):
  return x * 2

@pto.jit
def k(n: pto.i32):
  pto.f(g(n))
""",
        ["k"],
        [r"arith\.muli"],
    ),
    (
        "no rewriting",
        """
@pto.jit(ast_rewrite=False)
def k():
  for i in range(2):
    pto.f(x=i)
""",
        ["k"],
        [r"x = 0(.|\n)*x = 1"],
    ),
    (
        "no source text",
        """
space = {"pto": pto}
exec("def k(n: pto.i32):\\n  for i in range(2):\\n    pto.f(n, x=i)", space)
k = pto.jit(space["k"])
""",
        ["k"],
        [r"x = 0(.|\n)*x = 1"],
    ),
    (
        "made outside",
        """
ZERO = pto.const(0, dtype=pto.i64)
scope = pto.vecscope()

@pto.jit
def k():
  with scope:
    pto.f(ZERO)
""",
        ["k"],
        [r'"pto\.vecscope"\(\) \(\{\n +%0 = arith\.constant 0 : i64'],
    ),
    (
        "scope that is used inside",
        """
@pto.jit
def k(n: pto.i32):
  with pto.pipeline(n) as p:
    p.push(n)
  q = pto.pipeline(n)
  with q:
    pto.f(q)
""",
        ["k"],
        [r"\^bb0\(%arg1: !pto\.value\):\n +\"pto\.value\.push\"\(%arg1, %arg0\)", r"\"pto\.f\"\(%arg2\)"],
    ),
    (
        "mixed by finalize",
        """
import tilelang.contrib.ptodsl as tl

@pto.jit
def k():
  pto.f()
k = tl.finalize_mixed_kernel(k)
""",
        ["k"],
        [r"pto\.aicore, pto\.mixed"],
    ),
    (
        "mixed by sections",
        """
import tilelang.contrib.ptodsl as tl

@pto.jit
def k():
  with tl.mixed_kernel_section("cube"):
    pto.f()
  with pto.section("vector"):
    pto.g()
""",
        ["k"],
        [r"pto\.aicore, pto\.mixed"],
    ),
    (
        "mixed by its parts",
        """
@pto.jit(entry=False, kernel_kind="cube")
def a():
  pto.f()

@pto.jit(entry=False, kernel_kind="vector")
def b():
  pto.f()

@pto.jit
def k():
  a()
  b()
""",
        ["k"],
        [r"pto\.aicore, pto\.mixed"],
    ),
    (
        "several kernels",
        """
@pto.jit
def b():
  pto.f()

@pto.jit
def a():
  pto.f()
""",
        ["b", "a"],
        [r"@b\((.|\n)*@a\("],
    ),
    (
        "text instead of a body",
        """
@pto.jit(source="module {\\n func.func @k() attributes {pto.aicore} {\\n return\\n }\\n}\\n")
def k():
  pass
""",
        ["k"],
        [r"^module \{\n func"],
    ),
    (
        "helpers by parts",
        """
from tilelang.contrib.ptodsl import PhiloxRNG
from tilelang.contrib.ptodsl.simt import dp4a

@pto.jit
def k(n: pto.i32):
  pto.f(PhiloxRNG(n, 0).rand(), dp4a(n))
""",
        ["k"],
        [r'"tl\.PhiloxRNG"', r'"pto\.value\.rand"', r'"tl\.dp4a"'],
    ),
    (
        "assignments of all kinds",
        """
@pto.jit
def k(n: pto.i32):
  a = b = n
  (c, d), e = (a, b), n
  x: int = 3
  for i in range(4):
    a, b = b, a
    c += i
    if (m := a + b) > 3:
      d = m
      del x
      x = 4
    with pto.scope() as s:
      pto.g(s)
    try:
      e = e + 1
    finally:
      pto.h()
  pto.f(a, b, c, d, e)
""",
        ["k"],
        [r"iter_args\((%arg\d+ = %arg0, ){4}", r'"pto\.f"\(%\d+#0, %\d+#1, %\d+#2, %\d+#3, %\d+#5\)'],
    ),
]


@pytest.mark.parametrize(
    ("source", "names", "patterns"), [row[1:] for row in PROGRAMS], ids=[row[0] for row in PROGRAMS]
)
def test_program_is_traced(source: str, names: list[str], patterns: list[str], trace: Callable[..., str]) -> None:
    text = trace(PTO + source, *names)
    for pattern in patterns:
        assert re.search(pattern, text), f"{pattern} is not in\n{text}"
    mlir.parse(text)


def test_constants_of_the_compilation_are_bound(trace: Callable[..., str]) -> None:
    source = (
        "from ptodsl import pto\n@pto.jit\ndef k(*, B: pto.const_expr, C: pto.const_expr = 2):\n  pto.f(x=[B, C])\n"
    )
    assert "x = [7, 2]" in trace(source, B=7)
    with pytest.raises(Refused, match="the constant B has no default"):
        trace(source)
    with pytest.raises(Refused, match="has no constant D"):
        trace(source, B=7, D=1)


# Programs that no frontend could compile: (what it is, the body, the message)
REFUSALS: list[tuple[str, str, str]] = [
    ("while", "while n > 0:\n  pto.f()", "no truth in Python"),
    ("break in a branch", "for i in range(4):\n  if n > 0:\n    break", "no truth in Python"),
    ("return in a branch", "if n > 0:\n  return\npto.f()", "no truth in Python"),
    ("assert", "assert n > 0", "no truth in Python"),
    ("traced index", "x = [1, 2][n]", "cannot be used as a Python integer"),
    ("traced Python range", "x = [i for i in range(n)]", "cannot be used as a Python integer"),
    ("loop variable as index", "x = [1, 2]\nfor i in range(2):\n  pto.f(x[i])", "cannot be used as a Python integer"),
    ("float", "x = float(n)", "cannot be used as a Python float"),
    ("iteration", "for x in pto.values():\n  pto.f(x)", "cannot be iterated"),
    ("escaping value", "with pto.vecscope():\n  t = pto.g(n)\npto.f(t)", "outside of the loop, branch, scope"),
    ("value of one branch", "if n > 0:\n  t = n\npto.f(t)", "has no value"),
    ("branches of two kinds", "if n > 0:\n  t = 'a'\nelse:\n  t = 'b'\npto.f(t)", "has no value that can be merged"),
    ("loop of two kinds", "t = 0\nfor i in range(2):\n  t = A\npto.f(t)", "a variable is a i64"),
    ("traced constant", "if pto.const_expr(n > 0):\n  pto.f()", "known on the device only"),
    ("foreign object", "pto.f(x=object())", "cannot record a Python value of type object"),
    ("assigned in one branch", "with pto.if_(n > 0) as b:\n  with b.then_:\n    b.assign(v=n)", "in one branch only"),
    ("scope from outside", "s = pto.scope()\nfor i in range(2):\n  with s:\n    pto.f()", "cannot enter"),
    ("not carried", "l = pto.for_(0, 4).carry(t=n)\nwith l:\n  l.update(u=1)", "'u' is not carried"),
    ("Python error", "pto.f(1 // 0)", "ZeroDivisionError"),
    ("exception of the body", "raise ValueError('no such tile')", "no such tile"),
]


@pytest.mark.parametrize(("body", "message"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_what_cannot_be_compiled_says_why(body: str, message: str, trace: Callable[..., str]) -> None:
    with pytest.raises(Refused, match=message):
        trace(kernel(body))
    trace(kernel("pto.f()"))  # and nothing is left behind


def test_two_kernels_of_one_name_are_refused(trace: Callable[..., str]) -> None:
    source = (
        "from ptodsl import pto\n@pto.jit(name='x')\ndef a():\n  pto.f()\n@pto.jit(name='x')\ndef b():\n  pto.f()\n"
    )
    with pytest.raises(Refused, match="two kernels of one module are called 'x'"):
        trace(source, "a", "b")


def test_functions_that_are_no_kernels_do_not_compile(trace: Callable[..., str]) -> None:
    with pytest.raises(Refused, match="entry=False"):
        trace("from ptodsl import pto\n@pto.jit(entry=False)\ndef k():\n  pto.f()\n")


# What a source may change without its text: (what it is, a body, another body)
SAME: list[tuple[str, str, str]] = [
    ("comment", "pto.f(n)", "# why\npto.f(n)  # here"),
    ("layout", "pto.f(n, x=(1, 2))", "pto.f(\n  n,\n  x = ( 1 , 2 ),\n)"),
    ("docstring", "pto.f(n)", '"""What it does."""\npto.f(n)'),
    ("name of a variable", "t = n + 1\npto.f(t)", "other = n + 1\npto.f(other)"),
    ("name of a loop variable", "for i in range(4):\n  pto.f(i)", "for j in range(4):\n  pto.f(j)"),
    ("quotes", "pto.f(x='V')", 'pto.f(x="V")'),
    (
        "order of the names",
        "a = n\nb = 0\nfor i in range(4):\n  a = a + b\n  b = b + i\npto.f(a, b)",
        "z = n\ny = 0\nfor x in range(4):\n  z = z + y\n  y = y + x\npto.f(z, y)",
    ),
    ("base of a number", "pto.f(x=255)", "pto.f(x=0xFF)"),
]


@pytest.mark.parametrize(("one", "other"), [row[1:] for row in SAME], ids=[row[0] for row in SAME])
def test_what_says_the_same_is_the_same_text(one: str, other: str, trace: Callable[..., str]) -> None:
    assert trace(kernel(one)) == trace(kernel(other))


# What changes the text: variations of one kernel.
VARIANTS = [
    "pto.f(n, 1, x='a')",
    "pto.g(n, 1, x='a')",
    "pto.f(n, 2, x='a')",
    "pto.f(n, 1.0, x='a')",
    "pto.f(n, True, x='a')",
    "pto.f(n, 1, x='b')",
    "pto.f(n, 1, y='a')",
    "pto.f(n, 1, x=pto.a)",
    "pto.f(1, n, x='a')",
    "pto.f(n, n, x='a')",
    "pto.f(n, 1, x=n)",
    "pto.f(n, 1, x=['a'])",
    "pto.f(n, 1, x=None)",
    "pto.f(n, 1)",
    "pto.f(n, '1', x='a')",
    "pto.f(n, [1], x='a')",
    "pto.f(n, pto.i32, x='a')",
    "pto.f(n, pto.const(1, dtype=pto.i32), x='a')",
    "pto.f(n, 1, x='a')\npto.f(n, 1, x='a')",
    "pto.tile.f(n, 1, x='a')",
    "with pto.scope():\n  pto.f(n, 1, x='a')",
    "for i in range(2):\n  pto.f(n, 1, x='a')",
    "for i in range(3):\n  pto.f(n, 1, x='a')",
    "if n > 1:\n  pto.f(n, 1, x='a')",
]


def test_what_says_something_else_is_another_text(trace: Callable[..., str]) -> None:
    texts = [trace(kernel(body)) for body in VARIANTS]
    heads = ["name='j'", "kernel_kind='cube'", "mode='explicit'", "target='a3'", "backend='emitc'", "insert_sync=True"]
    template = "from ptodsl import pto\n@pto.jit({})\ndef k(n: pto.i32):\n  pto.f(n)\n"
    texts += [trace(template.format(head)) for head in heads]
    texts.append(trace(template.format("").replace("pto.i32", "pto.i64")))
    assert len(set(texts)) == len(texts)


def interpreters() -> list[str]:
    """The other Pythons of this machine that the project supports."""
    names = ("python3.10", "python3.11", "python3.12", "python3.13")
    found = [path for path in map(shutil.which, names) if path]
    versions = Path(os.environ.get("PYENV_ROOT", Path("~/.pyenv").expanduser())) / "versions"
    found += [str(path) for path in sorted(versions.glob("3.1[0-3].*/bin/python3"))]
    probe = "import sys; sys.exit(sys.version_info < (3, 10))"
    return [
        path for path in found if not subprocess.run([path, "-c", probe], capture_output=True, check=False).returncode
    ]


INTERPRETERS = interpreters()  # now, as a test has another HOME


def test_text_depends_on_neither_hash_seed_nor_python(install: Path, trace: Callable[..., str], tmp_path: Path) -> None:
    sources = [((EXAMPLES_AT / f"{name}.py").read_text(), names) for name, names in EXAMPLES.items()]
    sources += [(kernel(body), ["k"]) for _, body, _ in CONSTRUCTS] + [(PTO + row[1], row[2]) for row in PROGRAMS]
    expected = [trace(source, *names) for source, names in sources]
    jobs = "".join(
        json.dumps({"source": source, "names": names, "constants": {}, "path": str(tmp_path / f"{number}.py")}) + "\n"
        for number, (source, names) in enumerate(sources)
    )
    for seed, python in enumerate([sys.executable, sys.executable, *INTERPRETERS]):
        environ = {**os.environ, "PYTHONPATH": str(install / "python"), "PYTHONHASHSEED": str(seed)}
        command = [python, "-B", "-c", WORKER]
        done = subprocess.run(command, input=jobs, capture_output=True, text=True, env=environ, check=True)
        replies = [json.loads(line) for line in done.stdout.splitlines()]
        for reply, text, (source, _) in zip(replies, expected, sources, strict=True):
            assert reply == {"text": text}, f"{python}\n{source}"


def test_a_real_tilelang_is_not_shadowed(install: Path, tmp_path: Path) -> None:
    package = tmp_path / "site" / "tilelang" / "contrib" / "ptodsl"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").write_text("")
    (package / "__init__.py").write_text("from ptodsl import pto\ndef double(x):\n  return x + x\n")
    (tmp_path / "k.py").write_text(kernel("pto.f(tl.double(n))"))
    environment = {**os.environ, "PYTHONPATH": f"{install / 'python'}:{tmp_path / 'site'}"}
    script = "import k; print(k.k.compile().mlir_text())"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert "arith.addi" in done.stdout


def test_a_tilelang_without_helpers_gets_ours(install: Path, tmp_path: Path) -> None:
    package = tmp_path / "site" / "tilelang" / "contrib"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("")
    (tmp_path / "k.py").write_text(kernel("pto.f(tl.double(n))"))
    environment = {**os.environ, "PYTHONPATH": f"{install / 'python'}:{tmp_path / 'site'}"}
    script = "import k, tilelang; print(k.k.compile().mlir_text(), tilelang.__file__)"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert '"tl.double"' in done.stdout
    assert str(tmp_path / "site") in done.stdout
