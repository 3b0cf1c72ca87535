"""The shared tier: objects that any number of hosts have in common, through an engine that may be slow, full or gone.

Reading waits for the engine, for as long as a request may, and no longer. Writing happens in the background. What the
engine answers is believed only as far as it proves itself (`ptocache.store.objects`).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ptocache.errors import SettingsError
from ptocache.inputs import decode_inputs
from ptocache.log import get_logger
from ptocache.request import Key
from ptocache.store.engines import Engine, EngineUrl, Stored, describe, make_engine
from ptocache.store.entry import Accept, Entry, State, accept_all, unknown
from ptocache.store.guard import EngineError, Guard, LeftAloneError, NoAnswerError
from ptocache.store.objects import (
    OBJECT_LIMIT,
    OUTPUT_LIMIT,
    RejectedError,
    SharedObject,
    Signer,
    decode_object,
    encode_object,
    next_name,
    state_of,
)
from ptocache.store.place import Place, refusal
from ptocache.store.uploads import Uploads

if TYPE_CHECKING:
    from ptocache.counters import Counters
    from ptocache.settings import Settings
    from ptocache.store.engines.redis import RedisLease

T = TypeVar("T")

#: How many objects of one key are looked at: one a state of the files that its compilation read.
VARIANTS = 4

#: Writing takes longer than reading, and nobody waits for it: it may take so many times as long.
_WRITE_FACTOR = 4

#: So many objects are listed at a time.
_BATCH = 500

#: How long the end of a process waits for what is still to be sent, in seconds.
FLUSH_SECONDS = 10.0

#: A name under which nothing is stored: to ask for it shows whether an engine answers.
PROBE = "0" * 32


def make_shared_tiers(settings: Settings, place: Place, counters: Counters) -> tuple[SharedTier, ...]:
    """The engines that the settings name, in their order.

    Args:
        settings: which, and how they are used.
        place: where the local tier is. The directory that it was to be in, where that is on a network file system, is
            the last engine, if nobody can write to it who should not, or everything is signed.
        counters: where what the engines do is counted.
    """
    urls = list(settings.shared)
    signer = Signer(settings.signing_keys)
    umask = settings.umask
    if place.moved_from and (signer.signs or not refusal(place.moved_from, umask)):
        from urllib.parse import quote

        urls.append(EngineUrl(f"file://{quote(os.fsencode(place.moved_from))}"))
    replace = settings.recompile or settings.verify
    tiers: dict[str, SharedTier] = {}
    for url in dict.fromkeys(urls):
        label = _label(str(url), tiers)
        tiers[label] = SharedTier(
            url, signer, settings.shared_timeout, counters, settings.readonly, replace, umask, label
        )
    return tuple(tiers.values())


def _label(text: str, taken: Iterable[str]) -> str:
    """What an engine is called: its URL, with a number where that of another one differs only in what is not shown."""
    numbered = (f"{text} ({number})" if number > 1 else text for number in itertools.count(1))
    return next(label for label in numbered if label not in taken)


class PrunedShared(NamedTuple):
    """What was removed from an engine.

    Attributes:
        removed: how many objects.
        bytes: how many bytes they had.
        kept: how many are left.
        bytes_kept: how many bytes those have.
        problem: why it went no further; empty where it is done.
    """

    removed: int
    bytes: int
    kept: int
    bytes_kept: int
    problem: str = ""


def can_be_pruned(tier: SharedTier) -> bool:
    """Whether an engine tells when its objects were used; the others have rules of their own."""
    return tier.url.scheme in {"file", "redis", "rediss"}


def prune_shared(
    tier: SharedTier, age: float | None, size: int | None, progress: Callable[[int, int], None] | None = None
) -> PrunedShared:
    """Remove objects from an engine, those that were stored or used longest ago.

    Args:
        tier: a `file://` or a Redis engine.
        age: remove what is older, in seconds; `None` for any age.
        size: how many bytes to keep at most; `None` for all.
        progress: told how far it is.

    Returns:
        What was removed, until it was done or the engine failed.

    Raises:
        SettingsError: the engine has rules of its own for that.
    """
    kept = bytes_kept = removed = bytes_removed = 0
    problem = ""
    if not can_be_pruned(tier):
        raise SettingsError(
            f"{tier.label}: only file:// and Redis are pruned from here; see docs/fleets.md for the rule to set there"
        )
    try:
        found = sorted(tier.listed(), key=lambda stored: stored.age)
        is_full = False
        for done, stored in enumerate(found, 1):
            is_full = is_full or (size is not None and bytes_kept + stored.size > size)
            if is_full or (age is not None and stored.age > age):
                tier.remove(stored.name)
                removed += 1
                bytes_removed += stored.size
            else:
                kept += 1
                bytes_kept += stored.size
            if progress is not None:
                progress(done, len(found))
        sweep = getattr(tier.engine, "sweep", None)
        if sweep is not None:
            sweep()
    except Exception as error:  # noqa: BLE001 - an engine may fail in any way, and its own words have secrets
        problem = describe(error)
    return PrunedShared(removed, bytes_removed, kept, bytes_kept, problem)


class SharedTier:
    """Entries on one engine (a `ptocache.store.entry.Tier`).

    Args:
        url: the engine.
        signer: signs what is stored, and tells what may be believed.
        timeout: how long a request waits for the engine, in seconds.
        counters: where what the engine does is counted.
        readonly: store nothing.
        replace: store also where there is an equal one.
        umask: for an engine that makes directories.
        label: what it is called in messages and statistics; its URL by default, without what is secret.
    """

    name = "shared"

    def __init__(
        self,
        url: EngineUrl,
        signer: Signer,
        timeout: float,
        counters: Counters,
        readonly: bool = False,
        replace: bool = False,
        umask: int | None = None,
        label: str = "",
    ) -> None:
        self.url = url
        self.label = label or str(url)
        self.readonly = readonly or url.readonly
        self.timeout = timeout
        self.signer = signer
        self._counters = counters
        self.uploads = Uploads(FLUSH_SECONDS)
        self._request = threading.local()
        self._replace = replace
        self.umask = umask
        self._lazy_engine: Engine | None = None
        self._warned = False
        # Reading goes on where writing fails, as on a full disk.
        self.reading = Guard(f"reading from {self.label}", lambda: self.engine.get(PROBE, OBJECT_LIMIT))
        self._writing = Guard(f"writing to {self.label}", lambda: self.engine.get(PROBE, OBJECT_LIMIT))
        self.leasing = Guard(f"the leases of {self.label}", lambda: self.lease(PROBE, 1.0).acquire())

    @property
    def has_leases(self) -> bool:
        """Whether hosts can agree there on who compiles."""
        return self.url.scheme in {"redis", "rediss"} and not self.readonly

    @property
    def engine(self) -> Engine:
        """The engine; its library is loaded when it is first asked."""
        if self._lazy_engine is None:
            self._lazy_engine = make_engine(self.url, self.timeout, self.umask, self.readonly)
        return self._lazy_engine

    def begin_request(self) -> None:
        """From now on this thread is about another kernel, which may wait as long again."""
        self._request.spent = 0.0

    def get(self, key: Key, accept: Accept = accept_all, state: State = unknown) -> Entry | None:
        """The entry under a key whose inputs are accepted, checked."""
        deadline = time.monotonic() + self.timeout - getattr(self._request, "spent", 0.0)
        name = key.name
        for _ in range(VARIANTS):
            found = self._fetch(name, deadline)
            if found is None:
                return None
            if found.key != key:
                self._reject(name, "it is for another key")
                return None
            if accept(found.entry.action.inputs):
                self._count(hits=1)
                return found.entry
            name = next_name(key, decode_inputs(found.entry.action.inputs) or (), state)
        self._count(misses=1)
        return None

    def put(self, keys: Sequence[Key], entry: Entry, source: bytes = b"", state: State = unknown) -> None:
        """Have an entry stored under all these keys, in the background."""
        if self.readonly or len(entry.aibin) > OUTPUT_LIMIT:
            return
        for key in keys:
            own = entry._replace(action=entry.action._replace(check=key.check))
            if not self.uploads.add(lambda key=key, own=own: self._upload(key, own, state), len(own.aibin)):  # type: ignore[misc]
                self._count(dropped=1)

    def use(self, entry: Entry) -> None:
        """Nothing: what is used on one host is of no interest to the others."""

    def store(self, key: Key, entry: Entry, replace: bool = False, state: State = unknown) -> bool:
        """Store an entry now, at the first name where it is found by whoever has the same files.

        Args:
            key: its key.
            entry: the entry, with that key's check.
            replace: whether to replace an equal one.
            state: gives what those inputs are now that others read and this one did not.

        Returns:
            Whether it was stored: an equal one may have been first.

        Raises:
            EngineError: the engine failed.
        """
        inputs = decode_inputs(entry.action.inputs) or ()
        name = key.name
        for _ in range(VARIANTS):
            data = encode_object(name, key, entry, self.signer)
            if self._write(name, data, replace=False):
                return True
            found = self._look(name)
            if found is None or found.key != key:  # rubbish, or gone again
                return self._write(name, data, replace=True)
            if found.entry.action.inputs == entry.action.inputs:
                is_better = replace or not found.is_current
                return is_better and self._write(name, data, replace=True)
            name = next_name(key, decode_inputs(found.entry.action.inputs) or (), state_of(inputs, state))
        return False

    def fetch(self, name: str) -> SharedObject | None:
        """The object under a name; `None` for nothing.

        Raises:
            EngineError: the engine failed.
            RejectedError: what is there is none.
        """
        data = self._read(name, self.timeout)
        return None if data is None else decode_object(data, name, self.signer)

    def lease(self, name: str, seconds: float) -> RedisLease:
        """A lease on a key, to be taken; for an engine that has leases."""
        from ptocache.store.engines.redis import RedisEngine

        assert isinstance(self.engine, RedisEngine)  # noqa: S101 - `has_leases` was asked
        return self.engine.lease(name, seconds)

    def _fetch(self, name: str, deadline: float) -> SharedObject | None:
        start = time.monotonic()
        seconds = deadline - start
        if seconds <= 0:  # this kernel has waited for it as long as it may
            self._count(skipped=1)
            return None
        try:
            data = self._read(name, seconds)
        except LeftAloneError:
            self._count(skipped=1)
            return None
        except EngineError as error:
            self._report("read", error)
            return None
        finally:
            self._request.spent = getattr(self._request, "spent", 0.0) + time.monotonic() - start
        if data is None:
            self._count(misses=1)
            return None
        try:
            return decode_object(data, name, self.signer)
        except RejectedError as reason:
            self._reject(name, str(reason))
            return None

    def _read(self, name: str, seconds: float) -> bytes | None:
        data = self._timed("reading", self.reading, lambda engine: engine.get(name, OBJECT_LIMIT), seconds)
        if data is not None:
            self._count(bytes_read=len(data))
        return data

    def _look(self, name: str) -> SharedObject | None:
        try:
            return self.fetch(name)
        except RejectedError:
            return None

    def _upload(self, key: Key, entry: Entry, state: State) -> None:
        """Store an entry; whatever happens is counted."""
        try:
            self.store(key, entry, self._replace, state)
        except LeftAloneError:
            self._count(skipped=1)
        except Exception as error:  # noqa: BLE001 - a cache may fail in any way
            self._report("write", error)

    def _write(self, name: str, data: bytes, replace: bool) -> bool:
        if not self.reading.is_well():  # or the end of a process would wait once more for what does not answer
            raise LeftAloneError(f"{self.label} is left alone, as it has failed")
        is_stored = self._timed(
            "writing",
            self._writing,
            lambda engine: engine.put(name, data, replace),
            _WRITE_FACTOR * self.timeout,
        )
        if is_stored:
            self._count(stores=1, bytes_written=len(data))
        return is_stored

    def _timed(self, doing: str, guard: Guard, function: Callable[[Engine], T], seconds: float) -> T:
        start = time.monotonic()

        def call() -> T:
            nonlocal start
            engine = self.engine  # whose library may have to be loaded, which is not the engine's time
            start = time.monotonic()
            return function(engine)

        try:
            return guard.call(call, seconds)
        except NoAnswerError:
            if guard is self.reading:  # it would read on, however much there is
                self._abort()
            raise
        finally:
            self._count(**{f"seconds_{doing}": time.monotonic() - start})

    def _abort(self) -> None:
        """Have what was given up end, where the engine can do that."""
        abort = getattr(self._lazy_engine, "abort", None)
        if abort is not None:
            with contextlib.suppress(Exception):  # it is given up in any case
                abort()

    def listed(self) -> Iterator[Stored]:
        """All that the engine lists, a batch at a time, each in bounded time.

        Raises:
            EngineError: it does not list, or failed.
        """
        found = self.reading.call(lambda: iter(self.engine.list()), _WRITE_FACTOR * self.timeout)
        while batch := self.reading.call(lambda: list(itertools.islice(found, _BATCH)), _WRITE_FACTOR * self.timeout):
            yield from batch

    def remove(self, name: str) -> None:
        """Remove an object, in bounded time; raises `EngineError`."""
        self._writing.call(lambda: self.engine.delete(name), self.timeout)

    def _count(self, **amounts: float) -> None:
        for what, amount in amounts.items():
            self._counters.add_engine(self.label, what, amount)

    def _reject(self, name: str, reason: str) -> None:
        self._count(misses=1, rejected=1)
        get_logger(__name__).info("not used: the object %s on %s: %s", name, self.label, reason)

    def _report(self, doing: str, error: Exception) -> None:
        """Count an error, and say it the first time."""
        self._count(errors=1)
        self._counters.add("errors")
        logger = get_logger(__name__)
        log = logger.debug if self._warned else logger.warning
        self._warned = True
        log(
            "the shared cache at %s cannot be used (%s: %s); kernels are compiled all the same. "
            "ptocache doctor says more.",
            self.label,
            doing,
            describe(error),
        )
