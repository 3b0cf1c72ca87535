"""The way of a request: key, store, lease, pipeline, store.

source key ► memory ► local ──── hit ──► device binary
    │ miss
    ▼ lease on the source key: one compiler at a time; the others wait, then look again
lower to MLIR ► PTO key ► memory ► local ──── hit ──► keep it under the source key too
    │ miss
    ▼
ptoas ► bisheng ► extract ► check ──► keep it under both keys
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from ptocache.counters import Counters
from ptocache.digests import Digests
from ptocache.errors import PtocacheError, RefusedDirectoryError, SettingsError, ToolError, ToolNotFoundError
from ptocache.inputs import Inputs, Unstable, encode_inputs
from ptocache.log import get_logger, informing, log_to_stderr
from ptocache.ptodsl import Ptodsl
from ptocache.recipe import Checker, Recipe, Stages
from ptocache.request import (
    ARCHS,
    CompileRequest,
    Key,
    key_flags,
    make_key,
    make_request,
    pto_parts,
    source_digest,
    source_parts,
)
from ptocache.requestlog import RequestLog
from ptocache.settings import Settings
from ptocache.stamp import Stamp
from ptocache.store.entry import Action, Entry, Tier, json_bytes, make_entry
from ptocache.store.failures import Failures, will_repeat
from ptocache.store.local import Limits, LocalTier, pack_source
from ptocache.store.memory import MemoryTier
from ptocache.store.place import Place, find_place
from ptocache.store.tiers import Found, Store
from ptocache.summary import Summary

if TYPE_CHECKING:
    from ptocache.store.shared import SharedTier


class CompileResult(NamedTuple):
    """What came of a request.

    Attributes:
        aibin: the device binary.
        key: the name of the source key, 32 hexadecimal digits.
        origin: where it came from: `memory`, `local`, `shared` or `compiled`.
        via: which key led to it: `source`, `pto`, or `None` where it was compiled.
        seconds: how long the request took.
        request: what was asked for, in its canonical form.
        action: the compilation that made it, now or at an earlier time.
    """

    aibin: bytes
    key: str
    origin: str
    via: str | None
    seconds: float
    request: CompileRequest
    action: Action

    @property
    def sha256(self) -> str:
        """The SHA-256 of the device binary, in hexadecimal."""
        return self.action.sha256.hex()

    @property
    def kernels(self) -> list[str]:
        """The names of the kernels in it, in the order of their definition."""
        return list(self.action.details().get("kernels", ()))

    @property
    def saved(self) -> float:
        """How many seconds the cache has saved."""
        return max(0.0, self.action.seconds - self.seconds) if self.via else 0.0

    def __str__(self) -> str:
        """One line for people: kernel, hit or compiled, time, time saved."""
        from ptocache.text import seconds_text

        names = ", ".join(self.kernels) or self.key
        if self.via is None:
            return f"{names}: compiled in {seconds_text(self.seconds)}"
        hit = f"{self.origin} hit" if self.via == "source" else f"{self.origin} hit after lowering,"
        return f"{names}: {hit} in {seconds_text(self.seconds)}, saved {seconds_text(self.saved)}"


class CompileCache:
    """Compiles PTODSL sources, each once.

    A context manager; safe to share between threads, and to use on after a fork.

    Args:
        settings: what to do and where; read from the environment and the configuration file by default. Where
            the directory cannot be used, or is on a network file system, they are changed, and that is logged.

    Example::

        with CompileCache() as cache:
            result = cache.compile(source)
            print(result.origin, len(result.aibin))
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = Settings.load() if settings is None else settings
        if self.settings.log:
            log_to_stderr(self.settings.log)
        self._asked_for = self.settings  # before the local tier moves
        self.place = find_place(self.settings.dir, self.settings.umask)
        if self.place.moved_from:
            self._report_place()
        if self.place.moved_from:  # to a directory of this user's alone
            self.settings = self.settings._replace(dir=self.place.directory, umask=None)
        if self.place.refused:
            self.settings = self.settings._replace(readonly=True)
        usable = "" if self.place.refused else self.settings.dir
        limits = Limits(self.settings.size_limit, self.settings.max_age)
        readonly = self.settings.readonly
        self.counters = Counters(usable, readonly)
        self.local = LocalTier(self.settings.dir, limits, readonly, self.settings.umask, self.counters)
        self.failures = Failures(
            self.local.layout, self.settings.failure_ttl if usable else 0, limits.failures, readonly
        )
        near: list[Tier] = [MemoryTier(), self.local] if usable else [MemoryTier()]
        self._store = Store(near, self.counters, self.shared_tiers)
        self._lazy_shared: dict[str, tuple[SharedTier, ...]] = {}
        self.digests = Digests("" if self.settings.disable else usable, readonly)
        self._ptodsl = Ptodsl(self.settings, self.digests)
        self._summary = Summary() if self.settings.summary else None
        self._requests = RequestLog(self.settings.request_log) if self.settings.request_log else None

    def __reduce__(self) -> tuple[type[CompileCache], tuple[Settings]]:
        """A process that is started with a copy has a cache of its own, with the same settings."""
        return CompileCache, (self.settings,)

    def __enter__(self) -> CompileCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Send and write what is still to be, and close the index. A cache that is used again opens what it needs."""
        tiers = self._lazy_shared.get("", ())
        if tiers:
            from ptocache.store.shared import FLUSH_SECONDS

            deadline = time.monotonic() + FLUSH_SECONDS  # for all of them
            for tier in tiers:
                tier.uploads.finish(deadline)
        self.counters.flush()
        self.local.close()

    def shared_tiers(self) -> tuple[SharedTier, ...]:
        """What this host shares with others; it is loaded when it is first needed."""
        if not (self.settings.shared or self.place.moved_from):
            return ()
        tiers = self._lazy_shared.get("")
        if tiers is None:
            from ptocache.store.shared import make_shared_tiers

            # Two threads may make them: one's are kept.
            made = make_shared_tiers(self._asked_for, self.place, self.counters)
            tiers = self._lazy_shared.setdefault("", made)
        return tiers

    def stamp(self) -> Stamp:
        """The identity of the toolchain that would compile a PTODSL source now.

        Raises:
            ToolNotFoundError: there is none.
            ToolError: a tool does not answer.
        """
        return self._ptodsl.identify().stamp

    def require_writable(self, done: str, to: str) -> None:
        """See that something may be changed; raises `SettingsError` where `PTOCACHE_READONLY` is set.

        Args:
            done: what would be done: `stored`, `removed`.
            to: what it is for: `pull`.
        """
        if self.settings.readonly:
            raise SettingsError(f"PTOCACHE_READONLY is set: nothing is {done}. Unset it to {to}.")

    def require_directory(self) -> None:
        """See that the cache directory is used; raises `RefusedDirectoryError` with the reason where it is not."""
        if self.place.refused:
            raise RefusedDirectoryError(f"the cache directory is not used: {self.place.refused}")

    def compile(
        self,
        source: str,
        arch: str | None = None,
        flags: Sequence[str] | str | None = None,
        verbose: bool = False,
    ) -> CompileResult:
        """Return the device binary of a PTODSL source, from the cache or from the pipeline.

        Args:
            source: the PTODSL module's text.
            arch: `a5`, `a3` or `a2`; `None` for what `PTO_ARCH` says, else `a5`.
            flags: the other arguments of ptoas; `None` for what `PTO_FLAGS` says.
            verbose: log each tool's command, time and output.

        Returns:
            The device binary, and where it came from.

        Raises:
            SettingsError: the arch or the flags cannot be used.
            SourceError: the source does not parse or has no kernel.
            ToolNotFoundError: there is no toolchain.
            ToolError: a tool failed; the message has all that it printed.
            ImageError: the linked image carries no device binary.
            DeviceBinaryError: the device binary is not one for these kernels.
        """
        return self.run(self.prepare(source, arch, flags, verbose))

    def prepare(
        self, source: str, arch: str | None = None, flags: Sequence[str] | str | None = None, verbose: bool = False
    ) -> Job:
        """Make a request canonical and find its key, without looking anything up; see `compile`."""
        start = time.perf_counter()
        if arch is None:
            arch = os.environ.get("PTO_ARCH", "").strip() or ARCHS[0]
        if flags is None:
            flags = os.environ.get("PTO_FLAGS", "")
        return self.job(make_request(source, arch, flags), self._ptodsl.recipe, verbose, start)

    def lower(self, job: Job) -> str:
        """Lower a source to MLIR, and go no further.

        Returns:
            The text that ptoas is given, without its locations where they make no difference.

        Raises:
            ToolError: the frontend failed; the message has all that it printed.
        """
        with self._stages(job) as stages:
            return stages.lower() or ""

    def shell_lines(self, job: Job, source_path: str) -> list[str]:
        """The commands that compile a source, one a tool, as a shell takes them.

        Args:
            job: the source.
            source_path: a file that has it.
        """
        return self._ptodsl.shell_lines(job.request, source_path)

    def job(self, request: CompileRequest, recipe: Recipe, verbose: bool = False, start: float | None = None) -> Job:
        """Find the key of a request.

        Args:
            request: what to compile, in its canonical form.
            recipe: how that is done.
            verbose: log each tool's command, time and output.
            start: when the request began, as `time.perf_counter` counts; now by default.

        Raises:
            ToolNotFoundError: there is no toolchain.
        """
        start = time.perf_counter() if start is None else start
        stamp, checker = recipe.identify()
        key = make_key(source_parts(request, stamp.name, recipe.kind, recipe.extra))
        return Job(request, recipe, key, stamp, checker, verbose, start)

    def run(self, job: Job) -> CompileResult:
        """Answer a request, from the cache or by its recipe; raises what the recipe's stages raise."""
        if self.place.refused:
            self._report_place()
        result = self._answer(job)
        if self._summary is not None:
            self._summary.add(result)
        if self._requests is not None:
            self._requests.add(result, job.recipe.kind)
        if informing():
            get_logger(__name__).info("%s", result)
        return result

    def _answer(self, job: Job) -> CompileResult:
        for tier in self._lazy_shared.get("", ()):
            tier.begin_request()
        if self.settings.disable:
            with self._stages(job) as stages:
                stages.lower()
                return job.result(self._describe(job, stages, stages.build()), "compiled", None)
        if self.settings.recompile:
            return self._compile_once(job)
        result = self._look_up(job) or self._compile_once(job)
        return self._verify(job, result) if self.settings.verify and result.via == "source" else result

    def _report_place(self) -> None:
        """Say once in a process that the cache is not where it was to be."""
        directory, refused, moved_from, filesystem = self.place
        if self.settings.disable or not (refused or moved_from) or self.place in _reported:
            return
        _reported.add(self.place)
        if refused:
            get_logger(__name__).warning("the cache directory is not used, and every kernel is compiled: %s", refused)
        else:
            get_logger(__name__).warning(
                "%s is on a network file system (%s), where SQLite and file locks are not sound: the cache of this "
                "host is %s, and the other one is shared. Set PTOCACHE_DIR to a local directory to choose another "
                "place.",
                moved_from,
                filesystem,
                directory,
            )

    def _look_up(self, job: Job, only_near: bool = False) -> CompileResult | None:
        found = self._store.get(job.key, job.checker.unchanged, job.checker.state, only_near=only_near)
        if found is None:
            return None
        return self._hit(job, found.entry, found.origin, "source", saved=found.entry.action.seconds)

    def _hit(self, job: Job, entry: Entry, origin: str, via: str, saved: float) -> CompileResult:
        self.counters.hit("hits.pto" if via == "pto" else f"hits.{origin}", job.key.name, max(saved, 0.0))
        return job.result(entry, origin, via)

    def _compile_once(self, job: Job) -> CompileResult:
        """Compile under the lease on the key, unless another process did while this one waited."""
        try:
            if (failure := self._remembered(job)) is not None:
                self._log_miss(job, "a failure is remembered")
                raise failure
            self._log_miss(job)
            from ptocache.lease import lease  # filelock takes longer to import than a hit takes

            with lease(self.settings, job.key.name):
                if self.settings.recompile:
                    return self._compile(job)
                found = self._look_up(job, only_near=True)
                if found is not None:
                    return found
                if (failure := self._remembered(job)) is not None:
                    raise failure
                return self._compile_once_in_fleet(job)
        except PtocacheError as error:
            self.counters.add("misses")
            self.counters.add("failures")
            if getattr(error, "remembered", False):
                self.counters.add("failures_remembered")
            raise
        finally:
            self.counters.flush()

    def _compile_once_in_fleet(self, job: Job) -> CompileResult:
        """Compile under the fleet's lease on the key, if there is one, unless another host did meanwhile."""
        tier = next((tier for tier in self.shared_tiers() if tier.has_leases and tier.reading.is_well()), None)
        if tier is None:
            return self._compile(job)
        from ptocache.lease import fleet_lease

        with fleet_lease(tier, self.settings, job.key.name):
            found = self._look_up(job)
            if found is not None:
                return found
            return self._compile(job)

    def _compile(self, job: Job) -> CompileResult:
        """Run the pipeline; where the lowered text is known, without its two expensive stages."""
        with self._stages(job) as stages:
            try:
                pto_key = self._pto_key(job, stages.lower())
                found = None if self.settings.recompile or pto_key is None else self._store.get(pto_key)
                if found is not None:
                    # The output is the stored one; the request that led to it is this one.
                    aibin, origin = found.entry.aibin, found.origin
                    stages.check(aibin)  # for the kernels of this source, which the lowered text does not tell
                    if self.settings.verify:
                        aibin = stages.build()
                else:
                    aibin, origin = stages.build(), "compiled"
            except ToolError as error:
                self._remember(job, stages, error)
                raise
            inputs = self._inputs(job, stages)
            entry = self._describe(job, stages, aibin, inputs or ())
        if found is not None and pto_key is not None and found.entry.aibin != aibin:
            self._report_difference(job, pto_key, found, entry)
            found = None
        if found is not None:
            saved = found.entry.action.seconds - entry.action.seconds
            entry = entry._replace(action=entry.action._replace(seconds=found.entry.action.seconds))
            self._keep(job, stages, entry, inputs)
            return self._hit(job, entry, origin, "pto", saved=saved)
        self._keep(job, stages, entry, inputs, pto_key)
        self.counters.compiled(job.key.name, entry.action.seconds)
        return job.result(entry, "compiled", None)

    def _keep(self, job: Job, stages: Stages, entry: Entry, inputs: Inputs | None, pto_key: Key | None = None) -> None:
        """Store an entry under its source key, the source beside it, and under its PTO key where it is new there.

        Where the inputs have no name it is not stored under the source key. Nothing is stored where tools were
        replaced meanwhile: what they made is not what this stamp names.
        """
        try:
            if stages.stamp().name != job.stamp.name:
                return
        except ToolNotFoundError:  # one is gone, and what it made is there all the same
            return
        if pto_key is not None:
            self._store.put([pto_key], _for_pto_key(entry))
        if inputs is not None:
            self._store.put([job.key], entry, pack_source(job.request.source), job.checker.state)

    def _inputs(self, job: Job, stages: Stages) -> Inputs | None:
        """What was read beside the source; `None` where that has no name, so that nothing can be stored."""
        try:
            return stages.inputs()
        except Unstable as reason:
            get_logger(__name__).debug("%s is not stored under its source: %s", job.key.name, reason)
            return None

    def _remembered(self, job: Job) -> ToolError | None:
        """The failure that this compilation had a while ago, if nothing changed since."""
        if self.settings.recompile:
            return None
        return self._store.try_to("read a failure", lambda: self.failures.get(job.key, job.checker.unchanged))

    def _remember(self, job: Job, stages: Stages, error: ToolError) -> None:
        inputs = self._inputs(job, stages) if will_repeat(error) else None
        if inputs is not None:
            self._store.try_to("remember a failure", lambda: self.failures.put(job.key, error, encode_inputs(inputs)))

    def _verify(self, job: Job, result: CompileResult) -> CompileResult:
        """Compile what was found, and see that it is the same."""
        with self._stages(job) as stages:
            pto_key = self._pto_key(job, stages.lower())
            aibin = stages.build()
            if aibin == result.aibin:
                return result
            inputs = self._inputs(job, stages)
            entry = self._describe(job, stages, aibin, inputs or ())
        found = Found(Entry(result.action, result.aibin), result.origin)
        self._report_difference(job, job.key, found, entry)
        self._keep(job, stages, entry, inputs, pto_key)
        return job.result(entry, "compiled", None)

    def _report_difference(self, job: Job, key: Key, found: Found, fresh: Entry) -> None:
        stored = found.entry.action
        get_logger(__name__).error(
            "PTOCACHE_VERIFY: the %s cache has another device binary under key %s (SHA-256 %s, made %s) than the one "
            "compiled now (SHA-256 %s), which is used. The key's parts: %s",
            found.origin,
            key.name,
            stored.sha256.hex(),
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stored.created)),
            fresh.action.sha256.hex(),
            "; ".join(f"{name}: {', '.join(value.splitlines()) or 'none'}" for name, value in job.parts()),
        )
        self.counters.add("errors")

    def _log_miss(self, job: Job, why: str | None = None) -> None:
        from ptocache.log import debugging

        if debugging():
            from ptocache.explain import reason

            why = why or self._store.try_to("explain a miss", lambda: reason(self, job)) or "the cache cannot be read"
            get_logger(__name__).debug("miss %s: %s", job.key.name, why)

    @contextlib.contextmanager
    def _stages(self, job: Job) -> Iterator[Stages]:
        from ptocache.pipeline import work_directory  # only a miss needs it

        with work_directory(self.settings.keep_temps) as work:
            yield job.recipe.start(job.request, work, job.verbose)

    def _pto_key(self, job: Job, text: str | None) -> Key | None:
        if text is None:
            return None
        return make_key(pto_parts(text, job.request, job.stamp.backend_name, job.recipe.extra))

    def _describe(self, job: Job, stages: Stages, aibin: bytes, inputs: Inputs = ()) -> Entry:
        return make_entry(
            aibin,
            seconds=time.perf_counter() - job.start,
            created=time.time(),
            inputs=encode_inputs(inputs),
            facts={
                "kind": job.recipe.kind,
                "kernels": list(stages.kernels),
                "arch": job.request.arch,
                "flags": list(job.request.flags),
                "toolchain": job.stamp.name,
                "source": source_digest(job.request.source),
                "stamp": dict([*job.recipe.extra, *job.stamp.frontend, *job.stamp.backend]),
            },
        )


class Job(NamedTuple):
    """A request on its way.

    Attributes:
        request: what was asked for, in its canonical form.
        recipe: how it is compiled.
        key: its source key.
        stamp: the toolchain's identity.
        checker: tells whether what an earlier lowering read is the same now.
        verbose: whether to log each tool's command, time and output.
        start: when it began, as `time.perf_counter` counts.
    """

    request: CompileRequest
    recipe: Recipe
    key: Key
    stamp: Stamp
    checker: Checker
    verbose: bool
    start: float

    def parts(self) -> list[tuple[str, str]]:
        """The parts of the source key as people read them: the source as its digest, the stamp part by part."""
        return [
            ("source", source_digest(self.request.source)),
            ("arch", self.request.arch),
            ("flags", " ".join(key_flags(self.request.flags))),
            *self.recipe.extra,
            *self.stamp.frontend,
            *self.stamp.backend,
        ]

    def result(self, entry: Entry, origin: str, via: str | None) -> CompileResult:
        """The answer to the request: an entry, and how it was come by."""
        seconds = time.perf_counter() - self.start
        return CompileResult(entry.aibin, self.key.name, origin, via, seconds, self.request, entry.action)


def _for_pto_key(entry: Entry) -> Entry:
    """The entry for a PTO key: the lowered text is what it was made of, whatever the lowering read."""
    facts = json_bytes({**entry.action.details(), "pto": True})
    return entry._replace(action=entry.action._replace(inputs=b"", facts=facts))


#: The places that were told of.
_reported: set[Place] = set()

_default: tuple[Settings, CompileCache] | None = None


def default_cache() -> CompileCache:
    """The cache of this process, as the settings in force now ask for it."""
    global _default  # noqa: PLW0603 - one cache a process is the point: its memory tier is shared by all callers
    settings = Settings.load()
    if _default is None or _default[0] != settings:
        _default = (settings, CompileCache(settings))
    return _default[1]


def compile(  # noqa: A001 - ptocache.compile is its name
    source: str, arch: str | None = None, flags: Sequence[str] | str | None = None, verbose: bool = False
) -> bytes:
    """Return the device binary of a PTODSL source, compiling it only if that was not done before.

    The cache is the one that the settings name. See `CompileCache.compile` for the arguments and the errors.

    Returns:
        The device binary, an ELF file that the Ascend runtime loads.
    """
    return default_cache().compile(source, arch, flags, verbose).aibin
