"""The pipeline from PTODSL text to a device binary, uncached.

The functions have the names, the arguments and the meaning of those that TileLang documents for
`tilelang.contrib.pto_toolchain`, so that one module can stand in for the other. What they need beside their
arguments (the tools' places, the time limit) they take from the environment at each call.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ptocache import pipeline
from ptocache.aibin import extract_aicore_binary
from ptocache.digests import Digests
from ptocache.pipeline import BISHENG_FATOBJ_LINK_FLAGS, Run, logger
from ptocache.request import ARCHS, make_request, split_flags
from ptocache.settings import Settings
from ptocache.source import find_kernels
from ptocache.stamp import make_stamp
from ptocache.tools import find_bisheng, find_ptoas, locate, tool_environ

__all__ = [
    "BISHENG_FATOBJ_LINK_FLAGS",
    "bisheng_fatobj_link",
    "compile_ptodsl_to_aibin",
    "compile_ptodsl_to_pto",
    "extract_aicore_binary",
    "logger",
    "parse_pto_kernel_names",
    "resolve_pto_options",
    "run_ptoas",
    "toolchain_stamp",
]

StrPath = str | os.PathLike[str]


def resolve_pto_options() -> tuple[str, list[str]]:
    """The ptoas options that the environment asks for.

    Returns:
        The arch from `PTO_ARCH` (`a5` where unset) and the flags from `PTO_FLAGS`, split as a shell splits
        them, with `--pto-backend=vpto` added where they name no back end.

    Raises:
        SettingsError: the arch is unknown, or the flags do not split into words.
    """
    arch = os.environ.get("PTO_ARCH", "").strip() or ARCHS[0]
    request = make_request("", arch, split_flags(os.environ.get("PTO_FLAGS", "")))
    return request.arch, list(request.flags)


def parse_pto_kernel_names(ptodsl_source: str) -> list[str]:
    """The Python names of the top-level `@pto.jit` kernels of a source, in definition order.

    Raises:
        SourceError: the source does not parse, has no kernel, or defines one twice; `lineno` tells where.
    """
    return [kernel.name for kernel in find_kernels(ptodsl_source)]


def compile_ptodsl_to_pto(
    ptodsl_source: str,
    kernel_names: Sequence[str],
    src_path: StrPath,
    out_path: StrPath,
    verbose: bool = False,
) -> None:
    """Lower one PTODSL module to MLIR text, in a process of its own.

    Args:
        ptodsl_source: the module's text.
        kernel_names: the Python names of the kernels to lower, into one MLIR module.
        src_path: where to write the text, so that tracebacks and the tracer find it.
        out_path: where to write the MLIR text.
        verbose: log the command, its time and its output.

    Raises:
        FrontendUnavailableError: `ptodsl` cannot be imported.
        SourceImportError: the source raised while it was imported.
        LoweringError: its kernels cannot be lowered.
        ToolError: the process failed in another way, or wrote nothing.
        SourceError: no names, or a name that is none.
    """
    pipeline.lower(_run(verbose), ptodsl_source, kernel_names, os.fspath(src_path), os.fspath(out_path))


def run_ptoas(
    pto_path: StrPath,
    fatobj_path: StrPath,
    pto_arch: str,
    pto_flags: Sequence[str] | str,
    verbose: bool = False,
) -> None:
    """Assemble MLIR text into a device fat object.

    Args:
        pto_path: the text, as `compile_ptodsl_to_pto` writes it.
        fatobj_path: where to write the fat object.
        pto_arch: for `--pto-arch`.
        pto_flags: the other arguments of ptoas.
        verbose: log the command, its time and its output.

    Raises:
        ToolNotFoundError: there is no ptoas.
        ToolError: it failed, was killed, ran too long, or wrote nothing; with all that it printed.
    """
    run = _run(verbose)
    flags = split_flags(pto_flags) if isinstance(pto_flags, str) else pto_flags
    pipeline.assemble(run, find_ptoas(run.environ), os.fspath(pto_path), os.fspath(fatobj_path), pto_arch, flags)


def bisheng_fatobj_link(fatobj_path: StrPath, out_so: StrPath, verbose: bool = False) -> None:
    """Link a fat object alone into a shared image that carries the device binary.

    Args:
        fatobj_path: the fat object, as `run_ptoas` writes it.
        out_so: where to write the image.
        verbose: log the command, its time and its output.

    Raises:
        ToolNotFoundError: there is no bisheng.
        ToolError: it failed, was killed, ran too long, or wrote nothing; with all that it printed.
    """
    run = _run(verbose)
    pipeline.link(run, find_bisheng(run.environ), os.fspath(fatobj_path), os.fspath(out_so))


def toolchain_stamp() -> str:
    """The identity of the tools that produce a device binary: CANN, bisheng, its linker, ptoas, the frontend.

    Returns:
        The CANN version, a digest of the back end and one of the frontend; `emulated-` before it for an
        emulated install. Two installs of the same tools have the same stamp, wherever they are.

    Raises:
        ToolNotFoundError: a tool is missing or cannot be read.
    """
    return str(make_stamp(locate(_run().environ)))


def compile_ptodsl_to_aibin(
    ptodsl_source: str, pto_arch: str, pto_flags: Sequence[str] | str, verbose: bool = False
) -> bytes:
    """Run the whole pipeline, uncached.

    Args:
        ptodsl_source: the PTODSL module's text.
        pto_arch: for `--pto-arch`: `a5`, `a3` or `a2`.
        pto_flags: the other arguments of ptoas; `--pto-backend=vpto` is added where they name no back end.
        verbose: log each command, its time and its output.

    Returns:
        The device binary, checked.

    Raises:
        PtocacheError: of the kind that says which stage failed and why.
    """
    request = make_request(ptodsl_source, pto_arch, pto_flags)
    kernels = find_kernels(request.source)
    settings = Settings.load()
    tools = locate(tool_environ(settings.toolchain))
    run = Run(tools.environ, settings.compile_timeout, verbose)
    with pipeline.work_directory(settings.keep_temps) as work:
        stages = pipeline.Stages(run, tools, request, kernels, work, Digests())
        stages.lower()
        return stages.build()


def _run(verbose: bool = False) -> Run:
    settings = Settings.load()
    return Run(tool_environ(settings.toolchain), settings.compile_timeout, verbose)
