"""What a tier stores: an action, which says what a compilation made, and its output, the device binary.

One key may have several actions, that differ in what their lowering read beside the source (two branches of a
repository). On disk the actions of a key are one small file. An action names its output by content and carries a
digest of itself, so that a reader can tell a whole one from a damaged one.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import xxhash

from ptocache.request import Key

if TYPE_CHECKING:
    from ptocache.inputs import Input

MAGIC = b"ptocach2"

#: How many actions one key may have; the ones stored last are kept. More branches than that are seldom alive.
VARIANTS = 16

# check, SHA-256 and XXH3-128 of the output, its size, seconds to make it, time of making, length of the inputs
_FIXED = struct.Struct("<32s32s16sQddI")
_LENGTH = struct.Struct("<I")
_DIGEST_SIZE = 16

#: Tells whether an action's inputs, encoded, are the same now.
Accept = Callable[[bytes], bool]


def accept_all(_inputs: bytes) -> bool:
    """For keys that name everything: their actions have no inputs beside."""
    return True


#: Gives the digest that an input has now.
State = Callable[["Input"], str]


def unknown(_item: Input) -> str:
    """For keys that name everything: there is no input to ask for."""
    return ""


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
        inputs: what its lowering read beside the source, as `ptocache.inputs` encodes it.
        facts: what people may want to know about it (kernels, arch, flags, toolchain), as JSON; read by
            `details`, not on a hit.
    """

    check: bytes
    sha256: bytes
    xxh3: bytes
    size: int
    seconds: float
    created: float
    inputs: bytes
    facts: bytes

    def details(self) -> dict[str, Any]:
        """The facts, decoded."""
        import json  # a hit does not need it

        details: dict[str, Any] = json.loads(self.facts)
        return details

    def group(self) -> str:
        """What it is counted with: kind of compilation, arch and toolchain; empty where its facts do not tell."""
        try:
            facts = self.details()
            words = [str(facts[name]) for name in ("kind", "arch", "toolchain")]
        except (ValueError, LookupError, TypeError, RecursionError):
            return ""
        return " ".join(words) if all(word and word.isprintable() and " " not in word for word in words) else ""

    def made(self, aibin: bytes) -> bool:
        """Whether these bytes are this action's output, whole."""
        return len(aibin) == self.size and xxhash.xxh3_128_digest(aibin) == self.xxh3


def encode_actions(actions: Iterable[Action]) -> bytes:
    """The bytes of the file that holds the actions of a key."""
    chunks: list[bytes] = []
    for action in actions:
        body = _FIXED.pack(*action[:6], len(action.inputs)) + action.inputs + action.facts
        chunks += (_LENGTH.pack(len(body)), body)
    content = b"".join(chunks)
    return MAGIC + xxhash.xxh3_128_digest(content) + content


def decode_actions(data: bytes) -> list[Action] | None:
    """Read the actions of a key; `None` if the bytes are not exactly what `encode_actions` once gave."""
    start = len(MAGIC) + _DIGEST_SIZE
    if not data.startswith(MAGIC) or xxhash.xxh3_128_digest(memoryview(data)[start:]) != data[len(MAGIC) : start]:
        return None
    actions = []
    try:
        while start < len(data):
            (length,) = _LENGTH.unpack_from(data, start)
            start += _LENGTH.size
            check, sha256, xxh3, size, seconds, created, inputs = _FIXED.unpack_from(data, start)
            middle, end = start + _FIXED.size + inputs, start + length
            action = (data[start + _FIXED.size : middle], data[middle:end])
            actions.append(Action(check, sha256, xxh3, size, seconds, created, *action))
            start = end
    except struct.error:  # well made, and not by us
        return None
    return actions


class Entry(NamedTuple):
    """An action together with its output."""

    action: Action
    aibin: bytes


class Tier(Protocol):
    """A place where entries are kept. Its methods may raise: `Store` sees to it that nobody notices."""

    @property
    def name(self) -> str:
        """How the tier is called in results and statistics."""

    def get(self, key: Key, accept: Accept = accept_all, state: State = unknown) -> Entry | None:
        """The first entry under a key whose inputs are accepted, checked; `None` for a miss.

        Args:
            key: what to look for.
            accept: tells whether an action's inputs are the same now.
            state: gives what an input is now, for a tier that finds the right action by that.
        """

    def put(self, keys: Sequence[Key], entry: Entry, source: bytes = b"", state: State = unknown) -> None:
        """Keep an entry under all these keys, beside what they have with other inputs.

        The action's `check` is set to each key's own. The source, compressed, is kept with it where there is
        something to be explained with it. The state is that of the inputs that other entries of the keys may have.
        """

    def use(self, entry: Entry) -> None:
        """Note that an entry was used that a nearer tier had."""


def add_variant(actions: Sequence[Action], new: Action) -> list[Action]:
    """The actions of a key with a new one, which comes first and takes the place of one with the same inputs."""
    return [new, *(action for action in actions if action.inputs != new.inputs)][:VARIANTS]


def json_bytes(facts: dict[str, Any]) -> bytes:
    """The facts of an action as it stores them."""
    import json

    return json.dumps(facts, sort_keys=True).encode()


def make_entry(aibin: bytes, *, seconds: float, created: float, facts: dict[str, Any], inputs: bytes = b"") -> Entry:
    """Describe a device binary that was just made."""
    action = Action(
        check=b"",
        sha256=hashlib.sha256(aibin).digest(),
        xxh3=xxhash.xxh3_128_digest(aibin),
        size=len(aibin),
        seconds=seconds,
        created=created,
        inputs=inputs,
        facts=json_bytes(facts),
    )
    return Entry(action, aibin)
