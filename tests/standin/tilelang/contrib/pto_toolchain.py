"""The pipeline from PTODSL text to a device binary, with the documented functions of TileLang's module.

`calls` is the tests' own: the stages that ran in this process, in order.
"""

import ast
import hashlib
import json
import logging
import os
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile

logger = logging.getLogger(__name__)

BISHENG_FATOBJ_LINK_FLAGS = ("-fPIC", "-shared", "--cce-fatobj-link")

#: The version of ptoas that this TileLang is made for.
PTOAS_ABI = 33

calls = []


def resolve_pto_options():
    """The ptoas arch and extra flags from the environment."""
    arch = os.environ.get("PTO_ARCH", "a5").strip().lower() or "a5"
    flags = shlex.split(os.environ.get("PTO_FLAGS", ""))
    if not any(flag.startswith("--pto-backend") for flag in flags):
        flags.append("--pto-backend=vpto")
    return arch, flags


def parse_pto_kernel_names(ptodsl_source):
    """The top-level `@pto.jit` kernel names, in definition order."""
    calls.append("parse_pto_kernel_names")
    names = [
        node.name
        for node in ast.parse(ptodsl_source).body
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(decorator).startswith("pto.jit") for decorator in node.decorator_list)
    ]
    if not names:
        raise ValueError("no @pto.jit kernel found in the PTODSL source")
    return names


def compile_ptodsl_to_pto(ptodsl_source, kernel_names, src_path, out_path, verbose=False):
    """Lower one module to MLIR text in a subprocess."""
    calls.append("compile_ptodsl_to_pto")
    with open(src_path, "w", encoding="utf-8") as file:
        file.write(ptodsl_source)
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ptodsl_compile.py")
    command = [sys.executable, script, os.fspath(src_path), json.dumps(list(kernel_names)), os.fspath(out_path)]
    _run("PTODSL lowering", command, verbose, TILELANG_STANDIN_LOWERING="1")


def run_ptoas(pto_path, fatobj_path, pto_arch, pto_flags, verbose=False):
    """Assemble the MLIR text into a device fat object."""
    calls.append("run_ptoas")
    flags = shlex.split(pto_flags) if isinstance(pto_flags, str) else list(pto_flags)
    ptoas = os.environ.get("PTOAS_BIN") or shutil.which("ptoas")
    if not ptoas:
        raise RuntimeError("Cannot find ptoas. Install it, or set PTOAS_BIN.")
    command = [ptoas, f"--pto-arch={pto_arch}", *flags, os.fspath(pto_path), "-o", os.fspath(fatobj_path)]
    _run("ptoas", command, verbose)


def bisheng_fatobj_link(fatobj_path, out_so, verbose=False):
    """Link the fat object alone into a shared image that carries the device ELF."""
    calls.append("bisheng_fatobj_link")
    command = [_bisheng(), *BISHENG_FATOBJ_LINK_FLAGS, os.fspath(fatobj_path), "-o", os.fspath(out_so)]
    _run("bisheng link", command, verbose)


def extract_aicore_binary(so_path):
    """The bytes of `.aicore_binary`, from the ELF64 section table itself."""
    calls.append("extract_aicore_binary")
    with open(so_path, "rb") as file:
        image = file.read()
    if image[:6] != b"\x7fELF\x02\x01":
        raise RuntimeError(f"{so_path} is not an ELF64 file")
    table, size, count, names_at = struct.unpack_from("<Q", image, 40)[0], *struct.unpack_from("<HHH", image, 58)
    sections = [struct.unpack_from("<IIQQQQ", image, table + size * i) for i in range(count)]
    names = sections[names_at][4]
    for name, _, _, _, offset, length in sections:
        start = names + name
        if image[start : image.index(b"\0", start)] == b".aicore_binary":
            return image[offset : offset + length]
    raise RuntimeError(f"{so_path} has no section .aicore_binary")


def toolchain_stamp():
    """The identity of the tools that produce an aibin."""
    calls.append("toolchain_stamp")
    with open(os.path.join(os.environ["ASCEND_HOME_PATH"], "version.info"), "rb") as file:
        version = hashlib.sha256(file.read()).hexdigest()[:16]
    return f"cann {version} ptoas abi {PTOAS_ABI}"


def compile_ptodsl_to_aibin(ptodsl_source, pto_arch, pto_flags, verbose=False):
    """The whole pipeline, uncached."""
    with tempfile.TemporaryDirectory(prefix="tilelang-pto-") as work:
        source, pto, fatobj, image = (os.path.join(work, name) for name in ("k.py", "k.pto", "k.fatobj.o", "libk.so"))
        compile_ptodsl_to_pto(ptodsl_source, parse_pto_kernel_names(ptodsl_source), source, pto, verbose)
        run_ptoas(pto, fatobj, pto_arch, pto_flags, verbose)
        bisheng_fatobj_link(fatobj, image, verbose)
        return extract_aicore_binary(image)


def _bisheng():
    for variable, below in (("BISHENG_HOME", "bin"), ("ASCEND_HOME_PATH", "bin")):
        path = os.path.join(os.environ.get(variable, ""), below, "bisheng")
        if os.environ.get(variable) and os.path.isfile(path):
            return path
    path = shutil.which("bisheng")
    if not path:
        raise RuntimeError("Cannot find bisheng. Install CANN, or set BISHENG_HOME.")
    return path


def _run(stage, command, verbose, **variables):
    completed = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, **variables},
    )
    if verbose:
        logger.info("%s: %s\n%s", stage, shlex.join(command), completed.stdout)
    if completed.returncode:
        raise RuntimeError(f"{stage} failed with exit code {completed.returncode}\n{completed.stdout}")
