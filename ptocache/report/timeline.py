"""What was requested when: the counts of hours, added up by hour or by day as a chart can show them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone, tzinfo
from typing import NamedTuple

from ptocache.counters import HISTORY_HOURS
from ptocache.statistics import Statistics

#: Up to so many hours are shown one by one, and more as days.
HOURS_SHOWN = 72

#: The outcomes of a request, in the order in which they are shown, with what each is called.
OUTCOMES = {
    "memory": "memory",
    "local": "local",
    "shared": "shared",
    "pto": "after lowering",
    "compiled": "compiled",
    "failed": "failed",
    "failure_remembered": "failed, remembered",
}
_HITS = ("memory", "local", "shared", "pto")

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

#: At most so many dates are written along a wide chart, and below a narrow one.
_MOST_TICKS = 10
_MOST_MAIN_TICKS = 4


class Bucket(NamedTuple):
    """An hour or a day.

    Attributes:
        start: when it begins, in the time zone of the report.
        outcomes: how many requests ended in which way, under the names of `OUTCOMES`.
        saved: how many seconds the cache saved.
    """

    start: datetime
    outcomes: dict[str, float]
    saved: float

    @property
    def requests(self) -> float:
        """How many requests there were."""
        return sum(self.outcomes.values())

    @property
    def hits(self) -> float:
        """How many of them were hits."""
        return sum(self.outcomes[name] for name in _HITS)

    @property
    def hit_rate(self) -> float | None:
        """The share of the hits, from 0 to 1; `None` where nothing was requested."""
        return self.hits / self.requests if self.requests else None


class Tick(NamedTuple):
    """A date below a chart.

    Attributes:
        place: which bucket begins there.
        text: what is written.
        is_main: whether it is written below a narrow chart too.
    """

    place: int
    text: str
    is_main: bool


class Timeline(NamedTuple):
    """All buckets from the first to the last, without a gap.

    Attributes:
        unit: `hour` or `day`.
        buckets: one for each, also where nothing was requested.
    """

    unit: str
    buckets: list[Bucket]

    def name(self, bucket: Bucket) -> str:
        """A bucket as a table and a tooltip call it: `Mon 2 Nov 2026`, with `14:00` where it is an hour."""
        day = f"{_WEEKDAYS[bucket.start.weekday()]} {day_text(bucket.start)}"
        return f"{day} {bucket.start:%H:%M}" if self.unit == "hour" else day

    def ticks(self) -> list[Tick]:
        """The dates to write below a chart."""
        starts = [bucket.start for bucket in self.buckets]
        steps = (1, 2, 3, 6, 12, 24) if self.unit == "hour" else (1, 2, 7, 14, 28)
        step = next((step for step in steps if len(starts) <= step * _MOST_TICKS), steps[-1])
        found = [index for index, start in enumerate(starts) if self._is_round(start, step)]
        every = -(-len(found) // _MOST_MAIN_TICKS)
        return [Tick(index, self._tick(starts[index]), rank % every == 0) for rank, index in enumerate(found)]

    def _is_round(self, start: datetime, step: int) -> bool:
        if self.unit == "hour":
            return start.hour % step == 0
        return (start.toordinal() - 1) % step == 0  # 1 January of the year 1 was a Monday

    def _tick(self, start: datetime) -> str:
        if self.unit == "hour" and start.hour:
            return f"{start:%H:%M}"
        return f"{start.day} {_MONTHS[start.month - 1]}"


def make_timeline(statistics: Statistics, now: datetime) -> Timeline:
    """The counts of a cache's hours up to now, in now's time zone; without buckets where no hour is known."""
    newest = max([_hour(now.timestamp()), *statistics.hours])
    hours = {hour: counts for hour, counts in statistics.hours.items() if newest - hour < HISTORY_HOURS}
    if not hours:
        return Timeline("hour", [])
    oldest = min(hours)
    if statistics.since is not None:  # nothing was requested between then and the first hour
        oldest = min(oldest, max(_hour(statistics.since), newest - HISTORY_HOURS + 1))
    if newest - oldest < HOURS_SHOWN:
        starts = (_moment(hour, now.tzinfo) for hour in range(oldest, newest + 1))
        return Timeline("hour", [_bucket(start, [hours.get(_hour(start.timestamp()), {})]) for start in starts])
    days: dict[date, list[dict[str, float]]] = {}
    for hour, counts in hours.items():
        days.setdefault(_moment(hour, now.tzinfo).date(), []).append(counts)
    first, last = (_moment(hour, now.tzinfo).date() for hour in (oldest, newest))
    return Timeline("day", [_bucket(_midnight(day, now.tzinfo), days.get(day, [])) for day in _days(first, last)])


def day_text(moment: datetime) -> str:
    """A day as people write it: `2 Nov 2026`."""
    return f"{moment.day} {_MONTHS[moment.month - 1]} {moment.year}"


def _bucket(start: datetime, hours: list[dict[str, float]]) -> Bucket:
    def total(name: str) -> float:
        return sum(counts.get(name, 0.0) for counts in hours)

    remembered = total("failures_remembered")
    outcomes = {name: total(f"hits.{name}") for name in _HITS}
    outcomes |= {"compiled": total("compiles"), "failed": max(0.0, total("failures") - remembered)}
    return Bucket(start, {**outcomes, "failure_remembered": remembered}, total("seconds_saved"))


def _days(first: date, last: date) -> Iterator[date]:
    for number in range((last - first).days + 1):
        yield first + timedelta(days=number)


def _midnight(day: date, zone: tzinfo | None) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=zone)


def _moment(hour: int, zone: tzinfo | None) -> datetime:
    return datetime.fromtimestamp(hour * 3600, zone or timezone.utc)


def _hour(seconds: float) -> int:
    return int(seconds // 3600)
