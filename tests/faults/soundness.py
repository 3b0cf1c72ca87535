"""What a cache directory must be like, whatever happened to it: the checks that several tests end with."""

from __future__ import annotations

import contextlib
import os

from ptocache.store.layout import list_directory
from ptocache.store.local import LocalTier


def bytes_on_disk(top: str) -> int:
    """What a directory and all in it take, with what others remove meanwhile left out."""
    total = 0
    with contextlib.suppress(FileNotFoundError):
        total += os.lstat(top).st_blocks * 512
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total


def disorder(tier: LocalTier) -> list[str]:
    """The files that no row of the index tells of, the rows that no file goes with, and what dead processes left."""
    layout = tier.layout
    with tier.index.transaction() as rows:
        known = dict(rows.all())
        stated, counted = rows.bytes(), rows.count()
    actions = {name for row in known.values() if row is not None for name in row.actions}
    names = {
        folder: {entry.name for entry in list_directory(getattr(layout, folder))}
        for folder in ("outputs", "actions", "sources", "temp", "locks")
    }
    found = {
        "outputs without a row": names["outputs"] - set(known),
        "rows without an output": set(known) - names["outputs"],
        "actions without a row": names["actions"] - actions,
        "sources without a row": names["sources"] - actions,
        "temporary files": names["temp"],
        "lock files": names["locks"],
        "rows that make no sense": {output for output, row in known.items() if row is None},
    }
    problems = [f"{len(some)} {what}: {sorted(some)[:3]}" for what, some in found.items() if some]
    total = sum(row.size for row in known.values() if row is not None)
    if (stated, counted) != (total, len(known)):
        problems.append(f"the index states {counted} outputs of {stated} bytes and has {len(known)} of {total}")
    if not tier.index.is_sound():
        problems.append("SQLite finds the database damaged")
    return problems
