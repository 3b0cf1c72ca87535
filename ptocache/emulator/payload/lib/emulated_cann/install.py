"""What a tool knows about the install that it is part of."""

from __future__ import annotations

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Failure(Exception):
    """A tool cannot do its work. The text is what it prints on stderr; the exit status is 1."""


def cann_version() -> str:
    """The version of the install, from its `version.info`.

    Raises:
        Failure: the file is missing, or says no version.
    """
    path = os.path.join(ROOT, "version.info")
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise Failure(f"error: cannot read the version of CANN: {path}: {error.strerror}\n") from error
    for line in lines:
        if line.startswith("Version="):
            return line[len("Version=") :].strip()
    raise Failure(f"error: {path} has no line Version=\n")


def host_machine() -> str:
    """The machine that images are linked for: `x86_64` or `aarch64`, the two that CANN comes for."""
    return "aarch64" if os.uname().machine in ("aarch64", "arm64") else "x86_64"


def read_input(tool: str, path: str) -> bytes:
    """The bytes of an input file."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise Failure(f"{tool}: error: cannot open input file '{path}': {error.strerror}\n") from error


def write_output(tool: str, path: str, data: bytes | None) -> None:
    """Write an output file; `None` writes none."""
    if data is None:
        return
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise Failure(f"{tool}: error: cannot open output file '{path}': {error.strerror}\n") from error


def complain(text: str) -> None:
    """Print a diagnostic on stderr; a path in it may hold bytes that are no UTF-8."""
    sys.stderr.flush()
    os.write(2, text.encode("utf-8", "surrogateescape"))
