"""ptocache's log: silent unless the program, or `PTOCACHE_LOG`, asks for it.

`logging` takes longer to import than a hit takes, so it is imported when there is something to say.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

_wanted = ""


def log_to_stderr(level: str) -> None:
    """Write what is logged from now on to standard error, from a level on (`debug`, `info`, `warning`, `error`)."""
    global _wanted  # noqa: PLW0603 - the log is the process's
    _wanted = level


def debugging() -> bool:
    """Whether anybody wants messages of the level `debug`."""
    import logging

    return get_logger("ptocache").isEnabledFor(logging.DEBUG)


def informing() -> bool:
    """Whether anybody wants messages of the level `info`; where nobody has loaded `logging`, nobody does."""
    logging = sys.modules.get("logging")
    return bool(_wanted or logging) and get_logger("ptocache").isEnabledFor(20)


def get_logger(name: str) -> logging.Logger:
    """The logger of one of ptocache's modules."""
    import logging

    top = logging.getLogger("ptocache")
    if _wanted and top.level != getattr(logging, _wanted.upper()):
        top.setLevel(_wanted.upper())
        top.propagate = False
        if not top.handlers:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("ptocache: %(levelname)s: %(message)s"))
            top.addHandler(handler)
    return logging.getLogger(name)
