"""Writing what a command was asked for to where it was asked for."""

from __future__ import annotations

import os
import stat
import sys
from typing import Any

from ptocache.cli import UsageError
from ptocache.store.files import replacing


def print_json(facts: dict[str, Any]) -> None:
    """Print an object for scripts, on one line."""
    import json  # only where asked for

    sys.stdout.write(json.dumps(facts) + "\n")


def write_file(path: str, data: bytes, what: str) -> None:
    """Write a file whole or not at all; what is no regular file (a pipe, /dev/null) is written to as it is.

    Args:
        path: where to.
        data: its bytes.
        what: what that is, for the message where it cannot be written.

    Raises:
        UsageError: it cannot be written there.
    """
    try:
        if os.path.lexists(path) and not stat.S_ISREG(os.stat(path).st_mode):
            with open(path, "wb") as file:
                file.write(data)
            return
        with replacing(os.path.realpath(path)) as file:
            file.write(data)
    except OSError as error:
        raise UsageError(f"{path}: {what} cannot be written: {error.strerror}") from error
