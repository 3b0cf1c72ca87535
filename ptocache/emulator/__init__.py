"""An emulated CANN install, for machines without one.

`write_install` writes one to a directory, `ensure_install` keeps the one behind `--emulate`, and `environment` says
what a process needs in its environment to use one. What an install holds is in `payload`, and is run from the
install, never from here: the tools and the tracing frontend do not import ptocache.
"""

from __future__ import annotations

from .install import (
    DEFAULT_CANN_VERSION,
    ensure_install,
    environment,
    is_private,
    remove_private,
    write_install,
)

__all__ = [
    "DEFAULT_CANN_VERSION",
    "ensure_install",
    "environment",
    "is_private",
    "remove_private",
    "write_install",
]
