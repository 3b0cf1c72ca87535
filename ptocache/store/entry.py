"""What a tier stores: an action, which says what a compilation made, and its output, the device binary.

On disk an action is a small file of its own. It names its output by content and carries a digest of itself, so
that a reader can tell a whole one from a damaged one.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import xxhash

from ptocache.request import Key

MAGIC = b"ptocach1"

# check, SHA-256 and XXH3-128 of the output, its size, seconds to make it, time of making
_FIXED = struct.Struct("<32s32s16sQdd")
_DIGEST_SIZE = 16


class Action(NamedTuple):
    """One compilation that was done.

    Attributes:
        check: the SHA-256 of what its key was made of.
        sha256: the SHA-256 of its output: the output's name.
        xxh3: the XXH3-128 of its output, for checking what was read: 14 times as fast as SHA-256, and enough
            against damage.
        size: the output's size in bytes.
        seconds: how long the compilation took.
        created: when it was done, in seconds since the epoch.
        facts: what people may want to know about it (kernels, arch, flags, toolchain), as JSON; read by
            `details`, not on a hit.
    """

    check: bytes
    sha256: bytes
    xxh3: bytes
    size: int
    seconds: float
    created: float
    facts: bytes

    def details(self) -> dict[str, Any]:
        """The facts, decoded."""
        import json  # a hit does not need it

        details: dict[str, Any] = json.loads(self.facts)
        return details

    def encode(self) -> bytes:
        """The bytes of the action's file."""
        body = _FIXED.pack(*self[:6]) + self.facts
        return MAGIC + xxhash.xxh3_128_digest(body) + body

    @classmethod
    def decode(cls, data: bytes) -> Action | None:
        """Read an action's file; `None` if the bytes are not exactly what `encode` once gave."""
        start = len(MAGIC) + _DIGEST_SIZE
        if len(data) < start + _FIXED.size or not data.startswith(MAGIC):
            return None
        body = memoryview(data)[start:]
        if xxhash.xxh3_128_digest(body) != data[len(MAGIC) : start]:
            return None
        check, sha256, xxh3, size, seconds, created = _FIXED.unpack_from(body)
        return cls(check, sha256, xxh3, size, seconds, created, bytes(body[_FIXED.size :]))

    def made(self, aibin: bytes) -> bool:
        """Whether these bytes are this action's output, whole."""
        return len(aibin) == self.size and xxhash.xxh3_128_digest(aibin) == self.xxh3


class Entry(NamedTuple):
    """An action together with its output."""

    action: Action
    aibin: bytes


class Tier(Protocol):
    """A place where entries are kept. Both methods may raise: `Store` sees to it that nobody notices."""

    @property
    def name(self) -> str:
        """How the tier is called in results and statistics."""

    def get(self, key: Key) -> Entry | None:
        """The entry under a key, checked; `None` for a miss."""

    def put(self, keys: Sequence[Key], entry: Entry) -> None:
        """Keep an entry under all these keys; the action's `check` is set to each key's own."""


def make_entry(aibin: bytes, *, seconds: float, created: float, facts: dict[str, Any]) -> Entry:
    """Describe a device binary that was just made."""
    import json

    action = Action(
        check=b"",
        sha256=hashlib.sha256(aibin).digest(),
        xxh3=xxhash.xxh3_128_digest(aibin),
        size=len(aibin),
        seconds=seconds,
        created=created,
        facts=json.dumps(facts, sort_keys=True).encode(),
    )
    return Entry(action, aibin)
