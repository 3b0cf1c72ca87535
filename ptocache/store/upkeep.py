"""Looking after a cache directory: what `ptocache stats`, `prune`, `verify` and `clear` do to the local tier.

Other processes may read and store meanwhile. What they write has a row before it has a file, so a file that was
there before the rows were read, and has none, belongs to nobody.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import xxhash

from ptocache.errors import NotACacheError
from ptocache.log import get_logger
from ptocache.store.catalog import Selection, entries, is_of_pto_key, read_unnoticed
from ptocache.store.entry import Action, decode_actions
from ptocache.store.files import DamagedError, make_directory, remove, sweep
from ptocache.store.layout import (
    BROKEN,
    LOCK,
    OWN_NAMES,
    TAG,
    TEMPORARY,
    Layout,
    disk_usage,
    is_digest,
    list_directory,
)
from ptocache.store.local import ACTION_LIMIT, EVICTION_STEP, OUTPUT_LIMIT, LocalTier, unpack_source
from ptocache.store.row import Row

if TYPE_CHECKING:
    from ptocache.store.failures import Failures
    from ptocache.store.index import Rows

T = TypeVar("T")

#: How many rows one transaction of `prune` looks at: stores wait for about 10 ms.
_BATCH = 256

#: How long a store may take from its row to its file before the row counts as one that was left, in seconds. One that
#: takes longer begins anew.
_STORE_SECONDS = 0.5

#: Told after each step how many are done, and how many there are.
Progress = Callable[[int, int], None]


class Usage(NamedTuple):
    """What a cache holds.

    Attributes:
        entries: how many outputs.
        bytes: what all of the directory takes on disk.
    """

    entries: int
    bytes: int


class Pruned(NamedTuple):
    """What was removed.

    Attributes:
        chosen: entries that were chosen to be removed.
        expired: outputs that were not used for longer than the age limit.
        evicted: outputs that were too much for the size limit, those used longest ago.
        failures: remembered failures that were forgotten.
        rows: rows of the index whose output is gone.
        outputs: outputs that no action leads to.
        actions: actions that lead nowhere.
        sources: sources whose action is gone.
        temporary: files of processes that died while they wrote them.
        locks: lock files of processes that died while they held them.
        strays: whatever else was in the directories of the cache.
        adopted: outputs that were there without a row, and have one now; not removed.
        bytes: how much less the directory takes on disk.
    """

    chosen: int
    expired: int
    evicted: int
    failures: int
    rows: int
    outputs: int
    actions: int
    sources: int
    temporary: int
    locks: int
    strays: int
    adopted: int
    bytes: int


class Damage(NamedTuple):
    """A file of the cache that is not what it should be.

    Attributes:
        path: the file.
        problem: what is wrong with it.
    """

    path: str
    problem: str


def usage(tier: LocalTier) -> Usage:
    """How many outputs are stored, and how many bytes all of it takes."""
    layout = tier.layout
    found = ask_index(tier, lambda rows: (rows.count(), rows.bytes()))
    if found is None:
        return measure(tier)
    entries, size = found
    return Usage(entries, size + layout.overhead() + disk_usage(layout.failures) + disk_usage(layout.temp))


def ask_index(tier: LocalTier, question: Callable[[Rows], T]) -> T | None:
    """What the index tells; `None` where it may not be touched, or cannot be read."""
    try:
        if not tier.readonly and tier.is_tagged() and os.access(tier.directory, os.W_OK):
            with tier.index.transaction() as rows:
                return question(rows)
    except Exception as error:  # noqa: BLE001 - who asks can do without
        get_logger(__name__).debug("the index cannot be read: %s", error)
    return None


def measure(tier: LocalTier) -> Usage:
    """The same, from the files: it takes longer, and touches nothing."""
    entries = sum(is_digest(entry.name, 64) for entry in list_directory(tier.layout.outputs))
    return Usage(entries, disk_usage(tier.directory))


def clear(tier: LocalTier) -> Usage:
    """Remove all entries, and all remembered failures.

    Returns:
        How many entries there were, and how much less the directory takes on disk.

    Raises:
        NotACacheError: the directory is not one of ptocache's.
        OSError: something cannot be removed.
    """
    if not os.path.isdir(tier.directory):
        return Usage(0, 0)
    require_cache(tier)
    before = usage(tier)
    tier.prepare()
    layout = tier.layout
    try:
        with tier.index.transaction() as rows:
            rows.clear()
            _take_away(layout)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - an index that cannot be emptied is replaced
        get_logger(__name__).debug("the index cannot be emptied: %s", error)
        _take_away(layout)
        tier.index.rebuild()
    remove(os.path.join(layout.index, BROKEN))
    return Usage(before.entries, max(0, before.bytes - usage(tier).bytes))


def remove_chosen(tier: LocalTier, selection: Selection, progress: Progress | None = None) -> Usage:
    """Remove the entries that are meant, and nothing else.

    An output goes with the last source key that leads to it, and so do the PTO keys that lead there: what was removed
    is not found by way of them. As long as another source key leads to it, only actions go. What is stored meanwhile
    stays.

    Args:
        tier: the local tier.
        selection: which entries are meant.
        progress: told how far it is, in outputs.

    Returns:
        How many entries there were, each a key, and the bytes on disk that they took.

    Raises:
        NotACacheError: the directory is not one of ptocache's.
        CacheIndexError: the index cannot be used now.
        OSError: something cannot be removed.
    """
    if not os.path.isdir(tier.directory):
        return Usage(0, 0)
    require_cache(tier)
    tier.prepare()
    if not tier.index.is_sound():
        tier.index.rebuild()
    outputs: dict[str, list[str]] = {}
    for name, actions in entries(tier):
        for action in actions:
            output = action.sha256.hex()
            if selection.matches(action, tier.last_used(output)):
                outputs.setdefault(output, []).append(name)
    removal = _Removal(tier, selection)
    done = 0
    for batch in _batches(outputs):
        removal.remove(batch, outputs)
        done += len(batch)
        if progress is not None:
            progress(done, len(outputs))
    if removal.postponed:
        time.sleep(_STORE_SECONDS)
        for batch in _batches(removal.postponed):
            removal.remove(batch, outputs, may_postpone=False)
    return Usage(len(removal.names), removal.bytes)


def prune(
    tier: LocalTier, failures: Failures, progress: Progress | None = None, selection: Selection | None = None
) -> Pruned:
    """Apply the limits now, and remove what belongs to no entry.

    Args:
        tier: the local tier.
        failures: the failures that are remembered beside it.
        progress: told how far it is, in outputs.
        selection: what to remove before that, whatever the limits; nothing where it is `None`.

    Returns:
        What was removed.

    Raises:
        NotACacheError: the directory is not one of ptocache's.
        CacheIndexError: the index cannot be used now.
        OSError: the directory cannot be used.
    """
    if not os.path.isdir(tier.directory):
        return Pruned(*[0] * len(Pruned._fields))
    require_cache(tier)
    layout = tier.layout
    before = disk_usage(tier.directory)
    temporary, locks = sweep(layout.temp, ".*"), sweep(layout.locks, ".*")
    tier.prepare()
    if not tier.index.is_sound():
        tier.index.rebuild()
    chosen = remove_chosen(tier, selection, progress).entries if selection is not None else 0
    forgotten = failures.clear() if selection is not None and selection.failures else 0
    orphans = _remove_orphans(tier)
    rows, unreached, expired = _remove_expired(tier, progress)
    orphans["outputs"] += unreached
    return Pruned(
        chosen=chosen,
        expired=expired,
        evicted=_evict(tier),
        failures=forgotten + failures.prune(),
        rows=rows,
        temporary=temporary,
        locks=locks,
        **orphans,
        bytes=max(0, before - disk_usage(tier.directory)),
    )


def verify(tier: LocalTier, failures: Failures, progress: Progress | None = None) -> Iterator[Damage]:
    """Read all that is stored, and check it.

    What other processes remove meanwhile is no damage.

    Args:
        tier: the local tier.
        failures: the failures that are remembered beside it.
        progress: told how far it is, in files.

    Yields:
        What is not as it should be. Nothing is changed; see `repair`.

    Raises:
        NotACacheError: the directory is not one of ptocache's.
        OSError: the directory cannot be read.
    """
    if not os.path.isdir(tier.directory):
        return
    require_cache(tier)
    layout = tier.layout
    outputs, actions, sources = (
        [entry.path for entry in list_directory(folder)] for folder in (layout.outputs, layout.actions, layout.sources)
    )
    files = itertools.count(1)
    total = len(outputs) + len(actions) + len(sources)

    def tick() -> None:
        if progress is not None:
            progress(next(files), total)

    known: dict[str, tuple[int, bytes]] = {}
    for path in outputs:
        found, problem = _check_output(path)
        if found is not None:
            known[os.path.basename(path)] = found
        if problem:
            yield Damage(path, problem)
        tick()
    for path in actions:
        problem = _check_actions(tier, path, known)
        if problem:  # it may be of now, and what is known of its outputs of a while ago
            problem = _check_actions(tier, path, {})
        if problem:
            yield Damage(path, problem)
        tick()
    for path in sources:
        problem = _check_source(path)
        if problem:
            yield Damage(path, problem)
        tick()
    for path in failures.damaged():
        yield Damage(path, "it is no failure that ptocache remembered")
    may_lock = not tier.readonly and os.access(tier.directory, os.W_OK)  # else the index is somebody else's to check
    if may_lock and not tier.index.is_sound():
        yield Damage(layout.index, "SQLite finds the database damaged")


def repair(tier: LocalTier, damages: Iterable[Damage]) -> None:
    """Remove what `verify` found, so that it is compiled again; a damaged index is made anew.

    Raises:
        OSError: something cannot be removed.
    """
    for damage in damages:
        if damage.path == tier.layout.index:
            tier.index.rebuild()
            continue
        remove(damage.path)
        if os.path.lexists(damage.path):
            raise OSError(errno.EACCES, "cannot be removed", damage.path)


def require_cache(tier: LocalTier) -> None:
    """See that the directory is one that ptocache made, which its tag tells, else that nothing foreign is in it.

    Raises:
        NotACacheError: it is not.
    """
    if not tier.is_tagged() and not _is_ours(tier.layout):
        raise NotACacheError(
            f"{tier.directory} is not a cache of ptocache (it has no {TAG} of one): nothing was touched. "
            "Check PTOCACHE_DIR."
        )


def _is_ours(layout: Layout) -> bool:
    """Whether a directory has only what ptocache puts into one, by its names."""
    expected = (
        (layout.actions, "[0-9a-f]{32}"),
        (layout.outputs, "[0-9a-f]{64}"),
        (layout.sources, "[0-9a-f]{32}"),
        (layout.temp, TEMPORARY),
        (layout.locks, LOCK),
        (layout.index, r"cache\.db.*"),
        (layout.failures, "[0-9a-f]"),
        *((entry.path, "[0-9a-f]{31}") for entry in list_directory(layout.failures)),
    )
    return {entry.name for entry in list_directory(layout.root)} <= OWN_NAMES and all(
        re.fullmatch(names, entry.name) for folder, names in expected for entry in list_directory(folder)
    )


def _take_away(layout: Layout) -> None:
    """Remove all entries: each directory at once, so that whoever stores meanwhile begins a new one."""
    make_directory(layout.root, layout.temp)
    for folder in (layout.actions, layout.outputs, layout.sources, layout.failures):
        aside = f"{layout.temp}/{os.urandom(8).hex()}"
        try:
            os.rename(folder, aside)
        except FileNotFoundError:
            continue
        remove(aside)
        if os.path.lexists(aside):
            raise OSError(errno.EACCES, "cannot be removed", aside)


class _Removal:
    """The removal of some of the actions that lead to outputs.

    Args:
        tier: the local tier.
        selection: which of them are meant.

    Attributes:
        names: the names of the keys that had them.
        bytes: what they, their sources and the outputs took on disk.
        postponed: the outputs that a store may be on its way to.
    """

    def __init__(self, tier: LocalTier, selection: Selection) -> None:
        self._tier = tier
        self._selection = selection
        self.names: set[str] = set()
        self.bytes = 0
        self.postponed: list[str] = []

    def remove(self, outputs: Iterable[str], names: Mapping[str, list[str]], may_postpone: bool = True) -> None:
        """Remove from these outputs what is meant, in one transaction.

        Args:
            outputs: the outputs.
            names: keys that lead to each, beside those that the index has.
            may_postpone: whether to leave those alone for now that are to keep other actions and were stored just now:
                a store on its way would write its action again, and believe that the index has it.
        """
        with self._tier.index.transaction() as rows:
            for output in outputs:
                row = rows.get(output)
                known = row.actions if row is not None else ()
                self._remove(rows, output, row, list(dict.fromkeys((*names[output], *known))), may_postpone)

    def _remove(self, rows: Rows, output: str, row: Row | None, names: list[str], may_postpone: bool) -> None:
        tier = self._tier
        used = tier.last_used(output)
        leading = _leading(tier, names, output)
        sources = [named for named in leading if not is_of_pto_key(named[1])] or leading
        meant = [named for named in sources if self._selection.matches(named[1], used)]
        if not meant:
            return
        before = tier.size_of(output, names)
        left: list[tuple[str, Action]] = []
        if len(meant) < len(sources):
            if may_postpone and row is not None and time.time() - row.used < _STORE_SECONDS:
                self.postponed.append(output)
                return
            _remove_actions(tier, meant)
            left = _leading(tier, names, output)  # a reader that finds the output damaged removes actions too
        if left:
            kept = tuple(dict.fromkeys(name for name, _ in left))
            newest = max((action for _, action in left), key=lambda action: (not is_of_pto_key(action), action.created))
            queued = row.used if row is not None else used
            rows.change(output, Row(tier.size_of(output, kept), queued, kept, newest.group()))
        else:
            tier.evict(rows, output, Row(0, used, tuple(names)))
            if os.path.lexists(tier.layout.output(output)):
                raise OSError(errno.EACCES, "cannot be removed", tier.layout.output(output))
        self.names.update(name for name, _ in meant if used)
        self.bytes += before - tier.size_of(output, names)


def _leading(tier: LocalTier, names: Iterable[str], output: str) -> list[tuple[str, Action]]:
    """The actions of these keys that lead to an output, each with the name of its key."""
    leading: list[tuple[str, Action]] = []
    for name in names:
        with contextlib.suppress(OSError):  # what cannot be read leads nowhere
            leading += ((name, action) for action in tier.actions(name) if action.sha256.hex() == output)
    return leading


def _remove_actions(tier: LocalTier, meant: list[tuple[str, Action]]) -> None:
    """Remove these actions, and keep the others of their keys."""
    for name, named in itertools.groupby(meant, key=lambda named: named[0]):
        going = [action for _, action in named]
        tier.keep_actions(name, [action for action in tier.actions(name) if action not in going])


def _remove_orphans(tier: LocalTier) -> dict[str, int]:
    """Remove files that no row tells of; an output that can still be found is given a row instead."""
    layout = tier.layout
    found: dict[str, set[str]] = {}
    strays = [os.path.join(layout.index, BROKEN)]
    for folder, length in ((layout.outputs, 64), (layout.actions, 32), (layout.sources, 32)):
        names = found[folder] = set()
        for entry in list_directory(folder):
            if is_digest(entry.name, length) and entry.is_file(follow_symlinks=False):
                names.add(entry.name)
            else:
                strays.append(entry.path)
    outputs: set[str] = set()
    actions: set[str] = set()
    with tier.index.transaction() as rows:
        for output, row in rows.all():
            outputs.add(output)
            actions.update(row.actions if row is not None else ())
    counts = dict.fromkeys(("outputs", "actions", "sources", "strays", "adopted"), 0)
    for batch in _batches(found[layout.actions] - actions):
        with tier.index.transaction() as rows:
            for name in batch:
                with contextlib.suppress(OSError):  # what cannot be read has to stay
                    counts["adopted"] += _adopt(tier, rows, name)
                counts["actions"] += not os.path.lexists(layout.action(name))
    for batch in _batches(found[layout.outputs] - outputs):
        with tier.index.transaction() as rows:
            for name in batch:
                if rows.get(name) is None:
                    counts["outputs"] += _removed(layout.output(name))
    for name in found[layout.sources] - actions:
        if not os.path.lexists(layout.action(name)):
            counts["sources"] += _removed(layout.source(name))
    counts["strays"] = sum(_removed(path) for path in strays)
    return counts


def _adopt(tier: LocalTier, rows: Rows, name: str) -> int:
    """Give a row to each output that the actions of this key lead to; those that lead nowhere are removed."""
    adopted = 0
    for action in tier.actions(name):
        output = action.sha256.hex()
        row = rows.get(output)
        if not os.path.lexists(tier.layout.output(output)):
            tier.remove_action(name, output)
        elif row is None or name not in row.actions:
            names = (name, *(row.actions if row is not None else ()))
            rows.add(output, Row(tier.size_of(output, names), tier.last_used(output), names, action.group()))
            adopted += row is None
    return adopted


def _remove_expired(tier: LocalTier, progress: Progress | None) -> tuple[int, int, int]:
    """Remove rows whose output is gone, outputs that no action leads to, and those that are too old.

    Returns:
        How many of each there were.
    """
    with tier.index.transaction() as rows:
        outputs = [output for output, _ in rows.all()]
    suspects: list[str] = []
    expired = done = 0
    for names in _batches(outputs):
        with tier.index.transaction() as rows:
            for output in names:
                row = rows.get(output)
                used = tier.last_used(output)
                if used and tier.is_expired(used):
                    expired += 1
                    tier.evict(rows, output, row)
                elif not used or row is None or not row.actions or _missing(tier, row):
                    suspects.append(output)
        done += len(names)
        if progress is not None:
            progress(done, len(outputs))
    return (*_remove_unreached(tier, suspects), expired)


def _remove_unreached(tier: LocalTier, suspects: list[str]) -> tuple[int, int]:
    """Remove rows whose output is gone, and outputs that no action leads to; how many of each there were."""
    if suspects:
        time.sleep(_STORE_SECONDS)  # a store that is on its way has a row already
    gone = unreached = 0
    for names in _batches(suspects):
        with tier.index.transaction() as rows:
            for output in names:
                if (row := rows.get(output)) is None:
                    continue
                is_there = tier.last_used(output) > 0
                missing = _missing(tier, row)
                kept = tuple(name for name in row.actions if name not in missing)
                if not is_there or not kept:
                    gone += not is_there
                    unreached += is_there
                    tier.evict(rows, output, row)
                elif missing:
                    for name in missing:
                        tier.remove_action(name, output)  # and its source
                    rows.add(output, row._replace(size=tier.size_of(output, kept), actions=kept))
    return gone, unreached


def _missing(tier: LocalTier, row: Row) -> set[str]:
    """The actions of a row that are not there."""
    return {name for name in row.actions if not os.path.lexists(tier.layout.action(name))}


def _evict(tier: LocalTier) -> int:
    """Remove what is too much for the size limit, a step at a time; how many outputs that were."""
    evicted = 0
    with tier.index.transaction() as rows:
        steps = 2 + 2 * rows.count() // EVICTION_STEP  # each row is looked at twice at most, unless it is used
    for _ in range(steps):
        with tier.index.transaction() as rows:
            if not rows.count() or not tier.limits.is_exceeded(rows.bytes() + tier.layout.overhead()):
                break
            evicted += tier.make_room(rows)
    return evicted


def _check_output(path: str) -> tuple[tuple[int, bytes] | None, str]:
    """The size and the XXH3-128 of an output, and what is wrong with it."""
    try:
        data = read_unnoticed(path, OUTPUT_LIMIT)
    except FileNotFoundError:
        return None, ""
    except (OSError, DamagedError) as error:
        return None, str(error)
    if hashlib.sha256(data).hexdigest() != os.path.basename(path):
        return None, "the output does not have the SHA-256 that it is named by"
    return (len(data), xxhash.xxh3_128_digest(data)), ""


def _check_actions(tier: LocalTier, path: str, known: dict[str, tuple[int, bytes]]) -> str:
    """What is wrong with the actions of a key; outputs that are not known already are read."""
    try:
        actions = decode_actions(read_unnoticed(path, ACTION_LIMIT))
    except FileNotFoundError:
        return ""
    except (OSError, DamagedError) as error:
        return str(error)
    if not actions:
        return "the actions do not match their own digest"
    for action in actions:
        name = action.sha256.hex()
        output = known.get(name) or _check_output(tier.layout.output(name))[0]
        if output != (action.size, action.xxh3) and os.path.lexists(path):
            is_there = os.path.lexists(tier.layout.output(name))
            return f"its output is {'damaged, or another one' if is_there else 'gone'}: {name}"
    return ""


def _check_source(path: str) -> str:
    """What is wrong with a source."""
    try:
        text = unpack_source(read_unnoticed(path, ACTION_LIMIT))
    except FileNotFoundError:
        return ""
    except (OSError, DamagedError) as error:
        return str(error)
    return "the source cannot be unpacked" if text is None else ""


def _removed(path: str) -> int:
    """Remove what is at a path; 1 if there was something, and is nothing now."""
    if not os.path.lexists(path):
        return 0
    remove(path)
    return not os.path.lexists(path)


def _batches(names: Iterable[str]) -> Iterator[list[str]]:
    iterator = iter(names)
    while batch := list(itertools.islice(iterator, _BATCH)):
        yield batch
