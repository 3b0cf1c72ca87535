"""The part of the report about kernels: which cost most, and which the cache was most useful for."""

from __future__ import annotations

from collections.abc import Callable

from ptocache.report import charts
from ptocache.report.figures import count_cell, counted, finite, time_cell, time_text
from ptocache.report.markup import Html, element, foreign, join
from ptocache.report.tables import Cell, Column, table
from ptocache.statistics import KernelUse, Statistics

#: How many kernels each of the short lists has.
_RANKED = 5

#: How many names of a source with many kernels are shown, and how many digits of its key.
_NAMES = 4
_DIGITS = 12


def costs(statistics: Statistics) -> Html | None:
    """The kernels by what they cost; `None` where none is known."""
    lists = (statistics.kernels_saved, statistics.kernels_used, statistics.kernels_slowest)
    uses = {use.key: use for kernels in lists for use in kernels}
    kernels = sorted(uses.values(), key=lambda use: (-finite(use.seconds_saved), use.key))
    if not kernels:
        return None
    return element(
        "section",
        element("h2", "Kernels by cost"),
        element(
            "div",
            _ranking("Most time saved", kernels, lambda use: use.seconds_saved, time_text),
            _ranking("Slowest to compile", kernels, lambda use: use.seconds, time_text),
            _ranking("Most often found", kernels, lambda use: use.hits, lambda hits: counted(hits, "hit")),
            class_="third",
        ),
        element("div", _table(kernels), class_="card"),
    )


def _ranking(
    name: str, kernels: list[KernelUse], cost: Callable[[KernelUse], float], text: Callable[[float], str]
) -> Html:
    ranked = sorted(((finite(cost(use)), use) for use in kernels), key=lambda item: (-item[0], item[1].key))[:_RANKED]
    most = ranked[0][0] or 1.0
    items = [
        element(
            "li",
            element("span", _names(use), class_="name"),
            element("span", text(amount), class_="amount"),
            charts.bar({"local": amount / most}, "bar thin"),
        )
        for amount, use in ranked
        if amount
    ]
    listed = element("ol", *items) if items else element("p", "none yet")
    return element("div", element("h3", name), listed, class_="card ranking")


def _table(kernels: list[KernelUse]) -> Html:
    columns = [
        Column("Kernels", numeric=False),
        Column("Arch", numeric=False),
        Column("Key", numeric=False),
        Column("Hits"),
        Column("Compilation"),
        Column("Time saved", sorted_="descending"),
    ]
    rows = [
        [
            Cell(_names(use), ", ".join(use.kernels)),
            Cell(foreign(use.arch), use.arch),
            Cell(element("code", use.key[:_DIGITS], title=use.key), use.key),
            count_cell(use.hits),
            time_cell(use.seconds),
            time_cell(use.seconds_saved),
        ]
        for use in kernels
    ]
    note = "What is still stored and saved most, was used most or took longest. Saved: the hits, times the compilation."
    return table("Kernels by cost", columns, rows, sortable=True, note=note, class_="tall")


def _names(use: KernelUse) -> Html:
    if not use.kernels:
        return element("code", use.key[:_DIGITS], title=use.key)
    names = [foreign(name) for name in use.kernels[:_NAMES]]
    more = len(use.kernels) - _NAMES
    parts = [part for name in names for part in (", ", name)][1:]
    return join(*parts, f" and {more} more" if more > 0 else None)
