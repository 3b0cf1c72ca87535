"""Compile PTODSL sources to device binaries, or take those from the cache.

for example:
  ptocache compile kernel.py                       writes kernel.aibin
  ptocache compile kernel.py -o out.aibin --arch a3
  ptocache compile *.py -o build/                  each into that directory
  ptocache compile - -o - < kernel.py > out.aibin
  ptocache compile kernel.py --flag=--pto-level=level3 --json
  ptocache compile kernel.py --print-pto           the MLIR that it is lowered to, and no device binary
  ptocache compile kernel.py --print-command       what to type to compile it by hand
  ptocache compile kernel.py --emulate             on a machine without CANN
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from typing import NamedTuple

from ptocache.cli import UsageError
from ptocache.cli.output import write_file
from ptocache.errors import PtocacheError, SettingsError
from ptocache.frontend import CompileCache, CompileResult
from ptocache.log import log_to_stderr
from ptocache.settings import Settings
from ptocache.text import bytes_text

#: Instead of a file: standard input, standard output.
_STANDARD = "-"


class _Source(NamedTuple):
    """A source, and where its device binary goes."""

    path: str
    text: str
    output: str


def add_request_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that say what to compile, and with which tools."""
    parser.add_argument("file", metavar="FILE", help="the PTODSL source")
    parser.add_argument("--arch", metavar="A", help="a5, a3 or a2 (default: PTO_ARCH, else a5)")
    add_tool_arguments(parser)


def add_tool_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that say with which tools, and how."""
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
    parser.add_argument("files", metavar="FILE", nargs="+", help="a PTODSL source; - for standard input")
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="where to write the device binary, or a directory; - for standard output (default: FILE's name with "
        ".aibin, in the working directory)",
    )
    parser.add_argument("--arch", metavar="A", help="a5, a3 or a2 (default: PTO_ARCH, else a5)")
    add_tool_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object, one line a source")
    parser.add_argument("-v", "--verbose", action="store_true", help="show each tool's command, time and output")
    parser.add_argument("--keep-temps", action="store_true", help="keep the files between the stages, and say where")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--print-pto", action="store_true", help="lower only, and print the MLIR text")
    instead.add_argument("--print-command", action="store_true", help="compile nothing; print the tools' commands")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    sources = _sources(options)
    use_emulator(options)
    if options.verbose:
        log_to_stderr("info")
    settings = Settings.load(keep_temps=True) if options.keep_temps else Settings.load()
    if options.keep_temps:
        log_to_stderr("info" if options.verbose else "warning")
    status = 0
    with CompileCache(settings) as cache:
        for source in sources:
            try:
                _answer(cache, source, options)
            except SettingsError:  # the next one has the same
                raise
            except (PtocacheError, UsageError) as error:
                if len(sources) == 1:
                    raise
                sys.stderr.write(f"ptocache: {source.path}: {error}\n")
                status = 1
    return status


def _answer(cache: CompileCache, source: _Source, options: argparse.Namespace) -> None:
    job = cache.prepare(source.text, options.arch, options.flags, options.verbose)
    if options.print_pto:
        sys.stdout.write(cache.lower(job))
    elif options.print_command:
        sys.stdout.write("".join(f"{line}\n" for line in cache.shell_lines(job, source.path)))
    else:
        result = cache.run(job)
        _write(source.output, result.aibin)
        report = sys.stderr if source.output == _STANDARD else sys.stdout
        report.write(_json(result, source) if options.json else _summary(result, source.output))
        if options.keep_temps and result.via == "source":
            sys.stderr.write("ptocache: a hit: no stage was run, so there are no files to keep\n")


def _sources(options: argparse.Namespace) -> list[_Source]:
    """All that is to be compiled; raises `UsageError` before any is, where that cannot work."""
    only_print = options.print_pto or options.print_command
    if only_print and (options.output or options.json):
        raise UsageError(
            "--print-pto and --print-command print text and write no device binary: leave -o and --json out"
        )
    if options.print_command and _STANDARD in options.files:
        raise UsageError("--print-command is for files: standard input has no name to give to the tools")
    if only_print:
        return [_Source(path, read_source(path), "") for path in options.files]
    outputs = [_output(path, options) for path in options.files]
    places: dict[str, str] = {}
    for path, output in zip(options.files, outputs, strict=True):
        place = os.path.realpath(output)
        if _is_source(place, options.files):
            raise UsageError(f"{path}: its device binary would be written over a source: name another with -o")
        if place in places:
            raise UsageError(f"{places[place]} and {path} would both be written to {place}")
        places[place] = path
    return [_Source(path, read_source(path), output) for path, output in zip(options.files, outputs, strict=True)]


def _is_source(place: str, sources: Iterable[str]) -> bool:
    """Whether what is to be written is one of the files that are read."""
    return any(path != _STANDARD and os.path.realpath(path) == place for path in sources)


def _output(path: str, options: argparse.Namespace) -> str:
    output: str = options.output or ""
    name = os.path.splitext(os.path.basename(path))[0] + ".aibin"
    if output.endswith(os.sep) and not os.path.isdir(output):
        raise UsageError(f"-o {output}: there is no such directory; make it first")
    if output and output != _STANDARD and os.path.isdir(output):
        if path == _STANDARD:
            raise UsageError("standard input has no name: say which file to write with -o FILE")
        return os.path.join(output, name)
    if len(options.files) > 1 and output:
        raise UsageError(f"-o {output}: expected a directory, as there are several sources")
    if path == _STANDARD and not output:
        raise UsageError("standard input has no name: say where to write with -o FILE, or -o - for standard output")
    return output or name


def _write(output: str, aibin: bytes) -> None:
    if output == _STANDARD:
        sys.stdout.buffer.write(aibin)
        sys.stdout.buffer.flush()
    else:
        write_file(output, aibin, "the device binary")


def use_emulator(options: argparse.Namespace) -> None:
    """Let this process, and what it starts, use the emulated install if that was asked for."""
    if options.emulate:
        os.environ["PTOCACHE_TOOLCHAIN"] = "emulated"


def read_source(path: str) -> str:
    """Read a source file, `-` for standard input; raises `UsageError` where that cannot be done."""
    try:
        if path == _STANDARD:
            if sys.stdin is None:  # closed by the shell: `<&-`
                raise UsageError("standard input is closed: expected a source there")
            return sys.stdin.buffer.read().decode("utf-8-sig")
        with open(path, "rb") as file:
            return file.read().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path}: the source cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}: the source is not UTF-8 text (byte {error.start} is {error.object[error.start]:#04x})"
        ) from error


def _json(result: CompileResult, source: _Source) -> str:
    import json  # only where asked for

    facts = {
        "file": source.path,
        "key": result.key,
        "origin": result.origin,
        "via": result.via,
        "aibin_bytes": len(result.aibin),
        "aibin_sha256": result.sha256,
        "output": source.output,
        "seconds": round(result.seconds, 6),
        "kernels": result.kernels,
        "arch": result.request.arch,
        "flags": list(result.request.flags),
    }
    return json.dumps(facts) + "\n"


def _summary(result: CompileResult, output: str) -> str:
    what = str(result).partition(": ")[2]
    return f"{output}: {bytes_text(len(result.aibin))}, {what} (key {result.key})\n"
