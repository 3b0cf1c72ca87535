"""Tables: with a caption, numbers in line, and headers that the page's script makes into buttons that sort."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ptocache.report.markup import Html, element, join


class Cell(NamedTuple):
    """A cell of a table.

    Attributes:
        content: what it shows.
        value: what it is sorted by; the content where that is `None`.
    """

    content: object
    value: float | str | None = None


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        name: its header.
        numeric: whether it is of numbers.
        sorted_: `ascending` or `descending` where the rows are in its order.
    """

    name: str
    numeric: bool = True
    sorted_: str | None = None


class Group(NamedTuple):
    """Columns under a header of their own; what has no name is headed by its columns alone."""

    name: str
    columns: int


def table(
    caption: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    *,
    groups: Sequence[Group] = (),
    sortable: bool = False,
    note: str = "",
    class_: str = "",
) -> Html:
    """A table in a box of its own, which scrolls where there is too little room.

    Args:
        caption: what it shows, for those who do not see the heading above it.
        columns: its columns; the first one's cells are the headers of the rows.
        rows: a cell for each column.
        groups: headers above those of the columns.
        sortable: whether its headers sort.
        note: what is said above it.
        class_: a class of style for the box.
    """
    above = element("tr", *(_group(group) for group in groups)) if groups else None
    headers = element("tr", *(_header(column) for column in columns))
    body = [element("tr", *map(_cell, columns, row, [True, *[False] * len(columns)])) for row in rows]
    found = element(
        "table",
        element("caption", caption, class_="unseen"),
        element("thead", above, headers),
        element("tbody", join(*body)),
        class_="sortable" if sortable else None,
    )
    box = element("section", found, class_=f"scroll {class_}".rstrip(), aria_label=caption, tabindex=0)
    return join(element("p", note, class_="note") if note else None, box)


def _group(group: Group) -> Html:
    if not group.name:
        return element("td", colspan=group.columns)
    return element("th", group.name, scope="colgroup", colspan=group.columns)


def _header(column: Column) -> Html:
    class_ = "number" if column.numeric else None
    return element("th", column.name, scope="col", class_=class_, aria_sort=column.sorted_)


def _cell(column: Column, cell: Cell, is_first: bool) -> Html:
    value = f"{cell.value:.9g}" if isinstance(cell.value, (int, float)) else cell.value
    class_ = "number" if column.numeric else None
    if is_first:
        return element("th", element("span", cell.content), scope="row", class_=class_, data_value=value)
    return element("td", cell.content, class_=class_, data_value=value)
