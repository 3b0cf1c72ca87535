"""Figures of a team's cache, made up, for the report: seven weeks, three toolchains, two engines, forty kernels.

Run by itself it makes the picture in the documentation (with the `test` extra and Chromium):

    python3 tests/report_demo.py docs/images/report.png
"""

from __future__ import annotations

import hashlib
import random
import sys
import tempfile
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

from ptocache.report import render
from ptocache.statistics import KernelUse, Statistics, Toolchain

NOW = datetime(2026, 11, 20, 16, 25, tzinfo=timezone(timedelta(hours=1)))
DAYS = 49

_FAMILIES = ("flash_attention", "matmul", "rms_norm", "softmax", "rope", "moe_dispatch", "layer_norm", "gelu")
_VARIANTS = ("fp16_128", "bf16_128", "bf16_256", "fp8_256", "fp16_causal")


def demo_statistics(now: datetime = NOW, days: int = DAYS, seed: int = 7) -> Statistics:
    """The figures of a cache in use since so many days."""
    chance = random.Random(seed)
    since = now - timedelta(days=days)
    hours: dict[int, dict[str, float]] = {}
    for number in range(days * 24 + 1):
        moment = since + timedelta(hours=number)
        if counts := _hour(chance, moment, number / 24):
            hours[int(moment.timestamp() // 3600)] = counts
    total = _totals(hours)
    kernels = _kernels(chance)
    return Statistics(
        directory="/var/cache/ptocache",
        since=since.timestamp(),
        entries=1204,
        bytes=int(3.1 * 2**30),
        limit_bytes=5 * 2**30,
        requests=int(sum(total(f"hits.{tier}") for tier in ("memory", "local", "shared", "pto")) + total("misses")),
        hits={tier: int(total(f"hits.{tier}")) for tier in ("memory", "local", "shared", "pto")},
        misses=int(total("misses")),
        compiles=int(total("compiles")),
        failures=int(total("failures")),
        failures_remembered=int(total("failures_remembered")),
        errors=3,
        damaged=0,
        evictions=118,
        seconds_compiling=total("seconds_compiling"),
        seconds_saved=total("seconds_saved"),
        engines=_engines(),
        hours=hours,
        toolchains=[
            Toolchain("source", "a5", "9.0.0-5b1f0c2e-7d20c9aa", "9.0.0", 734, int(1.9 * 2**30), False),
            Toolchain("source", "a5", "8.5.0-91c44d07-7d20c9aa", "8.5.0", 312, int(0.8 * 2**30), True),
            Toolchain("ascendc", "a3", "8.5.0-91c44d07-e0f3a1b6", "8.5.0", 158, int(0.4 * 2**30), None),
        ],
        kernels_saved=sorted(kernels, key=lambda use: -use.seconds_saved)[:30],
        kernels_used=sorted(kernels, key=lambda use: -use.hits)[:30],
        kernels_slowest=sorted(kernels, key=lambda use: -use.seconds)[:30],
    )


def _hour(chance: random.Random, moment: datetime, age: float) -> dict[str, float]:
    """An hour's counts: people work on weekdays, CI runs in the night, and a new toolchain came after four weeks."""
    is_weekend = moment.weekday() >= 5
    busy = (0 if is_weekend else 60) if 8 <= moment.hour < 19 else (30 if moment.hour == 2 and not is_weekend else 0)
    busy = busy or (12 if is_weekend and moment.hour == 11 and chance.random() < 0.3 else 0)
    requests = int(busy * chance.uniform(0.4, 1.6) * min(1.0, 0.5 + age / 40))
    if not requests:
        return {}
    since_new = age if age < 28 else age - 28
    missing = min(0.7, 0.03 + 0.55 * 0.5 ** (since_new / 1.2)) * chance.uniform(0.6, 1.3)
    misses = min(requests, round(requests * missing))
    failures = sum(chance.random() < 0.12 for _ in range(misses))
    remembered = sum(chance.random() < 0.35 for _ in range(failures))
    hits = requests - misses
    pto, shared = int(hits * 0.06), int(hits * (0.35 if moment.hour == 2 else 0.13))
    memory = int((hits - pto - shared) * 0.55)
    counts = {
        "hits.memory": memory,
        "hits.local": hits - pto - shared - memory,
        "hits.shared": shared,
        "hits.pto": pto,
        "misses": misses,
        "compiles": misses - failures,
        "failures": failures,
        "failures_remembered": remembered,
        "seconds_compiling": sum(chance.lognormvariate(1.2, 0.5) for _ in range(misses - failures)),
        "seconds_saved": sum(chance.lognormvariate(1.2, 0.5) for _ in range(hits)),
    }
    return {name: float(count) for name, count in counts.items() if count}


def _totals(hours: dict[int, dict[str, float]]) -> Callable[[str], float]:
    return lambda name: round(sum(counts.get(name, 0.0) for counts in hours.values()), 3)


def _kernels(chance: random.Random) -> list[KernelUse]:
    kernels = []
    for family in _FAMILIES:
        weight = chance.uniform(1.5, 6)
        for variant in _VARIANTS:
            key = hashlib.sha256(f"{family} {variant}".encode()).hexdigest()[:32]
            seconds = round(weight * chance.uniform(0.6, 1.8), 3)
            hits = int(chance.lognormvariate(4.6, 0.9))
            kernels.append(KernelUse(key, [f"{family}_{variant}"], "a5", hits, seconds, round(hits * seconds, 3)))
    return kernels


def _engines() -> dict[str, dict[str, float]]:
    names = ("hits", "misses", "errors", "rejected", "skipped", "stores", "dropped")
    sizes = ("bytes_read", "bytes_written", "seconds_reading", "seconds_writing")
    redis = dict(zip(names, (3121, 1490, 2, 0, 14, 1264, 0), strict=True))
    bucket = dict(zip(names, (402, 1088, 0, 0, 0, 1264, 0), strict=True))
    return {
        "redis://cache.example:6379/0": redis | dict(zip(sizes, (92.4e6, 37.1e6, 6.4, 2.9), strict=True)),
        "s3://kernels/ptocache": bucket | dict(zip(sizes, (12.3e6, 37.1e6, 41.2, 63.0), strict=True)),
    }


def main(picture: Path) -> None:
    """Make the picture."""
    import base64

    from browser import open_browser

    with tempfile.TemporaryDirectory() as place, open_browser(Path(place) / "profile") as browser:
        page = Path(place) / "report.html"
        page.write_bytes(render(demo_statistics(), NOW).encode())
        browser.open(page, width=1200, height=1180)
        shot = browser.command("Page.captureScreenshot", format="png")
    picture.write_bytes(base64.b64decode(shot["data"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
