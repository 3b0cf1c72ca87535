"""Why a request hits or misses: the parts of its key, and the nearest compilation that is stored.

Nearest means: the same kernels first, then the most equal parts, then the newest.
"""

from __future__ import annotations

import difflib
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ptocache.errors import SourceError
from ptocache.inputs import Input, decode_inputs
from ptocache.request import key_flags, source_digest
from ptocache.source import find_kernels
from ptocache.store.entry import Action, Tier
from ptocache.store.failures import Failures
from ptocache.store.local import LocalTier

if TYPE_CHECKING:
    from ptocache.frontend import CompileCache, Job
    from ptocache.settings import Settings


class Difference(NamedTuple):
    """A part that differs between a request and a stored compilation.

    Attributes:
        part: the part's name: `source`, `arch`, `flags`, a part of the stamp, or an input.
        stored: what it was; empty for nothing.
        now: what it is; empty for nothing.
    """

    part: str
    stored: str
    now: str


class Nearest(NamedTuple):
    """The stored compilation that is most like a request.

    Attributes:
        key: the name of its key.
        kernels: its kernels.
        created: when it was made, in seconds since the epoch.
        differences: what keeps it from answering the request.
        diff: the unified diff of the sources, if they differ and the stored one was kept.
    """

    key: str
    kernels: list[str]
    created: float
    differences: list[Difference]
    diff: str


class Explanation(NamedTuple):
    """What there is to say of a request.

    Attributes:
        key: the name of its source key.
        hit: the tier that has it, or `None`.
        parts: the parts of the key, as text.
        inputs: for a hit, what the lowering read beside the source; it is the same now.
        nearest: for a miss, the stored compilation that is most like it, if there is any.
        failure: for a miss, the message of the failure that is remembered and would be the answer, or `None`.
        notes: the settings that make a compile do something else than this says.
    """

    key: str
    hit: str | None
    parts: list[tuple[str, str]]
    inputs: list[Input]
    nearest: Nearest | None
    failure: str | None
    notes: list[str]


def explain(cache: CompileCache, job: Job) -> Explanation:
    """Explain a request without compiling anything; nothing that is stored is touched.

    Args:
        cache: where to look.
        job: the request, from `CompileCache.prepare`.

    Returns:
        The explanation.

    Raises:
        SourceError: the source does not parse or has no kernel: whatever is stored, it cannot be compiled.
        RefusedDirectoryError: the cache directory is not used.
    """
    find_kernels(job.request.source)
    cache.require_directory()
    settings = cache.settings
    local = LocalTier(settings.dir, readonly=True)
    notes = list(_notes(settings))
    tiers: list[Tier] = [local, *cache.shared_tiers()]
    for tier in tiers:
        entry = tier.get(job.key, job.checker.unchanged, job.checker.state)
        if entry is not None:
            inputs = list(decode_inputs(entry.action.inputs) or ())
            return Explanation(job.key.name, tier.name, job.parts(), inputs, None, None, notes)
    failures = Failures(local.layout, settings.failure_ttl, readonly=True)
    failure = failures.get(job.key, job.checker.unchanged)
    message = None if failure is None else str(failure)
    return Explanation(job.key.name, None, job.parts(), [], find_nearest(local, job), message, notes)


def reason(cache: CompileCache, job: Job) -> str:
    """Why a request is a miss, in one line."""
    if cache.place.refused:
        return "the cache directory is not used"
    if cache.settings.recompile:
        return "PTOCACHE_RECOMPILE is set"
    nearest = find_nearest(cache.local, job)
    if nearest is None:
        return "nothing is stored yet"
    what = ", ".join(difference.part for difference in nearest.differences) or "nothing, but its output is gone"
    text = f"of the stored compilations {nearest.key} ({', '.join(nearest.kernels)}) is nearest; different: {what}"
    return " ".join(text.splitlines())


def find_nearest(local: LocalTier, job: Job) -> Nearest | None:
    """The stored compilation that is most like a request, `None` where nothing is stored."""
    try:
        kernels = [kernel.name for kernel in find_kernels(job.request.source)]
    except SourceError:
        kernels = []
    now = dict(job.parts())
    best: tuple[tuple[bool, int, float], str, Action] | None = None
    for name, action in local.all_actions():
        parts = _parts(action, job.recipe.kind)
        if parts is None:
            continue
        equal = sum(parts.get(part) == value for part, value in now.items())
        rank = (action.details()["kernels"] == kernels, equal, action.created)
        if best is None or rank > best[0]:
            best = (rank, name, action)
    if best is None:
        return None
    _, name, action = best
    stored = _parts(action, job.recipe.kind) or {}
    differences = [
        Difference(part, *_different_lines(stored.get(part, ""), now.get(part, "")))
        for part in [*now, *(part for part in stored if part not in now)]
        if stored.get(part, "") != now.get(part, "")
    ]
    differences += [
        Difference(f"{item.kind} {item.name}", item.digest, job.checker.state(item))
        for item in job.checker.changed(decode_inputs(action.inputs) or ())
    ]
    diff = ""
    if stored["source"] != now["source"]:
        old = local.source(name)
        # What was kept may be damaged.
        if old is not None and source_digest(old) == stored["source"]:
            diff = _diff(old, job.request.source)
    return Nearest(name, list(action.details()["kernels"]), action.created, differences, diff)


def _parts(action: Action, kind: str) -> dict[str, str] | None:
    """The parts of the key that an action was stored under; `None` for another kind of key, and what is not ours."""
    try:
        facts = action.details()
        if "pto" in facts or facts["kind"] != kind:
            return None
        flags = " ".join(key_flags(facts["flags"]))
        texts = {"source": facts["source"], "arch": facts["arch"], "flags": flags, **facts["stamp"]}
        return texts if all(isinstance(text, str) for text in [*texts.values(), *facts["kernels"]]) else None
    except (ValueError, LookupError, TypeError):
        return None


def _different_lines(stored: str, now: str) -> tuple[str, str]:
    """Two values without the lines that are in both, unless only their order differs."""
    old, new = stored.splitlines(), now.splitlines()
    only_old = [line for line in old if line not in new]
    only_new = [line for line in new if line not in old]
    return ("\n".join(only_old), "\n".join(only_new)) if only_old or only_new else (stored, now)


def _diff(stored: str, now: str) -> str:
    lines = difflib.unified_diff(
        list(io.StringIO(stored, newline="")), list(io.StringIO(now, newline="")), "stored", "now", n=1
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _notes(settings: Settings) -> Iterator[str]:
    if settings.disable:
        yield "PTOCACHE_DISABLE is set: the cache is neither read nor written."
    elif settings.recompile:
        yield "PTOCACHE_RECOMPILE is set: what is stored is not used, but replaced."
    elif settings.verify:
        yield "PTOCACHE_VERIFY is set: a hit is compiled too, and compared."
