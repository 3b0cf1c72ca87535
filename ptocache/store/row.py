"""What the index of the local tier knows of an output. It is here, as whoever counts need not load the database."""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

_ROW = struct.Struct("<Qd")
_ACTIONS = re.compile(r"(?:[0-9a-f]{32})*")


class Row(NamedTuple):
    """What the index knows of an output.

    Attributes:
        size: bytes on disk of the output, the actions that lead to it, and their sources.
        used: when it was last known to be used, in seconds since the epoch.
        actions: the names of the keys that lead to it.
        group: what it is counted with, as `ptocache.store.entry.Action.group` tells; empty where that is unknown.
    """

    size: int
    used: float
    actions: tuple[str, ...]
    group: str = ""

    def encode(self) -> bytes:
        """The row's value in the database."""
        group = f" {self.group}" if self.group else ""
        return _ROW.pack(self.size, self.used) + f"{''.join(self.actions)}{group}".encode()

    @classmethod
    def decode(cls, value: bytes) -> Row | None:
        """Read a row's value; `None` if it is not one."""
        try:
            size, used = _ROW.unpack_from(value)
            names, space, group = value[_ROW.size :].decode().partition(" ")
        except (struct.error, UnicodeDecodeError):
            return None
        if not _ACTIONS.fullmatch(names) or bool(space) != bool(group):
            return None
        return cls(size, used, tuple(names[i : i + 32] for i in range(0, len(names), 32)), group)


class Group(NamedTuple):
    """The outputs that are counted together.

    Attributes:
        name: what they have in common.
        entries: how many there are.
        bytes: what they take on disk.
    """

    name: str
    entries: int
    bytes: int
