"""Installs ptocache below TileLang at the start of a process: what `ptocache.pth` imports if `PTOCACHE_INSTALL` is set.

It takes less than a millisecond, as nothing is loaded before TileLang is, and it never keeps a process from starting.
"""

from __future__ import annotations

try:
    from ptocache.hooks import install

    install()
except Exception as error:  # noqa: BLE001 - whatever it is, this process is not ours
    import sys

    sys.stderr.write(f"ptocache: not installed below TileLang: {error!r}\n")
