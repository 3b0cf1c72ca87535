"""The part of the report about what is stored, here and on the shared engines."""

from __future__ import annotations

from ptocache.recipe import PTODSL
from ptocache.report import charts
from ptocache.report.figures import bytes_cell, count_cell, share_cell, time_cell
from ptocache.report.markup import Html, element, foreign, join
from ptocache.report.tables import Cell, Column, Group, table
from ptocache.statistics import Statistics, Toolchain

#: How the kinds of compilation are called.
_KINDS = {PTODSL: "PTODSL", "ascendc": "AscendC"}

#: Of each engine: what is counted under which header.
_PROBLEMS = {"errors": "Errors", "rejected": "Not used", "skipped": "Not asked", "dropped": "Not sent"}


def toolchains(statistics: Statistics) -> Html | None:
    """What is stored, by the toolchain that made it; `None` where that is unknown."""
    if not statistics.toolchains:
        return None
    total = sum(group.bytes for group in statistics.toolchains) or 1
    columns = [
        Column("Toolchain", numeric=False),
        Column("Arch", numeric=False),
        Column("Kind", numeric=False),
        Column("Entries"),
        Column("Size", sorted_="descending"),
        Column("Share"),
        Column("Now", numeric=False),
    ]
    rows = [
        [
            Cell(_version(group), group.version),
            Cell(foreign(group.arch), group.arch),
            Cell(foreign(_KINDS.get(group.kind, group.kind)), group.kind),
            count_cell(group.entries),
            bytes_cell(group.bytes),
            share_cell(group.bytes / total)._replace(content=_share_bar(group.bytes / total)),
            _now(group),
        ]
        for group in sorted(statistics.toolchains, key=lambda group: -group.bytes)
    ]
    note = "Stale: made by another toolchain than the one that is installed here now."
    return element(
        "section",
        element("h2", "What is stored"),
        element("div", table("Entries by toolchain", columns, rows, sortable=True, note=note), class_="card"),
    )


def engines(statistics: Statistics) -> Html | None:
    """What each engine of the shared tier did; `None` where there is none."""
    if not statistics.engines:
        return None
    groups = [Group("", 1), Group("Read", 4), Group("Written", 3), Group("Problems", len(_PROBLEMS))]
    columns = [
        Column("Engine", numeric=False),
        *(Column(name) for name in ("Hits", "Misses", "Bytes", "Latency", "Objects", "Bytes", "Latency")),
        *(Column(name) for name in _PROBLEMS.values()),
    ]
    rows = [_engine_row(label, counts) for label, counts in statistics.engines.items()]
    note = (
        "Not used: objects that are damaged, or not signed as they should be. Not asked: while it had failed. "
        "Not sent: while too much was waiting."
    )
    return element(
        "section",
        element("h2", "Shared engines"),
        element("div", table("Shared engines", columns, rows, groups=groups, note=note), class_="card"),
    )


def _version(group: Toolchain) -> Html:
    if not group.toolchain:
        return Html("unknown")
    digests = group.toolchain.removeprefix(group.version).lstrip("-")
    return join(foreign(group.version), " ", element("code", foreign(digests)) if digests else None)


def _share_bar(share: float) -> Html:
    return join(charts.bar({"local": share}, "bar inline"), share_cell(share).content)


def _now(group: Toolchain) -> Cell:
    text = {True: "stale", False: "current", None: "unknown"}[group.stale]
    return Cell(element("span", text, class_=f"badge {text}"), text)


def _engine_row(label: str, counts: dict[str, float]) -> list[Cell]:
    reads = counts["hits"] + counts["misses"]
    stores = counts["stores"]
    return [
        Cell(foreign(label)),
        count_cell(counts["hits"]),
        count_cell(counts["misses"]),
        bytes_cell(counts["bytes_read"]),
        time_cell(counts["seconds_reading"] / reads if reads else None),
        count_cell(stores),
        bytes_cell(counts["bytes_written"]),
        time_cell(counts["seconds_writing"] / stores if stores else None),
        *(_problem(counts[name]) for name in _PROBLEMS),
    ]


def _problem(count: float) -> Cell:
    text = f"{count:,.0f}"
    return Cell(element("strong", text) if count else text, count)
