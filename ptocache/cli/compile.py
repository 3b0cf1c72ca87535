"""Compile a PTODSL source to a device binary, or take it from the cache.

for example:
  ptocache compile kernel.py                       writes kernel.aibin
  ptocache compile kernel.py -o out.aibin --arch a3
  ptocache compile kernel.py --flag=--pto-level=level3 --json
  ptocache compile kernel.py --emulate             on a machine without CANN
"""

from __future__ import annotations

import argparse
import os
import stat
import sys

from ptocache.cli import UsageError
from ptocache.frontend import CompileCache, CompileResult
from ptocache.log import log_to_stderr
from ptocache.text import bytes_text


def add_request_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that say what to compile, and with which tools."""
    parser.add_argument("file", metavar="FILE", help="the PTODSL source")
    parser.add_argument("--arch", metavar="A", help="a5, a3 or a2 (default: PTO_ARCH, else a5)")
    parser.add_argument(
        "--flag",
        metavar="F",
        dest="flags",
        action="append",
        help="an argument for ptoas, written --flag=F; may be repeated (default: PTO_FLAGS)",
    )
    parser.add_argument("--emulate", action="store_true", help="use the emulated CANN install")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_request_arguments(parser)
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="where to write the device binary (default: FILE's name with .aibin)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument("-v", "--verbose", action="store_true", help="show each tool's command, time and output")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    source = read_source(options.file)
    use_emulator(options)
    if options.verbose:
        log_to_stderr("info")
    output = options.output or os.path.splitext(os.path.basename(options.file))[0] + ".aibin"
    with CompileCache() as cache:
        result = cache.compile(source, options.arch, options.flags, verbose=options.verbose)
    _write(output, result.aibin)
    if options.json:
        _print_json(result, output)
    else:
        sys.stdout.write(_summary(result, output))
    return 0


def use_emulator(options: argparse.Namespace) -> None:
    """Let this process, and what it starts, use the emulated install if that was asked for."""
    if options.emulate:
        os.environ["PTOCACHE_TOOLCHAIN"] = "emulated"


def read_source(path: str) -> str:
    """Read a source file; raises `UsageError` where that cannot be done."""
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path}: the source cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}: the source is not UTF-8 text (byte {error.start} is {error.object[error.start]:#04x})"
        ) from error


def _write(path: str, data: bytes) -> None:
    """Write a file whole or not at all; what is no regular file (a pipe, /dev/null) is written to as it is."""
    try:
        if os.path.lexists(path) and not stat.S_ISREG(os.stat(path).st_mode):
            with open(path, "wb") as file:
                file.write(data)
            return
        target = os.path.realpath(path)
        temporary = f"{target}.{os.getpid()}.tmp"
        try:
            with open(temporary, "xb") as file:
                file.write(data)
            os.replace(temporary, target)
        except BaseException:
            if os.path.exists(temporary):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise UsageError(f"{path}: the device binary cannot be written: {error.strerror}") from error


def _print_json(result: CompileResult, output: str) -> None:
    import json  # only where asked for

    facts = {
        "key": result.key,
        "origin": result.origin,
        "via": result.via,
        "aibin_bytes": len(result.aibin),
        "aibin_sha256": result.sha256,
        "output": output,
        "seconds": round(result.seconds, 6),
        "kernels": result.kernels,
        "arch": result.request.arch,
        "flags": list(result.request.flags),
    }
    sys.stdout.write(json.dumps(facts) + "\n")


def _summary(result: CompileResult, output: str) -> str:
    what = str(result).partition(": ")[2]
    return f"{output}: {bytes_text(len(result.aibin))}, {what} (key {result.key})\n"
