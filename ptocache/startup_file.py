"""The file that brings ptocache into a process at its start, if `PTOCACHE_INSTALL` is set: see `ptocache.startup`."""

from __future__ import annotations

import os
import site

#: Its name; the wheel puts it into site-packages.
STARTUP_FILE = "ptocache.pth"


def has_startup_file() -> bool:
    """Whether it is where this Python looks for such files."""
    places = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return any(os.path.isfile(os.path.join(place, STARTUP_FILE)) for place in places)
