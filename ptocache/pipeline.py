"""The stages of the pipeline, for a given toolchain: lower, assemble, link, extract, check."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ptocache.aibin import check_device_binary, extract_aicore_binary
from ptocache.digests import Digests
from ptocache.errors import (
    FrontendUnavailableError,
    LoweringError,
    PtocacheError,
    SourceError,
    SourceImportError,
    ToolError,
    ToolNotFoundError,
    describe_exit,
    explained,
)
from ptocache.inputs import Inputs, read_report
from ptocache.log import get_logger
from ptocache.mlir import text_for_key
from ptocache.process import Completed, run_tool
from ptocache.ptodsl_compile import FRONTEND_UNAVAILABLE, LOWERING_FAILED, SOURCE_NOT_IMPORTED
from ptocache.request import CompileRequest, check_source
from ptocache.source import Kernel, find_kernels
from ptocache.stamp import Stamp, make_stamp
from ptocache.tools import Toolchain, python_path

#: The pipeline's messages come from the module that people know: the one with TileLang's name.
logger = get_logger("ptocache.pto_toolchain")

#: What makes bisheng link a fat object alone into a shared image (TileLang's documented value).
BISHENG_FATOBJ_LINK_FLAGS = ("-fPIC", "-shared", "--cce-fatobj-link")

_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ptodsl_compile.py")

# Of Python's own variables the frontend gets those that say where its modules are. The others (PYTHONOPTIMIZE,
# PYTHONWARNINGS, PYTHONINSPECT, …) change how a program runs, and a kernel must not depend on the caller's.
_PYTHON_VARIABLES = frozenset({"PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONPLATLIBDIR"})

_FRONTEND_ERRORS: dict[int, tuple[type[ToolError], str]] = {
    FRONTEND_UNAVAILABLE: (
        FrontendUnavailableError,
        "the PTODSL frontend cannot be imported: install ptodsl for this Python, or pass --emulate",
    ),
    SOURCE_NOT_IMPORTED: (SourceImportError, "the PTODSL source cannot be imported"),
    LOWERING_FAILED: (LoweringError, "the PTODSL source was imported, and lowering it to MLIR failed"),
}


class Run(NamedTuple):
    """How tools are run.

    Attributes:
        environ: their environment.
        timeout: how long one may take, in seconds.
        verbose: whether to log each command, its time and its output.
    """

    environ: Mapping[str, str]
    timeout: float
    verbose: bool = False

    def tool(self, tool: str, command: Sequence[str], out: str) -> Completed:
        """Run one tool that is to write the file `out`, whatever its exit status."""
        # What an earlier run left at this place must not pass for the output of this one.
        with explained(PtocacheError, f"{out}: the output of {tool} cannot be written"):
            if os.path.isfile(out):
                os.unlink(out)
            elif os.path.lexists(out) or not os.path.isdir(os.path.dirname(out)):
                raise PtocacheError(f"{out}: the output of {tool} cannot be written there: expected a place for a file")
        completed = run_tool(tool, command, environ=self.environ, cwd=os.path.dirname(out), timeout=self.timeout)
        if self.verbose:
            logger.info("%s took %.3f s: %s", tool, completed.seconds, shlex.join(command))
            for text in (completed.stdout, completed.stderr):
                if text.strip():
                    logger.info("%s says:\n%s", tool, text.rstrip())
        return completed


def lower(
    run: Run, source: str, kernel_names: Sequence[str], source_path: str, out: str, report: str | None = None
) -> None:
    """Write the MLIR text of the named kernels of a PTODSL source.

    Args:
        run: how to run the frontend.
        source: the module's text.
        kernel_names: the Python names of the kernels.
        source_path: where to write the text, so that tracebacks and the tracer find it.
        out: where to write the MLIR.
        report: where to write what the source read beside itself, if that is wanted.

    Raises:
        FrontendUnavailableError, SourceImportError, LoweringError: see there.
        ToolError: the frontend's process failed in another way, or wrote nothing.
    """
    names = list(kernel_names)
    if not names or not all(isinstance(name, str) and name.isidentifier() for name in names):
        raise SourceError(f"expected the names of the kernels to lower, found {names!r}")
    if not sys.executable:
        raise ToolNotFoundError("this Python does not know its own path, so the frontend cannot be started with it")
    check_source(source)
    source_path, out = os.path.abspath(source_path), os.path.abspath(out)
    with (
        explained(PtocacheError, f"{source_path}: the source cannot be written"),
        open(source_path, "w", encoding="utf-8", newline="") as file,
    ):
        file.write(source)
    command = frontend_command(source_path, names, out)
    if report is not None:
        command.append(os.path.abspath(report))
    completed = run._replace(environ=_frontend_environ(run.environ)).tool("frontend", command, out)
    if completed.returncode in _FRONTEND_ERRORS:
        kind, summary = _FRONTEND_ERRORS[completed.returncode]
        raise _failure(kind, f"{summary} (kernels: {', '.join(names)})", "frontend", command, completed)
    _check_output("frontend", command, completed, out)


def assemble(run: Run, ptoas: str, pto_path: str, out: str, arch: str, flags: Sequence[str]) -> None:
    """Assemble MLIR text into a device fat object; raises `ToolError`."""
    out = os.path.abspath(out)
    command = ptoas_command(ptoas, os.path.abspath(pto_path), out, arch, flags)
    _check_output("ptoas", command, run.tool("ptoas", command, out), out)


def link(run: Run, bisheng: str, fatobj_path: str, out: str) -> None:
    """Link a fat object alone into a shared image that carries the device binary; raises `ToolError`."""
    out = os.path.abspath(out)
    command = bisheng_command(bisheng, os.path.abspath(fatobj_path), out)
    _check_output("bisheng", command, run.tool("bisheng", command, out), out)


def frontend_command(source_path: str, kernel_names: Sequence[str], out: str) -> list[str]:
    """The command that lowers."""
    return [sys.executable, _SCRIPT, source_path, json.dumps(list(kernel_names)), out]


def ptoas_command(ptoas: str, pto_path: str, out: str, arch: str, flags: Sequence[str]) -> list[str]:
    """The command that assembles."""
    return [ptoas, f"--pto-arch={arch}", *flags, pto_path, "-o", out]


def bisheng_command(bisheng: str, fatobj_path: str, out: str) -> list[str]:
    """The command that links."""
    return [bisheng, *BISHENG_FATOBJ_LINK_FLAGS, fatobj_path, "-o", out]


def shell_lines(tools: Toolchain, request: CompileRequest, source_path: str) -> list[str]:
    """The commands that compile a source file, as a shell takes them: each reads what the one before has written.

    Args:
        tools: where the tools are.
        request: what to compile, in its canonical form.
        source_path: the file with its source.

    Returns:
        One line a tool. The last one writes the image that carries the device binary.

    Raises:
        SourceError: the source has no kernel.
    """
    names = [kernel.name for kernel in find_kernels(request.source)]
    stem = os.path.splitext(os.path.basename(source_path))[0]
    pto, fatobj, image = f"{stem}.pto", f"{stem}.fatobj.o", f"lib_{stem}.so"
    environ = _frontend_environ(tools.environ)
    given = [f"{name}={environ[name]}" for name in ("PYTHONPATH", "PYTHONHASHSEED", "PYTHONUTF8")]
    commands = [
        ["env", *given, *frontend_command(os.path.abspath(source_path), names, os.path.abspath(pto))],
        ptoas_command(tools.ptoas, pto, fatobj, request.arch, request.flags),
        bisheng_command(tools.bisheng, fatobj, image),
    ]
    return [shlex.join(command) for command in commands]


def extract(image_path: str, kernels: Sequence[Kernel]) -> bytes:
    """Take the device binary out of an image and check that the runtime would load it for these kernels.

    Raises:
        ImageError: the image carries none.
        DeviceBinaryError: what it carries is not one, or lacks a kernel.
    """
    aibin = extract_aicore_binary(image_path)
    check(aibin, kernels)
    return aibin


def check(aibin: bytes, kernels: Sequence[Kernel]) -> None:
    """Check that a device binary is one that the runtime would load for these kernels; raises `DeviceBinaryError`."""
    check_device_binary(aibin, [kernel.symbol for kernel in kernels if kernel.symbol is not None])


class Stages:
    """The pipeline for one request (a `ptocache.recipe.Stages`).

    Args:
        run: how to run the tools.
        tools: where they are.
        request: what to compile.
        kernels: the kernels of its source.
        work: a directory for the files between the stages.
        digests: which contents are known already.
    """

    def __init__(
        self,
        run: Run,
        tools: Toolchain,
        request: CompileRequest,
        kernels: Sequence[Kernel],
        work: str,
        digests: Digests,
    ) -> None:
        self._run = run
        self._tools = tools
        self._request = request
        self._kernels = kernels
        self._digests = digests
        names = ("kernel.ptodsl.py", "kernel.pto", "kernel.fatobj.o", "lib_kernel.so", "inputs.json")
        self._source, self._pto, self._fatobj, self._image, self._report = (os.path.join(work, name) for name in names)

    @property
    def kernels(self) -> list[str]:
        """The Python names of the kernels, in the order of their definition."""
        return [kernel.name for kernel in self._kernels]

    def lower(self) -> str:
        """Lower the source; the MLIR text, without its locations where they make no difference."""
        lower(self._run, self._request.source, self.kernels, self._source, self._pto, self._report)
        with open(self._pto, encoding="utf-8", newline="", errors="surrogateescape") as file:
            return text_for_key(file.read(), self._request.flags)

    def build(self) -> bytes:
        """Assemble, link, extract and check: from the MLIR text to the device binary."""
        assemble(self._run, self._tools.ptoas, self._pto, self._fatobj, self._request.arch, self._request.flags)
        link(self._run, self._tools.bisheng, self._fatobj, self._image)
        return extract(self._image, self._kernels)

    def inputs(self) -> Inputs:
        """What the source read beside itself while it was lowered; raises `Unstable`."""
        return read_report(self._report, self._digests, self._run.environ.get)

    def stamp(self) -> Stamp:
        """The tools, as they are now; raises `ToolNotFoundError`."""
        return make_stamp(self._tools._replace(environ=dict(self._run.environ)), self._digests)

    def check(self, aibin: bytes) -> None:
        """See that a device binary is one for these kernels; raises `DeviceBinaryError`."""
        check(aibin, self._kernels)


@contextlib.contextmanager
def work_directory(keep: bool) -> Iterator[str]:
    """A directory for the files between the stages, removed at the end unless it is to be kept."""
    with explained(PtocacheError, "no directory for temporary files can be made (set TMPDIR)"):
        work = tempfile.mkdtemp(prefix="ptocache-")
    try:
        yield work
    finally:
        if keep:
            logger.warning("PTOCACHE_KEEP_TEMPS: the files of this compilation are in %s", work)
        else:
            shutil.rmtree(work, ignore_errors=True)


def _frontend_environ(environ: Mapping[str, str]) -> dict[str, str]:
    kept = {
        name: value for name, value in environ.items() if not name.startswith("PYTHON") or name in _PYTHON_VARIABLES
    }
    # Neither the caller's locale nor its hash seed may show in the text.
    return kept | {
        "PYTHONPATH": os.pathsep.join(python_path(environ)),
        "PYTHONHASHSEED": "0",
        "PYTHONUTF8": "1",
    }


def _check_output(tool: str, command: Sequence[str], completed: Completed, out: str) -> None:
    if completed.returncode != 0:
        summary = f"{tool} failed: {describe_exit(completed.returncode)}"
    elif not os.path.isfile(out):
        summary = f"{tool} ended with exit status 0 and wrote no {out}"
    elif os.path.getsize(out) == 0:
        summary = f"{tool} ended with exit status 0 and left {out} empty"
    else:
        return
    raise _failure(ToolError, summary, tool, command, completed)


def _failure(kind: type[ToolError], summary: str, tool: str, command: Sequence[str], completed: Completed) -> ToolError:
    return kind(
        summary,
        tool=tool,
        command=command,
        returncode=completed.returncode,
        stdout=completed.stdout,
        stderr=completed.stderr,
    )
