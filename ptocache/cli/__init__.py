"""The `ptocache` command: one module a subcommand, loaded only when it is the one that is asked for.

`EXIT_STATUSES` says how they end.
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
    "compile": "compile PTODSL sources, or take the results from the cache",
    "warm": "compile many sources into the cache, several at a time",
    "run": "run a Python script with ptocache below TileLang",
    "explain": "say why a source is a hit or a miss",
    "stats": "show what the cache holds and what it was good for",
    "report": "write that as a page of HTML, with charts",
    "ls": "list the entries of the cache",
    "show": "show all that is known of an entry",
    "verify": "read all that is stored, and check it",
    "prune": "apply the limits now, and remove what belongs to no entry",
    "clear": "remove everything from the cache, or what you choose",
    "push": "store on the shared engines what this host's cache has",
    "pull": "store in this host's cache what the shared engines have",
    "export": "write what the cache has into one file",
    "import": "store in the cache what such a file has",
    "doctor": "check that the cache can do its work here",
    "emulator": "write an emulated CANN install, for machines without one",
    "completion": "print what makes a shell complete these commands",
}

#: How commands end.
EXIT_STATUSES = {
    0: "done",
    1: "the job failed, or something is wrong with what was looked at",
    2: "wrong use: the arguments, a setting or a file that was named",
    130: "interrupted (SIGINT, Ctrl-C)",
    143: "ended (SIGTERM)",
}

_USAGE = f"""\
usage: ptocache COMMAND [options]

A compilation cache for PTO kernels on Ascend NPUs.

commands:
{chr(10).join(f"  {name:12}{text}" for name, text in COMMANDS.items())}

options:
  -h, --help    show this, or after a command, that command's help
  --version     show the version

exit status:
{chr(10).join(f"  {status:<12}{text}" for status, text in EXIT_STATUSES.items())}

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
    typed = os.environ.get("COMP_LINE", "").partition(" ")[0]
    if os.path.basename(typed) == "ptocache":  # a shell asks what may follow that
        from ptocache.cli.completion import complete

        complete()
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
    except Exception as error:  # noqa: BLE001 - a fault of ours: no reason to show one's insides unasked
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return _fail(f"a fault in ptocache, please report it with what --debug shows: {text}", 1, debug)
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
    own, rest = module.split(arguments[1:]) if hasattr(module, "split") else (arguments[1:], [])
    try:
        options = make_parser(name).parse_args(own, argparse.Namespace(rest=rest))
    except SystemExit as exit_:  # argparse has printed the help
        return int(exit_.code or 0)
    return int(module.run(options))


def make_parser(name: str) -> argparse.ArgumentParser:
    """The parser of one of `COMMANDS`; loads that command's module."""
    module = import_module(f"ptocache.cli.{name}")
    parser = _Parser(
        prog=f"ptocache {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and leaves the rest to the help."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


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
