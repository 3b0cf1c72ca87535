"""The part of the report about requests: at a glance, over time, and by outcome."""

from __future__ import annotations

import re

from ptocache.report import charts
from ptocache.report.figures import count_cell, counted, share_cell, share_text, time_cell, time_text
from ptocache.report.markup import Html, element, join
from ptocache.report.tables import Cell, Column, table
from ptocache.report.timeline import OUTCOMES, Bucket, Timeline, day_text
from ptocache.statistics import Statistics
from ptocache.text import bytes_text

#: How high the chart of all outcomes is, in pixels: as the table beside it.
_HIGH = 240


def glance(statistics: Statistics) -> Html:
    """The figures that one looks for first."""
    rate = statistics.hit_rate
    limit = f"of {bytes_text(statistics.limit_bytes)}" if statistics.limit_bytes else "no limit"
    full = min(1.0, statistics.bytes / statistics.limit_bytes) if statistics.limit_bytes else None
    hits = f"{sum(statistics.hits.values()):,} of {counted(statistics.requests, 'request')}"
    compiling = f"after {time_text(statistics.seconds_compiling)} of compiling"
    outcomes = f"{statistics.compiles:,} compiled, {statistics.failures:,} failed"
    return element(
        "section",
        element("h2", "At a glance", class_="unseen"),
        element(
            "dl",
            _tile("Hit rate", share_text(rate), hits, rate),
            _tile("Time saved", time_text(statistics.seconds_saved), compiling),
            _tile("Requests", f"{statistics.requests:,}", outcomes),
            _tile("Size", bytes_text(statistics.bytes), f"{limit}, {counted(statistics.entries, 'entry')}", full),
            class_="tiles",
        ),
    )


def history(timeline: Timeline) -> Html:
    """The hit rate and the time saved over time."""
    frame = _frame(timeline)
    rates = [bucket.hit_rate for bucket in timeline.buckets]
    saved = [bucket.saved for bucket in timeline.buckets]
    known = [rate for rate in rates if rate is not None] or [0.0]
    lowest, highest = share_text(min(known)), share_text(max(known))
    tips = [_tip(timeline, bucket) for bucket in timeline.buckets]
    rate_label = f"Hit rate by {timeline.unit}, {_range(timeline)}: between {lowest} and {highest}."
    saved_label = (
        f"Time saved by {timeline.unit}, {_range(timeline)}: at most {time_text(max(saved))} in one {timeline.unit}."
    )
    rate_chart = charts.line_chart(frame, rates, charts.share_scale(), tips, rate_label)
    saved_chart = charts.column_chart(frame, {"local": saved}, charts.seconds_scale(max(saved)), tips, saved_label)
    return element(
        "section",
        element("h2", "Over time"),
        element(
            "div",
            _figure("Hit rate", rate_chart, timeline),
            _figure("Time saved", saved_chart, timeline),
            class_="half",
        ),
        element(
            "details",
            element("summary", f"All figures by {timeline.unit}"),
            _bucket_table(timeline),
            class_="card",
        ),
    )


def outcomes(statistics: Statistics, timeline: Timeline) -> Html:
    """How requests ended: over time, and altogether."""
    shares = {name: count / statistics.requests for name, count in statistics.outcomes().items()}
    columns = [Column("Outcome", numeric=False), Column("Requests"), Column("Share")]
    rows = [
        [Cell(join(charts.bar({name: 1.0}, "swatch"), OUTCOMES[name])), count_cell(count), share_cell(shares[name])]
        for name, count in statistics.outcomes().items()
    ]
    altogether = element(
        "div",
        element("h3", "Altogether"),
        charts.bar(shares),
        table("All requests by outcome", columns, rows),
        class_="card",
    )
    return element(
        "section",
        element("h2", "Requests by outcome"),
        element("div", _outcomes_chart(timeline), altogether, class_="wide-first") if timeline.buckets else altogether,
    )


def nothing_yet() -> Html:
    """What stands in the place of all that where nothing was requested."""
    return element(
        "section",
        element("h2", "Nothing was requested yet"),
        element("p", "This page has figures as soon as a kernel is compiled. To try it, on any machine:"),
        element("pre", element("code", "ptocache compile examples/vector_add.py --emulate")),
        class_="card nothing",
    )


def _tile(name: str, figure: str, more: str, share: float | None = None) -> Html:
    # The units are smaller than the digits.
    words = re.split(r"([A-Za-z% ]+)", figure)
    return element(
        "div",
        element("dt", name),
        element("dd", *(element("small", word) if word in words[1::2] else word for word in words), class_="figure"),
        element("dd", more),
        element("dd", charts.bar({"local": share}), aria_hidden="true") if share is not None else None,
    )


def _figure(name: str, chart: Html, timeline: Timeline) -> Html:
    caption = element("figcaption", element("h3", name), element("p", f"by {timeline.unit}", class_="readout"))
    return element("figure", caption, chart, class_="card")


def _outcomes_chart(timeline: Timeline) -> Html:
    most = max(bucket.requests for bucket in timeline.buckets)
    series = {name: [bucket.outcomes[name] for bucket in timeline.buckets] for name in OUTCOMES}
    tips = [_outcomes_tip(timeline, bucket) for bucket in timeline.buckets]
    label = f"Requests by outcome and {timeline.unit}, {_range(timeline)}: at most {most:,.0f} in one {timeline.unit}."
    chart = charts.column_chart(_frame(timeline, _HIGH), series, charts.count_scale(most), tips, label)
    return _figure("Requests", chart, timeline)


def _bucket_table(timeline: Timeline) -> Html:
    columns = [
        Column(timeline.unit.capitalize(), numeric=False, sorted_="ascending"),
        *(Column(name) for name in ("Requests", "Hits", "Hit rate", "Compiled", "Failed", "Time saved")),
    ]
    rows = [
        [
            Cell(timeline.name(bucket), bucket.start.isoformat()),
            count_cell(bucket.requests),
            count_cell(bucket.hits),
            share_cell(bucket.hit_rate),
            count_cell(bucket.outcomes["compiled"]),
            count_cell(bucket.outcomes["failed"] + bucket.outcomes["failure_remembered"]),
            time_cell(bucket.saved if bucket.requests else None),
        ]
        for bucket in timeline.buckets
    ]
    return table(f"Requests by {timeline.unit}", columns, rows, sortable=True, class_="tall")


def _frame(timeline: Timeline, height: int = 150) -> charts.Frame:
    return charts.Frame(len(timeline.buckets), timeline.ticks(), height)


def _range(timeline: Timeline) -> str:
    first, last = timeline.buckets[0].start, timeline.buckets[-1].start
    return f"{day_text(first)} to {day_text(last)}" if first.date() != last.date() else day_text(first)


def _tip(timeline: Timeline, bucket: Bucket) -> str:
    if not bucket.requests:
        return f"{timeline.name(bucket)}: no requests"
    requests = counted(bucket.requests, "request")
    rate, saved = share_text(bucket.hit_rate), time_text(bucket.saved)
    return f"{timeline.name(bucket)}: {rate} of {requests}, {saved} saved"


def _outcomes_tip(timeline: Timeline, bucket: Bucket) -> str:
    found = [f"{bucket.outcomes[name]:,.0f} {text}" for name, text in OUTCOMES.items() if bucket.outcomes[name]]
    return f"{timeline.name(bucket)}: {', '.join(found) or 'no requests'}"
