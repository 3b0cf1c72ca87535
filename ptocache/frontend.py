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
from ptocache.errors import PtocacheError
from ptocache.log import log_to_stderr
from ptocache.request import ARCHS, CompileRequest, Key, make_key, make_request, pto_parts, source_parts
from ptocache.settings import Settings
from ptocache.stamp import RECHECK_SECONDS, Stamp, make_stamp
from ptocache.store.entry import Action, Entry, make_entry
from ptocache.store.local import LocalTier
from ptocache.store.memory import MemoryTier
from ptocache.store.tiers import Store
from ptocache.tools import TOOL_VARIABLES, Toolchain, locate, tool_environ

if TYPE_CHECKING:
    from ptocache.pipeline import Stages


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
        """The Python names of the kernels in it, in the order of their definition."""
        return list(self.action.details()["kernels"])


class CompileCache:
    """Compiles PTODSL sources, each once.

    A context manager; safe to share between threads, and to use on after a fork.

    Args:
        settings: what to do and where; read from the environment and the configuration file by default.

    Example:
        with CompileCache() as cache:
            result = cache.compile(source)
            print(result.origin, len(result.aibin))
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = Settings.load() if settings is None else settings
        if self.settings.log:
            log_to_stderr(self.settings.log)
        self.local = LocalTier(self.settings.dir, self.settings.size_limit, self.settings.readonly)
        self.counters = Counters(self.settings.dir, self.settings.readonly)
        self._store = Store([MemoryTier(), self.local], self.counters)
        self._identified: _Identified | None = None

    def __enter__(self) -> CompileCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Write the counts and close the index. A cache that is used again opens what it needs."""
        self.counters.flush()
        self.local.close()

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
        job = self._accept(source, arch, flags, verbose)
        if self.settings.disable:
            with self._pipeline(job) as stages:
                return job.result(self._describe(job, stages, stages.build(stages.lower())), "compiled", None)
        return self._look_up(job) or self._compile_once(job)

    def _accept(self, source: str, arch: str | None, flags: Sequence[str] | str | None, verbose: bool) -> _Job:
        start = time.perf_counter()
        if arch is None:
            arch = os.environ.get("PTO_ARCH", "").strip() or ARCHS[0]
        if flags is None:
            flags = os.environ.get("PTO_FLAGS", "")
        request = make_request(source, arch, flags)
        tools, stamp = self._identify_tools()
        return _Job(request, make_key(source_parts(request, str(stamp))), tools, stamp, verbose, start)

    def _look_up(self, job: _Job) -> CompileResult | None:
        found = self._store.get(job.key)
        if found is None:
            return None
        return self._hit(job, found.entry, found.origin, "source", saved=found.entry.action.seconds)

    def _hit(self, job: _Job, entry: Entry, origin: str, via: str, saved: float) -> CompileResult:
        self.counters.add(f"hits.{origin}")
        self.counters.add("seconds_saved", max(saved, 0.0))
        return job.result(entry, origin, via)

    def _compile_once(self, job: _Job) -> CompileResult:
        """Compile under the lease on the key, unless another process did while this one waited."""
        from ptocache.lease import lease  # filelock takes longer to import than a hit takes

        with lease(self.settings, job.key.name):
            result = self._look_up(job)
            if result is None:
                try:
                    result = self._compile(job)
                except PtocacheError:
                    self.counters.add("misses")
                    self.counters.add("failures")
                    raise
                finally:
                    self.counters.flush()
        return result

    def _compile(self, job: _Job) -> CompileResult:
        """Run the pipeline; where the lowered text is known, without its two expensive stages."""
        with self._pipeline(job) as stages:
            pto_path = stages.lower()
            with open(pto_path, encoding="utf-8", newline="", errors="surrogateescape") as file:
                key = make_key(pto_parts(file.read(), job.request, job.stamp.backend))
            found = self._store.get(key)
            if found is not None:
                self._store.put([job.key], found.entry)
                spent = time.perf_counter() - job.start
                return self._hit(job, found.entry, found.origin, "pto", saved=found.entry.action.seconds - spent)
            entry = self._describe(job, stages, stages.build(pto_path))
        # Tools that were replaced meanwhile made something that this stamp does not name.
        if make_stamp(job.tools) == job.stamp:
            self._store.put([job.key, key], entry)
        self.counters.add("misses")
        self.counters.add("compiles")
        self.counters.add("seconds_compiling", entry.action.seconds)
        return job.result(entry, "compiled", None)

    @contextlib.contextmanager
    def _pipeline(self, job: _Job) -> Iterator[Stages]:
        from ptocache.pipeline import Run, Stages, work_directory  # only a miss needs it
        from ptocache.source import find_kernels

        kernels = find_kernels(job.request.source)
        # The variables of now: those of the moment when the toolchain was identified may be a second old.
        run = Run(tool_environ(self.settings.toolchain), self.settings.compile_timeout, job.verbose)
        with work_directory(self.settings.keep_temps) as work:
            yield Stages(run, job.tools, job.request, kernels, work)

    def _describe(self, job: _Job, stages: Stages, aibin: bytes) -> Entry:
        return make_entry(
            aibin,
            seconds=time.perf_counter() - job.start,
            created=time.time(),
            facts={
                "kernels": [kernel.name for kernel in stages.kernels],
                "arch": job.request.arch,
                "flags": list(job.request.flags),
                "toolchain": str(job.stamp),
            },
        )

    def _identify_tools(self) -> tuple[Toolchain, Stamp]:
        """The toolchain and its stamp, looked at anew when a second has passed or a variable has changed."""
        variables = tuple(os.environ.get(name) for name in TOOL_VARIABLES)
        now = time.monotonic()
        known = self._identified
        if known is None or known.variables != variables or now - known.when > RECHECK_SECONDS:
            tools = locate(tool_environ(self.settings.toolchain))
            known = self._identified = _Identified(tools, make_stamp(tools), variables, now)
        return known.tools, known.stamp


class _Job(NamedTuple):
    """A request on its way."""

    request: CompileRequest
    key: Key
    tools: Toolchain
    stamp: Stamp
    verbose: bool
    start: float

    def result(self, entry: Entry, origin: str, via: str | None) -> CompileResult:
        seconds = time.perf_counter() - self.start
        return CompileResult(entry.aibin, self.key.name, origin, via, seconds, self.request, entry.action)


class _Identified(NamedTuple):
    """A toolchain as it was a moment ago."""

    tools: Toolchain
    stamp: Stamp
    variables: tuple[str | None, ...]
    when: float


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
        The device binary: an ELF file that the Ascend runtime loads.
    """
    return default_cache().compile(source, arch, flags, verbose).aibin
