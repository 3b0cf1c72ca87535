"""Which entries there are, and which of them are meant: the same for all that lists, moves or removes entries.

An entry is known by its source key. The PTO key that leads to the same output is no entry of its own, unless no source
key leads there: then it is all there is to name the output by.
"""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import os
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ptocache.store.entry import Action
from ptocache.store.files import DamagedError, read_file
from ptocache.store.layout import is_digest, list_directory
from ptocache.store.local import OUTPUT_LIMIT, LocalTier

if TYPE_CHECKING:
    from ptocache.counters import Use


class Facts(NamedTuple):
    """What an action says of itself, as far as it makes sense; the rest is empty.

    Attributes:
        kind: the kind of compilation.
        kernels: the names of its kernels.
        arch: what it is for.
        toolchain: the name of the stamp of the tools that made it.
    """

    kind: str
    kernels: tuple[str, ...]
    arch: str
    toolchain: str

    def is_stale(self, today: Mapping[str, str]) -> bool | None:
        """Whether other tools than today's made it; `None` where today's are not known.

        Args:
            today: the names of the stamps of today's tools, by the kind of compilation that they do.
        """
        stamp = today.get(self.kind)
        return None if stamp is None or not self.toolchain else self.toolchain != stamp


class Selection(NamedTuple):
    """Which compilations are meant: all, or those that match all of these.

    Attributes:
        kernel: a pattern, as a shell's, that one of its kernels' names matches; empty for any.
        arch: what it is for; empty for anything.
        toolchain: what its toolchain's stamp begins with; empty for any.
        newer_than: how long ago it may have been made, in seconds; `None` for any time.
        older_than: how long ago it must have been made, in seconds; `None` for any time.
        unused_for: for how long nobody may have used it, in seconds; `None` for any time.
        today: only what other tools than these made, by kind of compilation; `None` for any tools.
        failures: remembered failures, and no compilation that was done.
    """

    kernel: str = ""
    arch: str = ""
    toolchain: str = ""
    newer_than: float | None = None
    older_than: float | None = None
    unused_for: float | None = None
    today: Mapping[str, str] | None = None
    failures: bool = False

    @property
    def is_everything(self) -> bool:
        """Whether nothing was said of what is meant."""
        return self == Selection()

    def matches(self, action: Action, used: float = 0) -> bool:
        """Whether a compilation is one of them.

        Args:
            action: what it made.
            used: when its output was last used, in seconds since the epoch; asked for by `unused_for` only.
        """
        if self.failures or not self._matches_times(action.created, used):
            return False
        if not (self.kernel or self.arch or self.toolchain or self.today is not None):
            return True
        facts = facts_of(action)
        return (
            (not self.kernel or any(fnmatch.fnmatchcase(kernel, self.kernel) for kernel in facts.kernels))
            and (not self.arch or facts.arch == self.arch)
            and facts.toolchain.startswith(self.toolchain)
            and (self.today is None or facts.is_stale(self.today) is True)
        )

    def _matches_times(self, created: float, used: float) -> bool:
        now = time.time()
        return (
            not (self.newer_than is not None and now - created > self.newer_than)
            and not (self.older_than is not None and now - created < self.older_than)
            and not (self.unused_for is not None and now - used < self.unused_for)
        )


class Listed(NamedTuple):
    """An entry, as it is listed.

    Attributes:
        key: the name of its key.
        kind: the kind of compilation.
        kernels: the names of its kernels.
        arch: what it is for.
        toolchain: the name of the stamp of the tools that made it.
        stale: whether today's tools are others; `None` where they are not known.
        bytes: the size of its device binary, or of all that its variants made.
        variants: how many compilations of the key are meant, which differ in what the lowering read.
        created: when the last of them was done, in seconds since the epoch.
        used: when its output was last used, or stored, in seconds since the epoch.
        uses: how many requests for it were hits, as far as that is counted.
        seconds: how long the compilation took.
    """

    key: str
    kind: str
    kernels: tuple[str, ...]
    arch: str
    toolchain: str
    stale: bool | None
    bytes: int
    variants: int
    created: float
    used: float
    uses: int
    seconds: float


def facts_of(action: Action) -> Facts:
    """What an action says of itself."""
    try:
        facts = action.details()
        kernels = facts.get("kernels")
        names = tuple(map(str, kernels)) if isinstance(kernels, list) else ()
        return Facts(str(facts.get("kind", "")), names, str(facts.get("arch", "")), str(facts.get("toolchain", "")))
    except (ValueError, AttributeError, RecursionError):  # well made, and not by us
        return Facts("", (), "", "")


def is_of_pto_key(action: Action) -> bool:
    """Whether an action is kept under a PTO key."""
    # As `json_bytes` writes it. Quotes within a text are escaped, so nothing else can look like that.
    return b'"pto": true' in action.facts


def entries(tier: LocalTier) -> Iterator[tuple[str, list[Action]]]:
    """The keys that entries are known by, each with its actions, in no order."""
    reached: set[bytes] = set()
    others: list[tuple[str, bytes]] = []
    for name, group in itertools.groupby(tier.all_actions(), key=lambda named: named[0]):
        actions = [action for _, action in group]
        sources = [action for action in actions if not is_of_pto_key(action)]
        reached.update(action.sha256 for action in sources)
        if sources:
            yield name, sources
        else:
            others += ((name, action.sha256) for action in actions)
    for name in {name for name, output in others if output not in reached}:
        with contextlib.suppress(OSError):
            yield name, [action for action in tier.actions(name) if action.sha256 not in reached]


def list_entries(
    tier: LocalTier, selection: Selection, uses: Mapping[str, Use], today: Mapping[str, str]
) -> Iterator[Listed]:
    """The entries that are meant and have their output, in no order; no output is read.

    Args:
        tier: where they are.
        selection: which are meant.
        uses: how often each key was used.
        today: the names of the stamps of today's tools, by the kind of compilation that they do.
    """
    for name, actions in entries(tier):
        used = {action.sha256: tier.last_used(action.sha256.hex()) for action in actions}
        meant = [action for action in actions if used[action.sha256] and selection.matches(action, used[action.sha256])]
        if not meant:
            continue
        newest, facts, use = meant[0], facts_of(meant[0]), uses.get(name)
        yield Listed(
            name,
            *facts,
            stale=facts.is_stale(today),
            bytes=sum({action.sha256: action.size for action in meant}.values()),
            variants=len(meant),
            created=newest.created,
            used=max(used[action.sha256] for action in meant),
            uses=use.hits if use is not None else 0,
            seconds=newest.seconds,
        )


def choose(tier: LocalTier, selection: Selection) -> Iterator[tuple[str, Action]]:
    """The actions that are meant, those of PTO keys too, each with the name of its key, in no order."""
    for name, action in tier.all_actions():
        used = tier.last_used(action.sha256.hex()) if selection.unused_for is not None else 0
        if selection.matches(action, used):
            yield name, action


def find_keys(tier: LocalTier, prefix: str) -> list[str]:
    """The names of the keys that begin so and have an action or a remembered failure, in order."""
    layout = tier.layout
    names = {found.name for found in list_directory(layout.actions)}
    names |= {f"{prefix[0]}{found.name}" for found in list_directory(f"{layout.failures}/{prefix[0]}")}
    return sorted(name for name in names if name.startswith(prefix) and is_digest(name, 32))


def find_outputs(tier: LocalTier, prefix: str) -> list[str]:
    """The names of the outputs that begin so, in order."""
    names = (found.name for found in list_directory(tier.layout.outputs))
    return sorted(name for name in names if name.startswith(prefix) and is_digest(name, 64))


def keys_of(tier: LocalTier, output: str) -> list[str]:
    """The names of the keys that lead to an output, those of sources before those of lowered texts."""
    sha256 = bytes.fromhex(output)
    found = {name: is_of_pto_key(action) for name, action in tier.all_actions() if action.sha256 == sha256}
    return sorted(found, key=lambda name: (found[name], name))


def look_at_output(tier: LocalTier, action: Action) -> tuple[bytes, str]:
    """An action's output, and what is wrong with it; nothing is changed, and it does not count as a use."""
    path = tier.layout.output(action.sha256.hex())
    try:
        data = read_unnoticed(path, OUTPUT_LIMIT)
    except FileNotFoundError:
        return b"", f"{path}: the output is gone"
    except (OSError, DamagedError) as error:
        return b"", str(error)
    return (data, "") if action.made(data) else (b"", f"{path}: the output does not match the digest in its action")


def read_unnoticed(path: str, limit: int) -> bytes:
    """Read a file without that counting as a use of it, where the system lets us; see `read_file`."""
    try:
        return read_file(path, limit, os.O_NOATIME)[0]
    except PermissionError:
        return read_file(path, limit)[0]
