"""Run a Python script or module with ptocache below TileLang, and all Python processes that it starts.

What follows the options is what would follow `python`, and it runs as it would there:

  ptocache run train.py --steps 10
  ptocache run -m torch.distributed.run --nproc-per-node 8 train.py
  ptocache run --emulate examples/tilelang/vector_add.py     on a machine without CANN
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import NoReturn

from ptocache.cli import UsageError
from ptocache.errors import ToolNotFoundError
from ptocache.startup_file import STARTUP_FILE, has_startup_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.usage = "ptocache run [--emulate] SCRIPT [ARGUMENT …]  |  ptocache run [--emulate] -m MODULE [ARGUMENT …]"
    parser.add_argument("--emulate", action="store_true", help="use the emulated CANN install")


def split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Part this command's own options from what is Python's."""
    own = {"--emulate", "--debug", "-h", "--help"}
    count = next((i for i, word in enumerate(arguments) if word not in own), len(arguments))
    return arguments[:count], arguments[count:]


def run(options: argparse.Namespace) -> NoReturn:
    """Become Python; it never returns."""
    if not options.rest:
        raise UsageError("a script is missing: ptocache run SCRIPT, or ptocache run -m MODULE")
    if not sys.executable:
        raise ToolNotFoundError("this Python does not know its own path, so it cannot be started")
    _require_startup_file()
    environ = _given_environ()
    if options.emulate:
        from ptocache import emulator

        install = emulator.ensure_install()
        if not emulator.is_private(install):  # else each process makes its own, as this one's ends here
            environ = emulator.environment(install, environ)
        environ["PTOCACHE_TOOLCHAIN"] = "emulated"
        emulator.remove_private()
    environ["PTOCACHE_INSTALL"] = "1"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *options.rest], environ)  # noqa: S606 - this is the command's purpose


def _given_environ() -> dict[str, str]:
    """The environment that this process was given: in the C locale Python puts another `LC_CTYPE` there (PEP 538).

    With that, the next Python would not be in its UTF-8 mode.
    """
    environ = dict(os.environ)
    with contextlib.suppress(OSError), open("/proc/self/environ", "rb") as file:
        given = dict(entry.partition(b"=")[::2] for entry in file.read().split(b"\0"))
        environ.pop("LC_CTYPE", None)
        if b"LC_CTYPE" in given:
            environ["LC_CTYPE"] = os.fsdecode(given[b"LC_CTYPE"])
    return environ


def _require_startup_file() -> None:
    if not has_startup_file():
        raise UsageError(
            f"{STARTUP_FILE} is in none of this Python's site-packages, so nothing would bring ptocache into the "
            "script: install ptocache with pip"
        )
