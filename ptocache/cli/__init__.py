"""The `ptocache` command: one module a subcommand, loaded only when it is the one that is asked for.

Exit statuses: 0, done; 1, the job failed; 2, wrong use; 130 and 143, interrupted by SIGINT and SIGTERM.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from types import FrameType
from typing import NoReturn

import ptocache
from ptocache.errors import PtocacheError, SettingsError
from ptocache.log import log_to_stderr

#: The subcommands, in the order of the help, with what each does.
COMMANDS = {
    "compile": "compile a PTODSL source, or take the result from the cache",
    "run": "run a Python script with ptocache below TileLang",
    "explain": "say why a source is a hit or a miss",
    "stats": "show what the cache holds and what it was good for",
    "verify": "read all that is stored, and check it",
    "prune": "apply the limits now, and remove what belongs to no entry",
    "clear": "remove everything from the cache",
    "push": "store on the shared engines what this host's cache has",
    "pull": "store in this host's cache what the shared engines have",
    "export": "write what the cache has into one file",
    "import": "store in the cache what such a file has",
    "doctor": "check that the cache can do its work here",
    "emulator": "write an emulated CANN install, for machines without one",
}

_USAGE = f"""\
usage: ptocache COMMAND [options]

A compilation cache for PTO kernels on Ascend NPUs.

commands:
{chr(10).join(f"  {name:10}{text}" for name, text in COMMANDS.items())}

options:
  -h, --help  show this, or after a command, that command's help
  --version   show the version

Settings come from the environment (PTOCACHE_DIR, …) and ~/.config/ptocache/config.toml; see the README.
A first try, on any machine:  ptocache compile examples/vector_add.py --emulate
"""


class UsageError(Exception):
    """The command was called in a way that cannot work: exit status 2."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: the arguments; `sys.argv[1:]` by default.

    Returns:
        The exit status.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    _prepare_process()
    try:
        status = _dispatch(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the output has seen enough
        _drop_output()
        return 1
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except (UsageError, SettingsError) as error:
        return _fail(error, 2, debug)
    except (PtocacheError, OSError) as error:
        if isinstance(error, OSError) and error.filename is None:
            _drop_output()  # it may be the output itself that cannot be written
        return _fail(error, 1, debug)
    return status


def _dispatch(arguments: list[str]) -> int:
    name = arguments[0] if arguments else ""
    if name in {"-h", "--help"}:
        return _print(_USAGE)
    if name == "--version":
        return _print(f"ptocache {ptocache.__version__}\n")
    if name not in COMMANDS:
        problem = f"there is no command {name!r}" if name else "a command is missing"
        raise UsageError(f"{problem}: expected {', '.join(COMMANDS)} (see ptocache --help)")
    module = import_module(f"ptocache.cli.{name}")
    parser = argparse.ArgumentParser(
        prog=f"ptocache {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    own, rest = module.split(arguments[1:]) if hasattr(module, "split") else (arguments[1:], [])
    try:
        options = parser.parse_args(own, argparse.Namespace(rest=rest))
    except SystemExit as exit_:  # argparse has printed the help (0) or what is wrong (2)
        return int(exit_.code or 0)
    return int(module.run(options))


def _prepare_process() -> None:
    # By default these end a process without its `finally` blocks: temporary files and tools would stay.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _terminate)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell: `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - as long-lived as the process
        elif hasattr(stream, "reconfigure"):  # a terminal that knows no such letter gets an escape
            stream.reconfigure(errors="backslashreplace")
    log_to_stderr("warning")


def _drop_output() -> None:
    """Send what Python would still write at exit to nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _fail(message: object, status: int, debug: bool = False) -> int:
    if debug:
        import traceback

        traceback.print_exc()
    sys.stderr.write(f"ptocache: {message}\n")
    return status


def _print(text: str) -> int:
    sys.stdout.write(text)
    return 0


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
